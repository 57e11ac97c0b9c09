"""Calls of the cupy backend in the emulator: the PTX of kernels on NumPy arrays, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import ptxemu
from sdpakit.backends.cupy.compiled import CompiledVariants
from sdpakit.backends.cupy.families import ENTRY
from sdpakit.backends.cupy.fields import call_values, pack
from sdpakit.backends.cupy.heads import Variant
from sdpakit.ptxemu.arguments import ArgumentArrays, Named

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call

Array = np.ndarray[Any, Any]


class EmulatorLauncher:
    """Runs the forward kernel of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._program = artifact.program
        self._compiled = CompiledVariants(artifact)
        self._loaded: dict[Variant, ptxemu.Program] = {}

    def __call__(self, call: Call) -> None:
        """Fill the outputs of a call."""
        self.run(call, {})

    def run(self, call: Call, saved: Mapping[str, Array]) -> None:
        """Fill the outputs of a call, and what gradients want of it.

        Parameters
        ----------
        call : Call
            The call.
        saved : mapping of str to (B, Hq, Lq) arrays
            Maximum and sum of each row, by field; empty if nobody wants them.
        """
        geometry = self._compiled.family.geometry(self._program)
        blocks = call.batch * call.q.shape[1] * -(-call.q_rows // geometry.block_q)
        if blocks == 0:
            return
        device = ptxemu.Device()
        more = [Named(name, array, is_output=True) for name, array in saved.items()]
        bound = ArgumentArrays(device, [*named_arrays(call), *more])
        values = call_values(self._program, call, geometry.block_q, bound.address)
        values |= {name: bound.address(array) for name, array in saved.items()}
        program = self._load(replace(variant_of(call, bound), save=bool(saved)))
        words = pack(self._program, values)
        device.launch(program, blocks, geometry.threads, [words], shared=geometry.shared_bytes)
        bound.check_outputs()
        bound.copy_back()

    def _load(self, variant: Variant) -> ptxemu.Program:
        if variant not in self._loaded:
            module = ptxemu.parse(self._compiled.module(variant).ptx)
            self._loaded[variant] = module.program(ENTRY)
        return self._loaded[variant]

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return the family, the tile, and that it is emulated."""
        return {**self._compiled.explain(), "launcher": "emulator of PTX"}


def named_arrays(call: Call) -> Iterator[Named]:
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


def variant_of(call: Call, bound: ArgumentArrays, *more: Array) -> Variant:
    """Return the variant for a call and more arrays that its kernels read or write."""
    arrays = [*(named.array for named in named_arrays(call)), *more]
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


def _whole(array: Array, bound: ArgumentArrays) -> bool:
    """Return whether rows can be copied 16 bytes at a time."""
    numbers = (bound.address(array), *array.strides[:3], array.shape[3] * array.itemsize)
    return array.strides[3] == array.itemsize and all(number % 16 == 0 for number in numbers)
