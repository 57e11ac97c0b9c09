"""The mma.sync family: float16 and bfloat16 on sm_80 and later (`kernels/mma_forward.cu`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.backends.cupy.families import Geometry, Operands
from sdpakit.backends.cupy.heads import Variant, assemble
from sdpakit.backends.cupy.source import Source
from sdpakit.backends.gpu.architectures import FEATURES

if TYPE_CHECKING:
    from sdpakit.backends.gpu.architectures import Architecture
    from sdpakit.ir.program import Program

MMA_TYPE = {"float16": "f16", "bfloat16": "bf16"}
_NEEDED = ("ldmatrix", "cp_async", "bf16_mma")
WARPS = 4
_LARGEST_WIDTH = 256
_WIDE = 192
# Shared memory of a block on sm_86, sm_89 and sm_120, the least of all from sm_80 on.
_SHARED_BYTES = 99 << 10


class Mma:
    """See `families.Family`."""

    name = "mma"

    def reasons_against(self, operands: Operands, arch: Architecture) -> list[str]:
        """Return what matrix instructions or this kernel cannot do."""
        missing = [name for name in _NEEDED if name not in arch.features]
        widths = {"head_dim": operands.head_dim, "v_head_dim": operands.v_head_dim}
        return [
            *(f"{arch} lacks {name}: {FEATURES[name]}" for name in missing),
            *([f"no dtype {operands.dtype}"] if operands.dtype not in MMA_TYPE else []),
            *(f"{name}={n} > {_LARGEST_WIDTH}" for name, n in widths.items() if n > _LARGEST_WIDTH),
            *(["no v_head_dim 0"] if operands.v_head_dim == 0 else []),
        ]

    def geometry(self, program: Program) -> Geometry:
        """Return the sizes of blocks: the most keys whose stages fit in shared memory.

        Where the accumulator takes half of a thread's registers, the fewest, so that none spills.
        """
        block_q = 16 * WARPS
        for block_k in (64, 32, 16) if program.v_head_dim <= _WIDE else (16,):
            size = _shared_bytes(program, block_q, block_k)
            if size <= _SHARED_BYTES:
                break
        return Geometry(32 * WARPS, block_q, block_k, size)

    def source(self, program: Program, variant: Variant) -> str:
        """Return CUDA C++."""
        geometry = self.geometry(program)
        constants = {
            "THREADS": geometry.threads,
            "WARPS": WARPS,
            "BLOCK_K": geometry.block_k,
            "LANES": 4,
        }
        title = "Attention by sdpakit, mma.sync family."
        names = ("softmax", "tiles", "mma", "mma_products", "mma_forward", "merge")
        return assemble(title, program, variant, constants, half_weights(program.dtype), *names)


def half_weights(dtype: str) -> str:
    """Return how weights are made that will be rounded to a dtype of two bytes, and its name."""
    text = Source()
    text.line(f'#define MMA_TYPE "{MMA_TYPE[dtype]}"')
    # Weights are rounded to the dtype of v, and float16 holds no less than 2**-24: as the
    # largest weight of a row is 2**15 and not 1, none is lost that matters.
    power = 15 if dtype == "float16" else 0
    text.line(f"constexpr accum_t ONE = {1 << power};")
    text.line("__device__ __forceinline__ float exp2_of(float x);")
    with text.braces("__device__ __forceinline__ accum_t weight(accum_t x, accum_t m)"):
        text.line(f"return exp2_of(fma_of(x - m, 1.4426950408889634f, {power}.0f));")
    return text.text()


def pitch(width: int) -> int:
    """Return the elements of a padded row in shared memory."""
    return -(-width // 16) * 16 + 8


def _shared_bytes(program: Program, block_q: int, block_k: int) -> int:
    """Return the size of `Shared`: q, and two stages of keys and values, rows padded."""
    d, dv = pitch(program.head_dim), pitch(program.v_head_dim)
    return 2 * (block_q * d + 2 * block_k * (d + dv))
