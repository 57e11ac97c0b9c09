"""The rules of docs/semantics.md by id, for cases to name; a test holds the two together."""

from __future__ import annotations

from typing import Literal

Status = Literal["forward", "gradient", "later"]

# forward: judged on every target. gradient: judged on the reference. later: defined, not offered.
RULES: dict[str, Status] = {
    "SHAPE-1": "forward",
    "SHAPE-2": "forward",
    "SHAPE-3": "forward",
    "SHAPE-4": "forward",
    "SHAPE-5": "forward",
    "SHAPE-6": "forward",
    "SCALE-1": "forward",
    "SCALE-2": "forward",
    "CAP-1": "forward",
    "MOD-1": "forward",
    "MASK-1": "forward",
    "MASK-2": "forward",
    "MASK-3": "forward",
    "MASK-4": "forward",
    "MASK-5": "forward",
    "MASK-6": "forward",
    "MASK-7": "forward",
    "SINK-1": "forward",
    "SINK-2": "forward",
    "EXPR-1": "forward",
    "SOFT-1": "forward",
    "EMPTY-1": "forward",
    "NUM-1": "forward",
    "NUM-2": "forward",
    "NUM-3": "gradient",
    "NUM-4": "forward",
    "NUM-5": "forward",
    "NUM-6": "forward",
    "MERGE-1": "forward",
    "DET-1": "forward",
    "DET-2": "later",
    "DROP-1": "later",
    "GRAD-1": "gradient",
    "GRAD-2": "gradient",
    "GRAD-3": "gradient",
    "STAT-1": "forward",
    "FOLD-1": "forward",
    "OUT-1": "forward",
    "ERR-1": "forward",
}
