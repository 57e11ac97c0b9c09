"""What a case, an outcome and a run are; data only."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sdpakit.errors import ScaleWarning

if TYPE_CHECKING:
    from sdpakit.conformance.inputs import Draw
    from sdpakit.spec import AttentionSpec

Level: TypeAlias = Literal["core", "full", "stress"]
LEVELS: tuple[Level, ...] = ("core", "full", "stress")  # each includes the one before
BoundKind: TypeAlias = Literal["sharp", "hard"]
Verdict: TypeAlias = Literal["ok", "fail", "refused", "error", "hang", "crash"]
Recipe: TypeAlias = "Callable[[Draw], Mapping[str, Any]]"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one call; None stands for "as its neighbour" (kv_heads: q_heads, ...).

    In layout "thd" the lengths are numbers of tokens and the batch is 1, whatever the offsets say.
    """

    batch: int = 1
    q_heads: int = 2
    kv_heads: int | None = None
    q_len: int = 5
    kv_len: int = 7
    head_dim: int = 8
    v_head_dim: int | None = None

    @property
    def kv(self) -> int:
        """Number of key/value heads."""
        return self.q_heads if self.kv_heads is None else self.kv_heads

    @property
    def width(self) -> int:
        """Width of one head of v."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """(B, Hq, Lq, Lk)."""
        return self.batch, self.q_heads, self.q_len, self.kv_len


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One call and what must come of it, as plain data.

    Attributes
    ----------
    id : str
        "family.name.dtype"; unique, seeds the inputs.
    rules : tuple of str
        Rules of docs/semantics.md that the case shows; none for a random one.
    catches : str
        The wrong program that fails here.
    shape : Shape
        Sizes of q, k, v.
    spec : mapping
        Keyword arguments of `AttentionSpec`, but for head counts and widths, which `shape` has.
    recipe : callable or None
        Operands beyond, or in place of, random q, k, v; given a `Draw`. q, k, v and dout come in
        the axis order b, h, length, width and are brought to the layout of the spec.
    bound : {"sharp", "hard"}
        Sharp where the inputs are random, hard where they are chosen to hurt.
    level : {"core", "full", "stress"}
        Core runs in seconds, full in minutes, stress in more; each includes the one before.
    expect : callable or None
        What must come out, worked out by hand: arrays by output name. Judges the reference.
    refuses : str
        Name of the exception of `sdpakit.errors` that is the right answer, "" for a result.
    match : str
        Regular expression that the message of the exception has.
    source : str
        A public report of a program that got it wrong.
    gradients : bool
        Whether the recipe gives `dout`, for the gradients.
    heavy : str
        What the case needs beyond the ordinary, "" for nothing.
    """

    id: str
    rules: tuple[str, ...]
    catches: str
    shape: Shape = field(default_factory=Shape)
    spec: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    bound: BoundKind = "sharp"
    level: Level = "core"
    expect: Callable[[], Mapping[str, Any]] | None = None
    refuses: str = ""
    match: str = ""
    source: str = ""
    gradients: bool = False
    heavy: str = ""

    @property
    def family(self) -> str:
        """First part of the id."""
        return self.id.split(".")[0]

    @property
    def headline(self) -> str:
        """Id, rules and what the case catches, as messages name it; a random case has its id."""
        if not self.rules:
            return self.id
        return f"{self.id} ({', '.join(self.rules)}) catches: {self.catches}"

    @property
    def about_spec(self) -> bool:
        """Whether `AttentionSpec` itself must refuse: a case about sdpakit, not about a target."""
        return self.refuses == "SpecError"

    @property
    def dtype(self) -> str:
        """Dtype of q, k, v."""
        return str(self.spec["dtype"])

    @property
    def seed(self) -> int:
        """Seed of the inputs, from the id."""
        return zlib.crc32(self.id.encode())

    def attention_spec(self) -> AttentionSpec:
        """Return the spec, or raise what it raises; known scale mistakes are meant here.

        Returns
        -------
        AttentionSpec
            Of `shape` and `spec`.

        Raises
        ------
        SpecError
            If the case is about a spec that contradicts itself.
        """
        from sdpakit.spec import AttentionSpec

        heads = {
            "q_heads": self.shape.q_heads,
            "kv_heads": self.shape.kv_heads,
            "head_dim": self.shape.head_dim,
            "v_head_dim": self.shape.v_head_dim,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScaleWarning)
            return AttentionSpec(**{**heads, **self.spec})

    def operands(self) -> dict[str, Any]:
        """Return freshly made arguments of the call, q, k and v included, in the spec's layout.

        Returns
        -------
        dict of str to array
            The same values at every call.
        """
        from sdpakit.conformance.inputs import Draw, to_layout

        layout = str(self.spec.get("layout", "bhsd"))

        draw = Draw(self.shape, self.dtype, self.seed)
        found: dict[str, Any] = {}
        if self.recipe is not None:
            found.update(self.recipe(draw))
        for name, make in (("q", draw.q), ("k", draw.k), ("v", draw.v)):
            if name not in found:
                found[name] = make()
        if self.gradients and "dout" not in found:
            found["dout"] = draw.dout()
        pages = {name: found.pop(name) for name in ("k", "v") if self.spec.get("paged")}
        return {**to_layout(found, layout), **pages}  # pages lie as PAGED-1 says in every layout


@dataclass(frozen=True, slots=True)
class Worst:
    """The element of one output that uses most of its bound.

    Attributes
    ----------
    output : str
        "out", "lse", ..., "dq", ...
    index : tuple of int
        Where, in the layout of the output.
    got, right, bound : float
        What came, what the reference says, and how far apart the two may be.
    share : float
        abs(got - right) / bound; inf where NaN, an infinity, shape or dtype is wrong.
    """

    output: str
    index: tuple[int, ...]
    got: float
    right: float
    bound: float
    share: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Judgement of one target on one case or relation.

    Attributes
    ----------
    target, case : str
        Name of the target; id of the case, or of the relation and its dtype.
    verdict : {"ok", "fail", "refused", "error", "hang", "crash"}
        fail: a wrong answer, a missing refusal, or a refusal of what the target declares. refused:
        the target said `UnsupportedSpecError`. error: another exception than the fitting one.
        hang: the time limit passed. crash: the process that ran the target died.
    share : float
        Largest error as a share of its bound; 0 where nothing was measured.
    message : str
        What is wrong, with the worst element; "" if nothing is.
    worst : Worst or None
        The element behind `share`.
    unjudged : tuple of str
        Outputs of the case that the target does not give.
    seconds : float
        How long the judgement took, reference included; 0 where it was not timed.
    asked : bool
        False where the case does not concern the target, which was not asked (see
        `judge.concerns`): it counts neither for nor against, and runs leave it out.
    """

    target: str
    case: str
    verdict: Verdict
    share: float = 0.0
    message: str = ""
    worst: Worst | None = None
    unjudged: tuple[str, ...] = ()
    seconds: float = 0.0
    asked: bool = True


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a report says about a target.

    Attributes
    ----------
    name : str
        As on the command line.
    versions : mapping of str to str
        Versions of the packages that it runs.
    note : str
        One line: what is called, and what the adapter had to turn into a dense mask, say.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """All outcomes of one run of the kit.

    Attributes
    ----------
    targets : tuple of TargetInfo
        In the order asked for.
    outcomes : tuple of Outcome
        At most one for each target and case.
    level : {"core", "full", "stress"}
        Which cases ran.
    started : str
        Date and time, ISO 8601, UTC.
    seconds : float
        How long it took.
    versions : mapping of str to str
        sdpakit, Python, NumPy.
    machine : str
        Processor and system.
    expected : mapping of (str, str) to str
        Known failures by (target, case), each with its reason (see `ledger`).
    stale : tuple of str
        Entries of the ledger that no outcome bears out any more, as sentences.
    """

    targets: tuple[TargetInfo, ...]
    outcomes: tuple[Outcome, ...]
    level: Level
    started: str
    seconds: float
    versions: Mapping[str, str]
    machine: str
    expected: Mapping[tuple[str, str], str] = field(default_factory=dict)
    stale: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Numerics of a target that the bounds ask for.

    Attributes
    ----------
    exp, tanh : float
        Largest relative error of the two functions, in unit roundoffs of accum_dtype (one unit in
        the last place is two of them).
    weights : float
        Unit roundoff of the dtype in which weights enter the product with v, and in the backward
        that with dout; 0 if they are not rounded.
    delta, dlogits : float
        Of gradients: unit roundoff of the dtype in which `out` enters delta = <dout, out>, and in
        which gradients of logits enter the products with q and k; 0 if they are not rounded.
    flushed : float
        Weights below so many times the smallest normal number of accum_dtype, relative to the
        largest of their row, may come out as 0. 1 for a program that subtracts the maximum itself;
        2**n for one that rounds it up to a multiple of n in log2 units.
    by_dtype : tuple of (str, Profile)
        Numerics for single dtypes of q, k, v, where they differ: many kernels round weights to
        float16 or bfloat16 for those operands alone.
    """

    exp: float = 4.0
    tanh: float = 4.0
    weights: float = 0.0
    delta: float = 0.0
    dlogits: float = 0.0
    flushed: float = 1.0
    by_dtype: tuple[tuple[str, Profile], ...] = ()

    def of(self, dtype: str) -> Profile:
        """Return the numerics for one dtype of q, k, v."""
        return dict(self.by_dtype).get(dtype, self)
