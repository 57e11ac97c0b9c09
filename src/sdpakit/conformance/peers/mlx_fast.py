"""`mlx.core.fast.scaled_dot_product_attention` on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import np_dtype
from sdpakit.conformance.peers.asked import CAUSAL, DENSE, Asked, Call, asked
from sdpakit.conformance.peers.peer import HALF_WEIGHTS, Peer, library
from sdpakit.conformance.target import refusal

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Mlx(Peer):
    """The function on the CPU stream, where it is not fused."""

    name = "mlx"
    packages = ("mlx",)
    note = (
        "mlx.core.fast.scaled_dot_product_attention on the CPU; it asks for a scale, which is "
        "1/sqrt(D) where the spec has none"
    )
    has_sinks = True

    profile = HALF_WEIGHTS  # The softmax comes in the dtype of q.

    def __init__(self) -> None:
        self.mx = library("mlx.core", "mlx[cpu]")
        super().__init__()

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return a causal mask of the bottom right alone, or a boolean array alone."""
        alone = wanted.parts == {CAUSAL} and spec.bias is None and spec.logits is None
        return {CAUSAL} if alone and wanted.causal_is("bottom_right") else {DENSE}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse a bias of another dtype, which the function documents not to take."""
        alibi = spec.logits is not None and spec.dtype != spec.accum_dtype
        if alibi or spec.bias not in (None, spec.dtype):
            return ["a bias has the dtype of q"]
        return []

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out; see `Peer.attention`."""
        mx, spec = self.mx, call.spec
        with mx.stream(mx.cpu):
            q, k, v = (self._array(call.heads_first(x)) for x in (call.q, call.k, call.v))
            sinks = call.given.get("sinks")
            out = mx.fast.scaled_dot_product_attention(
                q,
                k,
                v,
                scale=spec.head_dim**-0.5 if spec.scale is None else spec.scale,
                mask=self._mask(call),
                sinks=None if sinks is None else self._array(sinks).astype(q.dtype),
            )
            return {"out": call.heads_first(self._back(out, spec.dtype))}

    def _mask(self, call: Call) -> Any:
        if CAUSAL in asked(call.spec).parts - call.made:
            return "causal"
        mask, bias = call.mask, call.bias
        if mask is None or bias is None:
            one = bias if mask is None else mask
            return None if one is None else self._array(one)
        return self._array(np.where(mask, bias, np.array(-np.inf, bias.dtype)))

    def _array(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or not array.dtype.isnative:
            raise refusal(self.name, "it takes arrays of the byte order of the machine")
        if any(step < 0 for step in array.strides):
            raise refusal(self.name, "it takes no negative strides")
        if array.dtype.name == "bfloat16":
            bits = np.ascontiguousarray(array).view(np.uint16)
            return self.mx.array(bits).view(self.mx.bfloat16)
        # Without the dtype MLX would round float64 to float32.
        return self.mx.array(array, dtype=getattr(self.mx, _name(array)))

    def _back(self, array: Any, dtype: str) -> Any:
        if dtype == "bfloat16":
            return np.array(array.view(self.mx.uint16)).view(np_dtype(dtype))
        return np.array(array)


def _name(array: Any) -> str:
    return {"bool": "bool_"}.get(array.dtype.name, str(array.dtype.name))
