"""What a call of one kernel must give, worked out once when the kernel is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdpakit.binding.proofs import Proofs
from sdpakit.dtypes import DTYPES
from sdpakit.expr.derivative import float_loads
from sdpakit.expr.nodes import Index, Type, postorder
from sdpakit.ir.program import Program, ReadTable
from sdpakit.masks import prefix_tables

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

# Tables with an argument of their own; all others are given in params=.
OPERAND_TABLES: tuple[str, ...] = ("bias", "mask", "sinks")


@dataclass(frozen=True, slots=True)
class Signature:
    """Facts of a kernel that its calls are checked against.

    Attributes
    ----------
    spec : AttentionSpec
        What the user asked for.
    program : Program
        What the backend computes, after the passes.
    constants : mapping of str to number
        Run-time scalars whose values the spec fixes: "scale", "softcap", window sizes, ...
    tables, scalars : mappings by name
        What params= must hold, and nothing else.
    takes_mask, takes_offset : bool
        Whether the program reads a dense mask, or the position of row 0.
    prefixes : frozenset of str
        Those of the tables that hold lengths of prefixes.
    logit_tables : tuple of str
        Float tables that the logit reads, the bias among them: those that have gradients.
    proofs : Proofs
        Remembers which sizes are known to be safe for the integers of the program.
    """

    spec: AttentionSpec
    program: Program
    constants: Mapping[str, int | float]
    tables: Mapping[str, ReadTable]
    scalars: Mapping[str, Type]
    takes_mask: bool
    takes_offset: bool
    prefixes: frozenset[str]
    logit_tables: tuple[str, ...]
    proofs: Proofs = field(repr=False)

    @classmethod
    def of(
        cls,
        spec: AttentionSpec,
        built: Program,
        scheduled: Program,
        constants: Mapping[str, int | float],
    ) -> Signature:
        """Return the signature of a spec.

        Parameters
        ----------
        spec : AttentionSpec
            What the user asked for.
        built, scheduled : Program
            Before and after the passes. What a call must give is read off the former, so that it
            does not depend on what a pass could simplify.
        constants : mapping of str to number
            Run-time scalars whose values the spec fixes.

        Returns
        -------
        Signature
            Facts for all calls.
        """
        tables = {table.name: table for table in built.tables()}
        nodes = {node for root in built.roots() for node in postorder(root)}
        reads_int_tables = any(DTYPES[table.dtype].kind == "int" for table in tables.values())
        return cls(
            spec=spec,
            program=scheduled,
            constants=dict(constants),
            tables={name: t for name, t in tables.items() if name not in OPERAND_TABLES},
            scalars={name: kind for name, kind in built.scalars() if name not in constants},
            takes_mask="mask" in tables,
            takes_offset=Index("q_offset") in nodes,
            prefixes=frozenset() if spec.mask is None else prefix_tables(spec.mask),
            logit_tables=tuple(sorted({load.table for load in float_loads(built.logit)})),
            proofs=Proofs(scheduled, by_shape=not reads_int_tables),
        )
