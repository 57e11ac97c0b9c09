"""Machine code for ceilings and probe: loops as LLVM text, compiled for the host by llvmlite.

The loops are written by hand, and not through Numba, so that a ceiling shows what the processor can
do and not what a loop optimiser made of it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

_ELEMENT = {"float32": "float", "float64": "double"}
_INTRINSIC = {"float32": "f32", "float64": "f64"}
ELEMENT_BYTES = {"float32": 4, "float64": 8}

# Without these LLVM splits 512-bit vectors in two on processors that it tunes for 256 bits.
_WIDE = '"prefer-vector-width"="512" "min-legal-vector-width"="512" nounwind'


@dataclass(frozen=True)
class NativeFunction:
    """A compiled function together with the engine that owns its code; a call releases the GIL."""

    entry: Any
    engine: Any

    def __call__(self, *arguments: int) -> object:
        """Call it with integers and addresses."""
        return self.entry(*arguments)


@cache
def host_features() -> frozenset[str]:
    """Return the instruction-set features of the host by LLVM's names."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def vector_bytes() -> tuple[int, ...]:
    """Return the vector widths in bytes that the host offers, widest first."""
    features = host_features()
    widths = [64] if "avx512f" in features else []
    if "avx" in features:
        widths.append(32)
    return (*widths, 16)


def _compile(text: str, name: str, signature: Any) -> NativeFunction:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    # The engine takes ownership of its target machine: one each.
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return NativeFunction(signature(engine.get_function_address(name)), engine)


def fma_loop(dtype: str, vector_size: int, accumulators: int, unroll: int = 4) -> NativeFunction:
    """Compile a loop of fused multiply-adds that touches registers only.

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Element type.
    vector_size : int
        Bytes of a vector.
    accumulators : int
        Independent chains; their number hides the latency of an FMA.
    unroll : int
        Steps of every chain in one pass of the loop.

    Returns
    -------
    NativeFunction
        `f(n)` runs n passes: `2 * n * unroll * accumulators * lanes` floating-point operations.
    """
    lanes = vector_size // ELEMENT_BYTES[dtype]
    vector = f"<{lanes} x {_ELEMENT[dtype]}>"
    chains = range(accumulators)
    lines = [
        f"  %a{c}_0 = phi {vector} [ %start, %entry ], [ %a{c}_{unroll}, %loop ]" for c in chains
    ]
    lines += [
        _multiply_add(f"%a{c}_{step + 1}", f"%a{c}_{step}", vector, dtype)
        for step in range(unroll)
        for c in chains
    ]
    sums = [f"  %s0 = fadd {vector} %a0_{unroll}, %start"]
    sums += [f"  %s{c} = fadd {vector} %s{c - 1}, %a{c}_{unroll}" for c in chains if c]
    body, tail = "\n".join(lines), "\n".join(sums)
    text = f"""
declare {vector} @llvm.fma.v{lanes}{_INTRINSIC[dtype]}({vector}, {vector}, {vector})

define void @fma_loop(i64 %n, ptr %state) {_WIDE} {{
entry:
  %start = load {vector}, ptr %state, align 64
  %xp = getelementptr i8, ptr %state, i64 64
  %x = load {vector}, ptr %xp, align 64
  %yp = getelementptr i8, ptr %state, i64 128
  %y = load {vector}, ptr %yp, align 64
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
{body}
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %n
  br i1 %more, label %loop, label %exit
exit:
{tail}
  store {vector} %s{accumulators - 1}, ptr %state, align 64
  ret void
}}
"""
    return _compile(text, "fma_loop", ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p))


def _multiply_add(result: str, accumulator: str, vector: str, dtype: str) -> str:
    """Return `accumulator * x + y`, as two instructions where the host has no FMA."""
    if "fma" in host_features():
        name = f"@llvm.fma.v{vector[1:].split()[0]}{_INTRINSIC[dtype]}"
        return (
            f"  {result} = call {vector} {name}({vector} {accumulator}, {vector} %x, {vector} %y)"
        )
    product = f"{result}_product"
    return (
        f"  {product} = fmul {vector} {accumulator}, %x\n  {result} = fadd {vector} {product}, %y"
    )


def read_loop(vector_size: int, prefetch_bytes: int) -> NativeFunction:
    """Compile a loop that sums memory as 64-bit integers and does nothing else.

    Parameters
    ----------
    vector_size : int
        Bytes of a vector.
    prefetch_bytes : int
        Distance of software prefetches ahead of the loads; 0 = none, the hardware decides.

    Returns
    -------
    NativeFunction
        `f(address, size)` reads `size` bytes, a multiple of 512, from an address aligned to 64 and
        returns the sum.
    """
    lanes = vector_size // 8
    vector = f"<{lanes} x i64>"
    count = 512 // vector_size
    loads = []
    for c in range(count):
        loads.append(f"  %p{c} = getelementptr i8, ptr %p, i64 {c * vector_size}")
        loads.append(f"  %v{c} = load {vector}, ptr %p{c}, align {vector_size}")
        loads.append(f"  %b{c} = add {vector} %a{c}, %v{c}")
    for line in range(0, 512 if prefetch_bytes else 0, 64):
        loads.append(f"  %f{line} = getelementptr i8, ptr %p, i64 {prefetch_bytes + line}")
        loads.append(f"  call void @llvm.prefetch.p0(ptr %f{line}, i32 0, i32 3, i32 1)")
    phis = [
        f"  %a{c} = phi {vector} [ zeroinitializer, %entry ], [ %b{c}, %loop ]"
        for c in range(count)
    ]
    sums = [
        f"  %s{c} = add {vector} {f'%s{c - 1}' if c > 1 else '%b0'}, %b{c}" for c in range(1, count)
    ]
    heads, body, tail = "\n".join(phis), "\n".join(loads), "\n".join(sums)
    text = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.add.v{lanes}i64({vector})

define i64 @read_loop(ptr %address, i64 %size) {_WIDE} {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
{heads}
  %p = getelementptr i8, ptr %address, i64 %i
{body}
  %i_next = add i64 %i, 512
  %more = icmp ult i64 %i_next, %size
  br i1 %more, label %loop, label %exit
exit:
{tail}
  %sum = call i64 @llvm.vector.reduce.add.v{lanes}i64({vector} %s{count - 1})
  ret i64 %sum
}}
"""
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return _compile(text, "read_loop", signature)


def chase_loop() -> NativeFunction:
    """Compile a loop of loads each of which says where the next one is.

    Returns
    -------
    NativeFunction
        `f(address, n)` does n loads, the first from an address, and returns what the last one says.
    """
    text = """
define i64 @chase_loop(i64 %address, i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
  %at = phi i64 [ %address, %entry ], [ %next, %loop ]
  %p = inttoptr i64 %at to ptr
  %next = load i64, ptr %p, align 8
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret i64 %next
}
"""
    return _compile(text, "chase_loop", ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 2))


def chain_loop(chains: int, steps: int = 64) -> NativeFunction:
    """Compile a loop of integer operations in some chains that do not depend on each other.

    Each operation takes one cycle and needs the one before: so one chain takes a cycle a step on
    every core, and more take no longer as long as the core can issue one of each in a cycle.

    Parameters
    ----------
    chains : int
        How many operations may go on at once.
    steps : int
        Operations of every chain in one pass of the loop; even.

    Returns
    -------
    NativeFunction
        `f(n)` runs n passes.
    """
    names = range(chains)
    heads = [f"  %c{c}_0 = phi i64 [ {c}, %entry ], [ %c{c}_{steps}, %loop ]" for c in names]
    # An addition and an exclusive or by turns: neither LLVM nor the core can put two in one.
    body = [
        f"  %c{c}_{s + 1} = {'xor' if s % 2 else 'add'} i64 %c{c}_{s}, %n"
        for s in range(steps)
        for c in names
    ]
    sums = [f"  %s{c} = xor i64 {f'%s{c - 1}' if c else '0'}, %c{c}_{steps}" for c in names]
    text = f"""
define i64 @chain_loop(i64 %n) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
{chr(10).join(heads)}
{chr(10).join(body)}
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %n
  br i1 %more, label %loop, label %exit
exit:
{chr(10).join(sums)}
  ret i64 %s{chains - 1}
}}
"""
    return _compile(text, "chain_loop", ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64))


def repeat_loop(arguments: int) -> NativeFunction:
    """Compile a loop that calls a function again and again, without the way there from Python.

    Parameters
    ----------
    arguments : int
        Int64 arguments of the function, which returns nothing.

    Returns
    -------
    NativeFunction
        `f(n, address, *arguments)` calls it n times.
    """
    names = ", ".join(f"i64 %a{i}" for i in range(arguments))
    text = f"""
define void @repeat_loop(i64 %n, i64 %address, {names}) nounwind {{
entry:
  %f = inttoptr i64 %address to ptr
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i_next, %loop ]
  call void %f({names})
  %i_next = add i64 %i, 1
  %more = icmp ult i64 %i_next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}}
"""
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (2 + arguments))
    return _compile(text, "repeat_loop", signature)
