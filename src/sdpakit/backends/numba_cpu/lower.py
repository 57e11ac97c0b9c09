"""Program -> LLVM modules of one spec: panel step, key ranges, sink; what decodes apart from them.

Which of the two arithmetics of `panel.py` runs is decided here: FAST where a logit is scale * dot,
GENERAL where it is an expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from sdpakit.backends.base import Artifact, Options
from sdpakit.backends.numba_cpu.codegen import KernelModule, compile_kernel
from sdpakit.backends.numba_cpu.context import ContextLayout
from sdpakit.backends.numba_cpu.decode.choice import can_decode
from sdpakit.backends.numba_cpu.decode.emit import decode_module, pages_module
from sdpakit.backends.numba_cpu.decode.layout import DecodeLayout
from sdpakit.backends.numba_cpu.decode.softening import Softening
from sdpakit.backends.numba_cpu.functions import new_function, new_module
from sdpakit.backends.numba_cpu.irtypes import I64, Value
from sdpakit.backends.numba_cpu.isa import Isa, select_isa
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.logits import Pairs
from sdpakit.backends.numba_cpu.lower_expr import Walker, staged_loads
from sdpakit.backends.numba_cpu.lower_ranges import emit_ranges
from sdpakit.backends.numba_cpu.module import commented, emit_module, shared_modules
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe, digest
from sdpakit.backends.numba_cpu.staging import Staged
from sdpakit.backends.numba_cpu.vector import Lanes, VectorEmitter
from sdpakit.errors import LoweringError
from sdpakit.ir.printer import to_text

if TYPE_CHECKING:
    from sdpakit.expr.nodes import Load
    from sdpakit.ir.program import Program

NAME = "numba_cpu"

# Places of the kernels of a spec in its stages. All have the first.
PREFILL, DECODE, DECODE_PAGES = 0, 1, 2

# Each staged table takes a tile of scratch as large as the weights; more are read lane by lane.
MAX_STAGED = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What code is generated for: a function of the program, the options and the machine.

    Attributes
    ----------
    program : Program
        With its schedule.
    layout : PanelLayout
        Tile sizes and ISA.
    int_bits : int
        Width of integers in vector code.
    staged : tuple of Load
        Dense tables that the panel step transposes for itself.
    is_fast : bool
        Whether a logit is scale * dot and nothing else.
    has_mask : bool
        Whether some pair may be masked.
    """

    program: Program
    layout: PanelLayout
    int_bits: int
    staged: tuple[Load, ...]
    is_fast: bool
    has_mask: bool

    @classmethod
    def of(cls, program: Program, options: Options, int_bits: int) -> Plan:
        """Choose ISA and tiles.

        Raises
        ------
        ArgumentError
            If the host cannot run the ISA that the options name.
        LoweringError
            If the passes have not run on the program.
        """
        if program.schedule is None:
            raise LoweringError("numba_cpu was given a program without a schedule")
        loads = (*staged_loads(program.logit), *staged_loads(program.mask))
        staged = tuple(dict.fromkeys(loads))[:MAX_STAGED]
        wished = PanelLayout(
            isa=select_isa(options.get("isa")),
            dtype=program.dtype,
            out_dtype=program.out_dtype,
            head_dim=program.head_dim,
            v_head_dim=program.v_head_dim,
            statistics=bool({"entropy", "sum_p2"} & set(program.outputs)),
            row_maximum="max_logit" in program.outputs,
            dense=tuple(load.dtype for load in staged),
            block_kv_wish=options.get("block_kv"),
        )
        # Named, so that whatever is kept by the layout of a kernel knows the choice of the machine.
        layout = replace(wished, block_kv_wish=wished.block_kv)
        return cls(
            program=program,
            layout=layout,
            int_bits=int_bits,
            staged=staged,
            is_fast=program.schedule.plain_logits,
            has_mask=program.schedule.needs_mask,
        )


class Stages(Mapping[str, str | bytes]):
    """Stages of an artifact, each made when it is asked for: to run the code none is needed.

    Parameters
    ----------
    program_text : callable
        Returns the stage "ir".
    recipes : tuple of KernelRecipe
        Kernels, which are compiled apart from each other; make what the stage "llvm" prints.
    isa : Isa
        What to compile for.
    """

    def __init__(
        self, program_text: Callable[[], str], recipes: tuple[KernelRecipe, ...], isa: Isa
    ) -> None:
        self._recipes, self._isa = recipes, isa
        self._makers: dict[str, Callable[[], str]] = {
            "ir": program_text,
            "llvm": lambda: "\n".join(recipe.text() for recipe in recipes),
            "asm": lambda: "\n".join(self.compiled(n).asm for n in range(len(recipes))),
        }

    def compiled(self, number: int = 0) -> KernelModule:
        """Return the loaded code of a kernel."""
        return compile_kernel(self._recipes[number], self._isa)

    def text(self, number: int) -> str:
        """Return the LLVM IR of a kernel."""
        return self._recipes[number].text()

    def __getitem__(self, name: str) -> str:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def lower(program: Program, options: Options, int_bits: int = 32) -> Artifact:
    """Return the code of a scheduled program.

    Parameters
    ----------
    program : Program
        After the passes.
    options : mapping
        "isa": name of the ISA; "block_kv": keys of a tile, at most.
    int_bits : int
        Width of the integers in vector code, 32 or 64.

    Returns
    -------
    Artifact
        Stages "ir" (the program), "llvm", "asm"; `meta` holds the `Plan` as "plan".
    """
    plan = Plan.of(program, options, int_bits)
    recipes = _recipes(plan)
    stages = Stages(lambda: to_text(program), recipes, plan.layout.isa)
    meta = {"plan": plan, "options": options}
    return Artifact(NAME, digest(recipes), program, stages, meta)


def _recipes(plan: Plan) -> tuple[KernelRecipe, ...]:
    prefill = KernelRecipe(ModuleRecipe(_own_text, (plan,)), shared_modules(plan.layout))
    if not can_decode(plan.layout):
        return (prefill,)
    soften = ModuleRecipe(_soften_text, (plan,))
    decode = KernelRecipe(soften, (decode_module(plan.layout),))
    return prefill, decode, KernelRecipe(pages_module(plan.layout))


def _own_text(plan: Plan) -> str:
    program, pairs = plan.program, _pairs(plan)

    def extend(module: Any) -> None:
        if plan.has_mask:
            emit_ranges(module, plan.layout.isa, program)
        if program.sink is not None:
            _emit_sink(module, plan, ContextLayout.of(program))

    return emit_module(
        plan.layout,
        logit=pairs.logit,
        mask=pairs.mask,
        int_bits=pairs.int_bits,
        extend=extend,
        staged=pairs.staged,
        comment=to_text(program),
    )


def _soften_text(plan: Plan) -> str:
    module = new_module("sdpakit_soften")
    Softening(module, DecodeLayout(plan.layout), _pairs(plan)).emit()
    return commented(to_text(plan.program).splitlines(), module)


def _pairs(plan: Plan) -> Pairs:
    """Return what emits logit and mask of pairs."""
    program = plan.program
    context = ContextLayout.of(program)

    def logit(lanes: Lanes, dot: Value) -> Value:
        return Walker(context, lanes, dot, plan.staged).evaluate_vector(program.logit)

    def mask(lanes: Lanes) -> Value:
        return Walker(context, lanes, None, plan.staged).evaluate_vector(program.mask)

    terms = None if plan.is_fast else logit, mask if plan.has_mask else None
    return Pairs(terms[0], terms[1], plan.int_bits, staged_tables(plan, context))


def staged_tables(plan: Plan, context: ContextLayout) -> list[Staged]:
    """Return what a step has to transpose for itself, in the order of `plan.staged`."""
    return [_staged(plan, context, load) for load in plan.staged]


def _staged(plan: Plan, context: ContextLayout, load: Load) -> Staged:
    def locate(e: VectorEmitter, ctx: Value, b: Value, h: Value) -> tuple[Value, Value, Value]:
        return Walker(context, _head(e, ctx, b, h)).locate(load)

    return Staged(load.dtype, locate, load not in staged_loads(plan.program.logit))


def _head(e: VectorEmitter, ctx: Value, b: Value, h: Value) -> Lanes:
    """Return pairs of which only batch entry and head exist."""
    return Lanes(e, None, None, b, h, ctx, 64, _nothing_staged)


def _emit_sink(module: Any, plan: Plan, context: ContextLayout) -> None:
    """Emit sink(ctx, b, h) -> bits of the float64 logit of SINK-1."""
    b = new_function(module, "sink", ("ctx", "b", "h"))
    b.comment("SINK-1: one more logit of a head, neither scaled nor capped, without a value row")
    e = VectorEmitter(b, plan.layout.isa, plan.layout.element)
    lanes = _head(e, *b.function.args)  # the verifier lets a sink read nothing else
    assert plan.program.sink is not None
    value = Walker(context, lanes).evaluate(plan.program.sink)
    wide = value if plan.layout.element == "float64" else b.fpext(value, ir.DoubleType())
    b.ret(b.bitcast(wide, I64))


def _nothing_staged(number: int) -> Value:
    raise LoweringError(f"table {number} is staged for pairs, and there is none here")
