"""Calls of the cupy backend in the emulator: the PTX of a kernel on NumPy arrays, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import ptxemu
from sdpakit.backends.cupy.compiled import CompiledVariants
from sdpakit.backends.cupy.fields import pack
from sdpakit.backends.cupy.heads import Variant
from sdpakit.ptxemu.arguments import ArgumentArrays, Named

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
        geometry = self._compiled.family.geometry(self._program)
        blocks = call.batch * call.q.shape[1] * -(-call.q_rows // geometry.block_q)
        if blocks == 0:
            return
        device = ptxemu.Device()
        bound = ArgumentArrays(device, _arrays(call))
        words = pack(self._program, call, geometry.block_q, bound.address)
        program = self._load(_variant(call, bound))
        device.launch(program, blocks, geometry.threads, [words], shared=geometry.shared_bytes)
        bound.check_outputs()
        bound.copy_back()

    def _load(self, variant: Variant) -> ptxemu.Program:
        if variant not in self._loaded:
            module = ptxemu.parse(self._compiled.module(variant).ptx)
            (entry,) = module.entries
            self._loaded[variant] = module.program(entry)
        return self._loaded[variant]

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return the tile, and that nothing here tells of speed."""
        return {**self._compiled.explain(), "launcher": "emulator of PTX"}


def _arrays(call: Call) -> Iterator[Named]:
    """Yield the arrays of a call."""
    for name in ("q", "k", "v", "q_len", "kv_len", "q_offset", "q_start", "kv_start", "pages"):
        array = getattr(call, name)
        if array is not None:
            yield Named(name, array, is_output=False)
    for name, array in call.tables.items():
        yield Named(name, array, is_output=False)
    for name, array in call.outputs.items():
        # Rows that are nobody's are somebody else's to write (RAGGED-1).
        yield Named(name, array, is_output=call.q_start is None)


def _variant(call: Call, bound: ArgumentArrays) -> Variant:
    arrays = [named.array for named in _arrays(call)]
    aligned = all(
        number % array.itemsize == 0
        for array in arrays
        for number in (bound.address(array), *array.strides)
    )
    return Variant(
        int_bits=call.int_bits,
        aligned=aligned,
        whole_q=_whole(call.q, bound),
        whole_k=_whole(call.k, bound),
        whole_v=_whole(call.v, bound),
        ragged_q=call.q_start is not None,
        ragged_kv=call.kv_start is not None,
        paged=call.pages is not None,
    )


def _whole(array: np.ndarray[Any, Any], bound: ArgumentArrays) -> bool:
    """Return whether rows can be copied 16 bytes at a time."""
    numbers = (bound.address(array), *array.strides[:3], array.shape[3] * array.itemsize)
    return array.strides[3] == array.itemsize and all(number % 16 == 0 for number in numbers)
