"""CUDA C++ text in the making: lines, braces, and temporaries with names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_STEP = "  "


class Source:
    """Collects lines; `text()` is the whole."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str = "") -> None:
        """Add one line at the present depth."""
        self._lines.append(_STEP * self._depth + text if text else "")

    def comment(self, text: str) -> None:
        """Add lines of comment."""
        for part in text.splitlines():
            self.line(f"// {part}".rstrip())

    @contextmanager
    def braces(self, head: str, end: str = "}") -> Iterator[None]:
        """Add ``head {``, what the body adds one step further in, and the end."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(end)

    def define(self, kind: str, value: str) -> str:
        """Add a constant with a new name, and return the name."""
        name = f"t{self._names}"
        self._names += 1
        self.line(f"const {kind} {name} = {value};")
        return name

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self._lines) + "\n"
