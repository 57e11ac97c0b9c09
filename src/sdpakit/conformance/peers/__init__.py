"""Other libraries as targets, one file each; a library is imported when its target is made.

An adapter gives a peer its native arguments where the peer has them, refuses what the peer cannot
be told, and says what it had to turn into a boolean array or a bias. It never mends an answer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sdpakit.errors import ArgumentError, did_you_mean, format_error

if TYPE_CHECKING:
    from sdpakit.conformance.peers.peer import Peer

_WHERE: dict[str, tuple[str, str]] = {
    "torch": ("torch_sdpa", "Torch"),
    "torch-math": ("torch_sdpa", "TorchMath"),
    "torch-flash": ("torch_sdpa", "TorchFlash"),
    "torch-flex": ("torch_flex", "TorchFlex"),
    "jax": ("jax_nn", "Jax"),
    "onnxruntime": ("onnx_attention", "OnnxRuntime"),
    "onnxruntime-mha": ("onnxruntime_contrib", "MultiHead"),
    "onnxruntime-gqa": ("onnxruntime_contrib", "GroupQuery"),
    "onnx-reference": ("onnx_attention", "OnnxReference"),
    "mlx": ("mlx_fast", "Mlx"),
}


def names() -> tuple[str, ...]:
    """Return the names of all peers, installed or not.

    Returns
    -------
    tuple of str
        What `make` takes.
    """
    return tuple(_WHERE)


def make(name: str) -> Peer:
    """Return a peer as a target, importing its library.

    Parameters
    ----------
    name : str
        One of `names()`.

    Returns
    -------
    Peer
        A target.

    Raises
    ------
    ArgumentError
        If there is no such peer.
    BackendUnavailableError
        If its library is not installed; the message has the command that installs it.
    """
    if name not in _WHERE:
        raise ArgumentError(
            format_error(
                "peer",
                got=repr(name),
                allowed=", ".join(_WHERE),
                fix=did_you_mean(name, _WHERE, "name one of these"),
            )
        )
    module, kind = _WHERE[name]
    peer: Peer = getattr(import_module(f"{__name__}.{module}"), kind)()
    return peer
