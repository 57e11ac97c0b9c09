"""The LLVM modules of one kernel, as readable text: its step, products, packers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sdpakit.backends.numba_cpu import packing, products
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.guard import guard_module
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.logits import LogitFn, MaskFn, Pairs
from sdpakit.backends.numba_cpu.panel import PanelStep
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe
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
    """Return the IR text of the module that a kernel has for itself.

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
        Deterministic text with the functions begin and step.
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
    return commented(head, module)


def shared_modules(layout: PanelLayout) -> tuple[ModuleRecipe, ...]:
    """Return the modules that the step calls: packers, products, `unpack_o`; and the guard."""
    shared = (
        guard_module(),
        products.qk_module(layout, far=bool(layout.dense)),
        packers_module(layout),
        unpack_module(layout),
    )
    return (*shared, products.pv_module(layout)) if layout.v_head_dim else shared


def commented(lines: Sequence[str], module: Any) -> str:
    """Return the text of a module under some lines of comment."""
    return "".join(f"; {line}\n" for line in lines) + str(module)


def packers_module(layout: PanelLayout) -> ModuleRecipe:
    """Return the module of the packers, which know neither mask nor logit nor further outputs."""
    plain = replace(layout, statistics=False, row_maximum=False, dense=())
    return ModuleRecipe(_packers_text, (plain,))


def _packers_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_packers")
    packing.emit_pack_q(module, layout)
    packing.emit_pack_k(module, layout)
    packing.emit_pack_v(module, layout)
    return str(module)


def unpack_module(layout: PanelLayout) -> ModuleRecipe:
    """Return the module of `unpack_o`: for out here, for dQ in the backward pass."""
    plain = PanelLayout(layout.isa, layout.element, layout.out_dtype, 1, layout.v_head_dim)
    return ModuleRecipe(_unpack_text, (plain,))


def _unpack_text(layout: PanelLayout) -> str:
    module = new_module("sdpakit_unpack")
    packing.emit_unpack_o(module, layout)
    return str(module)
