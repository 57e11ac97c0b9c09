"""What a target returned, as NumPy arrays by output name.

An array of another library is read where it lies in the memory of the CPU; what cannot be read
becomes an `Unfit`, which says why and is judged as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_HOST = (1, 3, 11, 13)  # DLPack: CPU, CUDA pinned, ROCm pinned, CUDA managed


@dataclass(frozen=True, slots=True)
class Unfit:
    """Something that came in place of an array.

    Attributes
    ----------
    why : str
        What is wrong with it, to follow the name of the output: "is None".
    """

    why: str


def by_name(result: Any, outputs: tuple[str, ...]) -> dict[str, Any]:
    """Return what a target returned as a mapping from output names.

    Parameters
    ----------
    result : array, mapping or named tuple
        What came.
    outputs : tuple of str
        Outputs of the spec.

    Returns
    -------
    dict of str to numpy.ndarray or Unfit
        Whatever came under a name of `outputs`; a NumPy array is the same object.
    """
    if isinstance(result, Mapping):
        found = {name: result[name] for name in outputs if name in result}
    elif hasattr(result, "_asdict"):
        named = result._asdict()
        found = {name: named[name] for name in outputs if name in named}
    else:
        found = {outputs[0]: result}
    return {name: as_array(value) for name, value in found.items()}


def as_array(value: Any) -> np.ndarray[Any, np.dtype[Any]] | Unfit:
    """Return a NumPy array that shares memory with a value, or what is wrong with it.

    Parameters
    ----------
    value : object
        What came for one output.

    Returns
    -------
    numpy.ndarray or Unfit
        Subclasses come as plain arrays: a masked array must not hide what it masks.
    """
    if type(value) is np.ndarray or isinstance(value, Unfit):
        return value
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if value is None:
        return Unfit("is None")
    kind = f"a {type(value).__name__}"
    if isinstance(value, (list, tuple)):
        return Unfit(f"is {kind}, not an array; several outputs come as a mapping by name")
    if isinstance(value, np.generic) or not _is_array(value):
        return Unfit(f"is {kind}, not an array")
    return _read(value, kind)


def _is_array(value: Any) -> bool:
    return any(hasattr(value, name) for name in ("__dlpack__", "__array__", "__array_interface__"))


def _read(value: Any, kind: str) -> np.ndarray[Any, np.dtype[Any]] | Unfit:
    reasons = []
    try:
        if hasattr(value, "__dlpack_device__"):
            device = tuple(int(number) for number in value.__dlpack_device__())
            if device[0] not in _HOST:
                return Unfit(f"is {kind} on the DLPack device {device}, not in memory of the CPU")
    except Exception as error:  # noqa: BLE001 - whatever a foreign array raises is its verdict
        reasons.append(str(error))
    for method, read in (
        ("__dlpack__", np.from_dlpack),
        ("__array__", np.asarray),
        ("__array_interface__", np.asarray),
    ):
        if hasattr(value, method):
            try:
                return np.asarray(read(value))
            except Exception as error:  # noqa: BLE001 - whatever a foreign array raises
                reasons.append(str(error))
    why = "; ".join(dict.fromkeys(reasons))
    return Unfit(f"is {kind} that NumPy cannot read ({why}): return a NumPy array")
