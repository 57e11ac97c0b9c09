"""Gradients of the cupy backend in the emulator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sdpakit import ptxemu
from sdpakit.backends.cupy.backward import forward_program, gradient_family, table_rows
from sdpakit.backends.cupy.compiled import compile_for
from sdpakit.backends.cupy.emulated import (
    Array,
    EmulatorLauncher,
    named_arrays,
    variant_of,
    whole_rows,
)
from sdpakit.backends.cupy.fields import call_values, gradient_values, pack
from sdpakit.backends.cupy.gradients import table_gradients
from sdpakit.backends.cupy.heads import Variant
from sdpakit.backends.cupy.splitting import lay_out
from sdpakit.backends.gpu.architectures import ARCHITECTURES
from sdpakit.ptxemu.arguments import ArgumentArrays, Named

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, BackwardCall, Call

_STORED = ("dq", "dk", "dv")  # what kernels round and store; all others are sums


class EmulatorBackward:
    """Runs the kernels of the gradients of an artifact."""

    def __init__(self, artifact: Artifact) -> None:
        self._program = artifact.program
        self._arch = ARCHITECTURES[artifact.meta["arch"]]
        self._family = gradient_family(artifact.program, self._arch, artifact.meta["family"])
        meta = {**artifact.meta, "family": artifact.meta["forward"]}
        program = forward_program(artifact.program)
        self._forward = EmulatorLauncher(replace(artifact, program=program, meta=meta))
        self._modules: dict[Variant, ptxemu.Module] = {}

    def forward(self, call: Call) -> Mapping[str, Array]:
        """Return out, not rounded, and maximum m and sum l of every row without its sink."""
        shape, dtype = call.q.shape[:3], self._program.accum_dtype
        out = np.zeros((*shape, call.v.shape[3]), dtype)
        m, total = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self._forward.run(replace(call, outputs={"out": out}), {"saved_m": m, "saved_l": total})
        return {"out": out, "m": m, "l": total}

    def __call__(self, call: BackwardCall) -> None:
        """Fill the gradients of a call."""
        program, plain = self._program, call.call
        arrays = _arrays(call, program.accum_dtype)
        device = ptxemu.Device()
        named = [Named(name, array, is_output=False) for name, array in arrays.items()]
        bound = ArgumentArrays(device, [*named_arrays(plain), *named])
        geometry = self._family.geometry(program)
        layout = lay_out(program, plain, geometry, whole=True)
        values = call_values(program, plain, layout, bound.address)
        values |= gradient_values(program, arrays, bound.address)
        words = pack(program, values, gradients=True)
        stored = (call.dout, *(call.gradients[name] for name in _STORED))
        variant = replace(
            variant_of(plain, bound, *stored), whole_dout=whole_rows(call.dout, bound)
        )
        module = self._module(variant)
        for entry, blocks, shared in self._launches(call, arrays):
            if blocks:
                kernel = module.program(entry)
                device.launch(kernel, blocks, geometry.threads, [words], shared=shared)
        bound.copy_back()
        for name, array in call.gradients.items():
            if name not in _STORED:
                array[...] = arrays[_sums_of(name)]  # GRAD-3: the one rounding

    def _launches(
        self, call: BackwardCall, arrays: Mapping[str, Array]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield kernels in order, with their numbers of blocks and dynamic shared memory."""
        geometry, plain = self._family.geometry(self._program), call.call
        batch, heads, rows, _ = plain.q.shape
        q_tiles, k_tiles = (-(-n // geometry.block_q) for n in (rows, plain.k.shape[2]))
        shared = geometry.shared_bytes
        yield "prepare_rows", -(-batch * heads * rows * 32 // geometry.threads), 0
        yield "gradient_of_queries", batch * heads * q_tiles, shared
        yield "gradient_of_keys", batch * plain.k.shape[1] * k_tiles, shared
        if "dsinks" in call.gradients:
            yield "gradient_of_sinks", heads, 0
        sizes = {"b": batch, "h": heads, "q": -(-rows // table_rows(self._program))}
        for table in table_gradients(self._program):
            owned = table.owned(arrays[table.sums].shape)
            yield table.entry, math.prod(sizes[name] for name, alone in owned.items() if alone), 0

    def _module(self, variant: Variant) -> ptxemu.Module:
        if variant not in self._modules:
            source = self._family.source(self._program, variant)
            self._modules[variant] = ptxemu.parse(compile_for(self._arch, source).ptx)
        return self._modules[variant]


def _sums_of(gradient: str) -> str:
    """Return the field of the sums of a gradient: "sums_bias" for "dbias"."""
    name = gradient.removeprefix("dparams.")
    return f"sums_{gradient.removeprefix('d') if name == gradient else name}"


def _arrays(call: BackwardCall, dtype: str) -> dict[str, Array]:
    """Return the arrays of a backward call besides those of its operands, by field."""
    rows = call.call.q.shape[:3]
    found = {
        "dout": call.dout,
        **{name: call.gradients[name] for name in _STORED},
        "saved_out": np.ascontiguousarray(call.saved["out"]),
        "saved_m": np.ascontiguousarray(call.saved["m"]),
        "saved_l": np.ascontiguousarray(call.saved["l"]),
        **{f"row_{name}": np.zeros(rows, dtype) for name in ("shift", "whole", "delta", "sink")},
        "sums_sinks": np.zeros(rows[1], dtype),
    }
    for name, array in call.gradients.items():
        if name not in _STORED:
            found[_sums_of(name)] = np.zeros(array.shape, dtype)
    return found
