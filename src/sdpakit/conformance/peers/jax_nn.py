"""`jax.nn.dot_product_attention` on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.peers.asked import (
    CAUSAL,
    DENSE,
    KV_LENS,
    Q_LENS,
    WINDOW,
    Asked,
    Call,
    asked,
)
from sdpakit.conformance.peers.peer import HALF_WEIGHTS, Peer, library
from sdpakit.conformance.target import refusal

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Jax(Peer):
    """The function with its XLA implementation; 64-bit types are on where operands are float64."""

    name = "jax"
    packages = ("jax", "jaxlib")
    outputs = ("out", "lse")
    note = (
        "jax.nn.dot_product_attention, XLA on the CPU; masks and biases of fewer axes get the four "
        "that it asks for; lse is return_residual"
    )
    masks_and_bias_apart = True

    profile = HALF_WEIGHTS  # jax/_src/nn/functions.py casts the softmax to the dtype of k.

    def __init__(self) -> None:
        self.jax = library("jax", "jax[cpu]")
        super().__init__()

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return everything that counts from the top left; lengths and arrays always."""
        found = {DENSE, Q_LENS, KV_LENS}
        if wanted.causal_is("top_left"):
            found.add(CAUSAL)
        if wanted.window_is("top_left") and wanted.window is not None:
            left, right = wanted.window.left, wanted.window.right
            if left is not None and right is not None and max(left, right) < 2**31:
                found.add(WINDOW)
        return found

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse widths that the function documents not to take."""
        return [] if spec.head_dim == spec.v_head_dim else ["v has the width of k"]

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out and lse; see `Peer.attention`."""
        with self._precision(call):
            out, lse = self._function(call, residual=True)(*self._operands(call))
            found = call.lengths_first(np.asarray(out)), np.asarray(lse).swapaxes(1, 2)
        return dict(zip(("out", "lse"), found, strict=True))

    def gradients(self, call: Call, dout: Any) -> dict[str, Any]:
        """Return what vjp gives; see `Peer.gradients`."""
        with self._precision(call):
            operands = self._operands(call)
            names = ["dq", "dk", "dv", "dbias"][: len(operands)]
            out, back = self.jax.vjp(self._function(call, residual=False), *operands)
            upstream = self._array(call.lengths_first(dout)).astype(out.dtype)
            found = [np.asarray(x) for x in back(upstream)]
        shaped = [call.lengths_first(x) for x in found[:3]]
        if len(found) > 3:
            shaped.append(found[3].reshape(np.shape(call.bias)))
        return dict(zip(names, shaped, strict=True))

    def _precision(self, call: Call) -> contextlib.AbstractContextManager[Any]:
        wide = "float64" in (call.spec.dtype, call.spec.bias)
        enabled: contextlib.AbstractContextManager[Any] = self.jax.enable_x64(wide)
        return enabled

    def _array(self, array: Any) -> Any:
        if isinstance(array, np.ndarray) and not array.dtype.isnative:
            raise refusal(self.name, "jax has no foreign byte order")
        return self.jax.numpy.asarray(array)

    def _operands(self, call: Call) -> tuple[Any, ...]:
        arrays = [call.lengths_first(x) for x in (call.q, call.k, call.v)]
        bias = call.bias
        if bias is not None:
            arrays.append(_with_four_axes(bias))
        return tuple(self._array(x) for x in arrays)

    def _function(self, call: Call, *, residual: bool) -> Callable[..., Any]:
        wanted, mask = asked(call.spec), call.mask
        window = wanted.window if WINDOW in wanted.parts - call.made else None
        words = {
            "mask": None if mask is None else self._array(_with_four_axes(mask)),
            "scale": call.spec.scale,
            "is_causal": CAUSAL in wanted.parts - call.made,
            "query_seq_lengths": self._lengths(call, "q_lens"),
            "key_value_seq_lengths": self._lengths(call, "kv_lens"),
            "local_window_size": None if window is None else (window.left, window.right),
            "return_residual": residual,
        }

        def function(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
            return self.jax.nn.dot_product_attention(q, k, v, bias, **words)

        return function

    def _lengths(self, call: Call, name: str) -> Any:
        lengths = call.given.get(name)
        if lengths is None:
            return None
        if np.asarray(lengths).dtype.kind not in "iu":
            return self._array(lengths)
        return self.jax.numpy.asarray(np.asarray(lengths).astype(np.int32))


def _with_four_axes(array: Any) -> Any:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
