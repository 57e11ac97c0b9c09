"""The operator Attention of ONNX: in ONNX Runtime, and in the reference evaluator of onnx."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array, np_dtype
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

_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


class OnnxAttention(Peer):
    """A model of one node Attention, its inputs with four axes.

    `kv_lens`, and a causal mask of the bottom right, are `nonpad_kv_seqlen`, from which the
    operator counts the position of a row.
    """

    packages: tuple[str, ...] = ("onnx",)
    has_softcap = True
    profile = HALF_WEIGHTS  # the operator says: softmax is cast to the type of V
    _opset = 24

    def __init__(self) -> None:
        self.onnx = library("onnx", "onnx")
        super().__init__()

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return causal, lengths of the keys and the array, where the operator aligns them so."""
        from_the_end = KV_LENS in wanted.parts or wanted.causal_is("bottom_right")
        if CAUSAL in wanted.parts and not wanted.causal_is("top_left"):
            if wanted.causal_is("bottom_right") and Q_LENS not in wanted.parts:
                return {CAUSAL, KV_LENS, DENSE}
            return {KV_LENS, DENSE}
        found = {CAUSAL, DENSE} if CAUSAL in wanted.parts else {KV_LENS, DENSE}
        if not from_the_end and self._has_window(wanted):
            found.add(WINDOW)
        return found

    def _has_window(self, wanted: Asked) -> bool:
        return False

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out; see `Peer.attention`."""
        feeds = self._feeds(call)
        out = self._run(self._model(call, feeds), feeds, call.spec.dtype)
        return {"out": call.heads_first(out)}

    def _run(self, model: bytes, feeds: dict[str, Array], dtype: str) -> Array:
        raise NotImplementedError

    def _feeds(self, call: Call) -> dict[str, Array]:
        found = {
            n: call.heads_first(x) for n, x in zip("QKV", (call.q, call.k, call.v), strict=True)
        }
        mask, bias = call.mask, call.bias
        if mask is not None and bias is not None:
            found["attn_mask"] = np.where(mask, bias, np.array(-np.inf, bias.dtype))
        elif mask is not None or bias is not None:
            found["attn_mask"] = bias if mask is None else mask
        lens = call.given.get("kv_lens") if KV_LENS not in call.made else None
        if lens is None and self._counts_from_the_end(call):
            lens = np.full(found["Q"].shape[0], found["K"].shape[2])
        if lens is not None:
            found["nonpad_kv_seqlen"] = _whole(self.name, lens)
        return {name: _plain(self.name, array) for name, array in found.items()}

    def _counts_from_the_end(self, call: Call) -> bool:
        wanted = asked(call.spec)
        native = CAUSAL in wanted.parts - call.made
        return native and not wanted.causal_is("top_left")

    def _model(self, call: Call, feeds: dict[str, Array]) -> bytes:
        wanted, spec = asked(call.spec), call.spec
        words: dict[str, Any] = {}
        if CAUSAL in wanted.parts - call.made:
            words["is_causal"] = 1
        if WINDOW in wanted.parts - call.made and wanted.window is not None:
            sides = (wanted.window.left, wanted.window.right)
            for name, side in zip(("left_window_size", "right_window_size"), sides, strict=True):
                words[name] = -1 if side is None else int(side)
        if spec.scale is not None:
            words["scale"] = float(spec.scale)
        if spec.softcap is not None:
            words["softcap"] = float(spec.softcap)
        inputs = tuple((name, x.dtype.name, x.ndim) for name, x in feeds.items())
        return _built(self._opset, inputs, tuple(sorted(words.items())))


def _whole(name: str, lens: Any) -> Array:
    found = np.asarray(lens)
    if found.dtype.kind not in "iu":
        raise refusal(name, "lengths are integers in a model")
    return found.astype(np.int64)


def _plain(name: str, array: Any) -> Array:
    if isinstance(array, np.ndarray) and array.dtype.isnative:
        return array
    raise refusal(name, "it takes arrays of the byte order of the machine")


@functools.lru_cache(maxsize=256)
def _built(
    opset: int, inputs: tuple[tuple[str, str, int], ...], words: tuple[tuple[str, Any], ...]
) -> bytes:
    """Return a serialised model of one node."""
    helper = library("onnx.helper", "onnx")
    given = {
        name: (helper.np_dtype_to_tensor_dtype(np_dtype(dtype)), axes)
        for name, dtype, axes in inputs
    }
    names = [name if name in given else "" for name in _INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, ["Y"], **dict(words))
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(n, t, [None] * axes) for n, (t, axes) in given.items()],
        [helper.make_tensor_value_info("Y", given["Q"][0], [None] * 4)],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    serialised: bytes = model.SerializeToString()
    return serialised


_IR_VERSION = 10  # what released runtimes read


class OnnxRuntime(OnnxAttention):
    """The operator in ONNX Runtime on the CPU."""

    name = "onnxruntime"
    packages = ("onnxruntime", "onnx")
    note = "Attention of opset 24 in onnxruntime, CPU; scale and cap are float32 attributes"
    dtypes = ("float32", "float16", "float64")

    def __init__(self) -> None:
        self.runtime = library("onnxruntime", "onnxruntime")
        super().__init__()
        self._sessions: dict[bytes, Any] = {}

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Refuse a bias of a dtype that its Python interface does not take."""
        return ["arrays of bfloat16 do not go in"] if spec.bias == "bfloat16" else []

    def _run(self, model: bytes, feeds: dict[str, Array], dtype: str) -> Array:
        if model not in self._sessions:
            options = self.runtime.SessionOptions()
            options.log_severity_level = 4  # what it refuses comes as an exception too
            options.intra_op_num_threads = 1
            self._sessions[model] = self.runtime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        found: Array = self._sessions[model].run(None, feeds)[0]
        return found


class OnnxReference(OnnxAttention):
    """The operator in the reference evaluator of onnx, in NumPy."""

    name = "onnx-reference"
    note = "Attention of opset 25 in onnx.reference.ReferenceEvaluator"
    _opset = 25

    def __init__(self) -> None:
        self.reference = library("onnx.reference", "onnx")
        super().__init__()

    def _has_window(self, wanted: Asked) -> bool:
        return wanted.window_is("top_left") and max(_sides(wanted), default=0) < 2**31

    def _run(self, model: bytes, feeds: dict[str, Array], dtype: str) -> Array:
        loaded = self.onnx.load_model_from_string(model)
        found: Array = self.reference.ReferenceEvaluator(loaded).run(None, feeds)[0]
        return found


def _sides(wanted: Asked) -> list[int]:
    window = wanted.window
    if window is None:
        return []
    return [side for side in (window.left, window.right) if side is not None]
