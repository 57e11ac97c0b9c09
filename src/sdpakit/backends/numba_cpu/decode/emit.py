"""The functions of the decode kernel that know neither mask nor logit, as modules of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sdpakit.backends.numba_cpu.decode import rows
from sdpakit.backends.numba_cpu.decode.layout import MANY, DecodeLayout
from sdpakit.backends.numba_cpu.decode.means import Means
from sdpakit.backends.numba_cpu.decode.products import Products
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe


def decode_module(layout: PanelLayout) -> ModuleRecipe:
    """Return the module, which kernels of the same widths and dtypes share."""
    return ModuleRecipe(_decode_text, (_plain(layout),))


def pages_module(layout: PanelLayout) -> ModuleRecipe:
    """Return what takes the place of some of them where keys lie in pages."""
    return ModuleRecipe(_pages_text, (_plain(layout),))


def _plain(layout: PanelLayout) -> PanelLayout:
    return replace(layout, statistics=False, row_maximum=False, dense=(), block_kv_wish=None)


def _emit_readers(module: Any, layout: DecodeLayout) -> None:
    """Emit whatever reads keys and values."""
    for count in (1, MANY):
        Products(module, layout, count).emit()
        Means(module, layout, count).emit()
    Means(module, layout, 1, guarded=True).emit()
    rows.emit_copy_rows(module, layout)


def _pages_text(panel: PanelLayout) -> str:
    module, layout = new_module("sdpakit_decode_paged"), DecodeLayout(panel, paged=True)
    _emit_readers(module, layout)
    rows.emit_fill_rows(module, layout)
    return str(module)


def _decode_text(panel: PanelLayout) -> str:
    module, layout = new_module("sdpakit_decode"), DecodeLayout(panel)
    _emit_readers(module, layout)
    rows.emit_pack_row(module, layout)
    rows.emit_begin_row(module, layout)
    rows.emit_merge_row(module, layout)
    rows.emit_finish_row(module, layout)
    rows.emit_put_row(module, layout)
    return str(module)
