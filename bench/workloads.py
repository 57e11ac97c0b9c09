"""The named workloads and the goals they are held to, as plain data.

Goals have two levels. `floor` is the least that a release must reach; `goal` is what the design
asks for. A share is that of the ceiling measured in the same run; a ratio is the baseline's time
over ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Mask = Literal["none", "causal", "causal_predicate", "window", "random", "documents"]
Bias = Literal["none", "shared", "per_head"]
Resource = Literal["fma", "read"]
Packing = Literal["none", "ragged", "pages"]

GROUPS = ("quick", "floor", "backward", "full")
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DOCUMENT_LENGTH = 512
PAGE_SIZE = 16

# Two threads against one, for work that fills both: the goal of every workload of at least this
# many heads.
SCALING_GOAL, SCALING_HEADS = 1.9, 8


@dataclass(frozen=True, slots=True)
class Goal:
    """What a workload should reach.

    Attributes
    ----------
    share : float or None
        Least share of the ceiling, 0 to 1.
    ratio : float or None
        Least speed relative to the baseline.
    against : str
        The baseline: name of a target, or "best" for the fastest peer whose answer is right.
    """

    share: float | None = None
    ratio: float | None = None
    against: str = "best"


@dataclass(frozen=True, slots=True)
class Workload:
    """One attention call on random data.

    Attributes
    ----------
    name : str
        Unique; what `--case` takes.
    batch, q_heads, kv_heads, q_len, kv_len, head_dim : int
        The shape; v has the width of k.
    dtype : str
        Storage of q, k, v and out.
    mask : str
        "causal_predicate" is causal said by a Python function; "random" and "documents" are boolean
        arrays of shape (1, 1, q_len, kv_len), true in half of all places, and for packed causal
        documents of `DOCUMENT_LENGTH`.
    window : int
        Keys before the row's own that a causal window keeps.
    bias : str
        An additive float32 array, one matrix for all heads or one for each.
    statistics : bool
        Ask for the row statistics as well.
    packing : {"none", "ragged", "pages"}
        Entries end to end, or keys in pages of `PAGE_SIZE` out of order; then entry b has (b + 1) /
        batch of `kv_len` keys.
    backward : bool
        Compute dq, dk and dv in place of out; the forward pass is outside the clock.
    resource : {"fma", "read"}
        The ceiling that bounds the workload.
    groups : tuple of str
        Out of `GROUPS`.
    floor, goal, goal_two_threads : Goal or None
        See the head of the file.
    """

    name: str
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    dtype: str = "float32"
    mask: Mask = "none"
    window: int = 0
    bias: Bias = "none"
    statistics: bool = False
    packing: Packing = "none"
    backward: bool = False
    resource: Resource = "fma"
    groups: tuple[str, ...] = ("full",)
    floor: Goal | None = None
    goal: Goal | None = None
    goal_two_threads: Goal | None = None

    def keys(self, b: int) -> int:
        """Return the keys of a batch entry."""
        return self.kv_len if self.packing == "none" else self.kv_len * (b + 1) // self.batch

    @property
    def all_keys(self) -> int:
        """Keys of all batch entries."""
        return sum(self.keys(b) for b in range(self.batch))

    @property
    def pairs(self) -> float:
        """Pairs of a row and a key that count as useful, for one head, of an average batch entry.

        Causal counts half of the square, as is the custom, and not the exact half a diagonal more.
        A random boolean mask counts all: no program can leave a tile of it out.
        """
        square = self.q_len * self.all_keys / self.batch
        if self.mask in ("causal", "causal_predicate"):
            return square / 2
        if self.mask == "window":
            return sum(min(i, self.window) + 1 for i in range(self.q_len))
        if self.mask == "documents":
            return square / (self.kv_len // DOCUMENT_LENGTH) / 2
        return square

    @property
    def flops(self) -> float:
        """Floating-point operations over the useful pairs: of two products, or five backward."""
        products = 5 if self.backward else 2
        return 2 * products * self.batch * self.q_heads * self.head_dim * self.pairs

    @property
    def kv_bytes(self) -> int:
        """Bytes of k and v, each read once."""
        return 2 * self.all_keys * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def work(self) -> float:
        """Amount of the resource that the workload needs: flops or bytes."""
        return self.flops if self.resource == "fma" else float(self.kv_bytes)

    def goals(self, threads: int) -> dict[str, Goal]:
        """Return the goals that apply to a run with so many threads, by level."""
        if threads == 1:
            levels = {"floor": self.floor, "goal": self.goal}
        else:
            scales = self.resource == "fma" and self.batch * self.q_heads >= SCALING_HEADS
            scaling = Goal(ratio=SCALING_GOAL, against="ours_one_thread") if scales else None
            levels = {"goal": self.goal_two_threads or scaling}
        return {level: goal for level, goal in levels.items() if goal is not None}

    def plain(self) -> Workload:
        """Return the same attention said in the plainest way: built-in mask, no statistics."""
        mask: Mask = "causal" if self.mask == "causal_predicate" else self.mask
        return replace(self, mask=mask, statistics=False)


_L2048 = Workload("", batch=1, q_heads=8, kv_heads=8, q_len=2048, kv_len=2048, head_dim=64)
_L1024_GQA = replace(_L2048, q_heads=32, q_len=1024, kv_len=1024, head_dim=128)
_L512 = replace(_L2048, q_len=512, kv_len=512, groups=("quick", "full"))
_L128 = replace(_L2048, q_len=128, kv_len=128, groups=("quick", "full"))
_D128 = replace(_L2048, head_dim=128)
_FLOOR = replace(_L2048, groups=("floor", "full"))
_F64 = replace(_L2048, q_heads=4, kv_heads=4, dtype="float64")

_PLAIN = (
    replace(_FLOOR, name="f32_l2048_d64", floor=Goal(0.80, 1.1, "torch"), goal=Goal(0.88, 1.18)),
    replace(
        _FLOOR,
        name="f32_l2048_d64_causal",
        mask="causal",
        floor=Goal(None, 1.35, "torch"),
        goal=Goal(0.85, 1.5),
    ),
    replace(_D128, name="f32_l2048_d128", goal=Goal(0.92, 1.14)),
    replace(_D128, name="f32_l2048_d128_causal", mask="causal", goal=Goal(0.89, 1.4)),
    replace(_L512, name="f32_l512_d64", goal=Goal(0.82, 1.2)),
    replace(_L512, name="f32_l512_d64_causal", mask="causal", goal=Goal(0.76, 2.2)),
    replace(_L128, name="f32_l128_d64", goal=Goal(0.74, 1.1)),
    replace(_L128, name="f32_l128_d64_causal", mask="causal", goal=Goal(0.60, 1.8)),
    replace(_L1024_GQA, name="f32_l1024_d128_gqa_causal", mask="causal", goal=Goal(0.87, 1.65)),
    replace(
        _FLOOR, name="bf16_l2048_d64", dtype="bfloat16", floor=Goal(0.75), goal=Goal(0.87, 1.3)
    ),
    replace(_D128, name="bf16_l2048_d128", dtype="bfloat16", goal=Goal(0.91, 1.2)),
    replace(_FLOOR, name="f16_l2048_d64", dtype="float16", floor=Goal(0.75), goal=Goal(0.87, 1.75)),
    replace(_D128, name="f16_l2048_d128", dtype="float16", goal=Goal(0.90, 1.5)),
    replace(_F64, name="f64_l2048_d64", goal=Goal(0.82, 1.6)),
    replace(_F64, name="f64_l2048_d128", head_dim=128, goal=Goal(0.86, 1.4)),
)

_MASKS = (
    replace(_L2048, name="f32_l2048_d64_bias", bias="per_head", goal=Goal(0.80, 1.8)),
    replace(_L2048, name="f32_l2048_d64_bias_shared", bias="shared", goal=Goal(0.80, 1.8)),
    replace(_L2048, name="f32_l2048_d64_mask", mask="random", goal=Goal(0.78, 1.6)),
    replace(_L2048, name="f32_l2048_d64_mask_documents", mask="documents", goal=Goal(None, 1.6)),
    replace(
        _L2048,
        name="f32_l2048_d64_predicate",
        mask="causal_predicate",
        goal=Goal(None, 0.95, "ours_plain"),
    ),
    replace(
        _L2048,
        name="f32_l2048_d64_statistics",
        statistics=True,
        goal=Goal(None, 1 / 1.08, "ours_plain"),
    ),
    # Four heads: peers that lay out all logits would need 2 GiB with eight.
    replace(
        _L2048,
        name="f32_l8192_d64_window256",
        q_heads=4,
        kv_heads=4,
        q_len=8192,
        kv_len=8192,
        mask="window",
        window=256,
        goal=Goal(0.75, 5.0, "torch"),
    ),
)

_GQA = Workload("", 1, 32, 8, q_len=1, kv_len=32768, head_dim=128, resource="read")
_MHA = replace(_GQA, kv_heads=32)
_F32 = replace(_GQA, goal=Goal(0.85, 2.8))
_HALF = replace(_GQA, goal=Goal(0.75, 4.0), goal_two_threads=Goal(0.85, 4.0))
_BF16, _F16 = replace(_HALF, dtype="bfloat16"), replace(_HALF, dtype="float16")
_MHA_F32 = replace(_MHA, goal=Goal(0.88, 1.0))

_BATCH = replace(_GQA, batch=8, kv_len=8192)

_DECODE = (
    replace(_F32, name="decode_gqa_l4096_f32", kv_len=4096, groups=("quick", "full")),
    replace(_BF16, name="decode_gqa_l4096_bf16", kv_len=4096),
    replace(_F16, name="decode_gqa_l4096_f16", kv_len=4096),
    replace(_F32, name="decode_gqa_l32768_f32"),
    replace(_BF16, name="decode_gqa_l32768_bf16"),
    replace(_F16, name="decode_gqa_l32768_f16"),
    replace(_MHA_F32, name="decode_mha_l4096_f32", kv_len=4096),
    replace(_MHA, name="decode_mha_l4096_bf16", kv_len=4096, dtype="bfloat16"),
    replace(_MHA, name="decode_mha_l4096_f16", kv_len=4096, dtype="float16"),
    replace(_MHA_F32, name="decode_mha_l32768_f32"),
    replace(_MHA, name="decode_mha_l32768_bf16", dtype="bfloat16"),
    replace(_MHA, name="decode_mha_l32768_f16", dtype="float16"),
    replace(_BATCH, name="decode_gqa_ragged_f32", packing="ragged"),
    replace(_BATCH, name="decode_gqa_paged_f32", packing="pages"),
)

_GRAD = replace(_L2048, q_heads=4, kv_heads=4, backward=True, groups=("backward", "full"))
_GRAD_D128 = replace(_GRAD, head_dim=128)
_GRAD_L512 = replace(_GRAD, q_heads=8, kv_heads=8, q_len=512, kv_len=512)

_BACKWARD = (
    replace(_GRAD, name="grad_f32_l2048_d64", goal=Goal(0.88, 1.3)),
    replace(_GRAD, name="grad_f32_l2048_d64_causal", mask="causal", goal=Goal(0.85, 1.55)),
    replace(_GRAD_D128, name="grad_f32_l2048_d128", goal=Goal(0.88, 1.15)),
    replace(_GRAD_D128, name="grad_f32_l2048_d128_causal", mask="causal", goal=Goal(0.86, 1.4)),
    replace(_GRAD_L512, name="grad_f32_l512_d64"),
    replace(_GRAD_L512, name="grad_f32_l512_d64_causal", mask="causal"),
)

WORKLOADS: tuple[Workload, ...] = (*_PLAIN, *_MASKS, *_DECODE, *_BACKWARD)


def select(group: str | None, names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads of a group, or the named ones, in the order of the table.

    Parameters
    ----------
    group : str or None
        One of `GROUPS`; used where no names are given.
    names : sequence of str
        Names of workloads.

    Returns
    -------
    tuple of Workload
        At least one.

    Raises
    ------
    ValueError
        For a group or name that does not exist; the message lists what does.
    """
    known = [w.name for w in WORKLOADS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"case: got {', '.join(unknown)}\n  allowed: {', '.join(known)}")
    if names:
        return tuple(w for w in WORKLOADS if w.name in names)
    if group not in GROUPS:
        raise ValueError(f"group: got {group!r}\n  allowed: {', '.join(GROUPS)}")
    return tuple(w for w in WORKLOADS if group in w.groups)
