"""Bottom-up replacement in expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from sdpakit.expr.nodes import Expr, postorder


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """Return the node with other operands.

    Parameters
    ----------
    node : Expr
        Any node.
    children : tuple of Expr
        As many operands as `node.children()`, in that order.

    Returns
    -------
    Expr
        `node` itself where the operands are its own.
    """
    if all(new is old for new, old in zip(children, node.children(), strict=True)):
        return node
    rest = iter(children)
    fields: list[object] = []
    for value in node.fields():
        if isinstance(value, Expr):
            fields.append(next(rest))
        elif isinstance(value, tuple):
            fields.append(tuple(next(rest) if isinstance(item, Expr) else item for item in value))
        else:
            fields.append(value)
    return cast(Callable[..., Expr], type(node))(*fields)


def rewrite_once(root: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Return `root` with `rule` applied once to every distinct node, operands first.

    Parameters
    ----------
    root : Expr
        Any node.
    rule : callable
        Gets a node whose operands are rewritten; returns its replacement, or None to keep it.

    Returns
    -------
    Expr
        The new root.
    """
    done: dict[Expr, Expr] = {}
    for node in postorder(root):
        fresh = rebuild(node, tuple(done[child] for child in node.children()))
        replaced = rule(fresh)
        done[node] = fresh if replaced is None else replaced
    return done[root]


def substitute(root: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """Return `root` with every occurrence of the given nodes replaced.

    Parameters
    ----------
    root : Expr
        Any node.
    replacements : mapping of Expr to Expr
        Replacement by node; replacements are not searched again.

    Returns
    -------
    Expr
        The new root.
    """
    done: dict[Expr, Expr] = {}
    for node in postorder(root):
        kept = rebuild(node, tuple(done[child] for child in node.children()))
        done[node] = replacements.get(node, kept)
    return done[root]
