"""Models of one attention node for ONNX Runtime: the standard operator and two of its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bench.inputs import Array, Inputs
from bench.workloads import Workload

_DTYPES = {
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "float64": "DOUBLE",
    "bool": "BOOL",
    "int32": "INT32",
}
_CONTRIB = "com.microsoft"
_IR_VERSION = 10

# bytes of the model, operands by name, layout of the result
Built = tuple[bytes, Mapping[str, Array], str]


class OnnxAttention(Protocol):
    """An operator: what it cannot say, and a model of it for what it can."""

    def refusal(self, workload: Workload) -> str:
        """Return why the workload cannot be said; empty = it can."""
        ...

    def build(self, workload: Workload, inputs: Inputs, mask: Array | None) -> Built:
        """Return the model, its operands and the layout of its result.

        Parameters
        ----------
        workload : Workload
            One that is not refused.
        inputs : Inputs
            Arrays in the layout bhsd.
        mask : Array or None
            Booleans that broadcast to (batch, q_heads, q_len, kv_len).
        """
        ...


class StandardAttention:
    """`Attention` of opset 23."""

    def refusal(self, workload: Workload) -> str:
        """Refuse what the CPU provider has no type for."""
        return _wrong_dtype(workload, ("float32", "float16", "float64"))

    def build(self, workload: Workload, inputs: Inputs, mask: Array | None) -> Built:
        """Return a model that takes bhsd arrays, and a mask or a bias as it is."""
        feeds = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
        extra = mask if mask is not None else inputs.bias
        if extra is not None:
            feeds["attn_mask"] = extra
        causal = int(workload.mask in ("causal", "causal_predicate"))
        model = _model(
            "Attention", list(feeds), ["out"], feeds, domain="", attributes={"is_causal": causal}
        )
        return model, feeds, "bhsd"


class MultiHeadAttention:
    """`com.microsoft.MultiHeadAttention`, the fastest of ONNX Runtime where it applies."""

    def refusal(self, workload: Workload) -> str:
        """Refuse shared heads, and all types but float32."""
        if workload.q_heads != workload.kv_heads:
            return "needs as many kv heads as q heads"
        return _wrong_dtype(workload, ("float32",))

    def build(self, workload: Workload, inputs: Inputs, mask: Array | None) -> Built:
        """Return a model that takes packed heads; a boolean mask becomes an additive one."""
        feeds = {
            name: _packed(array)
            for name, array in zip("qkv", (inputs.q, inputs.k, inputs.v), strict=True)
        }
        bias = inputs.bias
        if mask is not None:
            bias = np.where(mask, np.float32(0), np.float32(np.finfo(np.float32).min))
        names = ["q", "k", "v"]
        if bias is not None:
            feeds["attention_bias"] = bias
            names += ["", "", "attention_bias"]
        causal = int(workload.mask in ("causal", "causal_predicate"))
        attributes = {"num_heads": workload.q_heads, "unidirectional": causal}
        model = _model(
            "MultiHeadAttention", names, ["out"], feeds, domain=_CONTRIB, attributes=attributes
        )
        return model, feeds, "bshd"


class GroupQueryAttention:
    """`com.microsoft.GroupQueryAttention`: one new token against a cache of all others."""

    def refusal(self, workload: Workload) -> str:
        """Refuse more than one query: it is timed as the decoding operator that it is."""
        if workload.q_len != 1 or workload.mask != "none" or workload.bias != "none":
            return "timed for decoding only"
        return _wrong_dtype(workload, ("float32", "float16"))

    def build(self, workload: Workload, inputs: Inputs, mask: Array | None) -> Built:
        """Return a model that writes the last key into the cache and attends over all of it."""
        assert mask is None, "refused above"
        w = workload
        feeds = {
            "q": _packed(inputs.q),
            "k": _packed(inputs.k[:, :, -1:]),
            "v": _packed(inputs.v[:, :, -1:]),
            "past_k": inputs.k.copy(),  # the cache is written in place
            "past_v": inputs.v.copy(),
            "last_index": np.full(w.batch, w.kv_len - 1, np.int32),
            "total": np.array([w.kv_len], np.int32),
        }
        attributes = {"num_heads": w.q_heads, "kv_num_heads": w.kv_heads}
        outputs = ["out", "present_k", "present_v"]
        model = _model(
            "GroupQueryAttention",
            list(feeds),
            outputs,
            feeds,
            domain=_CONTRIB,
            attributes=attributes,
        )
        return model, feeds, "bshd"


STANDARD = StandardAttention()
MULTI_HEAD = MultiHeadAttention()
GROUP_QUERY = GroupQueryAttention()


def _wrong_dtype(workload: Workload, supported: Sequence[str]) -> str:
    if workload.dtype in supported:
        return ""
    return f"the CPU provider has it in {', '.join(supported)} only"


def _packed(array: Array) -> Array:
    """Return (batch, length, heads * width) of a bhsd array."""
    batch, heads, length, width = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, heads * width)


def _model(
    operator: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    feeds: Mapping[str, Array],
    *,
    domain: str,
    attributes: Mapping[str, int],
) -> bytes:
    onnx = importlib.import_module("onnx")
    helper, types = onnx.helper, onnx.TensorProto

    def info(name: str, dtype: str, shape: Sequence[int] | None) -> Any:
        return helper.make_tensor_value_info(name, getattr(types, _DTYPES[dtype]), shape)

    node = helper.make_node(operator, list(inputs), list(outputs), domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "attention",
        [info(name, array.dtype.name, array.shape) for name, array in feeds.items()],
        [info(name, feeds["q"].dtype.name, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 23)]
    if domain:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    data: bytes = made.SerializeToString()
    return data
