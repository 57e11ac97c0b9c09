"""`attention`: the spec derived from the arrays, the kernel compiled on first use and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any, Never, NoReturn, cast

from sdpakit.arrays import Operand, import_array
from sdpakit.binding.operands import bias_operand
from sdpakit.calling import unfit_operands
from sdpakit.compiler import compile as compile_spec
from sdpakit.dtypes import FLOATS
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.expr.alignment import NAME_ONE
from sdpakit.expr.nodes import Expr
from sdpakit.expr.values import Value
from sdpakit.kernel import Kernel, Operands
from sdpakit.logits import Alibi, as_logits
from sdpakit.masks import Causal, Dense, Mask, Window, as_mask
from sdpakit.spec import AttentionSpec

# Keywords of torch.nn.functional.scaled_dot_product_attention, and what to write here.
_FOREIGN = {
    "is_causal": 'write causal=True, with align="top_left" where rows and keys differ in number',
    "attn_mask": "write mask= for a boolean array, bias= for numbers that are added",
    "enable_gqa": "leave it away: the numbers of heads are those of the arrays",
    "dropout_p": "leave it away: there is no dropout",
}


def attention(  # noqa: PLR0913 - the operands of attention, keyword-only, as in every other entry
    q: Any = None,
    k: Any = None,
    v: Any = None,
    *more: Never,
    causal: bool = False,
    align: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    mask: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    q_lens: Any = None,
    kv_lens: Any = None,
    q_offset: Any = None,
    cu_q_lens: Any = None,
    cu_kv_lens: Any = None,
    block_table: Any = None,
    logits: Expr | Alibi | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    layout: str = "bhsd",
    outputs: Sequence[str] = ("out",),
    out: Any = None,
    backend: str | Sequence[str] = "auto",
    threads: int | None = None,
    **foreign: Never,
) -> Any:
    """Compute scaled dot-product attention of arrays.

    Heads, widths and dtypes are those of the arrays. The first call of a kind compiles; later ones
    find the kernel, whatever their lengths.

    Parameters
    ----------
    q, k, v : array
        (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv), or axes 1 and 2 swapped in layout "bshd";
        (Tq, Hq, D), (Tk, Hkv, D), (Tk, Hkv, Dv) with `cu_q_lens`; k and v (num_pages, page_size,
        Hkv, width) with `block_table`.
    *more
        Refused: what follows has names.
    causal : bool, optional
        A row sees no key after its own position.
    align : {"top_left", "bottom_right", "offset"}, optional
        Where row 0 stands among the keys, for `causal` and `window`. Needed where rows and keys may
        differ in number.
    window : (int or None, int or None), optional
        Keys before and after a row's own that it sees; None = unbounded.
    mask : array of bool, Mask or callable, optional
        True = may attend. An array broadcasts to (B, Hq, Lq, Lk).
    bias : array, optional
        Added to the logits; broadcasts to (B, Hq, Lq, Lk).
    scale : float, optional
        Factor of the products; 1/sqrt(D) by default.
    softcap : float, optional
        Logits become ``softcap * tanh(logits / softcap)``.
    sinks : array, optional
        (Hq,) logits that join the denominator.
    q_lens, kv_lens : array of int, optional
        (B,) true lengths.
    q_offset : int or array of int, optional
        Position of row 0, for ``align="offset"``.
    cu_q_lens, cu_kv_lens : array of int, optional
        (B + 1,) offsets of entries that lie one behind the other; the layout is then "thd". One
        array for both promises equal lengths, and no `align` is needed.
    block_table : array of int, optional
        (B, max_pages) pages of each entry; `kv_lens` says how many keys they hold.
    logits : Expr, Alibi or callable, optional
        Change of the logits, as in `AttentionSpec`.
    params : mapping, optional
        Values of the scalars and tables that `mask` and `logits` read.
    layout : {"bhsd", "bshd", "thd"}, optional
        Axis order of q, k, v and the result.
    outputs : sequence of str, optional
        Out of "out", "lse", "max_logit", "entropy", "sum_p2".
    out : array or mapping, optional
        Where the results go.
    backend : str or sequence of str, optional
        As for `compile`.
    threads : int, optional
        At most so many threads.
    **foreign
        Refused: what another library calls one of the above is answered with its name here.

    Returns
    -------
    array or AttentionOutput
        As a `Kernel` returns it, in the library of q.

    Raises
    ------
    ArgumentTypeError, ArgumentError, SpecError
        If the arguments contradict each other or do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import sdpakit as sdpa
    >>> q = np.zeros((1, 2, 4, 8), np.float32)
    >>> sdpa.attention(q, q, q, causal=True, backend="interp").shape
    (1, 2, 4, 8)
    """
    if more or foreign or v is None:
        _refuse_call((q, k, v, *more), foreign)
    paged = block_table is not None
    if layout == "bhsd" and (cu_q_lens is not None or cu_kv_lens is not None):
        layout = "thd"
    facts, lengths = _facts_of_arrays(q, k, v, layout, paged=paged)
    dense = mask is not None and not _is_symbolic(mask)
    positions = _position_masks(causal, window, align)
    has_lens = q_lens is not None or kv_lens is not None
    equal = lengths[0] == lengths[1] and not has_lens
    if layout == "thd":  # the same object: what is equal by chance must not decide what compiles
        equal = cu_q_lens is cu_kv_lens
        has_lens = not equal
    if positions and align is None and not equal:
        _refuse_alignment(lengths, has_lens=has_lens)
    masks = [*positions, *([Dense() if dense else as_mask(mask)] if mask is not None else [])]
    facts |= {
        "mask": _all_of(masks),
        # By its structure: a function may mean another thing at every call.
        "logits": None if logits is None else as_logits(logits),
        "bias": None if bias is None else bias_operand(bias, FLOATS).dtype,
        "sinks": sinks is not None,
        "q_lens": q_lens is not None,
        "kv_lens": kv_lens is not None,
        "paged": paged,
        "equal_lens": equal,
        "outputs": tuple(outputs) if isinstance(outputs, list) else outputs,
    }
    kernel = _find_kernel(backend, scale, softcap, tuple(facts.items()))
    operands: Operands = {
        "bias": bias,
        "mask": mask if dense else None,
        "sinks": sinks,
        "q_lens": q_lens,
        "kv_lens": kv_lens,
        "q_offset": q_offset,
        "cu_q_lens": cu_q_lens,
        "cu_kv_lens": cu_kv_lens,
        "block_table": block_table,
        "params": params,
    }
    given = cast("Operands", {name: x for name, x in operands.items() if x is not None})
    return kernel(q, k, v, out=out, threads=threads, **given)


def _refuse_call(operands: tuple[Any, ...], foreign: Mapping[str, Any]) -> NoReturn:
    given = (operands, foreign)
    raise ArgumentTypeError(unfit_operands("attention", signature(attention), given, _FOREIGN))


def _find_kernel(backend: Any, *key: Any) -> Kernel:
    backend = tuple(backend) if isinstance(backend, list) else backend
    try:
        hash((backend, key))
    except TypeError:  # a value that no spec takes: what is wrong with it, the spec says
        return _kernel.__wrapped__(backend, *key)
    return _kernel(backend, *key)


# typed: scale=True must not find the kernel of scale=1.0, it has an error to get.
@lru_cache(maxsize=256, typed=True)
def _kernel(
    backend: str | tuple[str, ...],
    scale: float | None,
    softcap: float | None,
    facts: tuple[tuple[str, Any], ...],
) -> Kernel:
    spec = AttentionSpec(scale=scale, softcap=softcap, **dict(facts))
    return compile_spec(spec, backend)


def _facts_of_arrays(
    q: Any, k: Any, v: Any, layout: str, *, paged: bool
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the fields of the spec that the arrays decide, and (Lq, Lk)."""
    found = [import_array(where, x, FLOATS) for where, x in (("q", q), ("k", k), ("v", v))]
    ranks = [3 if layout == "thd" and not (paged and x != "q") else 4 for x in "qkv"]
    for where, operand, rank in zip("qkv", found, ranks, strict=True):
        if operand.view.ndim != rank:
            raise ArgumentError(
                format_error(
                    where,
                    got=f"{operand.view.ndim} axes, shape {operand.view.shape}",
                    allowed=f"{rank} axes, layout {layout!r}",
                    fix=f"add axes of size 1, as in {where}[None]"
                    if operand.view.ndim < rank
                    else "a batch laid end to end has no batch axis, one of more axes is reshaped",
                )
            )
    for where, operand in zip("kv", found[1:], strict=True):
        if operand.dtype != found[0].dtype:
            raise ArgumentTypeError(
                format_error(
                    where,
                    got=f"dtype {operand.dtype}",
                    allowed=f"dtype {found[0].dtype}, that of q",
                    fix="q, k and v need one dtype: convert with " + _cast(found[0].dtype, operand),
                )
            )
    heads, length = (2, 1) if layout == "bshd" else (1, 0) if layout == "thd" else (1, 2)
    kv_heads, kv_length = (2, 1) if paged else (heads, length)
    q_view, k_view, v_view = (operand.view for operand in found)
    facts = {
        "q_heads": q_view.shape[heads],
        "kv_heads": k_view.shape[kv_heads],
        "head_dim": q_view.shape[-1],
        "v_head_dim": v_view.shape[-1],
        "dtype": found[0].dtype,
        "layout": layout,
    }
    return facts, (q_view.shape[length], k_view.shape[kv_length])


def _cast(dtype: str, operand: Operand) -> str:
    is_torch = getattr(operand.namespace, "__name__", "") == "torch"
    return f".to(torch.{dtype})" if is_torch else f".astype({dtype!r})"


def _is_symbolic(mask: object) -> bool:
    return isinstance(mask, Mask | Expr | Value) or callable(mask)


def _position_masks(causal: object, window: object, align: str | None) -> list[Mask]:
    if not isinstance(causal, bool):
        raise ArgumentTypeError(
            format_error("causal", got=repr(causal), allowed="True or False", fix="pass a bool")
        )
    if align is not None and not causal and window is None:
        raise ArgumentError(
            format_error(
                "align",
                got=repr(align),
                allowed="an alignment together with causal=True or window=(left, right)",
                fix="pass one of these, or leave align= away: masks carry their own",
            )
        )
    masks: list[Mask] = [Causal(align)] if causal else []
    if window is not None:
        if not isinstance(window, tuple) or len(window) != 2:
            raise ArgumentTypeError(
                format_error(
                    "window",
                    got=repr(window),
                    allowed="a pair (left, right) of counts or None",
                    fix="write window=(1023, 0) for a row's own key and the 1023 before it",
                )
            )
        masks.append(Window(window[0], window[1], align))
    return masks


def _all_of(masks: Sequence[Mask]) -> Mask | None:
    """Return the conjunction of masks (MASK-1)."""
    if not masks:
        return None
    joined = masks[0]
    for mask in masks[1:]:
        joined = joined & mask
    return joined


def _refuse_alignment(lengths: tuple[int, int], *, has_lens: bool) -> None:
    got = f"none, with q_len {lengths[0]} and kv_len {lengths[1]}"
    raise ArgumentError(
        format_error(
            "align",
            got=got + (", and true lengths that may differ" if has_lens else ""),
            allowed=NAME_ONE,
            fix='name one, such as align="bottom_right" for decoding with a cache',
        )
    )
