"""The backend that interprets programs with NumPy: slow, clear, complete, at home everywhere."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sdpakit.backends.base import Artifact, Availability, Capabilities
from sdpakit.backends.interp.backward import InterpretedBackward
from sdpakit.dtypes import FLOATS
from sdpakit.ir.interp import run
from sdpakit.ir.printer import to_text
from sdpakit.spec import LAYOUTS, OUTPUTS

if TYPE_CHECKING:
    from sdpakit.backends.base import BackwardLauncher, Call, Launcher, Options
    from sdpakit.ir.program import Program
    from sdpakit.spec import AttentionSpec


class _Launcher:
    """Interprets one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, call: Call) -> None:
        """Fill the outputs of a call."""
        run(self._program, call, rows_alone=call.batch_invariant)

    def explain(self, call: Call | None) -> Mapping[str, Any]:
        """Say that the interpreter uses one thread and no tiles."""
        return {"method": "NumPy, one head at a time, on one thread; every pair is computed"}


class Interpreter:
    """Backend ``interp``: `sdpakit.ir.interp` behind the contract of backends."""

    name = "interp"

    def availability(self) -> Availability:
        """Say that it runs everywhere."""
        return Availability(ok=True)

    def capabilities(self) -> Capabilities:
        """Return that every spec can be compiled; there are no options."""
        return Capabilities(
            dtypes=frozenset(FLOATS),
            max_head_dim=sys.maxsize,
            outputs=frozenset(OUTPUTS),
            gradients=True,
            layouts=frozenset(LAYOUTS),
            paged=True,
        )

    def unsupported_reasons(self, spec: AttentionSpec, options: Options) -> list[str]:
        """Return no reason: it is the fallback for every spec."""
        return []

    def lower(self, program: Program, options: Options) -> Artifact:
        """Return the text of the program, which is all that the interpreter needs."""
        text = to_text(program)
        key = hashlib.sha256(text.encode()).hexdigest()
        return Artifact(self.name, key, program, {"ir": text})

    def load(self, artifact: Artifact) -> Launcher:
        """Return the interpreter of the program."""
        return _Launcher(artifact.program)

    def lower_backward(self, program: Program, options: Options) -> Artifact:
        """Return the text of the program: its derivatives follow from it."""
        return self.lower(program, options)

    def load_backward(self, artifact: Artifact) -> BackwardLauncher:
        """Return the interpreter of the gradients of the program."""
        return InterpretedBackward(artifact.program)


BACKEND = Interpreter()
