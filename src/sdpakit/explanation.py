"""What a kernel would do and why: facts by name that print as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sdpakit.arrays import import_array, numpy_dtype
from sdpakit.binding import Arguments, Signature, bind
from sdpakit.binding.lengths import INTEGERS
from sdpakit.binding.operands import LENGTH_LIMIT
from sdpakit.errors import ArgumentError, ArgumentTypeError, did_you_mean, format_error
from sdpakit.passes.tilemap import Sizes, tile_map

if TYPE_CHECKING:
    from sdpakit.backends.base import Artifact, Call
    from sdpakit.backends.selection import Choice
    from sdpakit.spec import AttentionSpec

Array = np.ndarray[Any, Any]

_PAGE_SIZE = 16  # of pages that are stood in for
_STOOD_IN = ("bias", "mask", "sinks")  # tables whose elements nobody has to say

_ANY_MASK = "every tile that the mask decides is partial: no mask was given"

# What a reader of the printed form could take for another figure says more than its key.
_LABELS = {
    "flops": "flops if dense",
    "flops_per_byte": "flops per byte if dense",
    "flops_in_tiles": "flops done (whole tiles)",
    "kv_bytes_in_tiles": "bytes of k and v (whole tiles)",
}


class Explanation(Mapping[str, Any]):
    """Facts by name in the order of importance; `print` shows them as a table.

    Parameters
    ----------
    facts : mapping of str to object
        Values may be mappings themselves.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = dict(facts)

    def __getitem__(self, name: str) -> Any:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __repr__(self) -> str:
        return "\n".join(_lines(self._facts, 0))


def _lines(facts: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    names = {key: _LABELS.get(key, key.replace("_", " ")) for key in facts}
    width = max((len(name) for name in names.values()), default=0)
    for key, value in facts.items():
        name = names[key]
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, depth + 1)
        else:
            yield f"{indent}{name:<{width}}  {_text(value)}"


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None or value == {} else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def dry_call(
    signature: Signature,
    batch: int,
    lengths: tuple[int | None, int | None],
    given: Mapping[str, Any],
) -> Call:
    """Return a call that can be explained, not launched.

    Parameters
    ----------
    signature, batch, lengths, given
        See `stand_ins`; `lengths` are q_len and kv_len.
    """
    ready = stand_ins(signature, batch, *lengths, given)
    call = bind(signature, ready, dry=True).call
    made = {name for name in _STOOD_IN if name in call.tables and given.get(name) is None}
    return replace(call, stood_in=frozenset(made))


def stand_ins(
    signature: Signature,
    batch: int,
    q_len: int | None,
    kv_len: int | None,
    given: Mapping[str, Any],
) -> Arguments:
    """Return the arguments of a call of these sizes without memory for operands.

    Parameters
    ----------
    signature : Signature
        What the kernel takes.
    batch, q_len, kv_len : int
        Sizes of what was not given; a length of None is that of the other side.
    given : mapping of str to object
        Arguments that take the place of stand-ins.

    Returns
    -------
    Arguments
        With full lengths, a mask of one element, a bias of 0, sinks of 0, and the last row at the
        last key.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        If a name is that of no argument, nothing says how long the call is, or a size is none.
    """
    spec = signature.spec
    _check_names(given)
    batch, q_len, kv_len = _sizes(spec, batch, (q_len, kv_len), given)
    pairs = (batch, spec.q_heads, q_len, kv_len)
    made: dict[str, object] = _layout_stand_ins(signature, batch, (q_len, kv_len), given)
    if spec.bias is not None:
        made["bias"] = _constant(0, spec.bias, pairs)
    if signature.takes_mask:
        made["mask"] = _constant(1, "bool", pairs)
    if spec.sinks:
        made["sinks"] = _constant(0, spec.accum_dtype, (spec.q_heads,))
    if spec.q_lens:
        made["q_lens"] = _constant(q_len, "int64", (batch,))
    if spec.kv_lens:
        made["kv_lens"] = _constant(kv_len, "int64", (batch,))
    if signature.takes_offset:
        made["q_offset"] = kv_len - q_len
    return Arguments(**(made | dict(given)))


def _check_names(given: Mapping[str, Any]) -> None:
    allowed = [field.name for field in fields(Arguments)]
    for name in given:
        if name not in allowed:
            raise ArgumentTypeError(
                format_error(
                    "explain",
                    got=f"the unknown argument {name!r}",
                    allowed=f"batch, q_len, kv_len, and those of a call: {', '.join(allowed)}",
                    fix=did_you_mean(name, allowed, f"leave {name!r} away"),
                )
            )


def _sizes(
    spec: AttentionSpec,
    batch: int,
    lengths: tuple[int | None, int | None],
    given: Mapping[str, Any],
) -> tuple[int, int, int]:
    """Return batch, q_len and kv_len of a call, by the arrays q and k where they were given."""
    q_len, kv_len = lengths
    axis = {"bhsd": 2, "bshd": 1, "thd": 0}[spec.layout]
    rank = 3 if spec.layout == "thd" else 4
    shapes = {x: import_array(x, given[x], (spec.dtype,)).view.shape for x in "qk" if x in given}
    # An operand of another rank says nothing here: the checks of the call refuse it.
    if len(q_shape := shapes.get("q", ())) == rank:
        batch, q_len = 1 if spec.layout == "thd" else q_shape[0], q_shape[axis]
    if len(k_shape := shapes.get("k", ())) == rank and not spec.paged:
        kv_len = k_shape[axis]
    # What is given for each entry says how many there are, and how long they are at most.
    if (ends := _integers("cu_q_lens", given, 1)) is not None and spec.layout == "thd":
        batch, q_len = len(ends) - 1, int(np.diff(ends).max(initial=0))
    if (ends := _integers("cu_kv_lens", given, 1)) is not None and spec.layout == "thd":
        kv_len = int(np.diff(ends).max(initial=0))
    if (lens := _integers("kv_lens", given, 1)) is not None and spec.paged:
        kv_len = int(lens.max(initial=0))
    for name, size in (("batch", batch), ("q_len", q_len), ("kv_len", kv_len)):
        if size is not None:
            _check_size(name, size)
    known = [length for length in (q_len, kv_len) if length is not None]
    if not known and not shapes:
        raise ArgumentError(
            format_error(
                "explain",
                got=f"{', '.join(given) or f'batch={batch}'} without a length",
                allowed="q_len=, kv_len= or both, or the arrays q and k, beside other arguments",
                fix="name a length, or leave the arguments away to explain the kernel alone",
            )
        )
    either = known[0] if known else 0
    return batch, either if q_len is None else q_len, either if kv_len is None else kv_len


def _integers(name: str, given: Mapping[str, Any], ndim: int) -> Array | None:
    """Return integers that were given, None where they have another rank or are not there."""
    if given.get(name) is None:
        return None
    view = import_array(name, given[name], INTEGERS).view
    return view.astype(np.int64) if view.ndim == ndim and view.size else None


def _check_size(name: str, value: object) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 0 <= int(cast(int, value)) < LENGTH_LIMIT:
        raise ArgumentError(
            format_error(
                f"explain: {name}",
                got=f"{value!r} ({type(value).__name__})",
                allowed=f"an integer from 0 to {LENGTH_LIMIT - 1} (SHAPE-6)",
                fix="give a size that a call could have",
            )
        )


def _layout_stand_ins(
    signature: Signature, batch: int, lengths: tuple[int, int], given: Mapping[str, Any]
) -> dict[str, object]:
    """Return q, k, v, and what says where their entries lie (RAGGED-1, PAGED-1)."""
    spec, (q_len, kv_len) = signature.spec, lengths
    made: dict[str, object] = {}
    q, kv = (batch, q_len), (batch, kv_len)
    if spec.layout == "thd":
        q = 1, _tokens("cu_q_lens", made, given, (batch, q_len))
        if not spec.paged:
            kv = 1, _tokens("cu_kv_lens", made, given, (batch, kv_len))
    if spec.paged:
        kv = _pages(made, given, batch, kv_len)
    layout = "paged" if spec.paged else spec.layout
    made["q"] = _operand(spec, spec.layout, (q[0], spec.q_heads, q[1], spec.head_dim))
    for name, width in (("k", spec.head_dim), ("v", signature.program.v_head_dim)):
        made[name] = _operand(spec, layout, (kv[0], spec.kv_heads, kv[1], width))
    return made


def _tokens(
    name: str, made: dict[str, object], given: Mapping[str, Any], sizes: tuple[int, int]
) -> int:
    """Stand in for offsets of entries of one length; return the number of tokens."""
    ends = _integers(name, given, 1)
    if ends is None:
        made[name] = ends = np.arange(sizes[0] + 1) * sizes[1]
    return int(ends[-1])


def _pages(
    made: dict[str, object], given: Mapping[str, Any], batch: int, kv_len: int
) -> tuple[int, int]:
    """Stand in for a block table; return number and size of the pages."""
    shape: tuple[int, ...] = np.shape(given["k"]) if "k" in given else ()
    count, size = (shape[0], shape[1]) if len(shape) == 4 else (LENGTH_LIMIT - 1, _PAGE_SIZE)
    each = -(-kv_len // max(1, size))
    if "block_table" not in given:  # which pages they are does not matter
        made["block_table"] = np.zeros((batch, each), np.int64)
    return count, size


def _operand(spec: AttentionSpec, layout: str, shape: tuple[int, ...]) -> Array:
    array = _constant(0, spec.dtype, shape)
    if layout == "thd":
        array = array[0].swapaxes(0, 1)
    elif layout != "bhsd":
        array = array.swapaxes(1, 2)
    return array


def _constant(value: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array of one value with strides of 0: any size in the memory of one element."""
    return np.broadcast_to(np.full((), value, numpy_dtype(dtype)), shape)


def explain_call(
    signature: Signature,
    choice: Choice,
    artifact: Artifact,
    facts: Mapping[str, Any],
    call: Call | None,
) -> Explanation:
    """Return the facts of a kernel and, where there is one, of a call.

    Parameters
    ----------
    signature, choice, artifact
        The kernel.
    facts : mapping
        What its launcher says.
    call : Call or None
        A checked call.

    Returns
    -------
    Explanation
        Backend and why, key of the code, the facts of the launcher, work and traffic.
    """
    program = signature.program
    found: dict[str, Any] = {
        "backend": choice.backend,
        "why": _why(choice),
        "passed_over": {name: "; ".join(texts) for name, texts in choice.passed_over.items()},
        "options": dict(choice.options),
        "logit": str(program.logit),
        "mask": str(program.mask),
        "run_time_values": dict(signature.constants),
        "cache_key": artifact.key,
        "stages": ", ".join(artifact.stages),
    }
    if call is not None:
        found |= _work(call)
    found |= facts
    if call is not None and "block_q" in facts and "block_kv" in facts:
        found |= _tiles(signature, call, int(facts["block_q"]), int(facts["block_kv"]))
    return Explanation(found)


def _tiles(signature: Signature, call: Call, q_tile: int, k_tile: int) -> dict[str, Any]:
    """Return the tiles of a call by class, and the arithmetic of those that are computed."""
    _, heads, _, head_dim = call.q.shape
    v_head_dim = call.v.shape[3]
    sizes = Sizes(heads, call.q_rows, call.kv_rows, call.q_len, call.kv_len, call.q_offset)
    counts = tile_map(
        signature.program,
        sizes,
        call.scalars,
        call.tables,
        q_tile=q_tile,
        k_tile=k_tile,
        unread=call.stood_in,
    )
    computed = counts.full + counts.partial
    empty = counts.empty
    if signature.spec.packed:  # entries are as long as they are: no tiles lie behind them
        tiles = -(-call.q_len // q_tile) * -(-call.kv_len // k_tile)
        empty = heads * int(tiles.sum()) - computed
    found: dict[str, Any] = {
        "tiles": {"empty": empty, "full": counts.full, "partial": counts.partial},
        "flops_in_tiles": computed * q_tile * k_tile * 2 * (head_dim + v_head_dim),
    }
    if call.q_rows <= q_tile:  # all rows of a group meet a tile of its keys together
        tile_bytes = k_tile * (head_dim + v_head_dim) * call.k.itemsize
        read = computed * tile_bytes // signature.spec.group
        pairs = math.prod(call.k.shape[:3]) * (head_dim + v_head_dim)
        found["kv_bytes_in_tiles"] = min(read, pairs * call.k.itemsize)
    return found


def _why(choice: Choice) -> str:
    if choice.passed_over:
        return f"first of {choice.asked!r} that can compile this spec here"
    return f"first of {choice.asked!r}" if choice.asked != choice.backend else "named by the caller"


def _work(call: Call) -> dict[str, Any]:
    """Return sizes, arithmetic without a mask, and the least traffic of a call.

    Two products for each pair: 2 D flops for the logit and 2 Dv for the mean. Least traffic: every
    operand is read once and every result written once.
    """
    batch, heads, q_len, kv_len = call.batch, call.q.shape[1], call.q_rows, call.kv_rows
    head_dim, v_head_dim = call.q.shape[3], call.v.shape[3]
    packed = call.q_start is not None or call.pages is not None
    pairs = int((call.q_len * call.kv_len).sum()) if packed else batch * q_len * kv_len
    flops = heads * pairs * 2 * (head_dim + v_head_dim)
    operands = [call.q, *call.tables.values(), *call.outputs.values()]
    moved = sum(math.prod(array.shape) * array.itemsize for array in operands)
    keys = math.prod(call.k.shape[::2]) if call.pages is None else int(call.kv_len.sum())
    moved += keys * call.k.shape[1] * (head_dim + v_head_dim) * call.k.itemsize
    most = " at most" if packed else ""
    assumed = {"assumed": _ANY_MASK} if "mask" in call.stood_in else {}
    return {
        "sizes": f"batch {batch}, heads {heads}/{call.k.shape[1]}, "
        f"lengths{most} {q_len} x {kv_len}",
        "flops": flops,
        "bytes": moved,
        "flops_per_byte": flops / moved if moved else 0.0,
        "int_bits": call.int_bits,
        "threads": call.threads,
        **assumed,
    }
