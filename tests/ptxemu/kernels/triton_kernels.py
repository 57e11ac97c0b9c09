"""Kernels in Triton, and their PTX for a target that need not be there."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, y, columns, WIDTH: tl.constexpr):
    """Softmax of rows, one program a row."""
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + column, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, TILE: tl.constexpr, STEP: tl.constexpr):
    """C = A B in tiles of TILE by TILE, tails cut; rows lie one after another."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    steps = tl.arange(0, STEP)
    acc = tl.zeros((TILE, TILE), dtype=tl.float32)
    for first in range(0, k, STEP):
        inner = first + steps
        a_inside = (rows[:, None] < m) & (inner[None, :] < k)
        b_inside = (inner[:, None] < k) & (columns[None, :] < n)
        a_tile = tl.load(a + rows[:, None] * k + inner[None, :], mask=a_inside, other=0.0)
        b_tile = tl.load(b + inner[:, None] * n + columns[None, :], mask=b_inside, other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=inside)


@triton.jit
def flash(
    q,
    k,
    v,
    out,
    q_len,
    kv_len,
    scale_log2,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Attention forward, causal (last query, last key); all are [heads, length, DIM]."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    q_offsets = head * q_len * DIM + rows[:, None] * DIM + dims[None, :]
    q_tile = tl.load(q + q_offsets, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((ROWS,), dtype=tl.float32)
    acc = tl.zeros((ROWS, DIM), dtype=tl.float32)
    last = rows + kv_len - q_len
    end = tl.minimum(kv_len, tl.program_id(0) * ROWS + ROWS + kv_len - q_len)
    for first in range(0, end, KEYS):
        keys = first + tl.arange(0, KEYS)
        kv_offsets = head * kv_len * DIM + keys[:, None] * DIM + dims[None, :]
        k_tile = tl.load(k + kv_offsets, mask=keys[:, None] < kv_len, other=0.0)
        v_tile = tl.load(v + kv_offsets, mask=keys[:, None] < kv_len, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile))
        s = tl.where(keys[None, :] <= last[:, None], s * scale_log2, -float("inf"))
        top = tl.maximum(m, tl.max(s, axis=1))
        shift = tl.where(top == -float("inf"), 0.0, top)
        factor = tl.exp2(m - shift)
        p = tl.exp2(s - shift[:, None])
        l = l * factor + tl.sum(p, axis=1)
        acc = tl.dot(p.to(tl.float16), v_tile, acc * factor[:, None])
        m = top
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(out + q_offsets, acc.to(tl.float16), mask=rows[:, None] < q_len)


@triton.jit
def matmul_tma(a, b, c, m, n, k, TILE: tl.constexpr):
    """C = A B through tensor maps that the kernel makes; C is float16."""
    a_tiles = tl.make_tensor_descriptor(a, [m, k], [k, 1], [TILE, TILE])
    b_tiles = tl.make_tensor_descriptor(b, [k, n], [n, 1], [TILE, TILE])
    c_tiles = tl.make_tensor_descriptor(c, [m, n], [n, 1], [TILE, TILE])
    row, column = tl.program_id(0) * TILE, tl.program_id(1) * TILE
    acc = tl.zeros((TILE, TILE), dtype=tl.float32)
    for first in range(0, k, TILE):
        acc = tl.dot(a_tiles.load([row, first]), b_tiles.load([first, column]), acc)
    c_tiles.store([row, column], acc.to(tl.float16))


# Kernel: types of its arguments, constants, warps, stages of the software pipeline.
KERNELS: dict[str, tuple[Any, str, dict[str, int], int, int]] = {
    "softmax": (softmax, "*fp32 *fp32 i32", {"WIDTH": 512}, 4, 1),
    "matmul": (matmul, "*fp16 *fp16 *fp32 i32 i32 i32", {"TILE": 64, "STEP": 32}, 4, 3),
    "matmul_tma": (matmul_tma, "*fp16 *fp16 *fp16 i32 i32 i32", {"TILE": 64}, 4, 2),
    "flash": (
        flash,
        "*fp16 *fp16 *fp16 *fp16 i32 i32 fp32",
        {"ROWS": 64, "KEYS": 32, "DIM": 64},
        4,
        2,
    ),
}


def compile_kernel(name: str, arch: str) -> str:
    """Return the PTX of a kernel; pointers are aligned to 16 bytes, and so are rows of matrices."""
    function, types, constants, warps, stages = KERNELS[name]
    names = function.arg_names
    signature = dict(zip(names, types.split(), strict=False)) | dict.fromkeys(
        constants, "constexpr"
    )
    aligned = [name for name, kind in signature.items() if kind[0] == "*"]
    aligned += ["n", "k"] if name.startswith("matmul") else []
    source = ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(key),): value for key, value in constants.items()},
        attrs={(names.index(key),): [["tt.divisibility", 16]] for key in aligned},
    )
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=target, options=options)
    shared = f"// dynamic shared memory: {compiled.metadata.shared} bytes\n"
    return shared + compiled.asm["ptx"]
