"""The two older operators of ONNX Runtime: MultiHeadAttention and GroupQueryAttention."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.peers.asked import CAUSAL, DENSE, KV_LENS, Asked, Call, asked
from sdpakit.conformance.peers.peer import Peer, library
from sdpakit.conformance.target import refusal

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class _Contrib(Peer):
    """A model of one node of the domain com.microsoft, run on the CPU."""

    packages = ("onnxruntime", "onnx")
    dtypes = ("float32",)
    _operator = ""
    _inputs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.onnx = library("onnx", "onnx")
        self.runtime = library("onnxruntime", "onnxruntime")
        super().__init__()
        self._sessions: dict[bytes, Any] = {}

    def _run(self, feeds: dict[str, Array], words: dict[str, Any]) -> Array:
        if not all(x.dtype.isnative for x in feeds.values()):
            raise refusal(self.name, "it takes arrays of the byte order of the machine")
        inputs = tuple((name, x.dtype.name, x.ndim) for name, x in feeds.items())
        model = _built(self._operator, self._inputs, inputs, tuple(sorted(words.items())))
        if model not in self._sessions:
            options = self.runtime.SessionOptions()
            options.log_severity_level = 4  # what it refuses comes as an exception too
            options.intra_op_num_threads = 1
            self._sessions[model] = self.runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        found: Array = self._sessions[model].run(["output"], feeds)[0]
        return found

    def _packed(self, call: Call, array: Any) -> Array:
        """Return (B, L, H, width) as (B, L, H * width)."""
        by_length = call.lengths_first(array)
        batch, length, heads, width = by_length.shape
        return np.ascontiguousarray(by_length).reshape(batch, length, heads * width)

    def _unpacked(self, call: Call, packed: Array) -> Any:
        spec = call.spec
        batch, length, _ = packed.shape
        return call.lengths_first(packed.reshape(batch, length, spec.q_heads, spec.v_head_dim))


class MultiHead(_Contrib):
    """com.microsoft.MultiHeadAttention."""

    name = "onnxruntime-mha"
    note = (
        "com.microsoft.MultiHeadAttention in onnxruntime, CPU; a boolean array becomes 0 and -inf "
        "in attention_bias"
    )
    _operator = "MultiHeadAttention"
    _inputs = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias")

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return a causal mask, alone or with an array: unidirectional counts from the top left."""
        if wanted.parts <= {CAUSAL, DENSE} and wanted.causal_is("top_left"):
            return {CAUSAL, DENSE}
        return {KV_LENS} if wanted.parts == {KV_LENS} else {DENSE}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse groups, and a bias of another dtype."""
        groups = ["it has as many key as query heads"] if spec.q_heads != spec.kv_heads else []
        return [*groups, *(["a bias is float32"] if spec.bias not in (None, "float32") else [])]

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out; see `Peer.attention`."""
        spec, wanted = call.spec, asked(call.spec)
        names = ("query", "key", "value")
        feeds = {
            n: self._packed(call, x) for n, x in zip(names, (call.q, call.k, call.v), strict=True)
        }
        mask, bias = call.mask, call.bias
        if mask is not None:
            bias = np.where(mask, np.float32(0) if bias is None else bias, np.float32(-np.inf))
        if bias is not None:
            feeds["attention_bias"] = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        lens = call.given.get("kv_lens")
        if lens is not None and KV_LENS not in call.made:
            feeds["key_padding_mask"] = np.asarray(lens).astype(np.int32)
        words: dict[str, Any] = {"num_heads": spec.q_heads}
        if spec.scale is not None:
            words["scale"] = float(spec.scale)
        if CAUSAL in wanted.parts - call.made:
            words["unidirectional"] = 1
        return {"out": self._unpacked(call, self._run(feeds, words))}


class GroupQuery(_Contrib):
    """com.microsoft.GroupQueryAttention: always causal from the bottom right, with a cache.

    The keys before the rows are its past, the others are new.
    """

    name = "onnxruntime-gqa"
    note = (
        "com.microsoft.GroupQueryAttention in onnxruntime, CPU: causal from the bottom right; the "
        " keys before the first row are its past"
    )
    has_softcap = True
    has_sinks = True
    _operator = "GroupQueryAttention"
    _inputs = (
        "query",
        "key",
        "value",
        "past_key",
        "past_value",
        "seqlens_k",
        "total_sequence_length",
        "cos_cache",
        "sin_cache",
        "position_ids",
        "attention_bias",
        "head_sink",
    )

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return the causal mask."""
        return {CAUSAL}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse all that is not causal from the bottom right."""
        wanted = asked(spec)
        plain = wanted.parts == {CAUSAL} and wanted.causal_is("bottom_right")
        found = [] if plain else ["it is causal from the bottom right, and no other mask"]
        if spec.bias is not None or spec.logits is not None:
            found.append("its bias is not offered here")
        if spec.head_dim != spec.v_head_dim or spec.head_dim % 8:
            found.append("q, k and v have one width, a multiple of 8")
        return found

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out; see `Peer.attention`."""
        spec = call.spec
        q, k, v = (call.heads_first(x) for x in (call.q, call.k, call.v))
        before = k.shape[2] - q.shape[2]
        if before < 0:
            raise refusal(self.name, "it has at least as many keys as rows")
        if before and q.shape[2] > 1 and q.shape[0] > 1:
            raise refusal(self.name, "with a past it takes several rows of one entry alone")
        feeds = {"query": self._packed(call, call.q)}
        for name, array in (("key", k), ("value", v)):
            new = np.ascontiguousarray(array[:, :, before:].swapaxes(1, 2))
            feeds[name] = new.reshape(*new.shape[:2], -1)
            feeds[f"past_{name}"] = np.ascontiguousarray(array[:, :, :before])
        total = k.shape[2]
        feeds["seqlens_k"] = np.full(q.shape[0], total - 1, np.int32)
        feeds["total_sequence_length"] = np.array(total, np.int32)
        if call.given.get("sinks") is not None:
            feeds["head_sink"] = np.asarray(call.given["sinks"]).astype(np.float32)
        words: dict[str, Any] = {"num_heads": spec.q_heads, "kv_num_heads": spec.kv_heads}
        words |= {} if spec.scale is None else {"scale": float(spec.scale)}
        words |= {} if spec.softcap is None else {"softcap": float(spec.softcap)}
        return {"out": self._unpacked(call, self._run(feeds, words))}


@functools.lru_cache(maxsize=256)
def _built(
    operator: str,
    order: tuple[str, ...],
    inputs: tuple[tuple[str, str, int], ...],
    words: tuple[tuple[str, Any], ...],
) -> bytes:
    """Return a serialised model of one node."""
    helper = library("onnx.helper", "onnx")
    types = library("onnx", "onnx").TensorProto
    kinds = {"float32": types.FLOAT, "int32": types.INT32}
    given = {name: (kinds[dtype], axes) for name, dtype, axes in inputs}
    names = [name if name in given else "" for name in order]
    while not names[-1]:
        names.pop()
    cache = ["present_key", "present_value"] if "past_key" in given else []
    node = helper.make_node(
        operator, names, ["output", *cache], domain="com.microsoft", **dict(words)
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(n, t, [None] * axes) for n, (t, axes) in given.items()],
        [helper.make_tensor_value_info("output", types.FLOAT, [None] * 3)]
        + [helper.make_tensor_value_info(n, types.FLOAT, [None] * 4) for n in cache],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised
