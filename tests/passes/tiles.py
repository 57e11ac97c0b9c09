"""Random masks, the calls they are for, and their truth by brute force, without any rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sdpakit.expr.nodes import Binary, Const, Expr, Index, Load, Scalar, Select, Unary

Array = np.ndarray[Any, Any]

B, H, Q, K = (Index(name) for name in "bhqk")
Q_LEN, KV_LEN, Q_OFFSET = (Index(name) for name in ("q_len", "kv_len", "q_offset"))
STEP = Scalar("step", "int")  # 1 to 9
SHIFT = Scalar("shift", "int")  # any sign
REACH = 3  # the table `near` has an element for each clamped distance -REACH..REACH

ROW_IDS = Load("row_ids", "int32", (B, Q))
KEY_IDS = Load("key_ids", "int16", (B, K))
PREFIX = Load("prefix", "int64", (B,))
FLAGS = Load("flags", "bool", (K,))
DENSE = Load("dense", "bool", (B, H, Q, K))
NEAR = Load(
    "near",
    "uint8",
    (
        Binary(
            "add",
            Binary("max", Binary("min", Binary("sub", K, Q), Const(REACH)), Const(-REACH)),
            Const(REACH),
        ),
    ),
)
# Differs from pair to pair, and is positive.
DIVISOR = Binary("max", Unary("abs", Binary("sub", Q, SHIFT)), Const(1))


@dataclass(frozen=True, slots=True)
class World:
    """Lengths, scalars and tables of a call."""

    batch: int
    heads: int
    q_rows: int
    kv_rows: int
    q_len: Array
    kv_len: Array
    q_offset: Array
    scalars: dict[str, int]
    tables: dict[str, Array]


@st.composite
def worlds(draw: st.DrawFn, most: int = 24) -> World:
    """Draw a call: small lengths, ids sorted or not, axes of size 1, scalars of any sign."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, keys = int(rng.integers(1, most + 1)), int(rng.integers(1, most + 1))
    batch, heads = 2, 2

    def axis(size: int) -> int:
        return size if rng.random() < 0.7 else 1

    def ids(size: int) -> Array:
        found = rng.integers(-2, rng.integers(0, 8), (axis(batch), axis(size)))
        return np.sort(found, axis=1) if rng.random() < 0.6 else found

    return World(
        batch=batch,
        heads=heads,
        q_rows=rows,
        kv_rows=keys,
        q_len=rng.integers(0, rows + 1, batch),
        kv_len=rng.integers(0, keys + 1, batch),
        q_offset=rng.integers(-10, 30, batch),
        scalars={"step": int(rng.integers(1, 10)), "shift": int(rng.integers(-9, 10))},
        tables={
            "row_ids": ids(rows).astype(np.int32),
            "key_ids": ids(keys).astype(np.int16),
            "prefix": rng.integers(-1, keys + 3, axis(batch)),
            "flags": rng.random(axis(keys)) < rng.choice([0.0, 0.5, 1.0]),
            "dense": rng.random((axis(batch), axis(heads), axis(rows), axis(keys)))
            < rng.choice([0.0, 0.5, 1.0]),
            "near": rng.integers(0, 5, 2 * REACH + 1).astype(np.uint8),
        },
    )


_INT_LEAVES = st.one_of(
    st.sampled_from([Q, K, Q, K, Q_LEN, KV_LEN, Q_OFFSET, B, H]),
    st.sampled_from([STEP, SHIFT, ROW_IDS, KEY_IDS, PREFIX, NEAR]),
    st.integers(-4, 9).map(Const),
)
_ALIGNED = st.sampled_from(
    [Q, Binary("add", Q, Binary("sub", KV_LEN, Q_LEN)), Binary("add", Q, Q_OFFSET)]
)


@st.composite
def integers(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Draw an int expression."""
    kind = draw(st.integers(0, 9)) if depth else 0
    if kind <= 2:
        return draw(_INT_LEAVES)
    a = draw(integers(depth - 1))
    match kind:
        case 3:
            return Unary(draw(st.sampled_from(["neg", "abs"])), a)
        case 4:
            divisor = draw(st.sampled_from([STEP, Const(2), Const(5), DIVISOR]))
            return Binary(draw(st.sampled_from(["floordiv", "mod"])), a, divisor)
        case 5:
            return Select(draw(masks(depth - 1)), a, draw(integers(depth - 1)))
        case 6:
            factor = draw(st.sampled_from([Const(2), Const(-3), SHIFT, K, Q]))
            return Binary("mul", a, factor)
        case 7 if depth > 1:
            return Unary("to_int", draw(masks(depth - 1)))
        case _:
            op = draw(st.sampled_from(["add", "sub", "sub", "min", "max"]))
            return Binary(op, a, draw(integers(depth - 1)))


@st.composite
def known_masks(draw: st.DrawFn) -> Expr:
    """Draw a mask of the kinds that people use."""
    p = draw(_ALIGNED)
    return draw(
        st.sampled_from(
            [
                Binary("le", K, p),
                Binary("and", Binary("le", Binary("sub", p, STEP), K), Binary("le", K, p)),
                Binary("le", Unary("abs", Binary("sub", p, K)), STEP),
                Binary("lt", K, PREFIX),
                Binary("lt", K, KV_LEN),
                Binary("lt", Q, Q_LEN),
                Binary("eq", ROW_IDS, KEY_IDS),
                Binary("eq", Binary("mod", Binary("sub", p, K), STEP), Const(0)),
                Binary("eq", Binary("floordiv", p, STEP), Binary("floordiv", K, STEP)),
                DENSE,
                FLAGS,
            ]
        )
    )


@st.composite
def masks(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Draw a bool expression."""
    kind = draw(st.integers(0, 9))
    if depth == 0 or kind == 0:
        return draw(st.one_of(known_masks(), st.sampled_from([Const(True), Const(False)])))
    if kind <= 2:
        return draw(known_masks())
    if kind <= 5:
        op = draw(st.sampled_from(["lt", "le", "eq", "ne"]))
        return Binary(op, draw(integers(depth - 1)), draw(integers(depth - 1)))
    if kind == 6:
        return Unary("not", draw(masks(depth - 1)))
    if kind == 7:
        if draw(st.booleans()):
            return Binary("lt", Unary("to_float", draw(integers(depth - 1))), Const(1.5))
        return Select(draw(masks(depth - 1)), draw(masks(depth - 1)), draw(masks(depth - 1)))
    op = draw(st.sampled_from(["and", "or", "and", "or", "eq", "ne"]))
    return Binary(op, draw(masks(depth - 1)), draw(masks(depth - 1)))


_MEANING = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "not": lambda x: ~x,
    "to_int": lambda x: x.astype(np.int64),
    "to_float": lambda x: x.astype(np.float64),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a - b * (a // b),
    "min": np.minimum,
    "max": np.maximum,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}


def truth(mask: Expr, world: World, b: int, h: int) -> Array:
    """Return a mask at every pair of a batch entry and head: (q_rows, kv_rows) bool."""
    indices = {
        "b": b,
        "h": h,
        "q": np.arange(world.q_rows)[:, None],
        "k": np.arange(world.kv_rows)[None, :],
        "q_len": world.q_len[b],
        "kv_len": world.kv_len[b],
        "q_offset": world.q_offset[b],
    }
    return _Brute(world, indices, (world.q_rows, world.kv_rows)).value(mask)


class _Brute:
    """Every node at every pair."""

    def __init__(self, world: World, indices: dict[str, Any], shape: tuple[int, int]) -> None:
        self.world = world
        self.indices = indices
        self.shape = shape
        self.known: dict[Expr, Array] = {}

    def value(self, node: Expr) -> Array:
        if node not in self.known:
            self.known[node] = np.broadcast_to(self.fresh(node), self.shape)
        return self.known[node]

    def fresh(self, node: Expr) -> Any:
        match node:
            case Const(value=literal):
                return np.asarray(literal)
            case Index(name=name):
                return np.asarray(self.indices[name], dtype=np.int64)
            case Scalar(name=name):
                return np.asarray(self.world.scalars[name], dtype=np.int64)
            case Load():
                return self.element(node)
            case Select(cond=cond, a=x, b=y):
                return np.where(self.value(cond), self.value(x), self.value(y))
        return _MEANING[node.op](*(self.value(x) for x in node.children()))

    def element(self, node: Load) -> Array:
        table = self.world.tables[node.table]
        at = []
        for index, size in zip(node.indices, table.shape, strict=True):
            broadcasts = size == 1 and isinstance(index, Index)
            at.append(self.value(index) * (0 if broadcasts else 1))
        picked = table[tuple(at)]
        return picked if picked.dtype == np.bool_ else picked.astype(np.int64)
