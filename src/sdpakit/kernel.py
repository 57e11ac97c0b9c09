"""A compiled kernel: call it with arrays, or ask it how it works."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypedDict, Unpack

import numpy as np

from sdpakit.binding import Arguments, Bound, Signature, bind
from sdpakit.calling import checked_method, unfit_operands
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.explanation import Explanation, dry_call, explain_call
from sdpakit.output import AttentionOutput
from sdpakit.repeating import Repeats
from sdpakit.spec import AttentionSpec

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call, Launcher
    from sdpakit.backends.selection import Choice

Array = np.ndarray[Any, Any]

# What a row without a key has (EMPTY-1, STAT-1).
_EMPTY_ROW: dict[str, float] = {
    "out": 0.0,
    "lse": -np.inf,
    "max_logit": -np.inf,
    "entropy": 0.0,
    "sum_p2": 0.0,
}


class Operands(TypedDict, total=False):
    """Named operands of a call, for type checkers; `Kernel` says what each is."""

    bias: Any
    mask: Any
    sinks: Any
    q_lens: Any
    kv_lens: Any
    q_offset: Any
    cu_q_lens: Any
    cu_kv_lens: Any
    block_table: Any
    params: Mapping[str, Any] | None


_NAMED = frozenset(Operands.__annotations__)


class LoadedCode:
    """What a kernel and its backward have in common: spec, backend, options and code to look at.

    Parameters
    ----------
    signature : Signature
        What a call must give.
    choice : Choice
        Backend and reasons.
    artifact : Artifact
        Compiled code as data.
    launcher : Launcher or BackwardLauncher
        Loaded code.
    """

    __slots__ = ("_artifact", "_choice", "_launcher", "_signature")

    def __init__(
        self, signature: Signature, choice: Choice, artifact: Artifact, launcher: Any
    ) -> None:
        self._signature = signature
        self._choice = choice
        self._artifact = artifact
        self._launcher = launcher

    @property
    def spec(self) -> AttentionSpec:
        """The spec that was compiled."""
        return self._signature.spec

    @property
    def backend(self) -> str:
        """Name of the backend that compiled it."""
        return self._choice.backend

    @property
    def options(self) -> Mapping[str, Any]:
        """The backend options that it was compiled with."""
        return dict(self._choice.options)

    def __repr__(self) -> str:
        return f"<sdpakit.{type(self).__name__} on {self.backend} of {self.spec!r}>"

    @checked_method
    def inspect(self, stage: str = "ir") -> str | bytes:
        """Return the code of one stage.

        Parameters
        ----------
        stage : str
            Such as "ir", "llvm" or "asm"; which there are depends on the backend.

        Returns
        -------
        str or bytes
            Text of the stage, bytes where it is binary.

        Raises
        ------
        ArgumentError
            If the backend has no such stage; the message lists those it has.
        """
        stages = self._artifact.stages
        if stage not in stages:
            raise ArgumentError(
                format_error(
                    "stage",
                    got=repr(stage),
                    allowed=f"{', '.join(stages)} (backend {self.backend})",
                    fix="name one of these, or compile for a backend that has the stage",
                )
            )
        return stages[stage]


class Kernel(LoadedCode):
    """Compiled attention; made by `sdpakit.compile`.

    A kernel may be called by any number of threads at once. It can be pickled: what travels is the
    spec, the name of the backend and the options, and the code is compiled again, or found in the
    cache, on the other side.
    """

    __slots__ = ("_repeats",)
    _launcher: Launcher

    def __init__(
        self, signature: Signature, choice: Choice, artifact: Artifact, launcher: Launcher
    ) -> None:
        super().__init__(signature, choice, artifact, launcher)
        self._repeats = Repeats.of(signature, launcher)

    def __call__(
        self,
        q: Any = None,
        k: Any = None,
        v: Any = None,
        *more: Never,
        out: Any = None,
        threads: int | None = None,
        **operands: Unpack[Operands],
    ) -> Any:
        """Compute attention.

        Parameters
        ----------
        q, k, v : array
            (B, Hq, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv), or axes 1 and 2 swapped in layout
            "bshd"; in the dtype of the spec, with any strides. NumPy arrays, torch CPU tensors,
            anything with `__dlpack__` on the CPU. In layout "thd" (Tq, Hq, D), (Tk, Hkv, D), (Tk,
            Hkv, Dv). Of a paged spec, k and v are (num_pages, page_size, Hkv, D or Dv).
        *more
            Refused: what follows has names.
        out : array or mapping of str to array, optional
            Where the results go: an array for `out`, or arrays by output. Exact shape and dtype,
            writeable, sharing no memory with an input.
        threads : int, optional
            At most so many threads; default SDPAKIT_NUM_THREADS, else the CPUs of the process.
            Results do not depend on it (DET-1).
        **operands
            What else the spec needs, by name:

            bias : array
                Added to the logits; broadcasts to (B, Hq, Lq, Lk). Given exactly if the spec has a
                bias.
            mask : array of bool
                The array of `Dense()`, True = may attend; broadcasts to (B, Hq, Lq, Lk).
            sinks : array
                (Hq,) logits that join the denominator. Given exactly if the spec has sinks.
            q_lens, kv_lens : array of int
                (B,) true lengths. Given exactly if the spec has them.
            q_offset : int or array of int
                Position of row 0, one or (B,). Given exactly if an alignment is "offset" or an
                expression reads it.
            cu_q_lens, cu_kv_lens : array of int
                (B + 1,) offsets from 0 on: entry b owns the tokens from offset b to offset b + 1
                (RAGGED-1). Given exactly if the layout is "thd", `cu_kv_lens` unless it is paged.
            block_table : array of int
                (B, max_pages): key j of entry b is key j % page_size of page
                ``block_table[b, j // page_size]`` (PAGED-1). Given exactly if the spec is paged.
            params : mapping of str to number or array
                Values of the `Scalar`s and `Table`s of the spec: exactly these names.

        Returns
        -------
        array or AttentionOutput
            In the library of q. One array if the spec has the output "out" alone, else all outputs
            in the order of the spec.

        Raises
        ------
        ArgumentTypeError, ArgumentError
            If an argument does not fit; nothing has been written by then.
        """
        repeats = self._repeats
        if (  # names with defaults for all operands would cost a tenth of a small call
            repeats is not None
            and not operands
            and not more
            and (threads is None or (type(threads) is int and threads > 0))
        ):
            serial = threads == 1
            known = repeats.latest[serial](q, k, v, out)
            if known is None:
                known = repeats.run(q, k, v, out, serial=serial)
            if known is not None:
                return known
        else:
            repeats = None
        if more or v is None or not _NAMED.issuperset(operands):
            _refuse_call((q, k, v, *more), operands)
        arguments = Arguments(q=q, k=k, v=v, out=out, threads=threads, **operands)
        bound = bind(self._signature, arguments)
        self._run(bound.call)
        if repeats is not None and has_pairs(bound.call):
            repeats.remember(q, k, v, bound, serial=threads == 1)
        return self._results(bound)

    @checked_method
    def explain(
        self,
        *,
        batch: int = 1,
        q_len: int | None = None,
        kv_len: int | None = None,
        **arguments: Any,
    ) -> Explanation:
        """Say how the kernel works and what a call of given sizes would do; nothing is computed.

        Parameters
        ----------
        batch : int, optional
            Number of batch entries.
        q_len, kv_len : int, optional
            Lengths; one stands for both. Without sizes and arguments the explanation is of the
            kernel alone.
        **arguments
            Arguments of a call (`kv_lens`, `q_offset`, `params`, `mask`, `threads`, ...) and `q`,
            `k`, `v` in place of sizes. What is left away is stood in for: full lengths, a mask
            that leaves every tile PARTIAL, a bias of 0, an offset that aligns the last row with
            the last key. A mask that is given is read to count the tiles.

        Returns
        -------
        Explanation
            Facts by name; prints as a table.

        Raises
        ------
        ArgumentTypeError, ArgumentError
            If an argument does not fit, is unknown, or comes without a length.

        Examples
        --------
        >>> import sdpakit as sk
        >>> kernel = sk.compile(sk.AttentionSpec(q_heads=8, head_dim=64), backend="interp")
        >>> kernel.explain(q_len=128)["flops"]
        33554432
        """
        call = None
        if (batch, q_len, kv_len) != (1, None, None) or arguments:
            call = dry_call(self._signature, batch, (q_len, kv_len), arguments)
        # A call without pairs is answered without the launcher, which knows none (SHAPE-4).
        facts = self._launcher.explain(call if call is not None and has_pairs(call) else None)
        return explain_call(self._signature, self._choice, self._artifact, facts, call)

    def _run(self, call: Call) -> None:
        if all(array.size == 0 for array in call.outputs.values()):
            return  # SHAPE-4
        if not has_pairs(call):
            _fill_empty(call.outputs, self.spec.empty_row)
            return
        if call.q_start is not None:  # RAGGED-1: tokens past the last are empty rows
            end = int(call.q_start[-1] + call.q_len[-1])
            past = {name: array[:, :, end:] for name, array in call.outputs.items()}
            _fill_empty(past, self.spec.empty_row)
        self._launcher(call)

    def _results(self, bound: Bound) -> Any:
        results = bound.results()
        if self.spec.outputs == ("out",):
            return results["out"]
        return AttentionOutput(results)


def _refuse_call(operands: tuple[Any, ...], named: Mapping[str, Any]) -> NoReturn:
    """Say which arguments of a call are missing, too many or unknown."""
    remedies = {name: spec_remedy(name) for name in named}
    takes = inspect.signature(Arguments)
    raise ArgumentTypeError(unfit_operands("Kernel", takes, (operands, named), remedies))


def spec_remedy(name: str) -> str:
    """Return what to do about an argument of a call that is a field of the spec.

    Parameters
    ----------
    name : str
        Of the argument.

    Returns
    -------
    str
        "" if the spec has no such field.
    """
    if name not in inspect.signature(AttentionSpec).parameters:
        return ""
    return f"{name} belongs to the spec: compile spec.replace({name}=...)"


def has_pairs(call: Call) -> bool:
    """Return whether a call has a row and a key, so that there is something to compute.

    Parameters
    ----------
    call : Call
        Bound arguments.

    Returns
    -------
    bool
        False where SHAPE-4 or EMPTY-1 is the whole answer.
    """
    return 0 not in (call.batch, call.q.shape[1], call.q_rows, call.kv_rows)


def _fill_empty(outputs: Mapping[str, Array], empty_row: str) -> None:
    """Write the answer of EMPTY-1 for rows without keys; a sink changes nothing of it."""
    for name, array in outputs.items():
        array[...] = np.nan if name == "out" and empty_row == "nan" else _EMPTY_ROW[name]
