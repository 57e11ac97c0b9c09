"""Calls of the cupy backend in the emulator: the PTX of kernels on NumPy arrays, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import ptxemu
from sdpakit.backends.cupy.compiled import CompiledVariants
from sdpakit.backends.cupy.families import ENTRY, MERGE, MERGED_ROWS
from sdpakit.backends.cupy.fields import call_values, pack
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.cupy.splitting import Layout, lay_out
from sdpakit.ptxemu.arguments import ArgumentArrays, Named

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call
    from sdpakit.ir.program import Program

Array = np.ndarray[Any, Any]


class EmulatorLauncher:
    """Runs the forward kernel of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._program = artifact.program
        self._compiled = CompiledVariants(artifact)
        self._loaded: dict[Variant, ptxemu.Module] = {}

    def __call__(self, call: Call) -> None:
        """Fill the outputs of a call."""
        self.run(call, {})

    def run(self, call: Call, saved: dict[str, Array]) -> None:
        """Fill the outputs of a call, and what gradients want of it.

        Parameters
        ----------
        call : Call
            The call.
        saved : mapping of str to (B, Hq, Lq) arrays
            Maximum and sum of each row, by field; empty if nobody wants them.
        """
        program, geometry = self._program, self._compiled.family.geometry(self._program)
        layout = lay_out(program, call, geometry, whole=bool(saved))
        if layout.blocks == 0:
            return
        device = ptxemu.Device()
        parts = _parts(program, call, layout)
        more = [Named(name, array, is_output=True) for name, array in saved.items()]
        more += [Named(name, array, is_output=False) for name, array in parts.items()]
        bound = ArgumentArrays(device, [*named_arrays(call), *more])
        values = call_values(program, call, layout, bound.address)
        values |= {name: bound.address(array) for name, array in (saved | parts).items()}
        variant = replace(
            variant_of(call, bound), save=bool(saved), packed=layout.packed, split=bool(parts)
        )
        module, words = self._load(variant), pack(program, values)
        size, shared = geometry.threads, geometry.shared_bytes
        device.launch(module.program(ENTRY), layout.blocks, size, [words], shared=shared)
        if parts:
            rows = call.batch * call.q.shape[1] * call.q_rows
            blocks = -(-rows // MERGED_ROWS)
            device.launch(module.program(MERGE), blocks, 32 * MERGED_ROWS, [words])
        bound.check_outputs()
        bound.copy_back()

    def _load(self, variant: Variant) -> ptxemu.Module:
        if variant not in self._loaded:
            self._loaded[variant] = ptxemu.parse(self._compiled.module(variant).ptx)
        return self._loaded[variant]

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return the family, the tile, and that it is emulated."""
        return {**self._compiled.explain(), "launcher": "emulator of PTX"}


def _parts(program: Program, call: Call, layout: Layout) -> dict[str, Array]:
    """Return memory for parts of rows, by field; none where keys are not split."""
    if layout.splits == 1:
        return {}
    rows = (call.batch, call.q.shape[1], call.q_rows, layout.splits)
    dtype = program.accum_dtype
    return {
        "part_rows": np.zeros((*rows, 4), dtype),
        "part_sums": np.zeros((*rows, program.v_head_dim), dtype),
    }


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
        whole_q=whole_rows(call.q, bound),
        whole_k=whole_rows(call.k, bound),
        whole_v=whole_rows(call.v, bound),
        ragged_q=call.q_start is not None,
        ragged_kv=call.kv_start is not None,
        paged=call.pages is not None,
    )


def whole_rows(array: Array, bound: ArgumentArrays) -> bool:
    """Return whether rows can be copied 16 bytes at a time."""
    numbers = (bound.address(array), *array.strides[:3], array.shape[3] * array.itemsize)
    return array.strides[3] == array.itemsize and all(number % 16 == 0 for number in numbers)
