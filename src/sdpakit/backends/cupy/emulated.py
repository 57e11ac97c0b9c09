"""Calls of the cupy backend in the emulator: the PTX of a kernel on NumPy arrays, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import ptxemu
from sdpakit.backends.cupy.compiled import CompiledVariants
from sdpakit.backends.cupy.fields import pack
from sdpakit.backends.cupy.simt import THREADS, Variant, choose_tile

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call


class EmulatorLauncher:
    """Runs the forward kernel of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._program = artifact.program
        self._compiled = CompiledVariants(artifact)
        self._loaded: dict[Variant, ptxemu.Program] = {}

    def __call__(self, call: Call) -> None:
        """Fill the outputs of a call."""
        block_q = choose_tile(self._program).block_q
        blocks = call.batch * call.q.shape[1] * -(-call.q_rows // block_q)
        if blocks == 0:
            return
        device = ptxemu.Device()
        bound = ptxemu.ArgumentArrays(device, list(_arrays(call)))
        words = pack(self._program, call, block_q, bound.address)
        program = self._load(_variant(call, bound))
        device.launch(program, blocks, THREADS, [words])
        bound.check_outputs()
        bound.copy_back()

    def _load(self, variant: Variant) -> ptxemu.Program:
        if variant not in self._loaded:
            module = ptxemu.parse(self._compiled.ptx(variant))
            (entry,) = module.entries
            self._loaded[variant] = module.program(entry)
        return self._loaded[variant]

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return the tile, and that nothing here tells of speed."""
        tile = choose_tile(self._program)
        return {
            "method": "SIMT kernel in CUDA C++, run in the emulator of PTX",
            "block_q": tile.block_q,
            "block_kv": tile.block_k,
        }


def _arrays(call: Call) -> Iterator[tuple[str, np.ndarray[Any, Any], bool]]:
    """Yield the arrays of a call: name, array, whether it is written."""
    for name in ("q", "k", "v", "q_len", "kv_len", "q_offset", "q_start", "kv_start", "pages"):
        array = getattr(call, name)
        if array is not None:
            yield name, array, False
    for name, array in call.tables.items():
        yield name, array, False
    for name, array in call.outputs.items():
        yield name, array, True


def _variant(call: Call, bound: ptxemu.ArgumentArrays) -> Variant:
    arrays = [array for _, array, _ in _arrays(call)]
    aligned = all(
        number % array.itemsize == 0
        for array in arrays
        for number in (bound.address(array), *array.strides)
    )
    return Variant(
        int_bits=call.int_bits,
        aligned=aligned,
        ragged_q=call.q_start is not None,
        ragged_kv=call.kv_start is not None,
        paged=call.pages is not None,
    )
