"""Random valid specs from fixed seeds: combinations that nobody thought of, the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import ALL
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.dtypes import FLOATS
from sdpakit.logits import Alibi
from sdpakit.masks import (
    Causal,
    Dense,
    Dilated,
    Document,
    Mask,
    Predicate,
    Prefix,
    Window,
)

_ALIGNS = ("top_left", "bottom_right", "offset")


def random_case(number: int) -> Case:
    """Return a case of a random spec, random sizes and random operands.

    Parameters
    ----------
    number : int
        Seed; the same number gives the same case.

    Returns
    -------
    Case
        "stress.random_NUMBER.DTYPE".
    """
    rng = np.random.default_rng([number, 20_26])
    shape, spec = _shape(rng), _spec(rng)
    return Case(
        id=f"stress.random_{number:03}.{spec['dtype']}",
        rules=("MASK-1", "SHAPE-1", "NUM-6", "SOFT-1"),
        catches="a combination of shape, mask, bias, sinks and lengths that nobody thought of",
        shape=shape,
        spec=spec,
        recipe=_recipe(spec),
        bound="hard",
        level="stress",
    )


def _shape(rng: np.random.Generator) -> Shape:
    kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    return Shape(
        batch=int(rng.integers(0, 4)),
        q_heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=int(rng.choice([0, 1, 2, 7, 16, 31, 64, 65])),
        kv_len=int(rng.choice([0, 1, 3, 16, 33, 64, 100, 129, 257])),
        head_dim=int(rng.choice([1, 3, 8, 16, 33, 64, 80, 128])),
        v_head_dim=int(rng.choice([0, 1, 5, 8, 16, 40, 64, 96])),
    )


def _spec(rng: np.random.Generator) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "dtype": str(rng.choice(FLOATS)),
        "outputs": ALL,
        "layout": str(rng.choice(["bhsd", "bshd"])),
        "empty_row": str(rng.choice(["zero", "nan"])),
        "sinks": bool(rng.random() < 0.3),
        "q_lens": bool(rng.random() < 0.3),
        "kv_lens": bool(rng.random() < 0.4),
    }
    if rng.random() < 0.4:
        spec["scale"] = float(rng.choice([0.0, -0.3, 0.05, 1.0, 3.0]))
    if rng.random() < 0.3:
        spec["softcap"] = float(rng.choice([0.5, 4.0, 50.0]))
    if rng.random() < 0.4:
        spec["bias"] = str(rng.choice(FLOATS[:3]))
    if rng.random() < 0.3:
        spec["logits"] = _LOGITS[int(rng.integers(len(_LOGITS)))](rng)
    if rng.random() < 0.8:
        spec["mask"] = _mask(rng, depth=2)
    return spec


_LOGITS: tuple[Callable[[np.random.Generator], Any], ...] = (
    lambda rng: Alibi("slopes", str(rng.choice(_ALIGNS[:2]))),
    lambda _rng: lambda x, i: x * 0.5 - 0.125 * ((i.k - i.q) % 5),
    lambda _rng: lambda x, i: -x + 0.01 * i.h,
)


def _mask(rng: np.random.Generator, *, depth: int) -> Mask:
    if depth and rng.random() < 0.5:
        a, b = (_mask(rng, depth=depth - 1) for _ in range(2))
        return [a & b, a | b, ~a][int(rng.integers(3))]
    return _LEAVES[int(rng.integers(len(_LEAVES)))](rng)


def _side(rng: np.random.Generator) -> int | None:
    return None if rng.random() < 0.25 else int(rng.integers(0, 40))


def _align(rng: np.random.Generator) -> str:
    return str(rng.choice(_ALIGNS))


def _modular(rng: np.random.Generator) -> Mask:
    step, least = int(rng.integers(2, 6)), int(rng.integers(1, 3))
    return Predicate(lambda i: (i.k * 2 - i.q + i.h) % step >= least)


_LEAVES: tuple[Callable[[np.random.Generator], Mask], ...] = (
    lambda rng: Causal(_align(rng)),
    lambda rng: Window(_side(rng), _side(rng), _align(rng)),
    lambda rng: Prefix(int(rng.integers(0, 60))),
    lambda _rng: Prefix("prefix"),
    lambda _rng: Document("rows", "keys"),
    lambda rng: Dilated(int(rng.integers(1, 7)), _align(rng)),
    lambda _rng: Dense(),
    _modular,
)


def _recipe(spec: dict[str, Any]) -> Callable[[Draw], dict[str, Any]]:
    """Return a recipe that gives whatever the spec asks for."""
    said = repr(spec.get("mask")) + repr(spec.get("logits"))

    def recipe(draw: Draw) -> dict[str, Any]:
        s = draw.shape
        found: dict[str, Any] = draw.qkv(float(draw.rng.choice([0.1, 1.0, 6.0])))
        if spec.get("bias"):
            dims = [n if draw.rng.random() < 0.7 else 1 for n in s.pairs]
            found["bias"] = draw.normal(*dims, dtype=spec["bias"])
        if spec["sinks"]:
            found["sinks"] = draw.normal(s.q_heads, dtype="float32")
        for name, length in (("q_lens", s.q_len), ("kv_lens", s.kv_len)):
            if spec[name]:
                found[name] = draw.ints(0, length + 1, s.batch)
        if "Dense" in said:
            found["mask"] = draw.bools(*s.pairs, share=0.7)
        if "'offset'" in said:
            found["q_offset"] = draw.ints(-20, 100, s.batch)
        return {**found, **_params(draw, said)}

    return recipe


def _params(draw: Draw, said: str) -> dict[str, Any]:
    s = draw.shape
    tables: dict[str, Callable[[], Any]] = {
        "rows": lambda: draw.ints(0, 3, s.batch, s.q_len),
        "keys": lambda: draw.ints(0, 3, s.batch, s.kv_len),
        "prefix": lambda: draw.ints(0, s.kv_len + 1, s.batch, dtype="int64"),
        "slopes": lambda: draw.normal(s.q_heads, dtype="float32"),
    }
    params = {name: make() for name, make in tables.items() if f"'{name}'" in said}
    return {"params": params} if params else {}
