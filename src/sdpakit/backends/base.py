"""The contract of a backend: six members, data in, data out, and one step that touches a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from sdpakit.ir.program import Program
    from sdpakit.spec import AttentionSpec

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here; `reason` and `hint` say why not, and what to do."""

    ok: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can compile, declared once; the choice of a backend reads it.

    Attributes
    ----------
    dtypes : frozenset of str
        Of q, k, v and out.
    max_head_dim : int
        Largest head_dim and v_head_dim.
    outputs : frozenset of str
        Names of outputs.
    options : frozenset of str
        Names of options.
    gradients : bool
        Whether the backend is a `GradientBackend`, too.
    layouts : frozenset of str
        Layouts; with "thd" it takes calls with `q_start` and `kv_start`.
    paged : bool
        Whether it takes calls with `pages`.
    """

    dtypes: frozenset[str]
    max_head_dim: int
    outputs: frozenset[str]
    options: frozenset[str] = frozenset()
    gradients: bool = False
    layouts: frozenset[str] = frozenset(("bhsd", "bshd"))
    paged: bool = False

    def reasons_against(
        self, spec: AttentionSpec, options: Options, *, gradients: bool = False
    ) -> list[str]:
        """Return what `spec` and `options` (and gradients) ask for beyond what is declared here."""
        limit = self.max_head_dim
        widths = {"head_dim": spec.head_dim, "v_head_dim": spec.v_head_dim}
        dtypes = {"dtype": spec.dtype, "out_dtype": spec.out_dtype}
        return [
            *(["no gradients"] if gradients and not self.gradients else []),
            *(f"no option {name!r}" for name in options if name not in self.options),
            *(f"{name}={d} > {limit}" for name, d in widths.items() if d > limit),
            *(f"no {name} {dtype}" for name, dtype in dtypes.items() if dtype not in self.dtypes),
            *(f"no output {name!r}" for name in spec.outputs if name not in self.outputs),
            *([f"no layout {spec.layout!r}"] if spec.layout not in self.layouts else []),
            *(["no paged keys and values"] if spec.paged and not self.paged else []),
        ]


@dataclass(frozen=True, slots=True)
class Artifact:
    """Compiled code as pure data: `stages` maps "ir", "llvm", "asm", ... to text or bytes."""

    backend: str
    key: str
    program: Program
    stages: Mapping[str, str | bytes]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One checked call; a launcher may trust every field.

    Arrays are NumPy views in the axis order b, h, length, width whatever the layout, with any
    strides (0, negative and unaligned included). bfloat16 arrays have the dtype
    `ml_dtypes.bfloat16`. `outputs` hold one array for each output of the program: out
    (B, Hq, Lq, Dv), the others (B, Hq, Lq) in accum_dtype. `tables` hold the run-time arrays that
    the program reads, with the rank of its loads (size-1 axes broadcast), `scalars` its run-time
    numbers. q_len, kv_len, q_offset are int64 arrays of shape (B,). `int_bits` (32 or 64) is the
    width in which every integer of the expressions was proven to fit. Where `batch_invariant` is
    set, a row has the same bits whatever other rows the call has (DET-2).

    With `q_start` (B,) the batch axis of q and of the outputs has size 1, and entry b owns the
    q_len[b] rows from q_start[b] on along the length axis; all others are written by somebody else
    (RAGGED-1). `kv_start` says the same of k and v. With `pages` (B, n) the batch axis of k and v
    counts pages, the length axis keys in a page of size P, and key j of entry b is key j % P of
    page pages[b, j // P]; what stands in `pages` past the length means nothing (PAGED-1). All
    three are contiguous int64.

    `stood_in` names tables that were made up for a call that is explained and never launched: their
    elements mean nothing.
    """

    q: np.ndarray[Any, Any]
    k: np.ndarray[Any, Any]
    v: np.ndarray[Any, Any]
    outputs: Mapping[str, np.ndarray[Any, Any]]
    tables: Mapping[str, np.ndarray[Any, Any]]
    scalars: Mapping[str, int | float]
    q_len: np.ndarray[Any, Any]
    kv_len: np.ndarray[Any, Any]
    q_offset: np.ndarray[Any, Any]
    threads: int
    int_bits: int = 64
    q_start: np.ndarray[Any, Any] | None = None
    kv_start: np.ndarray[Any, Any] | None = None
    pages: np.ndarray[Any, Any] | None = None
    batch_invariant: bool = False
    stood_in: frozenset[str] = frozenset()

    @property
    def batch(self) -> int:
        """Number of batch entries."""
        return len(self.q_len)

    @property
    def packed(self) -> bool:
        """Whether entries are as long as they are, not padded in rows or keys."""
        return not (self.q_start is self.kv_start is self.pages is None)

    @property
    def q_rows(self) -> int:
        """Query rows of an entry: of each, padding included, or at most, where there is none."""
        return self.q.shape[2] if self.q_start is None else _largest(self.q_len)

    @property
    def kv_rows(self) -> int:
        """Keys of an entry: of each, padding included, or at most, where there is none."""
        padded = self.kv_start is None and self.pages is None
        return self.k.shape[2] if padded else _largest(self.kv_len)


def _largest(lengths: np.ndarray[Any, Any]) -> int:
    return int(lengths.max(initial=0))


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """One checked call for gradients; no length of it is 0.

    Attributes
    ----------
    call : Call
        The operands; it has no outputs.
    dout : ndarray
        (B, Hq, Lq, Dv), any strides, in out_dtype.
    gradients : mapping of str to ndarray
        Arrays of zeros to fill, in the dtypes of their operands: "dq", "dk", "dv" in the axis order
        b, h, length, width; "dbias" with 4 axes, "dsinks" (Hq,), "dparams.NAME" in the shape of the
        table. The last are there for every float table that the spec's change of the logits reads.
    saved : mapping of str to ndarray
        What `BackwardLauncher.forward` returned for the same operands.
    """

    call: Call
    dout: np.ndarray[Any, Any]
    gradients: Mapping[str, np.ndarray[Any, Any]]
    saved: Mapping[str, np.ndarray[Any, Any]]


class Launcher(Protocol):
    """Loaded code: fills the outputs of a call."""

    def __call__(self, call: Call) -> None:
        """Compute `call`; every element of every output is written."""
        ...

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Return facts about the code (tiles, ISA); for a call also its counts and scratch.

        A backend that skips tiles names their sizes "block_q" and "block_kv": the tiles of a call
        are then counted by class for it.
        """
        ...


class Repeat(Protocol):
    """One call, again and again for other arrays of the same shapes, strides and dtypes."""

    def __call__(self, q: Any, k: Any, v: Any, out: Any, /) -> np.ndarray[Any, Any] | None:
        """Do the call with other arrays, in the axis order of the caller, if they are alike.

        Parameters
        ----------
        q, k, v, out : object
            Unchecked; `out` may be None.

        Returns
        -------
        ndarray or None
            `out`, or a new array like that of the call. None, and nothing was done, unless for
            certain q, k and v are plain `numpy.ndarray`s whose dtypes, shapes and strides are those
            of the call, and `out`, if it is given, is so likewise, may be written, and shares no
            memory with them.
        """
        ...


@runtime_checkable
class RepeatingLauncher(Launcher, Protocol):
    """A launcher that can prepare calls, so that small ones cost little beside their arithmetic."""

    def repeat(self, call: Call, arrays: Sequence[np.ndarray[Any, Any]]) -> Repeat | None:
        """Return a call without tables, whose only output is "out", made ready to be repeated.

        None where that gains nothing. It uses one thread, whatever is offered, and may outlive the
        launcher. It must not keep the arrays of `call`, nor `arrays`: its q, k, v and out in the
        axis order of the caller, out laid out as a new array.
        """
        ...


class BackwardLauncher(Protocol):
    """Loaded code of the backward pass."""

    def forward(self, call: Call) -> Mapping[str, np.ndarray[Any, Any]]:
        """Run the forward pass and return what the backward wants to know of it, by name.

        Among the arrays, all in accum_dtype: "out" (B, Hq, Lq, Dv), 0 in empty rows, and "l" (B,
        Hq, Lq), which is 0 exactly in empty rows. The call has no outputs, and no length of it is
        0.
        """
        ...

    def __call__(self, call: BackwardCall) -> None:
        """Fill the gradients of a call."""
        ...


class Backend(Protocol):
    """What `sdpakit.backends` expects of an entry of its table or of a plug-in."""

    name: str

    def availability(self) -> Availability:
        """Say whether the backend can run here; cheap, never raises."""
        ...

    def capabilities(self) -> Capabilities:
        """Return what can be compiled; needs no device."""
        ...

    def unsupported_reasons(self, spec: AttentionSpec, options: Options) -> list[str]:
        """Return why `spec` with `options` cannot be compiled; empty = it can.

        Asked only where `capabilities` allow both, and so silent about what these declare.
        """
        ...

    def lower(self, program: Program, options: Options) -> Artifact:
        """Turn a scheduled program into code, without a call to a device.

        Equal programs and options give equal code in one process. What the host says of itself,
        such as its instruction set and cache sizes, may enter it.
        """
        ...

    def load(self, artifact: Artifact) -> Launcher:
        """Make code callable; the only step that touches a device."""
        ...


class GradientBackend(Backend, Protocol):
    """A backend whose capabilities say `gradients`."""

    def lower_backward(self, program: Program, options: Options) -> Artifact:
        """Turn a scheduled program into code for its gradients, on the terms of `lower`."""
        ...

    def load_backward(self, artifact: Artifact) -> BackwardLauncher:
        """Make code of `lower_backward` callable."""
        ...
