"""`torch.nn.attention.flex_attention`, eager: masks and logits become its two functions.

It has no gradients on the CPU, and says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.conformance.peers.asked import Asked, Call
from sdpakit.conformance.peers.peer import HALF_WEIGHTS, Peer, library
from sdpakit.conformance.peers.torch_arrays import to_array, to_tensor
from sdpakit.errors import InternalError
from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    postorder,
)
from sdpakit.expr.plain_index import is_plain_index
from sdpakit.expr.scope import Scope
from sdpakit.logits import Alibi

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

# The names that torch has for the operations of the scalar language.
_UNARY = {
    "neg": "neg",
    "abs": "abs",
    "not": "logical_not",
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "sqrt": "sqrt",
    "floor": "floor",
}
_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "min": "minimum",
    "max": "maximum",
    "lt": "lt",
    "le": "le",
    "eq": "eq",
    "ne": "ne",
    "and": "logical_and",
    "or": "logical_or",
}


class TorchFlex(Peer):
    """Eager FlexAttention on the CPU."""

    name = "torch-flex"
    packages = ("torch",)
    outputs = ("out", "lse")
    note = (
        "torch.nn.attention.flex_attention, eager on the CPU; mask, lengths, cap, bias and "
        "expressions are written as mask_mod and score_mod"
    )
    profile = HALF_WEIGHTS  # torch/_higher_order_ops/flex_attention.py casts them to the dtype of q
    has_softcap = True
    has_expressions = True
    masks_and_bias_apart = True

    def __init__(self) -> None:
        self.torch = library("torch", "torch")
        self.flex = library("torch.nn.attention.flex_attention", "torch")
        super().__init__()

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return every part: mask_mod says them all."""
        return set(wanted.parts)

    def attention(self, call: Call) -> dict[str, Any]:
        """Return out and lse; see `Peer.attention`."""
        qkv = self._qkv(call)
        out, lse = self._run(call, qkv)
        return {
            "out": call.heads_first(to_array(self.torch, out)),
            # It gives None in place of an empty tensor.
            "lse": None if lse is None else to_array(self.torch, lse),
        }

    def _qkv(self, call: Call) -> list[Any]:
        with warnings.catch_warnings():
            # from_numpy warns of read-only memory; nothing is written to it.
            warnings.simplefilter("ignore", UserWarning)
            operands = (call.heads_first(x) for x in (call.q, call.k, call.v))
            return [to_tensor(self.torch, self.name, x) for x in operands]

    def _run(self, call: Call, qkv: list[Any]) -> Any:
        written = _Written(self.torch, call)
        with warnings.catch_warnings():
            # It warns that it is not compiled; eager is what is judged here.
            warnings.simplefilter("ignore", UserWarning)
            return self.flex.flex_attention(
                *qkv,
                score_mod=written.score_mod(),
                block_mask=self._block_mask(call, qkv, written),
                scale=call.spec.scale,
                enable_gqa=call.spec.q_heads != call.spec.kv_heads,
                return_lse=True,
            )

    def _block_mask(self, call: Call, qkv: list[Any], written: _Written) -> Any:
        mask_mod = written.mask_mod()
        if mask_mod is None:
            return None
        batch, heads, rows, _ = qkv[0].shape
        return self.flex.create_block_mask(
            mask_mod, batch, heads, rows, qkv[1].shape[2], device="cpu"
        )


class _Written:
    """The two functions of a call."""

    def __init__(self, torch: Any, call: Call) -> None:
        self._torch, self._spec = torch, call.spec
        self._scope = Scope(equal_lens=call.spec.equal_lens)
        spec = call.spec
        self._mask = None if spec.mask is None else spec.mask.build(self._scope)
        logits = spec.logits
        self._logits = logits.build(self._scope) if isinstance(logits, Alibi) else logits
        self._tables = _tables(torch, call)
        self._numbers = {**self._scope.values, **(call.given.get("params") or {})}
        ops = call.operands
        self._lens = [torch.tensor(x.tolist()) for x in (ops.q_len, ops.kv_len)]
        self._offset = None if ops.q_offset is None else torch.tensor(ops.q_offset.tolist())

    def mask_mod(self) -> Callable[..., Any] | None:
        """Return mask and lengths as a function of (b, h, q, k), or None if there is neither."""
        spec = self._spec
        if self._mask is None and not spec.q_lens and not spec.kv_lens:
            return None

        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            seen = (q < self._lens[0][b]) & (k < self._lens[1][b])
            if self._mask is None:
                return seen
            return seen & self._value(self._mask, self._leaves(b, h, q, k))

        return mask_mod

    def score_mod(self) -> Callable[..., Any] | None:
        """Return cap, bias and the user's change as a function, or None if there is none."""
        cap, bias = self._spec.softcap, self._tables.get("bias")
        if cap is None and bias is None and self._logits is None:
            return None

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            if cap is not None:
                score = cap * self._torch.tanh(score / cap)
            if bias is not None:
                score = score + _element(bias, b, h, q, k)
            if self._logits is None:
                return score
            return self._value(self._logits, {**self._leaves(b, h, q, k), "x": score})

        return score_mod

    def _leaves(self, b: Any, h: Any, q: Any, k: Any) -> dict[str, Any]:
        found = {"b": b, "h": h, "q": q, "k": k}
        found["q_len"], found["kv_len"] = self._lens[0][b], self._lens[1][b]
        if self._offset is not None:
            found["q_offset"] = self._offset[b]
        return found

    def _value(self, root: Expr, leaves: Mapping[str, Any]) -> Any:
        values: dict[Expr, Any] = {}
        for node in postorder(root):
            values[node] = self._one(node, values, leaves)
        return values[root]

    def _one(self, node: Expr, values: Mapping[Expr, Any], leaves: Mapping[str, Any]) -> Any:
        torch = self._torch
        match node:
            case Const():
                return self._number(node.value, node.type)
            case Index():
                return leaves[node.name].to(torch.int64)
            case Scalar():
                return (
                    leaves["x"]
                    if node is LOGIT
                    else self._number(self._numbers[node.name], node.type)
                )
            case Load():
                return self._load(node, values)
            case Unary(op="to_float"):
                return values[node.x].to(self._float)
            case Unary(op="to_int"):
                return values[node.x].to(torch.int64)
            case Unary():
                return getattr(torch, _UNARY[node.op])(values[node.x])
            case Binary():
                return getattr(torch, _BINARY[node.op])(values[node.a], values[node.b])
            case Select():
                return torch.where(values[node.cond], values[node.a], values[node.b])
        raise InternalError(f"{type(node).__name__} is no node of a user")

    @property
    def _float(self) -> Any:
        return getattr(self._torch, self._spec.accum_dtype)

    def _number(self, value: Any, kind: str) -> Any:
        dtype = {"bool": self._torch.bool, "int": self._torch.int64, "float": self._float}[kind]
        return self._torch.tensor(value, dtype=dtype)

    def _load(self, node: Load, values: Mapping[Expr, Any]) -> Any:
        table = self._tables[node.table]
        picks = [
            values[index] * 0 if size == 1 and is_plain_index(index) else values[index]
            for index, size in zip(node.indices, table.shape, strict=True)
        ]
        found = table[tuple(picks)]
        kind = {"bool": self._torch.bool, "int": self._torch.int64, "float": self._float}
        return found.to(kind[node.type])


def _tables(torch: Any, call: Call) -> dict[str, Any]:
    """Return the arrays that the functions read, mask and bias with four axes."""
    given = {n: call.given[n] for n in ("mask", "bias") if call.given.get(n) is not None}
    found = {n: x.reshape((1,) * (4 - x.ndim) + x.shape) for n, x in given.items()}
    params = call.given.get("params") or {}
    found.update({n: x for n, x in params.items() if getattr(x, "ndim", 0)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return {n: to_tensor(torch, "torch-flex", x) for n, x in found.items()}


def _element(table: Any, *indices: Any) -> Any:
    """Return an element of an array in which axes of size 1 broadcast."""
    picks = [i * 0 if size == 1 else i for i, size in zip(indices, table.shape, strict=True)]
    return table[tuple(picks)]
