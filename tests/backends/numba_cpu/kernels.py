"""Kernels called from Python with NumPy arrays, and what they should compute."""

from __future__ import annotations

import ctypes
import functools
import itertools

import ml_dtypes
import numpy as np
from llvmlite import ir

from sdpakit.backends.numba_cpu import abi
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.irtypes import I64
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.module import (
    emit_module,
    packers_module,
    shared_modules,
    unpack_module,
)
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe
from sdpakit.backends.numba_cpu.vector import VectorEmitter

NP = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def bits(number: float) -> int:
    """Return a float64 as it travels in an int64."""
    return int(np.float64(number).view(np.int64))


def aligned(nbytes: int, fill: int = 0xAB) -> np.ndarray:
    """Return 64-byte aligned memory full of rubbish."""
    raw = np.full(nbytes + 64, fill, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def of_text(text: str, *shared: ModuleRecipe) -> KernelRecipe:
    """Return a kernel of text that is there already."""
    return KernelRecipe(ModuleRecipe(str, (text,)), shared)


def function(code, name: str, arguments: int, result=None):
    return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * arguments)(code.address(name))


def strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(int(s) for s in array.strides)


@functools.cache
def elementwise(isa_name: str, element: str, **functions):
    """Return NumPy versions of `emitter, vector -> vector` functions, compiled in one module."""
    isa = select_isa(isa_name)
    module = ir.Module(name="test", context=ir.Context())
    for name, emit in functions.items():
        kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 3), name)
        e = VectorEmitter(ir.IRBuilder(kernel.append_basic_block("entry")), isa, element)
        source, target, count = kernel.args

        def body(i, _, emit=emit, e=e, source=source, target=target):
            shift = e.imul(i, e.c(isa.vector_bytes))
            e.store(emit(e, e.load(e.iadd(source, shift))), e.iadd(target, shift))
            return ()

        e.loop(count, body)
        e.b.ret_void()
    code = compile_kernel(of_text(str(module)), isa)
    lanes = isa.lanes(element)

    def call(name: str, x) -> np.ndarray:
        x = np.asarray(x, element)
        padded = np.concatenate([x, np.zeros(-len(x) % lanes, element)])
        out = np.empty_like(padded)
        count = len(padded) // lanes
        function(code, name, 3)(padded.ctypes.data, out.ctypes.data, count)
        return out[: len(x)]

    return call


class Kernel:
    """All functions of one module, with scratch; `step=False` leaves the panel step out."""

    def __init__(self, isa: str, dtype: str, d: int, dv: int, out_dtype: str | None = None, **more):
        staged = more.get("staged", ())
        self.layout = layout = PanelLayout(
            select_isa(isa),
            dtype,
            out_dtype or dtype,
            d,
            dv,
            statistics=more.pop("statistics", False),
            row_maximum=more.pop("row_maximum", True),
            dense=tuple(table.dtype for table in staged),
        )
        whole = more.pop("step", True)
        if whole:
            recipe = of_text(emit_module(layout, **more), *shared_modules(layout))
        else:
            recipe = KernelRecipe(packers_module(layout), (unpack_module(layout),))
        self.code = compile_kernel(recipe, layout.isa)
        self.element = np.dtype(layout.element)
        self.ctx = np.zeros(64, np.int64)
        self.kt, self.vt = aligned(layout.k_tile_bytes), aligned(layout.v_tile_bytes + 64)
        self.qt, self.ot = aligned(layout.qt_bytes), aligned(layout.ot_bytes + 64)
        self.p, self.st = aligned(layout.p_bytes), aligned(layout.st_bytes)
        self.staging = aligned(layout.staging_bytes)

    def pack_q(self, q: np.ndarray, factor: float = 1.0) -> np.ndarray:
        assert len(q) <= self.layout.width
        call = function(self.code, "pack_q", 6)
        call(q.ctypes.data, *strides(q), len(q), self.qt.ctypes.data, bits(factor))
        return self.qt.view(self.element)[: self.layout.head_dim * self.layout.width].reshape(
            self.layout.head_dim, self.layout.width
        )

    def pack_k(self, k: np.ndarray, cuts: tuple[int, ...] = ()) -> np.ndarray:
        layout = self.layout
        call = function(self.code, "pack_k", 7)
        rows = -(-len(k) // layout.rows) * layout.rows
        for start, end in itertools.pairwise((0, *cuts, len(k))):
            part, filled = k[start:end], end if end < len(k) else rows
            where = self.kt.ctypes.data
            call(part.ctypes.data, *strides(k), len(part), where, start, filled)
        whole = self.kt[: rows * layout.k_row_bytes].view(self.element)
        return whole.reshape(rows, -1)[:, : layout.head_dim]

    def pack_v(self, v: np.ndarray, cuts: tuple[int, ...] = ()) -> tuple[np.ndarray, bool]:
        call = function(self.code, "pack_v", 7, ctypes.c_int64)
        where, found = (self.vt.ctypes.data, self.staging.ctypes.data), 0
        for start, end in itertools.pairwise((0, *cuts, len(v))):
            part = v[start:end]
            found |= call(part.ctypes.data, *strides(v), len(part), *where, start)
        packed = np.zeros((len(v), self.layout.v_head_dim), self.element)
        for d0, size, start in self.layout.v_groups:
            group = self.vt[start : start + len(v) * size * self.element.itemsize]
            packed[:, d0 : d0 + size] = group.view(self.element).reshape(len(v), size)
        return packed, bool(found)

    def unpack_o(self, inverse: np.ndarray, out: np.ndarray) -> None:
        call = function(self.code, "unpack_o", 6)
        where = self.ot.ctypes.data, inverse.ctypes.data, out.ctypes.data
        call(*where, *strides(out), len(out))

    def begin(self) -> None:
        function(self.code, "begin", 2)(self.ot.ctypes.data, self.st.ctypes.data)

    def step(self, n, j0, flags, *, b=0, h=0, i0=0, nq=1, whole=(0, 0)) -> None:
        a = [x.ctypes.data for x in (self.ctx, self.kt, self.vt)]
        c = [x.ctypes.data for x in (self.qt, self.ot, self.p, self.st)]
        function(self.code, "step", 16)(*a, n, j0, flags, *c, b, h, i0, nq, *whole)

    def stat(self, name: str) -> np.ndarray:
        row = self.layout.stat_rows.index(name)
        width = self.layout.width
        return self.st.view(self.element)[row * width : (row + 1) * width].copy()

    def run(self, q, k, v, c=None, *, factor=1.0, partial=(), block=None, **more):
        """Run all keys past one panel; return what the driver would make of the state.

        `partial` names tiles whose mask is evaluated ("all" for every tile), `more` are further
        arguments of the steps.
        """
        layout = self.layout
        block = block or layout.block_kv
        self.ctx[0] = bits(1.0 if c is None else c)
        self.pack_q(q, factor)
        self.begin()
        for t, j0 in enumerate(range(0, len(k), block)):
            keys = slice(j0, min(j0 + block, len(k)))
            self.pack_k(k[keys])
            _, poisoned = self.pack_v(v[keys])
            flags = abi.FLAG_PARTIAL * (partial == "all" or t in partial)
            flags |= abi.FLAG_NONFINITE_V * poisoned
            self.step(len(k[keys]), j0, flags, nq=len(q), **more)
        return self.finish(len(q))

    def finish(self, rows: int) -> dict[str, np.ndarray]:
        layout = self.layout
        state = {name: self.stat(name)[:rows] for name in layout.stat_rows}
        l = self.stat("l")
        with np.errstate(divide="ignore"):
            inverse = np.where(l == 0, 0, 1 / l).astype(self.element)
        out = np.full((rows, layout.v_head_dim), 7, NP[layout.out_dtype])
        if layout.v_head_dim:
            self.unpack_o(inverse, out)
        return {"out": out, **state}


def attention(x: np.ndarray, v: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Return out, lse and p of logits x (NUM, SOFT and EMPTY rules) in float64."""
    x = np.where(mask, x, -np.inf)
    top = x.max(1, initial=-np.inf, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)
    e = np.where(np.isneginf(x), 0, np.exp(x - top))
    l = e.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(l == 0, -np.inf, top + np.log(l))[:, 0]
        p = np.where(l == 0, 0, e / np.where(l == 0, 1, l))
    live = np.where(p[:, :, None] == 0, 0, v[None])
    return {"out": (p[:, :, None] * live).sum(1), "lse": lse, "p": p}


def logit_error(q, k, scale: float, x: np.ndarray, u: float) -> np.ndarray:
    """Return the largest error of a logit for any order of summation (Higham, section 3.1)."""
    steps = q.shape[1] + 2
    return abs(scale) * steps * u * (abs(q) @ abs(k).T) + 4 * u * abs(x)


def out_bound(model, v, x, e, u: float, u_out: float, eps_exp: float) -> np.ndarray:
    """Return the hard bound of NUM-6 for `out`: the errors of logits, weights and sums together."""
    p, n = model["p"], model["p"].shape[1]
    top = np.max(np.where(p > 0, x, -np.inf), axis=1, initial=-np.inf, keepdims=True)
    away = np.where(p > 0, abs(x - top), 0)
    rho = np.expm1(np.where(p > 0, e, 0)) + eps_exp + 2 * u * away
    sums = n * u
    size = abs(v)[None] * p[:, :, None]
    first = (size * (rho + sums)[:, :, None]).sum(1)
    second = abs(model["out"]) * ((p * rho).sum(1) + sums)[:, None]
    return first + second + u_out * abs(model["out"]) + np.finfo(np.float32).tiny
