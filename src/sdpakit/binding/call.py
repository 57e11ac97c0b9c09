"""The order of the checks of a call, and its results on the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdpakit.arrays import (
    Operand,
    check_distinct,
    check_out,
    export,
    import_array,
    new_array,
    numpy_dtype,
)
from sdpakit.backends.base import Call
from sdpakit.binding.entries import Entries, bind_entries
from sdpakit.binding.lengths import PerEntry, bind_offset, is_single
from sdpakit.binding.operands import bind_qkv, bind_tables, from_layout
from sdpakit.binding.params import bind_params
from sdpakit.binding.signature import Signature
from sdpakit.binding.threads import bind_threads
from sdpakit.dtypes import DTYPES
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a call as the caller gave them."""

    q: object
    k: object
    v: object
    bias: object = None
    mask: object = None
    sinks: object = None
    q_lens: object = None
    kv_lens: object = None
    q_offset: object = None
    cu_q_lens: object = None
    cu_kv_lens: object = None
    block_table: object = None
    params: object = None
    out: object = None
    threads: object = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A checked call.

    Attributes
    ----------
    call : Call
        What a launcher gets.
    given : mapping of str to object
        The caller's own arrays for results, by output.
    made : mapping of str to ndarray
        New arrays for the other results, in the layout of the spec.
    namespace : object or None
        Library of the new results; None is NumPy.
    """

    call: Call
    given: Mapping[str, Any]
    made: Mapping[str, Array]
    namespace: Any | None

    def results(self) -> dict[str, Any]:
        """Return the results by output in the order of the spec, new ones in the library of q."""
        return {
            name: self.given[name]
            if name in self.given
            else export(self.made[name], self.namespace)
            for name in self.call.outputs
        }


def bind(signature: Signature, arguments: Arguments, *, dry: bool = False) -> Bound:
    """Check the arguments of a call.

    Parameters
    ----------
    signature : Signature
        What the kernel takes.
    arguments : Arguments
        What came.
    dry : bool, optional
        True makes stand-ins without memory for the results: such a call can be explained, not
        launched.

    Returns
    -------
    Bound
        A call that a launcher can trust.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For the first argument that does not fit; nothing has been written by then.
    """
    spec = signature.spec
    q, k, v = bind_qkv(spec, arguments.q, arguments.k, arguments.v)
    entries = bind_entries(spec, q.view, k.view, arguments)
    q_offset = bind_offset(signature, entries.dims.batch, arguments.q_offset)
    tables = bind_tables(
        signature, entries.dims, bias=arguments.bias, mask=arguments.mask, sinks=arguments.sinks
    )
    scalars, user_tables = bind_params(signature, arguments.params)
    tables |= user_tables
    threads = bind_threads(arguments.threads)
    int_bits = _int_bits(signature, entries, q_offset, scalars, tables)
    given = _as_outputs(signature, arguments.out)
    made, outputs = _bind_outputs(signature, q.view.shape, given, dry=dry)
    _check_overlap(given, outputs, (q, k, v), tables, arguments)
    call = Call(
        q=q.view,
        k=k.view,
        v=v.view,
        outputs=outputs,
        tables=tables,
        scalars=scalars,
        q_len=entries.q_len.values,
        kv_len=entries.kv_len.values,
        q_offset=q_offset.values,
        threads=threads,
        int_bits=int_bits,
        q_start=entries.q_start,
        kv_start=entries.kv_start,
        pages=entries.pages,
        batch_invariant=spec.batch_invariant,
    )
    return Bound(call, given, made, q.namespace)


def _int_bits(
    signature: Signature,
    entries: Entries,
    q_offset: PerEntry,
    scalars: Mapping[str, int | float],
    tables: Mapping[str, Array],
) -> int:
    dims, q_len, kv_len = entries.dims, entries.q_len, entries.kv_len
    if 0 in dims.pairs:
        return 32  # no pair exists, so no expression is evaluated
    sizes = {
        "b": (0, dims.batch - 1),
        "h": (0, dims.q_heads - 1),
        "q": (0, dims.q_rows - 1),
        "k": (0, dims.kv_rows - 1),
        "q_len": (q_len.least, q_len.most),
        "kv_len": (kv_len.least, kv_len.most),
        "q_offset": (q_offset.least, q_offset.most),
    }
    return signature.proofs.width(sizes, scalars, tables)


def _as_outputs(signature: Signature, out: object) -> dict[str, object]:
    """Return the caller's arrays for results by output."""
    wanted = signature.spec.outputs
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        if wanted == ("out",):
            return {"out": out}
        raise ArgumentTypeError(
            format_error(
                "out",
                got=type(out).__name__,
                allowed=f"a mapping from output to array: the spec has outputs {', '.join(wanted)}",
                fix="pass out={'out': array}; outputs that it does not name are made anew",
            )
        )
    for name in out:
        if name not in wanted:
            raise ArgumentError(
                format_error(
                    "out",
                    got=f"the output {name!r}",
                    allowed=", ".join(wanted),
                    fix=f"ask for it with outputs=(..., {name!r}), or leave it away",
                )
            )
    return dict(out)


def _bind_outputs(
    signature: Signature, q: tuple[int, ...], given: Mapping[str, object], *, dry: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the new arrays as the caller sees them, and all outputs in the order of a `Call`.

    `q` is the shape of q in that order.
    """
    spec = signature.spec
    made: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    for name in spec.outputs:
        shape, dtype = _output_form(signature, name, q)
        if name in given:
            where = "out" if spec.outputs == ("out",) else f"out[{name!r}]"
            array = check_out(where, given[name], shape, dtype)
        elif dry:
            array = np.broadcast_to(np.empty((), numpy_dtype(dtype)), shape)
        else:
            array = made[name] = new_array(shape, dtype)
        swapped = name == "out" or spec.layout == "thd"
        outputs[name] = from_layout(array, spec.layout) if swapped else array
    return made, outputs


def _output_form(
    signature: Signature, name: str, q: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of an output as the caller sees it (SHAPE-1, NUM-5)."""
    spec, (batch, heads, length, _) = signature.spec, q
    swapped = {"bshd": (batch, length, heads), "thd": (length, heads)}.get(spec.layout)
    if name != "out":  # RAGGED-1: tokens come first in every array of layout thd
        rows = swapped if spec.layout == "thd" and swapped else (batch, heads, length)
        return rows, spec.accum_dtype
    rows = swapped or (batch, heads, length)
    return (*rows, signature.program.v_head_dim), signature.program.out_dtype


_OF_ENTRIES = ("q_lens", "kv_lens", "q_offset", "cu_q_lens", "cu_kv_lens", "block_table")


def _check_overlap(
    given: Mapping[str, object],
    outputs: Mapping[str, Array],
    operands: tuple[Operand, ...],
    tables: Mapping[str, Array],
    arguments: Arguments,
) -> None:
    """Refuse results that share memory with anything that the call reads."""
    if not given:
        return
    inputs = {name: operand.view for name, operand in zip("qkv", operands, strict=True)} | dict(
        tables
    )
    # What was converted to a small array of our own is compared as it came.
    for name in (*_OF_ENTRIES, "sinks"):
        value = getattr(arguments, name)
        if value is not None and not is_single(value):
            inputs[name] = import_array(name, value, tuple(DTYPES)).view
    check_distinct({f"out ({name})": outputs[name] for name in given}, inputs)
