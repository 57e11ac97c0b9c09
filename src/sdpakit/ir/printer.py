"""A program as one page of text: equal programs print alike, and unequal ones do not.

The page is what `kernel.inspect("ir")` shows and part of the key of compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator

from sdpakit.expr.nodes import Expr
from sdpakit.expr.text import to_text as expression_text
from sdpakit.ir.program import Program


def to_text(program: Program) -> str:
    """Return the text of a program.

    Parameters
    ----------
    program : Program
        Any program.

    Returns
    -------
    str
        Lines without a newline at the end; deterministic.
    """
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    yield "attention for every (b, h, q) over k"
    yield f"  q, k, v    {program.dtype}[{program.head_dim}], v [{program.v_head_dim}]"
    yield f"  computed   in {program.accum_dtype}, out in {program.out_dtype}"
    yield f"  outputs    {', '.join(program.outputs)}"
    yield f"  empty row  {program.empty_row}"
    for table in program.tables():
        yield f"  table      {table.name}: {table.dtype}, {table.ndim} axes"
    for name, kind in program.scalars():
        yield f"  scalar     {name}: {kind}"
    yield from _expression("logit", program.logit)
    yield from _expression("mask", program.mask)
    if program.sink is not None:
        yield from _expression("sink", program.sink)
    if program.schedule is not None:
        yield (
            f"  schedule   needs_mask={program.schedule.needs_mask}"
            f" plain_logits={program.schedule.plain_logits}"
        )


def _expression(name: str, root: Expr) -> Iterator[str]:
    """Yield the shared parts of an expression, one a line, then its value."""
    *bindings, value = expression_text(root).split("; ")
    yield f"  {name}"
    for binding in bindings:
        yield f"    {binding}"
    yield f"    = {value}"
