"""A backend of sdpakit as a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.conformance.target import BadCalls, BaseTarget

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


class Compiled(BaseTarget):
    """A backend of sdpakit, reached as any user reaches it.

    Parameters
    ----------
    backend : str
        Name of the backend.
    options : mapping, optional
        Options of the backend.
    """

    takes_out = True
    takes_threads = True
    bad_calls: BadCalls = "exact"

    def __init__(self, backend: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = backend
        self._options = options

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Return the compiled kernel; see `Target.prepare`."""
        import sdpakit

        kernel: Callable[..., Any] = sdpakit.compile(spec, backend=self.name, options=self._options)
        return kernel
