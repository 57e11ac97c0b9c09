"""Mutants that see other keys than the mask and the lengths allow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Call, Entry, Plain, respec
from sdpakit.conformance.mutants.model import Mutant, mutant
from sdpakit.masks import And, Causal, Dense, Dilated, Document, Mask, Not, Or, Prefix, Window
from sdpakit.reference.expressions import Scope
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def _aligned(mask: Mask, align: str) -> Mask:
    if isinstance(mask, Causal | Window | Dilated):
        return dataclasses.replace(mask, align=align)
    return mask


def top_left_for_bottom_right(mask: Mask) -> Mask:
    """The last row is not aligned with the last key."""
    return _aligned(mask, "top_left")


def bottom_right_for_top_left(mask: Mask) -> Mask:
    """The last row is aligned with the last key although the first should be with the first."""
    return _aligned(mask, "bottom_right")


def window_short(mask: Mask) -> Mask:
    """A window counts the row's own key among those to its left."""
    if isinstance(mask, Window) and mask.left:
        return dataclasses.replace(mask, left=mask.left - 1)
    return mask


def window_long(mask: Mask) -> Mask:
    """A window reaches one key too far to the left."""
    if isinstance(mask, Window) and mask.left is not None:
        return dataclasses.replace(mask, left=mask.left + 1)
    return mask


def window_right_ignored(mask: Mask) -> Mask:
    """A window is read as the keys to the left and no further."""
    return dataclasses.replace(mask, right=0) if isinstance(mask, Window) else mask


def window_none_is_zero(mask: Mask) -> Mask:
    """An open side of a window is taken for 0 keys."""
    if isinstance(mask, Window):
        return dataclasses.replace(mask, left=mask.left or 0, right=mask.right or 0)
    return mask


def window_zero_is_none(mask: Mask) -> Mask:
    """A side of 0 keys is taken for an open one."""
    if isinstance(mask, Window):
        return dataclasses.replace(mask, left=mask.left or None, right=mask.right or None)
    return mask


def causal_strict(mask: Mask) -> Mask:
    """A row does not see its own key."""
    return mask & ~Window(0, 0, mask.align) if isinstance(mask, Causal) else mask


def causal_loose(mask: Mask) -> Mask:
    """A row sees the key after its own."""
    return Window(None, 1, mask.align) if isinstance(mask, Causal) else mask


def dense_inverted(mask: Mask) -> Mask:
    """True in a boolean array means masked."""
    return Not(mask) if isinstance(mask, Dense) else mask


def and_drops_second(mask: Mask) -> Mask:
    """A causal flag makes the kernel forget the array."""
    return mask.a if isinstance(mask, And) else mask


def and_drops_first(mask: Mask) -> Mask:
    """An array makes the kernel forget the causal flag."""
    return mask.b if isinstance(mask, And) else mask


def and_is_or(mask: Mask) -> Mask:
    """Two masks add up."""
    return Or(mask.a, mask.b) if isinstance(mask, And) else mask


def or_is_and(mask: Mask) -> Mask:
    """All masks compose by AND, also where OR was said."""
    return And(mask.a, mask.b) if isinstance(mask, Or) else mask


def not_dropped(mask: Mask) -> Mask:
    """NOT is lost."""
    return mask.a if isinstance(mask, Not) else mask


def prefix_inclusive(mask: Mask) -> Mask:
    """A prefix of n has n + 1 keys."""
    if isinstance(mask, Prefix) and isinstance(mask.length, int):
        return dataclasses.replace(mask, length=mask.length + 1)
    return mask


def dilated_ignored(mask: Mask) -> Mask:
    """A dilated mask is dense."""
    return dataclasses.replace(mask, step=1) if isinstance(mask, Dilated) else mask


def dilated_to_the_left(mask: Mask) -> Mask:
    """A dilated mask sees no key after the row's own."""
    return mask & Causal(mask.align) if isinstance(mask, Dilated) else mask


def documents_searched(right: Plain, ops: Operands, scope: Scope) -> Array:
    """Borders of documents are searched as if ids were sorted."""
    seen, mask = right.visible(ops, scope), ops.spec.mask
    if not isinstance(mask, Document):
        return seen
    b, j = int(scope.indices["b"]), scope.indices["k"]
    rows, keys = (np.asarray(ops.params[n]) for n in (mask.ids, mask.kv_ids or mask.ids))
    rows, keys = (x[b if len(x) > 1 else 0] for x in (rows, keys))
    first, last = np.searchsorted(keys, rows, "left"), np.searchsorted(keys, rows, "right")
    inside = (first[:, None] <= j) & (j < last[:, None])
    return np.broadcast_to(inside, ops.full_shape[1:])


def tables_of_the_first_entry(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Ids and prefixes of batch entry 0 are used for every entry."""
    tables = given.get("params") or {}
    batch = given["q"].shape[0]
    same = {
        name: np.broadcast_to(np.asarray(x)[:1], np.shape(x))
        for name, x in tables.items()
        if np.ndim(x) and np.shape(x)[0] == batch and np.asarray(x).dtype.kind in "iu"
    }
    return spec, {**given, "params": {**tables, **same}} if same else given


def offset_of_the_first_entry(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The position of batch entry 0 is used for every entry."""
    if given.get("q_offset") is not None:
        given["q_offset"] = int(np.ravel(given["q_offset"])[0])
    return spec, given


def offset_unsigned(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A negative position is taken for 0."""
    if given.get("q_offset") is not None:
        given["q_offset"] = np.maximum(given["q_offset"], 0)
    return spec, given


def bottom_right_of_padded_lengths(right: Plain, ops: Operands, scope: Scope) -> Array:
    """The corner is that of the padded array, not of the true lengths."""
    seen = right.visible(ops, scope)
    b = int(scope.indices["b"])
    _, _, q_len, kv_len = ops.full_shape
    padded = {**scope.indices, "q_len": np.int64(q_len), "kv_len": np.int64(kv_len)}
    inside = (scope.indices["q"] < ops.q_len[b]) & (scope.indices["k"] < ops.kv_len[b])
    whole = dataclasses.replace(
        ops, q_len=np.full_like(ops.q_len, q_len), kv_len=np.full_like(ops.kv_len, kv_len)
    )
    other = right.visible(whole, dataclasses.replace(scope, indices=padded))
    return other & inside if ops.spec.mask is not None else seen


def key_lengths_ignored(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Keys past kv_lens take part."""
    if spec.paged:  # without lengths there is no saying which pages to read
        return spec, given
    given.pop("kv_lens", None)
    return respec(spec, kv_lens=False), given


def row_lengths_ignored(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Rows past q_lens are computed."""
    given.pop("q_lens", None)
    return respec(spec, q_lens=False), given


def lengths_of_the_longest(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Every entry has the length of the longest."""
    if np.size(given.get("kv_lens", [])):
        given["kv_lens"] = np.full_like(given["kv_lens"], np.max(given["kv_lens"]))
    return spec, given


def mask_of_head_for_entry(right: Plain, ops: Operands, b: int) -> Entry:
    """A boolean array is indexed by head where it should be by batch entry."""
    if ops.mask is not None and ops.mask.shape[0] == ops.mask.shape[1]:
        ops = dataclasses.replace(ops, mask=ops.mask.swapaxes(0, 1))
    return right.entry(ops, b)


def mask_of_the_first_head(right: Plain, ops: Operands, b: int) -> Entry:
    """The boolean array of head 0 is used for every head."""
    if ops.mask is not None:
        ops = dataclasses.replace(ops, mask=np.broadcast_to(ops.mask[:, :1], ops.mask.shape))
    return right.entry(ops, b)


def key_mask_of_rows(right: Plain, ops: Operands, scope: Scope) -> Array:
    """An array with one element a key is read with one a row where the counts agree."""
    _, _, q_len, kv_len = ops.full_shape
    if ops.mask is not None and q_len == kv_len and ops.mask.strides[2] == 0:
        ops = dataclasses.replace(ops, mask=ops.mask.swapaxes(2, 3))
    return right.visible(ops, scope)


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        Plain,
        "rewrite",
        top_left_for_bottom_right,
        "masks.causal_bottom_right_decode.float32",
        "pytorch/pytorch#103082",
    ),
    mutant(
        Plain,
        "rewrite",
        bottom_right_for_top_left,
        "masks.causal_top_left_decode.float32",
        "microsoft/onnxruntime#29020",
    ),
    mutant(Plain, "rewrite", window_short, "windows.left_and_own.float32"),
    mutant(Plain, "rewrite", window_long, "windows.left_and_own.float32 windows.diagonal.float32"),
    mutant(Plain, "rewrite", window_right_ignored, "windows.right_open.float32"),
    mutant(
        Plain,
        "rewrite",
        window_none_is_zero,
        "windows.left_open.float32 windows.right_open.float32",
    ),
    mutant(Plain, "rewrite", window_zero_is_none, "windows.diagonal.float32"),
    mutant(Plain, "rewrite", causal_strict, "masks.causal_top_left_rectangle.float32"),
    mutant(Plain, "rewrite", causal_loose, "masks.causal_top_left_rectangle.float32"),
    mutant(Plain, "rewrite", dense_inverted, "masks.true_attends.float32"),
    mutant(
        Plain,
        "rewrite",
        and_drops_second,
        "masks.causal_and_dense.float32 windows.and_dense.float32",
    ),
    mutant(
        Plain,
        "rewrite",
        and_drops_first,
        "masks.causal_and_dense.float32 masks.key_mask_and_causal.float32",
    ),
    mutant(Plain, "rewrite", and_is_or, "masks.causal_and_dense.float32"),
    mutant(
        Plain,
        "rewrite",
        or_is_and,
        "masks.prefix_or_causal.float32 masks.or_of_far_windows.float32",
    ),
    mutant(Plain, "rewrite", not_dropped, "masks.not_causal.float32 masks.not_of_and_or.float32"),
    mutant(Plain, "rewrite", prefix_inclusive, "masks.prefix_number.float32"),
    mutant(
        Plain,
        "rewrite",
        dilated_ignored,
        "masks.dilated_top_left.float32 masks.dilated_causal_window.float32",
    ),
    mutant(Plain, "rewrite", dilated_to_the_left, "masks.dilated_top_left.float32"),
    mutant(Plain, "visible", documents_searched, "masks.documents_unsorted.float32"),
    mutant(Plain, "change", tables_of_the_first_entry, "masks.documents_unsorted.float32"),
    mutant(Plain, "change", offset_of_the_first_entry, "masks.causal_offset_per_entry.float32"),
    mutant(Plain, "change", offset_unsigned, "masks.causal_offset_per_entry.float32"),
    mutant(
        Plain,
        "visible",
        bottom_right_of_padded_lengths,
        "masks.bottom_right_of_true_lengths.float32",
        "onnx/onnx#8054",
    ),
    mutant(
        Plain,
        "change",
        key_lengths_ignored,
        "masks.kv_lens.float32 poison.past_lengths_nan.float32",
        "jax-ml/jax#23349",
    ),
    mutant(Plain, "change", row_lengths_ignored, "masks.both_lens.float32"),
    mutant(Plain, "change", lengths_of_the_longest, "masks.kv_lens.float32"),
    mutant(Plain, "entry", mask_of_head_for_entry, "masks.dense_batch_equals_heads.float32"),
    mutant(Plain, "entry", mask_of_the_first_head, "masks.dense_broadcast_heads.float32"),
    mutant(Plain, "visible", key_mask_of_rows, "masks.key_mask_and_causal.float32"),
)
