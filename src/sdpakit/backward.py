"""`compile_backward`: gradients of attention, with the same choice of backends as `compile`.

A gradient is that of ``sum(dout * out)``, whatever other outputs the spec names.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.arrays import export, numpy_dtype
from sdpakit.binding import Arguments, bind_backward, bind_forward
from sdpakit.calling import checked_call, checked_method
from sdpakit.compiler import loaded_code
from sdpakit.errors import ArgumentError, ArgumentTypeError, UnsupportedSpecError, format_error
from sdpakit.kernel import LoadedCode, has_pairs, spec_remedy

if TYPE_CHECKING:
    from sdpakit.backends.base import BackwardLauncher, Call
    from sdpakit.spec import AttentionSpec

__all__ = ["BackwardKernel", "Gradients", "Saved", "compile_backward"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one call, each in the shape, layout and dtype of its operand (GRAD-3).

    Attributes
    ----------
    dq, dk, dv : array
        Of q, k and v.
    dbias : array or None
        Summed over the axes along which the bias was broadcast; None without a bias.
    dsinks : array or None
        (Hq,); None without sinks.
    dparams : mapping of str to array
        Of the float tables that the change of the logits reads, the slopes of `Alibi` among them.
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsinks: Any = None
    dparams: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.dq, self.dk, self.dv, self.dbias, self.dsinks, dict(self.dparams))
        return Gradients, parts


@dataclass(frozen=True, slots=True)
class Saved:
    """What a forward pass keeps for the backward pass of the same kernel; made by `forward`.

    Attributes
    ----------
    code : str
        Key of the code that made it.
    rows : mapping of str to ndarray
        Numbers of each row: `out` in accum_dtype, the maximum and the sum of the softmax.
    """

    code: str
    rows: Mapping[str, Array] = field(repr=False)


@checked_call
def compile_backward(
    spec: AttentionSpec,
    backend: str | Sequence[str] = "auto",
    options: Mapping[str, Any] | None = None,
) -> BackwardKernel:
    """Compile the gradients of a spec.

    Parameters
    ----------
    spec : AttentionSpec
        What is differentiated. Its outputs do not matter: the gradient is that of
        ``sum(dout * out)``.
    backend : str or sequence of str, optional
        As of `compile`; a backend without gradients is passed over.
    options : mapping, optional
        Options of the backend.

    Returns
    -------
    BackwardKernel
        Callable; equal programs share their code.

    Raises
    ------
    UnknownBackendError
        If a name is that of no backend.
    BackendUnavailableError
        If none of the named backends can run here.
    UnsupportedSpecError
        If no asked-for backend has gradients of the spec; it says why, by backend.
    ArgumentTypeError, ArgumentError
        If the spec is no spec, or an option is unknown or no plain value.

    Examples
    --------
    >>> import sdpakit as sk
    >>> backward = sk.compile_backward(sk.AttentionSpec(q_heads=8, head_dim=64), backend="interp")
    >>> backward.backend
    'interp'
    """
    _check_layout(spec)
    signature, choice, loaded = loaded_code(spec, backend, options, gradients=True)
    return BackwardKernel(signature, choice, loaded.artifact, loaded.launcher)


def _check_layout(spec: AttentionSpec) -> None:
    if getattr(spec, "packed", False):
        got = "paged=True" if spec.paged else f"layout={spec.layout!r}"
        raise UnsupportedSpecError(
            format_error(
                "compile_backward",
                got=got,
                allowed="padded batches: layouts 'bhsd' and 'bshd', with q_lens and kv_lens",
                fix="compute gradients of padded arrays, whose padding holds anything (MASK-3); "
                "the forward pass takes both",
            ),
            {},
        )


class BackwardKernel(LoadedCode):
    """Compiled gradients; made by `sdpakit.compile_backward`.

    May be called by any number of threads at once, and can be pickled like a `Kernel`.
    """

    __slots__ = ()
    _launcher: BackwardLauncher

    @checked_method
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        dout: Any,
        *,
        saved: Saved | None = None,
        **operands: Any,
    ) -> Gradients:
        """Compute the gradients of ``sum(dout * out)``.

        Parameters
        ----------
        q, k, v : array
            As in the forward pass.
        dout : array
            Gradient with respect to `out`, in its shape, layout and dtype, with any strides.
        saved : Saved, optional
            What `forward` gave for the same operands; without it the forward pass is run again.
        **operands
            `bias`, `mask`, `sinks`, `q_lens`, `kv_lens`, `q_offset`, `params` and `threads`, as
            for the call of a `Kernel` of the spec.

        Returns
        -------
        Gradients
            In the library of q.

        Raises
        ------
        ArgumentTypeError, ArgumentError
            If an argument does not fit; nothing has been computed by then.
        """
        bound = bind_backward(self._signature, self._arguments(q, k, v, operands), dout)
        call = bound.call
        rows = None if saved is None else self._checked(saved, call.call)
        if has_pairs(call.call):
            rows = self._launcher.forward(call.call) if rows is None else rows
            self._launcher(replace(call, saved=rows))
        return _named(bound.results())

    @checked_method
    def forward(self, q: Any, k: Any, v: Any, **operands: Any) -> tuple[Any, Saved]:
        """Compute attention and keep what the backward pass needs of it.

        Parameters
        ----------
        q, k, v, **operands
            As for the call of a `Kernel` of the spec, without `out`.

        Returns
        -------
        out : array
            (B, Hq, Lq, Dv) in the layout and out_dtype of the spec, in the library of q.
        saved : Saved
            To be given to the call for the same operands.

        Raises
        ------
        ArgumentTypeError, ArgumentError
            If an argument does not fit; nothing has been computed by then.
        """
        bound = bind_forward(self._signature, self._arguments(q, k, v, operands))
        spec, call = self.spec, bound.call
        if has_pairs(call):
            rows = self._launcher.forward(call)
        else:  # EMPTY-1
            shape, dtype = call.q.shape[:3], numpy_dtype(spec.accum_dtype)
            rows = {"out": np.zeros((*shape, spec.v_head_dim), dtype), "l": np.zeros(shape, dtype)}
        out = _rounded(rows, spec)
        if spec.layout == "bshd":
            out = np.ascontiguousarray(out.swapaxes(1, 2))
        return export(out, bound.namespace), Saved(self._artifact.key, rows)

    def _arguments(self, q: Any, k: Any, v: Any, operands: Mapping[str, Any]) -> Arguments:
        for name in operands:
            if name not in _OPERANDS:
                raise ArgumentTypeError(
                    format_error(
                        name,
                        got="an unknown argument",
                        allowed=", ".join(_OPERANDS),
                        fix=spec_remedy(name) or "gradients come as new arrays; leave it away",
                    )
                )
        return Arguments(q=q, k=k, v=v, **operands)

    def _checked(self, saved: object, call: Call) -> Mapping[str, Array]:
        if not isinstance(saved, Saved):
            raise ArgumentTypeError(
                format_error(
                    "saved",
                    got=type(saved).__name__,
                    allowed="the second result of forward",
                    fix="write out, saved = backward.forward(q, k, v, ...)",
                )
            )
        shape = (*call.q.shape[:3], self.spec.v_head_dim)
        came = saved.rows["out"].shape
        if saved.code != self._artifact.key or came != shape:
            raise ArgumentError(
                format_error(
                    "saved",
                    got=f"rows of another kernel or call, out of shape {came}",
                    allowed=f"those of forward of this kernel for these operands, out {shape}",
                    fix="run forward on the operands of this call, or leave saved= away",
                )
            )
        return saved.rows


_OPERANDS = ("bias", "mask", "sinks", "q_lens", "kv_lens", "q_offset", "params", "threads")


def _rounded(rows: Mapping[str, Array], spec: AttentionSpec) -> Array:
    """Return out, rounded once (NUM-5), with NaN in empty rows where the spec wants it."""
    with np.errstate(over="ignore"):
        out: Array = rows["out"].astype(numpy_dtype(spec.out_dtype))
    if spec.empty_row == "nan":
        out[rows["l"] == 0] = np.nan
    return out


def _named(found: Mapping[str, Any]) -> Gradients:
    prefix = "dparams."
    tables = {n.removeprefix(prefix): x for n, x in found.items() if n.startswith(prefix)}
    rest = {name: x for name, x in found.items() if not name.startswith(prefix)}
    return Gradients(**rest, dparams=tables)


def _reduce(kernel: BackwardKernel) -> tuple[Any, ...]:
    """Pickle a kernel as the request that makes it again (code is bound to the process)."""
    return compile_backward, (kernel.spec, kernel.backend, kernel.options)


copyreg.pickle(BackwardKernel, _reduce)
