"""q, k, v, and the operands that broadcast to the pairs: bias, mask, sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from sdpakit.arrays import Operand, import_array, numpy_dtype
from sdpakit.binding.signature import Signature
from sdpakit.dtypes import DTYPES, FLOATS
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Array = np.ndarray[Any, Any]
T = TypeVar("T")

# SHAPE-6: expressions are proven for indices of 31 bits, so that a backend may keep them in 32-bit
# lanes.
LENGTH_LIMIT = 2**31
# Elements of a float64 operand that are looked at in one go.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of the arrays of a call: batch B, heads of q, Lq and Lk, padding included."""

    batch: int
    q_heads: int
    q_rows: int
    kv_rows: int

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """(B, Hq, Lq, Lk): what bias and mask broadcast to."""
        return self.batch, self.q_heads, self.q_rows, self.kv_rows


def from_layout(array: Array, layout: str) -> Array:
    """Return a view with the axis order b, h, length and, if there is one, width.

    Parameters
    ----------
    array : ndarray
        In a layout; "paged" is (num_pages, page_size, H, width), whose pages stand for the batch.
    layout : str
        One of `LAYOUTS`, or "paged".

    Returns
    -------
    ndarray
        In layout "thd" with a batch axis of size 1.
    """
    if layout == "thd":
        return array.swapaxes(0, 1)[None]
    return array if layout == "bhsd" else array.swapaxes(1, 2)


def bind_qkv(spec: AttentionSpec, q: object, k: object, v: object) -> tuple[Operand, ...]:
    """Return q, k, v as operands whose views have the axis order b, h, length, width.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If one is no array of the dtype, or the shapes do not fit SHAPE-1 and the spec.
    """
    found = [import_array(where, x, (spec.dtype,)) for where, x in (("q", q), ("k", k), ("v", v))]
    for where, operand in zip("qkv", found, strict=True):
        if operand.view.ndim != len(_AXES[_form(where, spec)]):
            _refuse_rank(where, operand.view.shape, spec)
    found = [
        Operand(from_layout(x.view, _form(where, spec)), x.dtype, x.namespace)
        for where, x in zip("qkv", found, strict=True)
    ]
    q_shape, k_shape, v_shape = (operand.view.shape for operand in found)
    batch, _, q_len, _ = q_shape
    kv_batch, _, kv_len, _ = k_shape
    fits = (
        q_shape == (batch, spec.q_heads, q_len, spec.head_dim)
        and k_shape == (kv_batch, spec.kv_heads, kv_len, spec.head_dim)
        and v_shape == (kv_batch, spec.kv_heads, kv_len, spec.v_head_dim)
        and (spec.paged or kv_batch == batch)
        and max(batch, kv_batch, spec.q_heads, q_len, kv_len) < LENGTH_LIMIT
    )
    if not fits:
        _refuse_shapes(spec, (q_shape, k_shape, v_shape))
    return tuple(found)


# Axes of the layouts; "paged" is that of k and v in pages.
_AXES = {
    "bhsd": ("batch", "heads", "length", "width"),
    "bshd": ("batch", "length", "heads", "width"),
    "thd": ("tokens", "heads", "width"),
    "paged": ("num_pages", "page_size", "heads", "width"),
}


def _form(where: str, spec: AttentionSpec) -> str:
    """Return the layout of one of q, k, v."""
    return "paged" if spec.paged and where in ("k", "v") else spec.layout


def bind_tables(
    signature: Signature, dims: Dims, *, bias: object, mask: object, sinks: object
) -> dict[str, Array]:
    """Return the tables "bias", "mask" (rank 4) and "sinks" (accum_dtype) that the spec has.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If one is missing, not asked for, of another dtype, or does not broadcast (MOD-1).
    """
    spec = signature.spec
    tables: dict[str, Array] = {}
    if is_given("bias", bias, wanted=spec.bias is not None, spec_says="bias='float32'"):
        tables["bias"] = _bind_bias(str(spec.bias), spec.accum_dtype, bias, dims)
    if is_given("mask", mask, wanted=signature.takes_mask, spec_says="mask=Dense()"):
        tables["mask"] = _to_pairs("mask", _bind_mask(mask), dims)
    if is_given("sinks", sinks, wanted=spec.sinks, spec_says="sinks=True"):
        tables["sinks"] = _bind_sinks(spec, sinks)
    return tables


def is_given(where: str, value: object, *, wanted: bool, spec_says: str) -> bool:
    """Return whether an argument was given, which must be exactly if the spec wants it.

    Raises
    ------
    ArgumentError
        If it is missing, or was given and would have to be ignored.
    """
    if wanted and value is None:
        raise ArgumentError(
            format_error(
                where,
                got="nothing",
                allowed=f"an argument: the spec says {spec_says}",
                fix=f"pass {where}=, or compile a spec without it",
            )
        )
    if value is not None and not wanted:
        raise ArgumentError(
            format_error(
                where,
                got=f"{type(value).__name__}, which this spec does not use",
                allowed="nothing: an argument is never ignored",
                fix=f"compile a spec with {spec_says}, or leave {where}= away",
            )
        )
    return value is not None


def bias_operand(bias: object, dtypes: Sequence[str]) -> Operand:
    """Return the additive array of a call.

    Raises
    ------
    ArgumentTypeError
        If it is no array of the dtypes; of a boolean one the message says that it is a mask, since
        a cast would add 1 where it is True and leave out no key.
    """
    try:
        return import_array("bias", bias, dtypes)
    except ArgumentTypeError:
        if str(getattr(bias, "dtype", "")).removeprefix("torch.") != "bool":
            raise
        raise ArgumentTypeError(
            format_error(
                "bias",
                got="dtype bool",
                allowed=f"dtype {' or '.join(dtypes)}, numbers that are added to the logits",
                fix="a boolean array is mask= (with Dense() in the spec), True = may attend",
            )
        ) from None


def check_representable(where: str, array: Array, accum_dtype: str) -> None:
    """Raise if a finite float64 value would become infinite in accum_dtype (MASK-5).

    Parameters
    ----------
    where : str
        Name of the argument, for messages.
    array : ndarray
        Any strides and dtype; only float64 can hold more than accum_dtype.
    accum_dtype : str
        "float32" or "float64".

    Raises
    ------
    ArgumentError
        Naming the value.
    """
    if accum_dtype == "float64" or array.dtype != np.float64 or array.size == 0:
        return
    # A broadcast axis holds each value once; chunks keep the temporaries small.
    once = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    limit = DTYPES[accum_dtype].max
    for chunk in np.nditer(
        once, flags=["external_loop", "buffered", "zerosize_ok"], buffersize=_CHUNK
    ):
        beyond = np.isfinite(chunk) & (np.abs(chunk) > limit)
        if beyond.any():
            raise ArgumentError(
                format_error(
                    where,
                    got=f"the value {chunk[beyond][0]!r}",
                    allowed=f"infinities, and numbers up to {limit:.4g}: logits are {accum_dtype}",
                    fix="use -inf for an absent key, or a smaller number",
                )
            )


def _refuse_shapes(spec: AttentionSpec, shapes: tuple[tuple[int, ...], ...]) -> NoReturn:
    """Raise for the first of q, k, v whose shape (b, h, length, width) does not fit."""
    (batch, *_), (pages, _, kv_len, _), _ = shapes
    heads, width = ("q_heads", spec.q_heads), ("head_dim", spec.head_dim)
    kv_heads, v_width = ("kv_heads", spec.kv_heads), ("v_head_dim", spec.v_head_dim)
    of_k: tuple[str, int | None] = ("batch", batch)
    of_v, length = of_k, "kv_len"
    if spec.paged:
        of_k, of_v, length = ("num_pages", None), ("num_pages", pages), "page_size"
    _check_shape("q", shapes[0], (("batch", None), heads, ("q_len", None), width), spec)
    _check_shape("k", shapes[1], (of_k, kv_heads, (length, None), width), spec)
    _check_shape("v", shapes[2], (of_v, kv_heads, (length, kv_len), v_width), spec)
    came = (_in_layout(x, _form(name, spec)) for name, x in zip("qkv", shapes, strict=True))
    raise ArgumentError(
        format_error(
            "q, k, v",
            got=f"shapes {', '.join(map(str, came))}",
            allowed=f"batch, heads and lengths below 2**31 = {LENGTH_LIMIT} (SHAPE-6)",
            fix="split the sequence and merge the parts by their lse (MERGE-1)",
        )
    )


def _check_shape(
    where: str,
    shape: tuple[int, ...],
    axes: tuple[tuple[str, int | None], ...],
    spec: AttentionSpec,
) -> None:
    """Compare a shape with named sizes in the order b, h, length, width; None is any size."""
    wrong = [
        (name, size, came)
        for (name, size), came in zip(axes, shape, strict=True)
        if size is not None and size != came
    ]
    if not wrong:
        return
    sizes = tuple(name if size is None else f"{name}={size}" for name, size in axes)
    form = _form(where, spec)
    says = "paged=True" if form == "paged" else f"layout {form!r}"
    raise ArgumentError(
        format_error(
            where,
            got=f"shape {_in_layout(shape, form)}",
            allowed=f"({', '.join(_in_layout(sizes, form))}), {says}",
            fix=_shape_remedy(where, shape, axes, wrong[0], spec),
        )
    )


def _in_layout(items: tuple[T, ...], form: str) -> tuple[T, ...]:
    """Return what stands in the order b, h, length, width in the order of the caller."""
    b, h, length, width = items
    if form == "thd":
        return length, h, width
    return (b, h, length, width) if form == "bhsd" else (b, length, h, width)


def _shape_remedy(
    where: str,
    shape: tuple[int, ...],
    axes: tuple[tuple[str, int | None], ...],
    wrong: tuple[str, int, int],
    spec: AttentionSpec,
) -> str:
    swapped = (shape[0], shape[2], shape[1], shape[3])
    if all(size in (None, came) for (_, size), came in zip(axes, swapped, strict=True)):
        if _form(where, spec) not in ("bhsd", "bshd"):
            axis = 0 if _form(where, spec) == "thd" else 1
            return f"heads and lengths look swapped: give {where}.swapaxes({axis}, {axis + 1})"
        other = "bshd" if spec.layout == "bhsd" else "bhsd"
        return (
            f"it looks like layout {other!r}: say layout={other!r}, or give {where}.swapaxes(1, 2)"
        )
    name, size, came = wrong
    if name == "num_pages":
        return f"k has {size} pages: k and v have the same pages"
    if name == "batch":
        return f"q has batch {size}: repeat {where} or cut q, batches are not broadcast"
    if name == "kv_len":
        return f"k has kv_len {size}: k and v need the same number of keys"
    return f"give {name} = {size}; {name}={came} is that of another spec"


def _refuse_rank(where: str, shape: tuple[int, ...], spec: AttentionSpec) -> NoReturn:
    form = _form(where, spec)
    fix = "merge leading axes into the batch: reshape"
    if len(shape) < len(_AXES[form]):
        fix = f"add axes of size 1, as in {where}[None]"
    elif form == "thd":
        fix = "lay the entries of the batch one behind the other: numpy.concatenate (RAGGED-1)"
    raise ArgumentError(
        format_error(
            where,
            got=f"{len(shape)} axes, shape {shape}",
            allowed=f"{len(_AXES[form])} axes: {', '.join(_AXES[form])} ({form!r})",
            fix=fix,
        )
    )


def _bind_bias(dtype: str, accum_dtype: str, bias: object, dims: Dims) -> Array:
    view = _to_pairs("bias", bias_operand(bias, (dtype,)).view, dims)
    check_representable("bias", view, accum_dtype)
    return view


def _bind_mask(mask: object) -> Array:
    try:
        return import_array("mask", mask, ("bool",)).view
    except ArgumentTypeError:
        name = str(getattr(mask, "dtype", "")).removeprefix("torch.")
        if name not in FLOATS:
            raise
        raise ArgumentTypeError(
            format_error(
                "mask",
                got=f"dtype {name}",
                allowed="dtype bool, True = may attend",
                fix=f"numbers are added with bias= (in the spec, bias={name!r}); from an array of "
                "0 and -inf make the mask as `array == 0`",
            )
        ) from None


def _bind_sinks(spec: AttentionSpec, sinks: object) -> Array:
    view = import_array("sinks", sinks, FLOATS).view
    if view.shape != (spec.q_heads,):
        raise ArgumentError(
            format_error(
                "sinks",
                got=f"shape {view.shape}",
                allowed=f"shape (q_heads,) = ({spec.q_heads},)",
                fix="give one logit for each query head",
            )
        )
    check_representable("sinks", view, spec.accum_dtype)
    return view.astype(numpy_dtype(spec.accum_dtype))


def _to_pairs(where: str, view: Array, dims: Dims) -> Array:
    """Return a view with 4 axes, each of full size or 1, by NumPy's rule from the last axis."""
    pairs = dims.pairs
    fits = view.ndim <= 4 and all(
        came in (1, full) for came, full in zip(reversed(view.shape), reversed(pairs), strict=False)
    )
    if not fits:
        raise ArgumentError(
            format_error(
                where,
                got=f"shape {view.shape}",
                allowed=f"a shape that broadcasts to (batch, q_heads, q_len, kv_len) = {pairs}",
                fix=f"put axes of size 1 where it does not vary, as in {where}[:, None, None, :]",
            )
        )
    return view[(None,) * (4 - view.ndim)]
