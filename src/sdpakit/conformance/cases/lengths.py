"""Numbers of rows and keys around the sizes of tiles and vectors."""

from __future__ import annotations

from sdpakit.conformance.cases.make import F16, F32, F64, gh, make
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Window

TILES = (16, 32, 64, 96, 120, 128, 192)


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [*_square(), *_uneven(), *_reports()]


def _square() -> list[Case]:
    found: list[Case] = []
    for tile in TILES:
        for length in (tile - 1, tile, tile + 1):
            found += make(
                f"lengths.{length}_by_{length}",
                "SHAPE-1 SOFT-1",
                "a last tile that is read or written as if it were whole",
                shape=Shape(q_heads=1, q_len=length, kv_len=length),
                dtypes=(F32, F16) if length == tile + 1 else (F32,),
            )
            found += make(
                f"lengths.causal_{length}_by_{length}",
                "MASK-2",
                "a tile on the diagonal whose last column or row is lost",
                shape=Shape(q_heads=1, q_len=length, kv_len=length),
                spec={"mask": Causal("bottom_right")},
                dtypes=(F32, F64) if length == tile - 1 else (F32,),
                level="full" if tile in (96, 120) else "core",
            )
    return found


def _uneven() -> list[Case]:
    found: list[Case] = []
    for q_len in (1, 2, 3, 5, 7, 15, 17, 31, 33, 63, 65, 97):
        found += make(
            f"lengths.{q_len}_rows",
            "SHAPE-1",
            "rows of a panel that is not full",
            shape=Shape(batch=2, q_heads=3, q_len=q_len, kv_len=37),
            level="full" if q_len > 20 else "core",
        )
    for kv_len in (1, 2, 3, 5, 6, 7, 11, 13, 15, 17, 31, 33, 63, 65, 119, 121, 191, 193, 385):
        found += make(
            f"lengths.{kv_len}_keys",
            "SHAPE-1",
            "keys behind the last one that take part",
            shape=Shape(batch=2, q_heads=2, q_len=4, kv_len=kv_len),
            spec={"scale": -2.0},  # a padded key has a logit of 0, which may not be the largest
            level="full" if kv_len > 130 else "core",
        )
    for q_len, kv_len in ((1, 257), (33, 129), (65, 31), (130, 1), (17, 400)):
        found += make(
            f"lengths.window_{q_len}_by_{kv_len}",
            "MASK-2",
            "a range of tiles that leaves out the first or the last",
            shape=Shape(q_heads=1, q_len=q_len, kv_len=kv_len),
            spec={"mask": Window(33, 17, "bottom_right")},
        )
    return found


def _reports() -> list[Case]:
    return [
        *make(
            "lengths.137_causal",
            "MASK-2",
            "a remainder of 9 rows",
            shape=Shape(q_heads=1, q_len=137, kv_len=137),
            spec={"mask": Causal("top_left")},
            source=gh("meta-pytorch/attention-gym#50"),
        ),
        *make(
            "lengths.64_keys_for_one_row",
            "SHAPE-1",
            "exactly one tile of keys",
            shape=Shape(q_heads=1, q_len=1, kv_len=64, head_dim=16),
            dtypes=("bfloat16", F16, F64),
            source=gh("pytorch/pytorch#159247"),
        ),
        *make(
            "lengths.one_by_one",
            "SOFT-1",
            "one row and one key: out is v",
            shape=Shape(batch=2, q_heads=3, q_len=1, kv_len=1),
            spec={"mask": Causal("bottom_right")},
            source=gh("Dao-AILab/flash-attention#1537"),
        ),
        *make(
            "lengths.one_key",
            "SOFT-1",
            "one key with logits of 1600: out is v",
            shape=Shape(q_len=5, kv_len=1),
            recipe=lambda draw: {"q": draw.q(40.0), "k": draw.k(40.0)},
            source=gh("flashinfer-ai/flashinfer#4451"),
        ),
    ]
