"""Several results of one call, by name and by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AttentionOutput(tuple[Any, ...]):
    """The outputs of a call in the order of `spec.outputs`: a tuple whose items have names.

    ``out, lse = result``, ``result.lse`` and ``result._asdict()`` all work, as for a named tuple.

    Parameters
    ----------
    values : mapping of str to array
        Output name -> array, in order.
    """

    _fields: tuple[str, ...]

    def __new__(cls, values: Mapping[str, Any]) -> AttentionOutput:
        self = super().__new__(cls, values.values())
        self._fields = tuple(values)
        return self

    def __getattr__(self, name: str) -> Any:
        if name != "_fields" and name in self._fields:
            return self[self._fields.index(name)]
        raise AttributeError(
            f"this result has no {name!r}; it has {', '.join(self.__dict__.get('_fields', ()))}: "
            f"say outputs=(..., {name!r}) in the spec"
        )

    def _asdict(self) -> dict[str, Any]:
        """Return the outputs by name."""
        return dict(zip(self._fields, self, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return (AttentionOutput, (self._asdict(),))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        return f"AttentionOutput({inside})"
