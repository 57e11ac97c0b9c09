"""Program -> one LLVM module with the code of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.numba_cpu import products
from sdpakit.backends.numba_cpu.backward.layout import BackwardLayout, backward_layout
from sdpakit.backends.numba_cpu.backward.outer import outer_module
from sdpakit.backends.numba_cpu.backward.packers import Stored, packers_module
from sdpakit.backends.numba_cpu.backward.step import BackwardStep, PairTerms
from sdpakit.backends.numba_cpu.backward.tables import TableGradient, table_gradients
from sdpakit.backends.numba_cpu.context import ContextLayout
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.lower import NAME, Plan, Stages, lower, staged_tables
from sdpakit.backends.numba_cpu.lower_expr import Walker
from sdpakit.backends.numba_cpu.lower_ranges import emit_ranges
from sdpakit.backends.numba_cpu.module import commented, unpack_module
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe, digest
from sdpakit.expr.derivative import derivative
from sdpakit.expr.nodes import Const, Dot, Expr
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.backends.numba_cpu.irtypes import Value
    from sdpakit.backends.numba_cpu.vector import Lanes
    from sdpakit.ir.program import Program


@dataclass(frozen=True, slots=True)
class BackwardPlan:
    """What code is generated for.

    Attributes
    ----------
    plan : Plan
        That of the forward pass whose logits are made again.
    layout : BackwardLayout
        Tile sizes.
    tables : tuple of TableGradient
        Tables that get a gradient other than 0.
    slope : Expr or None
        d logit / d<q, k>; None where the logit does not depend on q and k.
    """

    plan: Plan
    layout: BackwardLayout
    tables: tuple[TableGradient, ...]
    slope: Expr | None

    @classmethod
    def of(cls, program: Program, options: Options, int_bits: int) -> BackwardPlan:
        """Choose ISA and tiles, and differentiate the logit.

        Raises
        ------
        ArgumentError
            If the host cannot run the ISA that the options name.
        LoweringError
            If the passes have not run on the program.
        """
        plan = Plan.of(program, options, int_bits)
        return cls(
            plan=plan,
            layout=backward_layout(plan.layout, options.get("block_kv")),
            tables=() if plan.is_fast else table_gradients(program.logit),
            slope=derivative(program.logit, Dot()),
        )


def forward_program(program: Program) -> Program:
    """Return the program of the forward pass that the backward starts from."""
    return replace(program, out_dtype=program.accum_dtype, outputs=("out",), empty_row="zero")


def lower_backward(program: Program, options: Options, int_bits: int = 32) -> Artifact:
    """Return the code of the gradients of a scheduled program.

    Parameters
    ----------
    program : Program
        After the passes.
    options : mapping
        As of the forward pass.
    int_bits : int
        Width of the integers in vector code, 32 or 64.

    Returns
    -------
    Artifact
        Stages "ir", "llvm", "asm"; `meta` holds the `BackwardPlan` as "plan", and as "forward" the
        artifact of the forward pass.
    """
    plan = BackwardPlan.of(program, options, int_bits)
    recipe = _recipe(plan)
    forward = lower(forward_program(program), options, int_bits)
    stages = Stages(lambda: _program_text(program), (recipe,), plan.layout.keys.isa)
    meta = {"plan": plan, "options": options, "forward": forward}
    return Artifact(NAME, digest((recipe,)), program, stages, meta)


def _recipe(plan: BackwardPlan) -> KernelRecipe:
    layout = plan.layout
    shared = (
        products.qk_module(layout.keys),
        products.qk_module(layout.values),  # the same where both widths are
        products.pv_module(layout.values),
        outer_module(layout.keys),
        packers_module(layout, Stored.of(plan.plan.program)),
        unpack_module(layout.values),  # dQ, in the dtype of q
    )
    return KernelRecipe(ModuleRecipe(_own_text, (plan,)), tuple(dict.fromkeys(shared)))


def _program_text(program: Program) -> str:
    return f"{to_text(program)}\ngradients"


def _own_text(plan: BackwardPlan) -> str:
    program, layout = plan.plan.program, plan.layout
    module = new_module("sdpakit_backward")
    BackwardStep(module, "step", layout, _pair_terms(plan, with_tables=False)).emit()
    if plan.tables:
        BackwardStep(module, "tables", layout, _pair_terms(plan, with_tables=True)).emit()
    if plan.plan.has_mask:
        emit_ranges(module, layout.keys.isa, program)
    keys = layout.keys
    head = [
        *_program_text(program).splitlines(),
        f"isa {keys.isa.name}, element {keys.element}, blocks of {layout.panels} panels of "
        f"{keys.width} queries, tiles of {keys.block_kv} keys, register tile {keys.rows} x "
        f"{keys.vectors} vectors",
    ]
    return commented(head, module)


def _pair_terms(plan: BackwardPlan, *, with_tables: bool) -> PairTerms:
    forward, context = plan.plan, ContextLayout.of(plan.plan.program)
    program, slope = forward.program, plan.slope or Const(0.0)

    def walker(lanes: Lanes, dot: Value = None) -> Walker:
        return Walker(context, lanes, dot, forward.staged)

    def logit(lanes: Lanes, dot: Value) -> tuple[Value, Value]:
        walk = walker(lanes, dot)
        return walk.evaluate_vector(program.logit), walk.evaluate_vector(slope)

    def mask(lanes: Lanes) -> Value:
        return walker(lanes).evaluate_vector(program.mask)

    def scatter(lanes: Lanes, dot: Value, gradient: Value, present: Value, sums: Value) -> None:
        walk = walker(lanes, dot)
        for table in plan.tables:
            table.emit(walk, gradient, present, sums)

    return PairTerms(
        logit=None if forward.is_fast else logit,
        mask=mask if forward.has_mask else None,
        scatter=scatter if with_tables else None,
        int_bits=forward.int_bits,
        staged=staged_tables(forward, context),
    )


def table_names(tables: Sequence[TableGradient]) -> tuple[str, ...]:
    """Return the names of tables with gradients, each once."""
    return tuple(dict.fromkeys(table.load.table for table in tables))
