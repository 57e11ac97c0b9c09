"""Rewriting by rules: functions `Expr -> Expr | None`, run bottom-up until none of them fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sdpakit.errors import InternalError
from sdpakit.expr.nodes import Expr
from sdpakit.expr.rewrite import rewrite_once
from sdpakit.ir.program import Program

# Returns the replacement of a node whose operands are already rewritten, or None to keep it.
Rule = Callable[[Expr], Expr | None]

# Rules shrink a node or push an operation down; an expression of depth n is done in about n rounds.
_MAX_ROUNDS = 1000


def rewrite(root: Expr, rules: Sequence[Rule]) -> Expr:
    """Return `root` with every rule applied wherever it fires, operands first.

    Parameters
    ----------
    root : Expr
        Any node.
    rules : sequence of Rule
        Tried in this order; the first that fires decides.

    Returns
    -------
    Expr
        A node in which no rule fires, so that `rewrite(out, rules) is out`.

    Raises
    ------
    InternalError
        If the rules undo each other and never come to rest.
    """

    def first(node: Expr) -> Expr | None:
        for rule in rules:
            replacement = rule(node)
            if replacement is not None and replacement is not node:
                return replacement
        return None

    for _ in range(_MAX_ROUNDS):
        result = rewrite_once(root, first)
        if result is root:
            return root
        root = result
    raise InternalError(
        f"rewrite: the rules {[rule.__name__ for rule in rules]} do not come to rest"
    )


def rewrite_program(program: Program, rules: Sequence[Rule]) -> Program:
    """Return the program with its expressions rewritten; itself where no rule fires.

    Parameters
    ----------
    program : Program
        Any program.
    rules : sequence of Rule
        See `rewrite`.

    Returns
    -------
    Program
        The same facts over rewritten `logit`, `mask` and `sink`.
    """
    logit, mask = rewrite(program.logit, rules), rewrite(program.mask, rules)
    sink = None if program.sink is None else rewrite(program.sink, rules)
    if (logit, mask, sink) == (program.logit, program.mask, program.sink):
        return program
    return replace(program, logit=logit, mask=mask, sink=sink)
