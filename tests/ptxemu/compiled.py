"""Launches of the kernels in `kernels`, with what each must write, computed in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdpakit import ptxemu

PTX = Path(__file__).parent / "kernels" / "ptx"
LOG2_E = float(np.log2(np.e))
# Half a unit in the last place, relative.
F16, BF16, F32 = 2.0**-11, 2.0**-8, 2.0**-24


@dataclass
class Launch:
    """A launch of a kernel.

    Attributes
    ----------
    name : str
        Of the PTX file.
    results : list of (array, wanted, relative, absolute)
        What the kernel writes, what is right, and how far off it may be.
    """

    name: str
    grid: Sequence[int] | int
    block: int
    args: list[Any]
    results: list[tuple[Any, Any, float, float]]
    entry: str | None = None
    shared: int = 0
    cluster: Sequence[int] = (1, 1, 1)
    checks: ptxemu.Checks = field(default_factory=ptxemu.Checks)
    profile: bool = False

    @property
    def text(self) -> str:
        """The PTX."""
        return (PTX / f"{self.name}.ptx").read_text(encoding="utf-8")

    def run(self, text: str | None = None) -> ptxemu.Report:
        """Launch the kernel, or another text in its place."""
        return ptxemu.launch(
            self.text if text is None else text, self.grid, self.block, self.args,
            entry=self.entry, shared=self.shared, cluster=self.cluster, checks=self.checks,
            profile=self.profile,
        )  # fmt: skip

    def compare(self) -> None:
        """Raise AssertionError unless the results are right."""
        for array, wanted, relative, absolute in self.results:
            found = from_bits(array) if array.dtype == np.uint16 else array
            np.testing.assert_allclose(
                found.astype(np.float64), wanted, rtol=relative, atol=absolute, equal_nan=False
            )


def to_bits(values: Any) -> Any:
    """Return bfloat16 bits of numbers (rounded towards zero: any bits are as good as others)."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bits(bits: Any) -> Any:
    """Return the numbers of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def shared_of(name: str) -> int:
    """Return the dynamic shared memory that Triton says its kernel needs."""
    text = (PTX / f"{name}.ptx").read_text(encoding="utf-8")
    found = re.search(r"^// dynamic shared memory: (\d+) bytes", text, re.M)
    assert found is not None
    return int(found[1])


def exact_softmax(x: Any) -> Any:
    """Return the softmax of rows."""
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def exact_attention(q: Any, k: Any, v: Any, *, causal: bool) -> tuple[Any, Any]:
    """Return output [batch, q_len, heads, dim] and log-sum-exp [batch, heads, q_len]."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    logits = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        last = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
        logits = np.where(np.arange(k.shape[2]) > last, -np.inf, logits)
    top = np.maximum(logits.max(axis=3, keepdims=True), -1e300)
    powers = np.exp(logits - top)
    total = powers.sum(axis=3, keepdims=True)
    out = powers @ v / np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        return out.transpose(0, 2, 1, 3), (np.log(total) + top)[..., 0]


def attention_results(out: Any, lse: Any, q: Any, k: Any, v: Any, *, causal: bool) -> list[Any]:
    """Return the results of an attention kernel that rounds P and the output."""
    wanted, wanted_lse = exact_attention(q, k, v, causal=causal)
    unit = BF16 if out.dtype == np.uint16 else F16
    # P is rounded (relative to its own size) before its product with V; so is the quotient.
    found = [(out, wanted, unit, 2 * unit * float(np.abs(v).max()))]
    return found if lse is None else [*found, (lse, wanted_lse, 4e-6, 4e-6)]


# ------------------------------------------------------------------------------- CUDA C++ by NVRTC


def softmax(rows: int = 5, columns: int = 300) -> Launch:
    x, y = 4 * normal(rows, columns), np.empty((rows, columns), np.float32)
    args = [x, ptxemu.Output(y), columns]
    return Launch("softmax", rows, 128, args, [(y, exact_softmax(x), 1e-5, 1e-9)])


def summarise(count: int = 1000) -> Launch:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, count, np.int32)
    total, extremes = np.zeros(1, np.int64), np.array([2**31 - 1, -(2**31)], np.int32)
    positives = np.zeros(1, np.uint32)
    results = [
        (total, x.sum(dtype=np.int64), 0.0, 0.0),
        (extremes, [x.min(), x.max()], 0.0, 0.0),
        (positives, (x > 0).sum(), 0.0, 0.0),
    ]
    args = [x, total, extremes, positives, count]
    return Launch("reductions", 3, 96, args, results, entry="summarise")


def histogram(count: int = 1500) -> Launch:
    x = (np.random.default_rng(1).integers(0, 256, count) // 3).astype(np.uint8)
    counts = np.zeros(256, np.uint32)
    results = [(counts, np.bincount(x, minlength=256), 0.0, 0.0)]
    return Launch("reductions", 2, 128, [x, counts, count], results, entry="histogram")


def sum_in_order(count: int = 3000) -> Launch:
    x, of_blocks = normal(count), np.empty(4, np.float32)
    total, finished = np.empty(1, np.float32), np.zeros(1, np.uint32)
    args = [x, ptxemu.Output(of_blocks), ptxemu.Output(total), finished, count]
    results = [(total, x.sum(dtype=np.float64), 0.0, 1e-4), (finished, 4, 0.0, 0.0)]
    return Launch("reductions", 4, 256, args, results, entry="sum_in_order")


def collatz(count: int = 100) -> Launch:
    def steps(n: int) -> int:
        taken = 0
        while n != 1:
            n = 3 * n + 1 if n % 2 else n // 2
            taken += 1
        return taken

    start, found = np.arange(1, count + 1, dtype=np.uint32), np.empty(count, np.int32)
    results = [(found, [steps(int(n)) for n in start], 0.0, 0.0)]
    args = [start, ptxemu.Output(found), count]
    return Launch("control", 2, 64, args, results, entry="collatz")


def sort_each(threads: int = 64) -> Launch:
    x = np.random.default_rng(0).integers(-99, 99, (2 * threads, 16)).astype(np.int32)
    y = np.empty_like(x)
    results = [(y, np.sort(x, axis=1), 0.0, 0.0)]
    return Launch("control", 2, threads, [x, ptxemu.Output(y)], results, entry="sort_each")


def polynomial(count: int = 70) -> Launch:
    z = (normal(count, 2, dtype=np.float64) @ [1, 1j]).astype(np.complex128)
    found = np.empty((count, 2))
    wanted = np.stack([(z * z + z).real, (z * z + z).imag], axis=1)
    args = [z, ptxemu.Output(found), count]
    results = [(found, wanted, 1e-14, 1e-14)]
    return Launch("control", 2, 64, args, results, entry="polynomial")


def calculate(count: int = 128) -> Launch:
    random = np.random.default_rng(0)
    operation = random.integers(0, 9, count).astype(np.int32)
    a, b = random.integers(-(2**31), 2**31, (2, count), np.int32)
    b[::5] %= 9
    c = np.empty(count, np.int32)
    wanted = [calculated(*map(int, operands)) for operands in zip(operation, a, b, strict=True)]
    args = [operation, a, b, ptxemu.Output(c)]
    return Launch("control", 2, count // 2, args, [(c, wanted, 0.0, 0.0)], entry="calculate")


def calculated(operation: int, x: int, y: int) -> int:
    """Return what `calculate` does for one thread."""
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
    found = [
        x + y, x - y, x * y, quotient, x - y * quotient if y else 0,
        32 - ((x ^ y) & 0xFFFFFFFF).bit_length(),
        int(f"{x & 0xFFFFFFFF:032b}"[::-1], 2) + (y & 0xFFFFFFFF).bit_count(),
        x * y >> 32, -1,
    ][operation]  # fmt: skip
    return (found + 2**31) % 2**32 - 2**31


def matmul_mma(m: int = 100, n: int = 72, k: int = 88) -> Launch:
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16, seed=1)
    c = np.empty((m, n), np.float32)
    args = [a, b, ptxemu.Output(c), m, n, k]
    results = [(c, exact_product(a, b), 0.0, 16 * k * F32)]
    return Launch("matmul_mma", (-(-n // 64), -(-m // 64)), 128, args, results)


def exact_product(a: Any, b: Any) -> Any:
    """Return a product of matrices."""
    return a.astype(np.float64) @ b.astype(np.float64)


def attention_operands(
    lengths: tuple[int, int], heads: tuple[int, int], batch: int, *, wide: bool = False
) -> list[Any]:
    """Return q, k, v, and room for the output and the log-sum-exp.

    They are float16, or bfloat16 bits if `wide`.
    """
    (q_len, kv_len), (q_heads, kv_heads) = lengths, heads
    dtype = np.float32 if wide else np.float16
    found = [
        normal(batch, q_len, q_heads, 64, dtype=dtype),
        *(normal(batch, kv_len, kv_heads, 64, dtype=dtype, seed=seed) for seed in (1, 2)),
    ]
    found = [to_bits(x) for x in found] if wide else found
    return [*found, np.empty_like(found[0]), np.empty((batch, q_heads, q_len), np.float32)]


def flash_mma(
    lengths: tuple[int, int] = (70, 100),
    heads: tuple[int, int] = (2, 1),
    batch: int = 1,
    *,
    causal: bool = True,
    name: str = "flash_mma",
) -> Launch:
    q, k, v, out, lse = attention_operands(lengths, heads, batch)
    args = [q, k, v, ptxemu.Output(out), ptxemu.Output(lse), *lengths, *heads, LOG2_E / 8]
    args += [int(causal)] if name == "flash_mma" else []
    results = attention_results(out, lse, q, k, v, causal=causal)
    grid = (-(-lengths[0] // 64), heads[0], batch)
    return Launch(name, grid, 128, args, results, shared=(64 + 4 * 32) * 128)


def flash_wgmma(
    lengths: tuple[int, int] = (150, 200),
    heads: tuple[int, int] = (2, 1),
    batch: int = 1,
    *,
    causal: bool = True,
) -> Launch:
    q, k, v, out, lse = attention_operands(lengths, heads, batch, wide=True)
    maps = [
        ptxemu.TensorMap(x, (64, 1, rows, 1), dtype="bf16", swizzle="128B")
        for x, rows in ((q, 128), (k, 64), (v, 64))
    ]
    args = [*maps, ptxemu.Output(out), ptxemu.Output(lse), *lengths, *heads, LOG2_E / 8]
    results = attention_results(out, lse, *(from_bits(x) for x in (q, k, v)), causal=causal)
    grid = (-(-lengths[0] // 128), heads[0], batch)
    return Launch(
        "flash_wgmma", grid, 384, [*args, int(causal)], results, shared=(128 + 4 * 64) * 128 + 72
    )


def matmul_wgmma(m: int = 100, n: int = 72, k: int = 328) -> Launch:
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16, seed=1)
    c = np.zeros((m, n), np.float16)
    maps = [ptxemu.TensorMap(x, (64, 64), dtype="f16", swizzle="128B") for x in (a, b, c)]
    results = [(c, exact_product(a, b), F16, 16 * k * F32)]
    grid = (-(-n // 64), -(-m // 64))
    return Launch("matmul_wgmma", grid, 160, [*maps, k], results, shared=7 * 8192 + 48)


def bulk_scale(blocks: int = 2) -> Launch:
    x, y = normal(1024 * blocks), np.empty(1024 * blocks, np.float32)
    args = [x, ptxemu.Output(y), 3.0]
    return Launch("bulk", blocks, 128, args, [(y, 3.0 * x.astype(np.float64), F32, 0.0)])


def cluster_sum(clusters: int = 2) -> Launch:
    x, sums = normal(clusters, 4, 128), np.empty((clusters, 4), np.float32)
    wanted = np.broadcast_to(x.sum(axis=(1, 2), dtype=np.float64)[:, None], sums.shape)
    args, results = [x, ptxemu.Output(sums)], [(sums, wanted, 0.0, 1e-4)]
    return Launch(
        "clusters", 4 * clusters, 128, args, results, entry="cluster_sum", cluster=(4, 1, 1)
    )


def multicast() -> Launch:
    x, out = normal(32, 64), np.empty((2, 32, 64), np.float32)
    args = [ptxemu.TensorMap(x, (64, 16), dtype="f32"), ptxemu.Output(out)]
    results = [(out, np.stack([x, 2 * x]), 0.0, 0.0)]
    return Launch("clusters", 2, 128, args, results, entry="multicast", cluster=(2, 1, 1))


def hand_over(sm: int, rows: int = 7) -> Launch:
    x, y = normal(rows, 32), np.empty(32, np.float32)
    args, results = [x, ptxemu.Output(y), rows], [(y, x.sum(axis=0, dtype=np.float64), 0.0, 1e-5)]
    return Launch(f"libcudacxx_sm{sm}", 1, 64, args, results, entry="hand_over")


def piped(sm: int, rows: int = 5) -> Launch:
    x, y = normal(rows, 64, 4), np.empty((rows, 64, 4), np.float32)
    args, results = [x, ptxemu.Output(y), rows], [(y, np.roll(x, -17, axis=1), 0.0, 0.0)]
    return Launch(f"libcudacxx_sm{sm}", 1, 64, args, results, entry="piped")


def reversed_tiles(sm: int, blocks: int = 2) -> Launch:
    x, y = normal(blocks, 64, 4), np.empty((blocks, 64, 4), np.float32)
    args, results = [x, ptxemu.Output(y)], [(y, x[:, ::-1], 0.0, 0.0)]
    return Launch(f"libcudacxx_sm{sm}", blocks, 64, args, results, entry="reversed")


# ------------------------------------------------------------------------------------ Numba-CUDA


def numba_array(array: Any, argument: Any) -> list[Any]:
    """Return what Numba-CUDA passes for an array: two owners, sizes, data, shape, strides."""
    return [0, 0, array.size, array.itemsize, argument, *array.shape, *array.strides]


def numba_softmax(rows: int = 3, columns: int = 150) -> Launch:
    x, y = 4 * normal(rows, columns), np.empty((rows, columns), np.float32)
    args = [*numba_array(x, x), *numba_array(y, ptxemu.Output(y))]
    return Launch("numba_softmax", rows, 64, args, [(y, exact_softmax(x), 1e-5, 1e-9)])


def numba_count(count: int = 300) -> Launch:
    x = np.random.default_rng(0).integers(0, 1000, count).astype(np.int32)
    counts, largest = np.zeros(10, np.int32), np.zeros(1, np.int32)
    args = [part for array in (x, counts, largest) for part in numba_array(array, array)]
    results = [
        (counts, np.bincount(x % 10, minlength=10), 0.0, 0.0),
        (largest, x.max(), 0.0, 0.0),
    ]
    return Launch("numba_count", 2, 64, args, results)


def numba_flash(lengths: tuple[int, int] = (70, 100)) -> Launch:
    return flash_mma(lengths, name="numba_flash")


def numba_wgmma(m: int = 64, n: int = 128, k: int = 192) -> Launch:
    a, b = normal(m, k, dtype=np.float16), normal(n, k, dtype=np.float16, seed=1)
    c = np.empty((m, n), np.float32)
    maps = [ptxemu.TensorMap(x, (64, 64), dtype="f16", swizzle="128B") for x in (a, b)]
    results = [(c, exact_product(a, b.T), 0.0, 16 * k * F32)]
    args = [*maps, ptxemu.Output(c), n, k]
    return Launch("numba_wgmma", (n // 64, m // 64), 160, args, results, shared=2 * 8192 + 16)


# ----------------------------------------------------------------------------------------- Triton

# Every kernel has two pointers more, to memory that most of these kernels do not use.
SCRATCH = [0, 0]


def triton_softmax(sm: int, rows: int = 3, columns: int = 300) -> Launch:
    x, y = 4 * normal(rows, columns), np.empty((rows, columns), np.float32)
    name = f"triton_softmax_sm{sm}"
    args = [x, ptxemu.Output(y), columns, *SCRATCH]
    results = [(y, exact_softmax(x), 1e-5, 1e-9)]
    return Launch(name, rows, 128, args, results, shared=shared_of(name))


def triton_matmul(sm: int, m: int = 100, n: int = 80, k: int = 112) -> Launch:
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16, seed=1)
    c = np.empty((m, n), np.float32)
    name = f"triton_matmul_sm{sm}"
    args = [a, b, ptxemu.Output(c), m, n, k, *SCRATCH]
    results = [(c, exact_product(a, b), 0.0, 16 * k * F32)]
    grid = (-(-m // 64), -(-n // 64))
    return Launch(name, grid, 128, args, results, shared=shared_of(name))


def triton_matmul_tma(m: int = 100, n: int = 72, k: int = 136) -> Launch:
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16, seed=1)
    c = np.zeros((m, n), np.float16)
    grid = (-(-m // 64), -(-n // 64))
    tensor_maps = np.zeros((*grid, 3, 128), np.uint8)
    args = [a, b, c, m, n, k, tensor_maps, 0]
    results = [(c, exact_product(a, b), F16, 16 * k * F32)]
    return Launch(
        "triton_matmul_tma", grid, 128, args, results, shared=shared_of("triton_matmul_tma")
    )


def triton_flash(sm: int, q_len: int = 70, kv_len: int = 100, heads: int = 2) -> Launch:
    q = normal(heads, q_len, 64, dtype=np.float16)
    k, v = (normal(heads, kv_len, 64, dtype=np.float16, seed=seed) for seed in (1, 2))
    out = np.empty_like(q)
    name = f"triton_flash_sm{sm}"
    args = [q, k, v, ptxemu.Output(out), q_len, kv_len, LOG2_E / 8, *SCRATCH]
    q, k, v = (x.transpose(1, 0, 2)[None] for x in (q, k, v))
    results = attention_results(out.transpose(1, 0, 2)[None], None, q, k, v, causal=True)
    return Launch(name, (-(-q_len // 64), heads), 128, args, results, shared=shared_of(name))
