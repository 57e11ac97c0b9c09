"""Which gradients a call has, of what shape and dtype, and the change of the logits they cross."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.expr.nodes import Expr, Load, postorder
from sdpakit.expr.scope import Scope
from sdpakit.logits import Alibi

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


def change_of(spec: AttentionSpec) -> Expr | None:
    """Return the change of the logits that a spec asks for.

    Parameters
    ----------
    spec : AttentionSpec
        Any spec.

    Returns
    -------
    Expr or None
        Over the placeholder of the logit; None for no change.
    """
    if isinstance(spec.logits, Alibi):
        return spec.logits.build(Scope(equal_lens=spec.equal_lens))
    return spec.logits


def float_tables(spec: AttentionSpec) -> tuple[str, ...]:
    """Return the tables whose gradients are asked for: floats that the change of the logits reads.

    Parameters
    ----------
    spec : AttentionSpec
        Any spec.

    Returns
    -------
    tuple of str
        By name, each once.
    """
    root = change_of(spec)
    nodes = [] if root is None else postorder(root)
    loads = (node for node in nodes if isinstance(node, Load) and node.type == "float")
    return tuple(sorted({node.table for node in loads}))


def gradient_operands(spec: AttentionSpec, operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operand of every gradient that a call has (GRAD-1, GRAD-2).

    Parameters
    ----------
    spec : AttentionSpec
        What is differentiated.
    operands : mapping of str to array
        Arguments of the call, q, k and v included.

    Returns
    -------
    dict of str to array
        By "dq", "dk", "dv", "dbias", "dsinks", "dparams.NAME"; each gradient has the shape and
        dtype of its operand (GRAD-3).
    """
    names = [*"qkv", *(["bias"] if spec.bias else []), *(["sinks"] if spec.sinks else [])]
    found = {f"d{name}": np.asarray(operands[name]) for name in names}
    for table in float_tables(spec):
        found[f"dparams.{table}"] = np.asarray(operands["params"][table])
    return found
