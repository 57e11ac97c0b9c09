"""What every backend wants to know about a program before it chooses how to walk it."""

from __future__ import annotations

from dataclasses import replace

from sdpakit.ir.program import Program, Schedule
from sdpakit.ir.verify import is_plain_logit, is_unmasked


def attach_schedule(program: Program) -> Program:
    """Return the program with its `Schedule`.

    Parameters
    ----------
    program : Program
        A program whose expressions are final.

    Returns
    -------
    Program
        The same program, scheduled.
    """
    schedule = Schedule(
        needs_mask=not is_unmasked(program), plain_logits=is_plain_logit(program.logit)
    )
    return program if program.schedule == schedule else replace(program, schedule=schedule)
