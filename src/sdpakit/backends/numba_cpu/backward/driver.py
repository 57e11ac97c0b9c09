"""The walk of the backward pass over blocks of panels and tiles of keys, compiled once for all.

An item is a block of panels of one (batch entry, kv head): rows of query heads that read it. Its dQ
is summed in the block, over the keys in rising order. dK and dV are summed in memory, over the
items of a kv head in the order of their numbers: at each tile an item waits until the one before it
has added its part. Items are taken in that order, so the least one that is not done never waits,
and no sum depends on how many threads there are (DET-1).

Like the driver of the forward pass it knows no dtype, width or mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sdpakit.backends.numba_cpu import inlining
from sdpakit.backends.numba_cpu.abi import (
    FLAG_FIRST_SHIFT,
    FLAG_NONFINITE_KEYS,
    FLAG_NONFINITE_ROWS,
    FLAG_PARTIAL,
)
from sdpakit.backends.numba_cpu.driver_parts import load, place, store
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.inlining import inner
from sdpakit.backends.numba_cpu.instructions import (
    call,
    fetch_add,
    float_of,
    get,
    load_int,
    store_int,
)
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe
from sdpakit.backends.numba_cpu.workers import OWN_FIELDS

# Fields of the descriptor. X, X_B, X_H, X_I, X_D: address and byte strides of an array.
(
    IS_TABLES,  # 1: the pass that sums gradients of tables
    BATCH,
    Q_HEADS,
    KV_HEADS,
    GROUP,  # query heads for each kv head (SHAPE-2)
    SEQUENCE,  # items of one kv head
    ROW_PANELS,  # of one query head
    PANELS,  # of a block, at most
    RUN_PANELS,  # of an outer product, at most
    WIDTH,  # queries of a panel
    ROW_STEP,  # keys of a register tile
    BLOCK_KV,  # keys of a tile
    TILES,
    ELEMENT_BYTES,  # of the accumulation dtype
    ROW_BYTES,  # of W elements
    Q,
    Q_B,
    Q_H,
    Q_I,
    Q_D,
    K,
    K_B,
    K_H,
    K_J,
    K_D,
    V,
    V_B,
    V_H,
    V_J,
    V_D,
    DO,
    DO_B,
    DO_H,
    DO_I,
    DO_D,
    OUT,  # of the forward pass, in accum_dtype
    OUT_B,
    OUT_H,
    OUT_I,
    OUT_D,
    DQ,
    DQ_B,
    DQ_H,
    DQ_I,
    DQ_D,
    DK,
    DK_B,
    DK_H,
    DK_J,
    DK_D,
    DV,
    DV_B,
    DV_H,
    DV_J,
    DV_D,
    BASE,  # maximum of each row in units of m, 0 for an empty row; in accum_dtype, as is the next
    BASE_B,
    BASE_H,
    BASE_I,
    INVERSE,  # 1 / l of each row, the sink in l; 0 for an empty row
    INVERSE_B,
    INVERSE_H,
    INVERSE_I,
    Q_LEN,  # address of one int64 for each batch entry
    KV_LEN,
    CONTEXT,  # address of ctx (see context.py)
    SUMS,  # address of where the sums of tables lie (see tables.py)
    Q_FACTOR,  # bits of a float64: factor of q in the logits
    DOT_FACTOR,  # bits of a float64: factor of dQ and dK
    STEP,  # addresses of generated functions; 0 for the last three: not needed
    OUTER,
    ROWS_K,
    ROWS_V,
    COLUMNS_K,
    LANES_Q,
    LANES_DO,
    LANES_OUT,
    FACTORS_Q,
    FACTORS_DO,
    DELTA,
    SUMS_K,
    SUMS_V,
    UNPACK,
    CLEAR,
    KEY_RANGES,
    TILE_CLASS,
    YIELD,  # address of a function that gives up the rest of a time slice
    OWN_B,  # items of the tables for each batch entry, query head, block of rows: 1; else 0
    OWN_H,
    OWN_Q,
    DK_SUMS,  # address of the sums [kv heads of all entries][keys][columns], and bytes of a row
    DK_ROW,
    DK_BLOCKS,  # register tiles in a row
    DV_SUMS,
    DV_ROW,
    DV_BLOCKS,
    SUM_ROWS,  # rows of sums of a kv head
    PROGRESS,  # address of one int64 for each tile of each kv head: items that have added to it
    TILE_AT,  # offsets into the scratch of a thread
    STAGED_AT,
    LANES_AT,
    FACTORS_AT,
    PANELS_AT,
    PAIRS_AT,
    RECORDS_AT,
    PANEL_BYTES,
    PAIRS_BYTES,
    SLOPES_AT,  # in the pairs of a panel
    V_ROWS_AT,  # in a tile
    K_COLUMNS_AT,
    DOT_AT,  # in a panel
    DQT_AT,
    DQT_BYTES,
    Q_ROWS_AT,
    DO_ROWS_AT,
    BASE_AT,
    DELTA_AT,
    FIELDS,
) = range(OWN_FIELDS, OWN_FIELDS + 118)

STEP_FLAGS = FLAG_PARTIAL | FLAG_NONFINITE_ROWS | FLAG_NONFINITE_KEYS

# Further flags of a panel: which of its operands is not finite.
NONFINITE_Q = 16
NONFINITE_DO = 32

# A record of a panel of the block: the keys that some row may see and those that every row sees,
# its step in the tile, and which rows it has.
LO, HI, MUST_LO, MUST_HI, FIRST, END, FLAGS, HEAD, ROW, ROWS, RECORD = range(11)

SPINS = 256  # between two offers of the core to somebody else


class Block(NamedTuple):
    """Panels [first, first + panels) of a kv head, in the order of its query heads and rows."""

    b: int
    kv_head: int
    first: int
    panels: int
    kv_len: int


@inner
def _fill(d: int, address: int, value: float) -> None:
    """Store a value in a row of W."""
    for lane in range(get(d, WIDTH)):
        store(address + lane * get(d, ELEMENT_BYTES), value, get(d, ELEMENT_BYTES))


@inner
def _record(d: int, scratch: int, panel: int) -> int:
    return scratch + get(d, RECORDS_AT) + 8 * RECORD * panel


@inner
def _panel(d: int, scratch: int, panel: int) -> int:
    return scratch + get(d, PANELS_AT) + get(d, PANEL_BYTES) * panel


@inner
def _fill_factors(d: int, scratch: int) -> None:
    """Set the factors that are the same for all panels: of q, ones, of dQ."""
    factors, row = scratch + get(d, FACTORS_AT), get(d, ROW_BYTES)
    _fill(d, factors, float_of(get(d, Q_FACTOR)))
    _fill(d, factors + 2 * row, 1.0)
    _fill(d, factors + 3 * row, float_of(get(d, DOT_FACTOR)))


@inner
def _find_ranges(d: int, block: Block, record: int) -> None:
    """Record which keys some row of the panel may see, and which every row sees for certain."""
    row, rows = get(record, ROW), get(record, ROWS)
    lo, hi, must_lo, must_hi = 0, block.kv_len, 0, block.kv_len
    if get(d, KEY_RANGES) != 0:
        box = (block.b, get(record, HEAD), row, row + rows - 1)
        call(get(d, KEY_RANGES), (get(d, CONTEXT), *box, record))
        lo, hi = max(0, get(record, LO)), min(block.kv_len, get(record, HI))
        must_lo, must_hi = get(record, MUST_LO), get(record, MUST_HI)
    store_int(record, lo)
    store_int(record + 8 * HI, hi)
    store_int(record + 8 * MUST_LO, must_lo)
    store_int(record + 8 * MUST_HI, must_hi)


@inner
def _row_numbers(d: int, block: Block, scratch: int, record: int, address: int) -> None:
    """Bring maxima and 1 / l of the rows into the panel and the factors; zero past the last row."""
    head, row, rows = get(record, HEAD), get(record, ROW), get(record, ROWS)
    inverse = scratch + get(d, FACTORS_AT) + get(d, ROW_BYTES)
    _fill(d, address + get(d, BASE_AT), 0.0)
    _fill(d, inverse, 0.0)
    size = get(d, ELEMENT_BYTES)
    for lane in range(rows):
        base = load(place(d + 8 * BASE, block.b, head, row + lane), size)
        store(address + get(d, BASE_AT) + lane * size, base, size)
        one = load(place(d + 8 * INVERSE, block.b, head, row + lane), size)
        store(inverse + lane * size, one, size)


@inner
def _pack_lanes(d: int, block: Block, scratch: int, record: int, address: int) -> None:
    """Pack q and dO / l as lanes, and make delta of dO / l."""
    head, row, rows = get(record, HEAD), get(record, ROW), get(record, ROWS)
    factors, step = scratch + get(d, FACTORS_AT), get(d, ROW_BYTES)
    q, do = place(d + 8 * Q, block.b, head, row), place(d + 8 * DO, block.b, head, row)
    out, lanes = place(d + 8 * OUT, block.b, head, row), scratch + get(d, LANES_AT)
    dot = address + get(d, DOT_AT)
    call(get(d, LANES_Q), (q, get(d, Q_I), get(d, Q_D), rows, address, factors))
    call(get(d, LANES_DO), (do, get(d, DO_I), get(d, DO_D), rows, dot, factors + step))
    ones = factors + 2 * step
    call(get(d, LANES_OUT), (out, get(d, OUT_I), get(d, OUT_D), rows, lanes, ones))
    call(get(d, DELTA), (dot, lanes, address + get(d, DELTA_AT)))


@inner
def _pack_factors(d: int, block: Block, scratch: int, record: int, address: int) -> None:
    """Pack q and dO / l as rows for the outer products; clear dQ."""
    head, row, rows = get(record, HEAD), get(record, ROW), get(record, ROWS)
    factors, step = scratch + get(d, FACTORS_AT), get(d, ROW_BYTES)
    q, do = place(d + 8 * Q, block.b, head, row), place(d + 8 * DO, block.b, head, row)
    q_rows, do_rows = address + get(d, Q_ROWS_AT), address + get(d, DO_ROWS_AT)
    ones = factors + 2 * step
    bad_q = call(get(d, FACTORS_Q), (q, get(d, Q_I), get(d, Q_D), rows, q_rows, ones))
    bad_do = call(
        get(d, FACTORS_DO), (do, get(d, DO_I), get(d, DO_D), rows, do_rows, factors + step)
    )
    flags = bad_q * NONFINITE_Q | bad_do * NONFINITE_DO | (bad_q | bad_do) * FLAG_NONFINITE_ROWS
    store_int(record + 8 * FLAGS, flags)
    call(get(d, CLEAR), (address + get(d, DQT_AT), get(d, DQT_BYTES)))


@inner
def _open_panel(d: int, block: Block, scratch: int, number: int) -> None:
    record, address = _record(d, scratch, number), _panel(d, scratch, number)
    in_group, row_panel = divmod(block.first + number, get(d, ROW_PANELS))
    row = row_panel * get(d, WIDTH)
    rows = min(get(d, WIDTH), load_int(get(d, Q_LEN) + 8 * block.b) - row)
    store_int(record + 8 * HEAD, block.kv_head * get(d, GROUP) + in_group)
    store_int(record + 8 * ROW, row)
    store_int(record + 8 * ROWS, rows)
    store_int(record + 8 * FLAGS, 0)
    if rows <= 0:  # past the length of the batch entry (MASK-4): it sees no key
        store_int(record + 8 * LO, 0)
        store_int(record + 8 * HI, 0)
        return
    _find_ranges(d, block, record)
    if get(record, LO) >= get(record, HI):
        return
    _row_numbers(d, block, scratch, record, address)
    _pack_lanes(d, block, scratch, record, address)
    if get(d, IS_TABLES) == 0:
        _pack_factors(d, block, scratch, record, address)


@inner
def _find_step(d: int, block: Block, record: int, tile: int, n: int) -> int:
    """Record the step of a panel over keys [tile, tile + n); return 1 if there is one, else 0."""
    lo, hi, step = get(record, LO), get(record, HI), get(d, ROW_STEP)
    first = 0 if lo <= tile else (lo - tile) // step * step
    end = min(n, hi - tile)
    flags = get(record, FLAGS) & ~FLAG_PARTIAL
    full = get(record, MUST_LO) <= tile + first and tile + end <= get(record, MUST_HI)
    if first < end and not full:
        flags |= FLAG_PARTIAL
        if get(d, TILE_CLASS) != 0:
            row = get(record, ROW)
            rows = (block.b, get(record, HEAD), row, row + get(record, ROWS) - 1)
            keys = (tile + first, tile + end - 1)
            found = call(get(d, TILE_CLASS), (get(d, CONTEXT), *rows, *keys))
            if found & 1 == 0:  # no pair is attended
                end = 0
            if found & 2 == 0:  # every pair is attended
                flags &= ~FLAG_PARTIAL
    store_int(record + 8 * FLAGS, flags)
    store_int(record + 8 * FIRST, first)
    store_int(record + 8 * END, end if first < end else 0)
    return 1 if first < end else 0


@inner
def _pack_tile(d: int, block: Block, scratch: int, tile: int, n: int) -> int:
    """Pack keys and values of a tile; return the flag of one that is not finite."""
    address = scratch + get(d, TILE_AT)
    k = place(d + 8 * K, block.b, block.kv_head, tile)
    v = place(d + 8 * V, block.b, block.kv_head, tile)
    values = address + get(d, V_ROWS_AT)
    bad = call(get(d, ROWS_K), (k, get(d, K_J), get(d, K_D), n, address))
    bad |= call(get(d, ROWS_V), (v, get(d, V_J), get(d, V_D), n, values))
    if get(d, IS_TABLES) == 0:
        call(get(d, COLUMNS_K), (address, n, address + get(d, K_COLUMNS_AT)))
    return bad * FLAG_NONFINITE_KEYS


@inner
def _meet_tile(d: int, block: Block, scratch: int, tile: int) -> int:
    """Let the panels of a block meet a tile; return the flags of all, -1 if none sees a key."""
    n = min(get(d, BLOCK_KV), block.kv_len - tile)
    steps = 0
    for number in range(block.panels):
        steps += _find_step(d, block, _record(d, scratch, number), tile, n)
    if steps == 0:
        return -1
    bad = _pack_tile(d, block, scratch, tile, n)
    seen = bad
    for number in range(block.panels):
        record = _record(d, scratch, number)
        end = get(record, END)
        if end == 0:
            continue
        seen |= get(record, FLAGS)
        flags = get(record, FLAGS) & STEP_FLAGS | bad | get(record, FIRST) << FLAG_FIRST_SHIFT
        pairs = scratch + get(d, PAIRS_AT) + get(d, PAIRS_BYTES) * number
        memory = (scratch + get(d, TILE_AT), _panel(d, scratch, number), pairs)
        rows = (block.b, get(record, HEAD), get(record, ROW), get(record, ROWS))
        keys = (end, tile, flags)
        staged = scratch + get(d, STAGED_AT)
        call(get(d, STEP), (get(d, CONTEXT), *memory, staged, *keys, *rows, get(d, SUMS)))
    return seen


@inner
def _sees(d: int, scratch: int, panel: int, group: int) -> bool:
    """Return whether the panel had a step over the keys of a register tile."""
    record, key = _record(d, scratch, panel), group * get(d, ROW_STEP)
    return get(record, FIRST) <= key < get(record, END)


@inner
def _run_start(d: int, scratch: int, end: int, group: int) -> int:
    """Return the first of the run of panels before `end` that see a register tile."""
    least = max(0, end - get(d, RUN_PANELS))
    while end > least and _sees(d, scratch, end - 1, group):
        end -= 1
    return end


@inner
def _alike(d: int, scratch: int, panels: int, group: int, other: int) -> bool:
    """Return whether the same panels see two register tiles."""
    for panel in range(panels):
        if _sees(d, scratch, panel, group) != _sees(d, scratch, panel, other):
            return False
    return True


@inner
def _all_see(d: int, scratch: int, panels: int, n: int) -> bool:
    """Return whether every panel had a step over all keys of a tile of n keys."""
    for panel in range(panels):
        record = _record(d, scratch, panel)
        if get(record, FIRST) != 0 or get(record, END) != n:
            return False
    return True


@inner
def _add_run(d: int, scratch: int, sums: Any, groups: Any, run: Any, seen: int) -> None:
    """Add what a run of panels gives to dK and dV of the keys of some register tiles."""
    shift, count = groups[0] * get(d, ROW_STEP), groups[1] - groups[0]
    dk = sums[0] + shift * get(d, DK_ROW)
    dv = sums[1] + shift * get(d, DV_ROW)
    first, panels = run[0], run[1] - run[0]
    address, step, pairs = _panel(d, scratch, first), get(d, PANEL_BYTES), get(d, PAIRS_BYTES)
    weights = scratch + get(d, PAIRS_AT) + pairs * first + shift * get(d, ROW_BYTES)
    slopes = weights + get(d, SLOPES_AT)
    right = (address + get(d, DO_ROWS_AT), step)
    how = (get(d, DV_BLOCKS), count, panels, seen & NONFINITE_DO)
    call(get(d, OUTER), (weights, pairs, *right, dv, get(d, DV_ROW), *how))
    right = (address + get(d, Q_ROWS_AT), step)
    how = (get(d, DK_BLOCKS), count, panels, seen & NONFINITE_Q)
    call(get(d, OUTER), (slopes, pairs, *right, dk, get(d, DK_ROW), *how))


@inner
def _add_tile(d: int, block: Block, scratch: int, sums: Any, n: int, seen: int) -> None:
    """Add what a block gives to dK and dV of a tile of n keys, the last panels first.

    Under a causal mask the first rows have the largest weights: added last they are rounded least.
    """
    total = (n + get(d, ROW_STEP) - 1) // get(d, ROW_STEP)
    whole = _all_see(d, scratch, block.panels, n)
    group = 0
    while group < total:
        end = total if whole else group + 1
        while end < total and _alike(d, scratch, block.panels, group, end):
            end += 1
        panels = block.panels
        while panels > 0:
            start = _run_start(d, scratch, panels, group)
            if start < panels:
                _add_run(d, scratch, sums, (group, end), (start, panels), seen)
            panels = min(start, panels - 1)
        group = end


@inner
def _wait(d: int, place: int, turn: int) -> None:
    """Return when the number at `place` is `turn`."""
    spins = 0
    while fetch_add(place, 0) != turn:
        spins += 1
        if spins % SPINS == 0 and get(d, YIELD) != 0:
            call(get(d, YIELD), (0,))


@inner
def _finish_tile(d: int, block: Block, sums: Any, tile: int, n: int) -> None:
    """Write dK and dV of a tile, to which every item has added."""
    dk = place(d + 8 * DK, block.b, block.kv_head, tile)
    dv = place(d + 8 * DV, block.b, block.kv_head, tile)
    factor, one = get(d, DOT_FACTOR), 0x3FF0000000000000  # the bits of 1.0
    call(get(d, SUMS_K), (sums[0], dk, get(d, DK_J), get(d, DK_D), n, factor))
    call(get(d, SUMS_V), (sums[1], dv, get(d, DV_J), get(d, DV_D), n, one))


@inner
def _close_panel(d: int, block: Block, scratch: int, number: int) -> None:
    """Write dQ of a panel, if it saw keys; it is zero otherwise, and was so before."""
    record = _record(d, scratch, number)
    if get(record, LO) >= get(record, HI):
        return
    dq = place(d + 8 * DQ, block.b, get(record, HEAD), get(record, ROW))
    factors = scratch + get(d, FACTORS_AT) + 3 * get(d, ROW_BYTES)
    sums = _panel(d, scratch, number) + get(d, DQT_AT)
    call(get(d, UNPACK), (sums, factors, dq, get(d, DQ_I), get(d, DQ_D), get(record, ROWS)))


@inner
def _run_block(d: int, number: int, scratch: int) -> None:
    """Run a block; the last rows come first, as they see most keys under a causal mask."""
    turn, unit = divmod(number, get(d, BATCH) * get(d, KV_HEADS))
    b, kv_head = divmod(unit, get(d, KV_HEADS))
    first = (get(d, SEQUENCE) - 1 - turn) * get(d, PANELS)
    panels = min(get(d, PANELS), get(d, GROUP) * get(d, ROW_PANELS) - first)
    block = Block(b, kv_head, first, panels, load_int(get(d, KV_LEN) + 8 * b))
    for panel in range(panels):
        _open_panel(d, block, scratch, panel)
    for index in range(get(d, TILES)):
        tile = index * get(d, BLOCK_KV)
        seen = _meet_tile(d, block, scratch, tile)
        row = unit * get(d, SUM_ROWS) + tile
        sums = (
            get(d, DK_SUMS) + row * get(d, DK_ROW),
            get(d, DV_SUMS) + row * get(d, DV_ROW),
        )
        place = get(d, PROGRESS) + 8 * (unit * get(d, TILES) + index)
        _wait(d, place, turn)
        if turn == 0:
            call(get(d, CLEAR), (sums[0], get(d, BLOCK_KV) * get(d, DK_ROW)))
            call(get(d, CLEAR), (sums[1], get(d, BLOCK_KV) * get(d, DV_ROW)))
        n = min(get(d, BLOCK_KV), block.kv_len - tile)
        if seen >= 0:
            _add_tile(d, block, scratch, sums, n, seen)
        if turn == get(d, SEQUENCE) - 1 and n > 0:
            _finish_tile(d, block, sums, tile, n)
        fetch_add(place, 1)
    for panel in range(panels):
        _close_panel(d, block, scratch, panel)


@inner
def _run_head(d: int, b: int, head: int, only: int, scratch: int) -> None:
    """Sum the gradients of tables over the rows of a head, or over one block of them."""
    kv_head, in_group = divmod(head, get(d, GROUP))
    kv_len = load_int(get(d, KV_LEN) + 8 * b)
    row_panels = get(d, ROW_PANELS)
    for start in range(0, row_panels, get(d, PANELS)):
        if only >= 0 and start != only * get(d, PANELS):
            continue
        panels = min(get(d, PANELS), row_panels - start)
        block = Block(b, kv_head, in_group * row_panels + start, panels, kv_len)
        for panel in range(panels):
            _open_panel(d, block, scratch, panel)
        for tile in range(0, kv_len, get(d, BLOCK_KV)):
            _meet_tile(d, block, scratch, tile)


@inner
def _run_tables(d: int, number: int, scratch: int) -> None:
    """Run an item of the tables: all pairs that share elements, in one order."""
    blocks = (get(d, ROW_PANELS) + get(d, PANELS) - 1) // get(d, PANELS)
    only = -1
    if get(d, OWN_Q) == 1:
        number, only = divmod(number, blocks)
    head, head_end = 0, get(d, Q_HEADS)
    if get(d, OWN_H) == 1:
        number, head = divmod(number, get(d, Q_HEADS))
        head_end = head + 1
    b_first, b_end = (number, number + 1) if get(d, OWN_B) == 1 else (0, get(d, BATCH))
    for b in range(b_first, b_end):
        for h in range(head, head_end):
            _run_head(d, b, h, only, scratch)


@inner
def _run_item(d: int, number: int, scratch: int) -> None:
    """Run an item of the pass."""
    _fill_factors(d, scratch)
    if get(d, IS_TABLES) == 1:
        _run_tables(d, number, scratch)
    else:
        _run_block(d, number, scratch)


def _text() -> str:
    module = new_module("sdpakit_backward_walk")
    inlining.emit(module, "run_item", _run_item)
    return str(module)


# What the worker calls: run_item.
WALK = KernelRecipe(ModuleRecipe(_text, ()))
