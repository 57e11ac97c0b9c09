"""The rules of well-formed programs; between passes a broken one is a defect of sdpakit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sdpakit.dtypes import ACCUM_DTYPE, DTYPES, FLOATS
from sdpakit.errors import VerifyError
from sdpakit.expr.names import LOGIT, POSITION
from sdpakit.expr.nodes import Binary, Const, Dot, Expr, Index, Load, Scalar, postorder
from sdpakit.expr.text import to_text
from sdpakit.ir import printer
from sdpakit.ir.program import Program
from sdpakit.spec import EMPTY_ROWS, OUTPUTS

_PAIR = tuple(Index(name) for name in ("b", "h", "q", "k"))
# Tables that a call gives by keyword, and how they are read.
_OWN_TABLES: dict[str, tuple[Expr, ...]] = {"bias": _PAIR, "mask": _PAIR, "sinks": (Index("h"),)}


def verify(program: Program, after: str) -> None:
    """Check every rule of well-formed programs.

    Parameters
    ----------
    program : Program
        Any program.
    after : str
        Name of the pass that made it, for the message.

    Raises
    ------
    VerifyError
        If a rule is broken; the message holds all of them and the program.
    """
    broken = [problem for rule in RULES for problem in rule(program)]
    if broken:
        problems = "\n".join(f"  - {problem}" for problem in broken)
        raise VerifyError(
            f"the program after {after!r} is not well-formed:\n{problems}\n"
            f"{printer.to_text(program)}\n"
            "this is a defect of sdpakit: please report it with this text"
        )


def is_unmasked(program: Program) -> bool:
    """Return whether the mask is the literal True."""
    return program.mask is Const(True)


def is_plain_logit(logit: Expr) -> bool:
    """Return whether the logit is the scaled product and nothing else."""
    scale = Scalar("scale", "float")
    return logit in (Binary("mul", scale, Dot()), Binary("mul", Dot(), scale))


def _nodes(program: Program) -> Iterator[Expr]:
    for root in program.roots():
        yield from postorder(root)


def _widths(program: Program) -> Iterator[str]:
    if program.head_dim < 1:
        yield f"head_dim {program.head_dim} is not >= 1"
    if program.v_head_dim < 0:
        yield f"v_head_dim {program.v_head_dim} is not >= 0"


def _dtypes(program: Program) -> Iterator[str]:
    for field in ("dtype", "out_dtype"):
        if getattr(program, field) not in FLOATS:
            yield f"{field} {getattr(program, field)!r} is not one of {', '.join(FLOATS)}"
    wanted = ACCUM_DTYPE.get(program.dtype)
    if program.accum_dtype != wanted:
        yield f"accum_dtype {program.accum_dtype!r} is not {wanted!r} (NUM-1)"


def _outputs(program: Program) -> Iterator[str]:
    if not program.outputs:
        yield "there are no outputs"
    if len(set(program.outputs)) != len(program.outputs):
        yield f"outputs {program.outputs} name one twice"
    unknown = [name for name in program.outputs if name not in OUTPUTS]
    if unknown:
        yield f"outputs {unknown} are unknown"
    if program.empty_row not in EMPTY_ROWS:
        yield f"empty_row {program.empty_row!r} is not one of {', '.join(EMPTY_ROWS)}"


def _types(program: Program) -> Iterator[str]:
    if program.logit.type != "float":
        yield f"the logit has type {program.logit.type}, not float"
    if program.mask.type != "bool":
        yield f"the mask has type {program.mask.type}, not bool"
    if program.sink is not None and program.sink.type != "float":
        yield f"the sink has type {program.sink.type}, not float"


def _products(program: Program) -> Iterator[str]:
    """<q, k> is read by the logit alone."""
    for name, root in (("mask", program.mask), ("sink", program.sink)):
        if root is not None and Dot() in set(postorder(root)):
            yield f"the {name} reads dot()"


def _sink_indices(program: Program) -> Iterator[str]:
    if program.sink is None:
        return
    for node in postorder(program.sink):
        if isinstance(node, Index) and node.name != "h":
            yield f"the sink reads the index {node.name}: a sink is one number a head (SINK-1)"


def _placeholders(program: Program) -> Iterator[str]:
    for node in dict.fromkeys(_nodes(program)):
        if node in (LOGIT, POSITION):
            yield f"the placeholder {to_text(node)} was not replaced"


def _loads(program: Program) -> Iterator[str]:
    for node in dict.fromkeys(_nodes(program)):
        if not isinstance(node, Load):
            continue
        if not node.indices:
            yield f"the table {node.table!r} is read without an index"
        for index in node.indices:
            if index.type != "int":
                yield f"the table {node.table!r} is read at a {index.type}: {to_text(index)}"
        own = _OWN_TABLES.get(node.table)
        if own is not None and node.indices != own:
            yield f"the table {node.table!r} is read as {to_text(node)}"
        if node.table == "mask" and DTYPES[node.dtype].kind != "bool":
            yield f"the table 'mask' has dtype {node.dtype}, not bool"


def _names(program: Program) -> Iterator[str]:
    """One name is one thing: a table of one dtype and rank, or a number of one type."""
    found: dict[str, set[str]] = {}
    for node in _nodes(program):
        if isinstance(node, Load):
            what = f"a table of {node.dtype} with {len(node.indices)} axes"
            found.setdefault(node.table, set()).add(what)
        elif isinstance(node, Scalar):
            found.setdefault(node.name, set()).add(f"a number of type {node.kind}")
    for name, meanings in sorted(found.items()):
        if len(meanings) > 1:
            yield f"the name {name!r} is {' and '.join(sorted(meanings))}"


def _schedule(program: Program) -> Iterator[str]:
    schedule = program.schedule
    if schedule is None:
        return
    if schedule.needs_mask == is_unmasked(program):
        yield f"the schedule says needs_mask={schedule.needs_mask}"
    if schedule.plain_logits != is_plain_logit(program.logit):
        yield f"the schedule says plain_logits={schedule.plain_logits}"


RULES: tuple[Callable[[Program], Iterator[str]], ...] = (
    _widths,
    _dtypes,
    _outputs,
    _types,
    _products,
    _sink_indices,
    _placeholders,
    _loads,
    _names,
    _schedule,
)
