"""A backend of sdpakit as a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.conformance.model import Profile
from sdpakit.conformance.target import BadCalls, BaseTarget

if TYPE_CHECKING:
    from sdpakit.backward import Gradients
    from sdpakit.spec import AttentionSpec

_HALF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
_PROFILES = {
    # Its maxima are even numbers of log2 units, so that it rescales exactly (docs/adr/0008).
    "numba_cpu": Profile(flushed=4.0),
    # Matrix instructions take weights, and gradients of logits, in the dtype of q.
    "cupy": Profile(
        by_dtype=tuple((name, Profile(weights=u, dlogits=u)) for name, u in _HALF.items())
    ),
}


class Compiled(BaseTarget):
    """A backend of sdpakit, reached as any user reaches it.

    Parameters
    ----------
    backend : str
        Name of the backend.
    options : mapping, optional
        Options of the backend.
    name : str, optional
        Of the target; the name of the backend without it.
    """

    takes_out = True
    takes_threads = True
    bad_calls: BadCalls = "exact"

    def __init__(
        self, backend: str, options: Mapping[str, Any] | None = None, *, name: str = ""
    ) -> None:
        self.name = name or backend
        self._backend = backend
        self.profile = _PROFILES.get(backend, Profile())
        self._options = options

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Return the compiled kernel; see `Target.prepare`."""
        import sdpakit

        kernel: Callable[..., Any] = sdpakit.compile(
            spec, backend=self._backend, options=self._options
        )
        return kernel

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., Mapping[str, Any]]:
        """Return the compiled gradients; see `Target.prepare_gradients`."""
        import sdpakit

        kernel = sdpakit.compile_backward(spec, backend=self._backend, options=self._options)

        def backward(q: Any, k: Any, v: Any, **operands: Any) -> dict[str, Any]:
            return _by_name(kernel(q, k, v, operands.pop("dout"), **operands))

        return backward


def _by_name(found: Gradients) -> dict[str, Any]:
    """Return the gradients that there are, by the names of the judge."""
    named = {name: getattr(found, name) for name in ("dq", "dk", "dv", "dbias", "dsinks")}
    tables = {f"dparams.{name}": array for name, array in found.dparams.items()}
    return {name: array for name, array in named.items() if array is not None} | tables
