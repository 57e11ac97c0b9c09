"""What came, as a NumPy view: NumPy, DLPack on the CPU, `__array_interface__`, Python buffers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from sdpakit.arrays import dlpack
from sdpakit.arrays.storage import storage_name
from sdpakit.dtypes import DTYPES, dtype_name
from sdpakit.errors import ArgumentTypeError, format_error

_ALLOWED = (
    "an array in CPU memory: a NumPy array, a tensor with __dlpack__ (torch, ...), an object with "
    "__array_interface__ or of the buffer protocol"
)


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument as the rest of the package sees it.

    Attributes
    ----------
    view : ndarray
        The caller's memory, never a copy.
    dtype : str
        Key of `sdpakit.dtypes.DTYPES`.
    namespace : object or None
        Library that results go back to, with `from_dlpack`; None is NumPy.
    """

    view: np.ndarray[Any, Any]
    dtype: str
    namespace: Any | None = None


def import_array(where: str, value: object, dtypes: Sequence[str]) -> Operand:
    """Return a zero-copy view of an argument, or raise an error that names it.

    Parameters
    ----------
    where : str
        Name of the argument, for messages.
    value : object
        What the caller gave.
    dtypes : sequence of str
        The allowed dtypes.

    Returns
    -------
    Operand
        View, dtype and namespace.

    Raises
    ------
    ArgumentTypeError
        If the value is no array, lives on a device, tracks gradients, has another dtype or byte
        order, or can only be had as a copy.
    """
    namespace: Any | None = None
    if isinstance(value, np.ndarray):
        view = value if type(value) is np.ndarray else _plain(where, value)
    elif (torch := _torch_of(value)) is not None:
        view, namespace = _from_torch(where, value, dtypes), torch
    elif hasattr(value, "__dlpack__"):
        view, namespace = _from_dlpack(where, value, dtypes), _array_namespace(value)
    else:
        view = _from_buffer(where, value)
    name = storage_name(view.dtype)
    if name is None or name not in dtypes:
        _refuse_numpy_dtype(where, view.dtype, dtypes)
    return Operand(view, name, namespace)


def _plain(where: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ma.MaskedArray):
        _refuse(
            where,
            "a numpy.ma.MaskedArray, whose mask would be lost",
            "give `.filled(value)` or `.data`, and say which keys count with mask=",
        )
    return value.view(np.ndarray)


def _torch_of(value: object) -> Any | None:
    """Return the module torch if `value` is one of its tensors; torch is never imported here."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return torch if tensor is not None and isinstance(value, tensor) else None


def _from_torch(where: str, value: Any, dtypes: Sequence[str]) -> np.ndarray[Any, Any]:
    if value.device.type != "cpu":
        _refuse_device(
            where, str(value.device), "call .cpu(), or compile for a backend of that device"
        )
    if value.layout is not sys.modules["torch"].strided:
        _refuse(where, f"a torch tensor of layout {value.layout}", "call .to_dense()")
    if value.requires_grad:
        _refuse(
            where,
            "a torch tensor that requires grad",
            "call .detach(): nothing is recorded here, gradients are sdpakit.compile_backward",
        )
    # `make_dual` gives a tensor that requires no grad and would lose its tangent.
    if sys.modules["torch"].autograd.forward_ad.unpack_dual(value).tangent is not None:
        _refuse(
            where,
            "a torch tensor with a forward-mode tangent",
            "take forward_ad.unpack_dual(tensor).primal: this call computes no derivatives",
        )
    if (name := dtype_name(value.dtype)) not in dtypes:
        _refuse_dtype(where, name, dtypes, _dtype_remedy(name, dtypes, ".to(torch.{})"))
    if value.is_neg():  # DLPack does not carry the bit, so the numbers would be wrong
        _refuse(where, "a torch tensor with its negative bit set", "call .resolve_neg()")
    return _view_of(where, value, dtypes)


def _from_dlpack(where: str, value: Any, dtypes: Sequence[str]) -> np.ndarray[Any, Any]:
    device = tuple(value.__dlpack_device__())
    if device[0] != dlpack.CPU:
        _refuse_device(
            where,
            dlpack.device_name((device[0], device[1])),
            "copy it to the CPU with its library, or compile for a backend of that device",
        )
    return _view_of(where, value, dtypes)


def _view_of(where: str, value: Any, dtypes: Sequence[str]) -> np.ndarray[Any, Any]:
    try:
        return dlpack.view_of(value)
    except dlpack.DlpackError as error:
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"{_kind(value)} that gives {error}",
                allowed=f"dtype {' or '.join(dtypes)}, in memory that can be shared",
                fix="convert it with the means of its library before the call",
            )
        ) from error
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"{_kind(value)} that its library does not export ({error})",
                allowed=_ALLOWED,
                fix="convert it with the means of its library before the call",
            )
        ) from error


def _array_namespace(value: Any) -> Any | None:
    """Return the array API namespace that results go back to; NumPy where the library has none."""
    if not hasattr(value, "__array_namespace__"):
        return None
    namespace = value.__array_namespace__()
    return namespace if hasattr(namespace, "from_dlpack") else None


def _from_buffer(where: str, value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "__cuda_array_interface__"):
        _refuse_device(where, "CUDA", "copy it to the CPU, or compile for a backend of that device")
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        buffer = memoryview(value)
    except TypeError as error:
        got, fix = _describe(value)
        raise ArgumentTypeError(format_error(where, got=got, allowed=_ALLOWED, fix=fix)) from error
    try:
        return np.asarray(buffer)
    except ValueError as error:  # a struct format that NumPy does not know
        raise ArgumentTypeError(
            format_error(
                where,
                got=f"a buffer of {type(value).__name__} with format {buffer.format!r}",
                allowed=_ALLOWED,
                fix="give a NumPy array of a numeric dtype",
            )
        ) from error


def _describe(value: object) -> tuple[str, str]:
    """Return what came and the remedy, for an object that is no array."""
    kind = _kind(value)
    if isinstance(value, list | tuple):
        return kind, "make an array first: numpy.asarray(value, dtype=...)"
    if "sparse" in type(value).__module__:
        return (
            f"{kind}, a sparse array",
            "make it dense (.toarray() or .todense()); sparsity is said by mask=",
        )
    if hasattr(value, "__array__"):
        return (
            kind,
            "call numpy.asarray(value): it may copy or convert, which is never done in silence",
        )
    return kind, "give one of the allowed kinds"


def _kind(value: object) -> str:
    kind = type(value)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _refuse_numpy_dtype(where: str, dtype: np.dtype[Any], dtypes: Sequence[str]) -> NoReturn:
    name = dtype_name(dtype)
    if not dtype.isnative:
        name = f"{name} in foreign byte order ({dtype.str})"
        fix = "convert with .astype(a.dtype.newbyteorder('='))"
        _refuse_dtype(where, name, dtypes, fix)
    _refuse_dtype(where, name, dtypes, _dtype_remedy(name, dtypes, ".astype('{}')"))


def _dtype_remedy(name: str, dtypes: Sequence[str], convert: str) -> str:
    """Return what to do about an array of dtype `name`; `convert` has a place for the new dtype.

    Of several allowed dtypes the remedy names the one that keeps the values: a cast that wraps or
    rounds would be a wrong result without a message.
    """
    wanted = next((x for x in ("int64", "float32") if x in dtypes), dtypes[0])
    cast = convert.format(wanted)
    if name.startswith("complex"):
        return f"no cast keeps complex numbers: take the real part yourself, a.real{cast}"
    same_kind = name in DTYPES and DTYPES[name].kind == DTYPES[dtypes[0]].kind
    if same_kind and len(dtypes) == 1:
        return f"convert with {cast}, or name this dtype in the spec"
    return f"convert with {cast}"


def _refuse_dtype(where: str, name: str, dtypes: Sequence[str], fix: str) -> NoReturn:
    raise ArgumentTypeError(
        format_error(where, got=f"dtype {name}", allowed=f"dtype {' or '.join(dtypes)}", fix=fix)
    )


def _refuse_device(where: str, device: str, fix: str) -> NoReturn:
    raise ArgumentTypeError(
        format_error(where, got=f"an array on device {device}", allowed=_ALLOWED, fix=fix)
    )


def _refuse(where: str, got: str, fix: str) -> NoReturn:
    raise ArgumentTypeError(format_error(where, got=got, allowed=_ALLOWED, fix=fix))
