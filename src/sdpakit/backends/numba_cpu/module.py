"""The LLVM modules of one kernel, as readable text: its step, products, packers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sdpakit.backends.numba_cpu import packing, products
from sdpakit.backends.numba_cpu.codegen import KernelText
from sdpakit.backends.numba_cpu.functions import new_module
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
) -> KernelText:
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
    KernelText
        Deterministic text with the functions begin, step, pack_q, pack_k, pack_v and unpack_o.
    """
    module = new_module("sdpakit")
    packing.emit_begin(module, layout)
    PanelStep(module, layout, Pairs(logit, mask, int_bits, staged)).emit()
    if extend is not None:
        extend(module)
    head = [
        *comment.splitlines(),
        f"isa {layout.isa.name}, element {layout.element}, panel of {layout.width} queries, "
        f"tiles of {layout.block_kv} keys, register tile {layout.rows} x {layout.vectors} vectors",
    ]
    shared = [
        products.qk_text(layout, far=bool(layout.dense)),
        packers_text(layout),
        unpack_text(layout),
    ]
    if layout.v_head_dim:
        shared.append(products.pv_text(layout))
    return KernelText(commented(head, module), tuple(shared))


def commented(lines: Sequence[str], module: Any) -> str:
    """Return the text of a module under some lines of comment."""
    return "".join(f"; {line}\n" for line in lines) + str(module)


def packers_text(layout: PanelLayout) -> str:
    """Return the module of the packers, which know neither mask nor logit nor further outputs."""
    return _packers_text(replace(layout, statistics=False, row_maximum=False, dense=()))


@functools.lru_cache(maxsize=64)
def _packers_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_packers")
    packing.emit_pack_q(module, layout)
    packing.emit_pack_k(module, layout)
    packing.emit_pack_v(module, layout)
    return str(module)


def unpack_text(layout: PanelLayout) -> str:
    """Return the module of `unpack_o`: for out here, for dQ in the backward pass."""
    return _unpack_text(
        PanelLayout(layout.isa, layout.element, layout.out_dtype, 1, layout.v_head_dim)
    )


@functools.lru_cache(maxsize=64)
def _unpack_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_unpack")
    packing.emit_unpack_o(module, layout)
    return str(module)
