"""From a spec to the program that it means, with the values that are left to run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdpakit.expr.names import LOGIT
from sdpakit.expr.nodes import Binary, Const, Dot, Expr, Index, Load, Scalar, Unary
from sdpakit.expr.rewrite import substitute
from sdpakit.expr.scope import Scope
from sdpakit.ir.program import Program
from sdpakit.logits import Alibi

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

_PAIR = (Index("b"), Index("h"), Index("q"), Index("k"))


def build(spec: AttentionSpec) -> tuple[Program, dict[str, int | float]]:
    """Return the program of a spec, and the run-time numbers that the spec itself decides.

    Parameters
    ----------
    spec : AttentionSpec
        A spec without contradictions.

    Returns
    -------
    program : Program
        Not scheduled. Specs that differ in scale, cap, window sizes, steps or prefix lengths alone
        give the same program.
    scalars : dict of str to number
        "scale", "softcap" if there is a cap, and what the masks left to run time.
    """
    scope = Scope(equal_lens=spec.equal_lens)
    scalars: dict[str, int | float] = {"scale": spec.resolved_scale}
    if spec.softcap is not None:
        scalars["softcap"] = spec.softcap
    mask, logit = _mask(spec, scope), _logit(spec, scope)
    program = Program(
        head_dim=spec.head_dim,
        v_head_dim=spec.v_head_dim,
        dtype=spec.dtype,
        accum_dtype=spec.accum_dtype,
        out_dtype=spec.out_dtype,
        logit=logit,
        mask=mask,
        sink=Load("sinks", spec.accum_dtype, (Index("h"),)) if spec.sinks else None,
        outputs=spec.outputs,
        empty_row=spec.empty_row,
    )
    return program, scalars | scope.values


def _logit(spec: AttentionSpec, scope: Scope) -> Expr:
    """Return the logit in the normative order: scale, cap, bias, the user's change."""
    x: Expr = Binary("mul", Scalar("scale", "float"), Dot())  # SCALE-1
    if spec.softcap is not None:  # CAP-1
        cap = Scalar("softcap", "float")
        x = Binary("mul", cap, Unary("tanh", Binary("div", x, cap)))
    if spec.bias is not None:  # MOD-1
        x = Binary("add", x, Load("bias", spec.bias, _PAIR))
    if spec.logits is None:
        return x
    changed = spec.logits.build(scope) if isinstance(spec.logits, Alibi) else spec.logits
    return substitute(changed, {LOGIT: x})


def _mask(spec: AttentionSpec, scope: Scope) -> Expr:
    """Return the AND of everything that hides pairs (MASK-1, MASK-4)."""
    mask = Const(True) if spec.mask is None else spec.mask.build(scope)
    if spec.q_lens:
        mask = Binary("and", mask, Binary("lt", Index("q"), Index("q_len")))
    if spec.kv_lens and not spec.paged:  # pages hold no keys past the length (PAGED-1)
        mask = Binary("and", mask, Binary("lt", Index("k"), Index("kv_len")))
    return mask
