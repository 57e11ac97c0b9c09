"""NumPy arrays as torch tensors and back, without a copy of the values where torch can do without.

bfloat16 travels as the bits of int16: torch does not know the dtype of ml_dtypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.target import refusal


def to_tensor(torch: Any, name: str, array: Any) -> Any:
    """Return a tensor that shares the memory of an array.

    Parameters
    ----------
    torch : module
        torch.
    name : str
        Name of the target, for a refusal.
    array : array
        Any strides that torch has.

    Returns
    -------
    torch.Tensor
        With the dtype of the array.

    Raises
    ------
    UnsupportedSpecError
        If torch has no such strides or dtype.
    """
    if not isinstance(array, np.ndarray):
        raise refusal(name, f"{type(array).__name__} is no array")
    if not array.dtype.isnative:
        raise refusal(name, "torch has no foreign byte order")
    if any(step < 0 for step in array.strides):
        raise refusal(name, "torch has no negative strides")
    if any(step % array.dtype.itemsize for step in array.strides):
        raise refusal(name, "torch has no strides that are no multiple of the element")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(torch: Any, tensor: Any) -> Any:
    """Return a tensor as an array.

    Parameters
    ----------
    torch : module
        torch.
    tensor : torch.Tensor
        On the CPU.

    Returns
    -------
    numpy.ndarray
        With the dtype of the tensor.
    """
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(np_dtype("bfloat16"))
    return plain.numpy()
