"""The dtypes that an operand can have, by name, with the facts that rules and bounds need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from sdpakit.errors import SpecError, format_error

Kind = Literal["bool", "int", "float"]


@dataclass(frozen=True, slots=True)
class DType:
    """Facts of one storage dtype.

    Attributes
    ----------
    name : str
        Canonical name, the key of `DTYPES`.
    kind : {"bool", "int", "float"}
        Unsigned integers count as "int".
    itemsize : int
        Bytes of one element.
    unit_roundoff : float
        Largest relative error of rounding to nearest; 0 for non-floats.
    max : float
        Largest finite value.
    """

    name: str
    kind: Kind
    itemsize: int
    unit_roundoff: float
    max: float


def _float(name: str, itemsize: int, mantissa_bits: int, largest: float) -> DType:
    return DType(name, "float", itemsize, 2.0 ** -(mantissa_bits + 1), largest)


def _int(name: str) -> DType:
    bits = int(name.removeprefix("u").removeprefix("int"))
    return DType(name, "int", bits // 8, 0.0, float(2 ** (bits - (not name.startswith("u"))) - 1))


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        _float("float16", 2, 10, 65504.0),
        _float("bfloat16", 2, 7, float.fromhex("0x1.fep+127")),
        _float("float32", 4, 23, float.fromhex("0x1.fffffep+127")),
        _float("float64", 8, 52, float.fromhex("0x1.fffffffffffffp+1023")),
        DType("bool", "bool", 1, 0.0, 1.0),
        *(_int(f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")),
    )
}

FLOATS: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")

# NUM-1: the dtype of logits, maximum, exponentials, sums and the PV accumulation.
ACCUM_DTYPE: dict[str, str] = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}


def dtype_name(value: object) -> str:
    """Return the canonical name of a dtype given by name or as an object of some library.

    Parameters
    ----------
    value : object
        A string, a `numpy.dtype`, a scalar type (`numpy.float16`, `ml_dtypes.bfloat16`) or a
        `torch.dtype`.

    Returns
    -------
    str
        A key of `DTYPES`, or the text of the value where it is none (the caller judges it).
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, type):
        text = value.__name__
    else:
        text = cast(str, getattr(value, "name", None) or str(value))
    text = text.removeprefix("torch.")
    return {"bool_": "bool", "half": "float16", "float": "float64", "int": "int64"}.get(text, text)


def float_dtype(where: str, value: object) -> str:
    """Return the name of a floating dtype, or raise `SpecError` that names the field.

    Parameters
    ----------
    where : str
        Field to name in the message.
    value : object
        See `dtype_name`.

    Returns
    -------
    str
        One of `FLOATS`.

    Raises
    ------
    SpecError
        If the value is none of the four.
    """
    name = dtype_name(value)
    if name not in FLOATS:
        raise SpecError(
            format_error(
                where,
                got=repr(value),
                allowed=" | ".join(FLOATS),
                fix="name one of these, or cast the arrays before the call",
            )
        )
    return name
