"""Attention operands of a real model, small enough to ship.

`ORIGIN.md` beside this file says where they come from and under which licence.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sdpakit.errors import ArgumentError, format_error

if TYPE_CHECKING:
    import numpy as np

LAYERS: tuple[int, ...] = (0, 5)


@dataclass(frozen=True, slots=True)
class Operands:
    """q, k, v of one layer and the true lengths of its sentences.

    Attributes
    ----------
    q, k, v : ndarray
        float16, (4, 12, 58, 32) in the axis order batch, head, position, width.
    lengths : ndarray
        int32 (4,): positions from `lengths[b]` on are padding in sentence b.
    """

    q: np.ndarray[Any, Any]
    k: np.ndarray[Any, Any]
    v: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]


def minilm(layer: int) -> Operands:
    """Return q, k, v of one layer of all-MiniLM-L6-v2 on four sentences.

    Parameters
    ----------
    layer : int
        One of `LAYERS`.

    Returns
    -------
    Operands
        Fresh arrays, the caller's to change.

    Raises
    ------
    ArgumentError
        If the layer is not shipped.
    """
    import numpy as np

    if layer not in LAYERS:
        raise ArgumentError(
            format_error(
                "layer",
                got=layer,
                allowed=" | ".join(map(str, LAYERS)),
                fix="ask for one of these; the other layers are not shipped",
            )
        )
    with (files(__name__) / "minilm_qkv.npz").open("rb") as stream, np.load(stream) as stored:
        q, k, v = (stored[f"{name}{layer}"] for name in "qkv")
        return Operands(q, k, v, stored["lengths"])
