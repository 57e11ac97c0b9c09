"""Small modules of emitted code, called from Python: what a mask or an expression became."""

from __future__ import annotations

import ctypes

import numpy as np
from llvmlite import ir
from tests.backends.numba_cpu.kernels import of_text

from sdpakit.backends.base import Call
from sdpakit.backends.numba_cpu import context
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.functions import new_function
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.lower_expr import Walker
from sdpakit.backends.numba_cpu.lower_ranges import emit_ranges
from sdpakit.backends.numba_cpu.vector import Lanes, VectorEmitter
from sdpakit.expr.nodes import Binary, Const, Dot, Expr, Scalar
from sdpakit.ir.program import Program


def program_of(logit: Expr, mask: Expr, accum: str = "float32") -> Program:
    return Program(
        head_dim=1,
        v_head_dim=1,
        dtype=accum,
        accum_dtype=accum,
        out_dtype=accum,
        logit=logit,
        mask=mask,
        sink=None,
        outputs=("out",),
        empty_row="zero",
    )


def mask_program(mask: Expr) -> Program:
    return program_of(Binary("mul", Scalar("scale"), Dot()), mask)


def call_of(world, scalars, tables) -> Call:
    """Return a call of which only the run-time values of expressions matter."""
    q_len, kv_len, q_offset = world
    none = np.zeros((len(q_len), 1, 1, 1), np.float32)
    return Call(
        q=none,
        k=none,
        v=none,
        outputs={},
        tables=tables,
        scalars={"scale": 1.0, **scalars},
        q_len=np.asarray(q_len),
        kv_len=np.asarray(kv_len),
        q_offset=np.asarray(q_offset),
        threads=1,
    )


class Emitted:
    """Functions of a program: `key_ranges`, `tile_class` and the values at one key."""

    def __init__(self, program: Program, root: Expr, isa: str = "auto", int_bits: int = 32):
        self.isa, self.int_bits = select_isa(isa), int_bits
        self.root, self.layout = root, context.ContextLayout.of(program)
        self.element = "float64" if program.accum_dtype == "float64" else "float32"
        self.lanes = self.isa.lanes(self.element)
        module = ir.Module(name="test", context=ir.Context())
        emit_ranges(module, self.isa, program)
        self._emit_values(module)
        self._code = compile_kernel(of_text(str(module)), self.isa)

    def _emit_values(self, module) -> None:
        names = ("ctx", "b", "h", "q", "last", "j", "dot", "out")
        b = new_function(module, "values", names)
        ctx, batch, head, q, last, j, dot, out = b.function.args
        e = VectorEmitter(b, self.isa, self.element)
        rows = e.iadd(e.splat(q), e.lane_ids(64))
        rows = e.resize_int(e.imin(rows, e.splat(last)), self.int_bits)
        lanes = Lanes(e, rows, j, batch, head, ctx, self.int_bits, lambda n: None)
        value = Walker(self.layout, lanes, e.load(dot)).evaluate_vector(self.root)
        if self.root.type == "bool":
            value = e.to_int(value, 8)
        elif self.root.type == "int":
            value = e.resize_int(value, 64)
        e.store(value, out, align=1)
        b.ret(e.c(0))

    def function(self, name: str, arguments: int):
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)
        return kind(self._code.address(name))

    def with_call(self, call: Call):
        """Return the functions with the context of a call bound."""
        return Bound(self, call)


class Bound:
    def __init__(self, emitted: Emitted, call: Call):
        self.emitted, self.call = emitted, call
        size = context.size(emitted.layout, len(call.q_len))
        self.context = np.zeros(size, np.int64)
        self.ctx = context.address(self.context)
        context.fill(self.context, self.ctx, emitted.layout, call, 1.0)

    def key_ranges(self, b, h, q_lo, q_hi):
        found = np.full(4, -7, np.int64)
        function = self.emitted.function("key_ranges", 6)
        function(self.ctx, b, h, q_lo, q_hi, context.address(found))
        return tuple(int(x) for x in found)

    def tile_class(self, b, h, q_lo, q_hi, k_lo, k_hi):
        bits = self.emitted.function("tile_class", 7)(self.ctx, b, h, q_lo, q_hi, k_lo, k_hi)
        return bool(bits & 1), bool(bits & 2)

    def values(self, b, h, q, last, j, dot=None):
        dtype = {"bool": np.bool_, "int": np.int64, "float": self.emitted.element}
        found = np.zeros(self.emitted.lanes, dtype[self.emitted.root.type])
        products = np.zeros(self.emitted.lanes, self.emitted.element)
        products[:] = 0.0 if dot is None else dot
        function = self.emitted.function("values", 8)
        where = context.address(products), context.address(found)
        function(self.ctx, b, h, q, last, j, *where)
        return found


TRUE = Const(True)
