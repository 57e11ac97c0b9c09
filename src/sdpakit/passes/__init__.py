"""What happens to a program between its construction and a backend."""

from __future__ import annotations

from collections.abc import Callable

from sdpakit.ir.program import Program
from sdpakit.ir.verify import verify
from sdpakit.passes.fold import fold
from sdpakit.passes.normalise import normalise
from sdpakit.passes.schedule import attach_schedule

Observer = Callable[[str, Program], None]


def run_pipeline(program: Program, observe: Observer | None = None) -> Program:
    """Run every pass in order, and verify the program before the first and after each.

    Parameters
    ----------
    program : Program
        As `sdpakit.ir.build` gives it.
    observe : callable, optional
        Called as `observe(pass_name, program)` after each pass; dumps and timing hang on it.

    Returns
    -------
    Program
        Scheduled, ready for a backend. Running the pipeline on it again gives the very same.

    Raises
    ------
    VerifyError
        If a pass broke the program: a defect of sdpakit.
    """
    pipeline: tuple[tuple[str, Callable[[Program], Program]], ...] = (
        ("fold", fold),
        ("normalise", normalise),
        ("schedule", attach_schedule),
    )
    verify(program, after="build")
    for name, run in pipeline:
        program = run(program)
        verify(program, after=name)
        if observe is not None:
            observe(name, program)
    return program
