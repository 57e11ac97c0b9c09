"""The LLVM module of one kernel: packers, panel step, unpacker, as readable text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu import packing
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.logits import LogitFn, MaskFn, Pairs
from sdpakit.backends.numba_cpu.panel import PanelStep
from sdpakit.backends.numba_cpu.staging import Staged


def emit_module(
    layout: PanelLayout,
    logit: LogitFn | None = None,
    mask: MaskFn | None = None,
    int_bits: int = 32,
    staged: Sequence[Staged] = (),
    extend: Callable[[Any], None] | None = None,
    comment: str = "",
) -> str:
    """Return the IR text of a kernel.

    Parameters
    ----------
    layout : PanelLayout
        Sizes, dtypes, ISA.
    logit, mask, int_bits, staged
        See `logits.Pairs`.
    extend : callable or None
        Called with the llvmlite module to add functions of its own.
    comment : str
        Free text for the head of the module.

    Returns
    -------
    str
        Deterministic text with the functions begin, pack_q, pack_k, pack_v, step and unpack_o.
    """
    module = ir.Module(name="sdpakit", context=ir.Context())
    packing.emit_begin(module, layout)
    packing.emit_pack_q(module, layout)
    packing.emit_pack_k(module, layout)
    packing.emit_pack_v(module, layout)
    PanelStep(module, layout, Pairs(logit, mask, int_bits, staged)).emit()
    packing.emit_unpack_o(module, layout)
    if extend is not None:
        extend(module)
    head = [
        *comment.splitlines(),
        f"isa {layout.isa.name}, element {layout.element}, panel of {layout.width} queries, "
        f"tiles of {layout.block_kv} keys, register tile {layout.rows} x {layout.vectors} vectors",
    ]
    return "".join(f"; {line}\n" for line in head) + str(module)
