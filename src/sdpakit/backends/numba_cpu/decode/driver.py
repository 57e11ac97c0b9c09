"""The walk of the decode kernel over chunks of keys, compiled once for every spec.

An item is a chunk of the keys of a kv head of a batch entry, met by all rows that read it: so keys
and values are read once, wherever they lie. Each item leaves a state of its own. Who finishes the
last item of a kv head merges the states in the order of the keys, whoever made them (DET-1), and
writes the rows.

Like the driver of the prefill kernel it knows no dtype, width or mask.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sdpakit.backends.numba_cpu import inlining
from sdpakit.backends.numba_cpu.abi import FLAG_PARTIAL, M_UNIT, OBJECT_HEAD
from sdpakit.backends.numba_cpu.driver_parts import (
    RowState,
    Statistics,
    load,
    of_entry,
    out_factor,
    put,
    put_statistics,
    rebind,
)
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.inlining import inner
from sdpakit.backends.numba_cpu.instructions import (
    bits_of,
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
    KV_HEADS,
    GROUP,  # query heads for each kv head (SHAPE-2)
    CHUNKS,  # of one kv head, where all entries are alike
    CHUNK_KEYS,
    ENTRIES,  # address of (first slot, chunks, keys of a chunk), int64, for each batch entry; or 0
    SLOTS,  # address of the batch entry of each slot, a chunk of all kv heads
    TILE_KEYS,
    KEY_STEP,  # a tile is met from a multiple of this on
    MANY,  # rows that the wider functions serve
    STATE_ROWS,  # rows that an item has states for
    ELEMENT_BYTES,  # of the accumulation dtype
    ASKS_HEADS,  # whether the mask differs between heads
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
    OUT,  # address 0: not wanted; so for those below
    OUT_B,
    OUT_H,
    OUT_I,
    OUT_D,
    LSE,
    LSE_B,
    LSE_H,
    LSE_I,
    MAX_LOGIT,
    MAX_LOGIT_B,
    MAX_LOGIT_H,
    MAX_LOGIT_I,
    ENTROPY,
    ENTROPY_B,
    ENTROPY_H,
    ENTROPY_I,
    SUM_P2,
    SUM_P2_B,
    SUM_P2_H,
    SUM_P2_I,
    ROW_M,  # the state of the softmax, which the backward pass starts from
    ROW_M_B,
    ROW_M_H,
    ROW_M_I,
    ROW_L,
    ROW_L_B,
    ROW_L_H,
    ROW_L_I,
    Q_LEN,  # address of one int64 for each batch entry
    KV_LEN,
    Q_START,  # likewise, first row and first key; address 0: 0 for all
    KV_START,
    PAGES,  # address of int64, PAGES_B of them for each batch entry; 0: keys lie by entry
    PAGES_B,
    PAGE_SIZE,
    ROWS_AHEAD,  # keys behind a tile whose addresses are wanted, in pages
    CONTEXT,  # address of ctx (see context.py)
    FINISHED,  # address of a counter for each kv head of each batch entry
    SEEN,  # address of an int64 for each item: whether it left a state
    STATES,  # address of the states of all items
    STATES_AT,  # or where they lie behind the scratch of the only thread
    HEADS,  # kv heads of all batch entries
    Q_FACTOR,  # bits of a float64: factor of q while it is packed
    MAX_FACTOR,  # bits of a float64: natural units in one unit of tmax
    EMPTY_FACTOR,  # bits of a float64: 0.0 or NaN, the out of a row without keys
    PACK_ROW,  # addresses of generated functions; 0 for the last four: not needed
    COPY_ROWS,
    PRODUCTS_ONE,
    PRODUCTS_MANY,
    SOFTEN,
    MEANS_ONE,
    MEANS_MANY,
    MEANS_PRESENT,
    BEGIN_ROW,
    MERGE_ROW,
    FINISH_ROW,
    PUT_ROW,
    KEY_RANGES,
    TILE_CLASS,
    SINK,
    FILL_ROWS,
    ITEM_BYTES,  # of an element of q, k, v
    K_WIDTH,  # elements of a row
    V_WIDTH,
    Q_ROW_BYTES,
    P_ROW_BYTES,
    STATE_BYTES,  # of a row
    Q_AT,  # offsets into the scratch of a thread
    P_AT,
    K_ROWS_AT,  # tables of where the rows of a tile lie, in pages
    V_ROWS_AT,
    K_AT,
    V_AT,
    RANGES_AT,
    L_AT,  # offsets into the state of a row, which begins with m
    TMAX_AT,
    E1_AT,
    P2_AT,
    FIELDS,
) = range(OWN_FIELDS, OWN_FIELDS + 107)


class Item(NamedTuple):
    """Keys [start, end) of a kv head, and the rows that read them: `heads` times `q_rows`."""

    number: int
    b: int
    kv_head: int
    head: int
    heads: int
    q_rows: int
    first_row: int  # of the batch entry in q and in the outputs
    chunk: int
    chunks: int
    start: int
    end: int
    states: int


class Tile(NamedTuple):
    """Keys [j, j + n), the flags of `soften`, and where keys and values lie.

    Row r of k lies at k + r * k_step; of pages, its address does.
    """

    j: int
    n: int
    flags: int
    k: int
    k_step: int
    v: int
    v_step: int


@inner
def _item(d: int, number: int) -> Item:
    if get(d, ENTRIES) == 0:
        chunks, chunk_keys = get(d, CHUNKS), get(d, CHUNK_KEYS)
        rest, chunk = divmod(number, chunks)
        b, kv_head = divmod(rest, get(d, KV_HEADS))
    else:
        b = load_int(get(d, SLOTS) + 8 * (number // get(d, KV_HEADS)))
        entry = get(d, ENTRIES) + 24 * b
        chunks, chunk_keys = load_int(entry + 8), load_int(entry + 16)
        kv_head, chunk = divmod(number - load_int(entry) * get(d, KV_HEADS), chunks)
    start = chunk * chunk_keys
    end = min(start + chunk_keys, load_int(get(d, KV_LEN) + 8 * b))
    states = get(d, STATES) + number * get(d, STATE_ROWS) * get(d, STATE_BYTES)
    heads, head = get(d, GROUP), kv_head * get(d, GROUP)
    q_rows, first_row = load_int(get(d, Q_LEN) + 8 * b), of_entry(get(d, Q_START), b)
    return Item(
        number, b, kv_head, head, heads, q_rows, first_row, chunk, chunks, start, end, states
    )


@inner
def _ranges(d: int, item: Item, out: int) -> Any:
    """Return the keys that some row may see, and those that every row sees for certain."""
    if get(d, KEY_RANGES) == 0:
        return item.start, item.end, item.start, item.end
    lo, hi, must_lo, must_hi = item.end, item.start, item.start, item.end
    for n in range(item.heads if get(d, ASKS_HEADS) else 1):
        rows = (item.b, item.head + n, 0, item.q_rows - 1)
        call(get(d, KEY_RANGES), (get(d, CONTEXT), *rows, out))
        if load_int(out) < load_int(out + 8):
            lo = min(lo, load_int(out))
            hi = max(hi, load_int(out + 8))
        must_lo = max(must_lo, load_int(out + 16))
        must_hi = min(must_hi, load_int(out + 24))
    return max(lo, item.start), min(hi, item.end), must_lo, must_hi


@inner
def _tile_class(d: int, item: Item, j: int, n: int) -> int:
    """Return bit 0: some pair can be attended; bit 1: some pair can be masked."""
    found = 0
    for head in range(item.heads if get(d, ASKS_HEADS) else 1):
        box = (item.b, item.head + head, 0, item.q_rows - 1, j, j + n - 1)
        found |= call(get(d, TILE_CLASS), (get(d, CONTEXT), *box))
    return found


@inner
def _fill(d: int, table: int, count: int, address: int, stride: int) -> None:
    """Store the addresses of rows; what is written behind them is overwritten, or not read."""
    call(get(d, FILL_ROWS), (table, count, address, stride))


@inner
def _fill_from_pages(d: int, item: Item, j: int, n: int, k_rows: int, v_rows: int) -> None:
    """Store where keys and values [j, j + n) lie, the last one again for keys that are none.

    PAGED-2: the table of pages is read no further than there are keys.
    """
    known = min(n, load_int(get(d, KV_LEN) + 8 * item.b) - j)
    number, row = divmod(j, get(d, PAGE_SIZE))
    pages = get(d, PAGES) + 8 * item.b * get(d, PAGES_B)
    k, v, done = 0, 0, 0
    while done < known:
        page, run = load_int(pages + 8 * number), min(get(d, PAGE_SIZE) - row, known - done)
        k = get(d, K) + page * get(d, K_B) + item.kv_head * get(d, K_H) + row * get(d, K_J)
        v = get(d, V) + page * get(d, V_B) + item.kv_head * get(d, V_H) + row * get(d, V_J)
        _fill(d, k_rows + 8 * done, run, k, get(d, K_J))
        _fill(d, v_rows + 8 * done, run, v, get(d, V_J))
        done += run
        number, row = number + 1, 0
    _fill(d, k_rows + 8 * done, n - done, load_int(k_rows + 8 * done - 8), 0)
    _fill(d, v_rows + 8 * done, n - done, load_int(v_rows + 8 * done - 8), 0)


@inner
def _find_rows(d: int, item: Item, scratch: int, tile: Tile) -> Tile:
    """Return a tile with where its rows lie, those behind it included: they are fetched."""
    if get(d, PAGES) != 0:
        k, v = scratch + get(d, K_ROWS_AT), scratch + get(d, V_ROWS_AT)
        _fill_from_pages(d, item, tile.j, tile.n + get(d, ROWS_AHEAD), k, v)
        return Tile(tile.j, tile.n, tile.flags, k, 8, v, 8)
    row = of_entry(get(d, KV_START), item.b) + tile.j
    k = get(d, K) + item.b * get(d, K_B) + item.kv_head * get(d, K_H) + row * get(d, K_J)
    v = get(d, V) + item.b * get(d, V_B) + item.kv_head * get(d, V_H) + row * get(d, V_J)
    return Tile(tile.j, tile.n, tile.flags, k, get(d, K_J), v, get(d, V_J))


@inner
def _adjacent(d: int, field: int, width: int, n: int, rows: int, step: int, target: int) -> Any:
    """Return where rows of k or v lie, and their step: anew if elements of a row lie apart."""
    stride = get(d, field + 4)
    if stride == get(d, ITEM_BYTES) or width == 1:
        return rows, step
    call(get(d, COPY_ROWS), (rows, step, stride, n, target, width))
    row_bytes = width * get(d, ITEM_BYTES)
    if get(d, PAGES) == 0:
        return target, row_bytes
    _fill(d, rows, n, target, row_bytes)
    return rows, step


@inner
def _row(item: Item, number: int) -> Any:
    """Return query head and query row of a row of the item."""
    if item.q_rows == 1:  # a division takes as long as the exponentials of a row
        return item.head + number, 0
    head, q = divmod(number, item.q_rows)
    return item.head + head, q


@inner
def _soften_rows(d: int, item: Item, scratch: int, tile: Tile, first: int, rows: int) -> int:
    """Turn the products of some rows into weights; return whether a pair is absent."""
    absent = 0
    for n in range(rows):
        head, q = _row(item, first + n)
        p = scratch + get(d, P_AT) + n * get(d, P_ROW_BYTES)
        state = item.states + (first + n) * get(d, STATE_BYTES)
        keys = (get(d, CONTEXT), tile.n, tile.j, tile.flags, p, state)
        absent |= call(get(d, SOFTEN), (*keys, item.b, head, q))
    return absent


@inner
def _attend(d: int, item: Item, scratch: int, tile: Tile) -> None:
    """Let all rows of the item attend to a tile, `MANY` at a time."""
    rows, many = item.heads * item.q_rows, get(d, MANY)
    first = 0
    while first < rows:
        # Functions for many rows serve fewer as well: the scratch has room for the others.
        wide = rows - first > 1
        count = min(many, rows - first) if wide else 1
        q = scratch + get(d, Q_AT) + first * get(d, Q_ROW_BYTES)
        p = scratch + get(d, P_AT)
        products = get(d, PRODUCTS_MANY) if wide else get(d, PRODUCTS_ONE)
        call(products, (tile.k, tile.k_step, tile.n, q, p))
        absent = _soften_rows(d, item, scratch, tile, first, count)
        state = item.states + first * get(d, STATE_BYTES)
        if absent:
            for n in range(count):
                weights = p + n * get(d, P_ROW_BYTES)
                row = (weights, state + n * get(d, STATE_BYTES))
                call(get(d, MEANS_PRESENT), (tile.v, tile.v_step, tile.n, *row))
        else:
            means = get(d, MEANS_MANY) if wide else get(d, MEANS_ONE)
            call(means, (tile.v, tile.v_step, tile.n, p, state))
        first += count


@inner
def _open(d: int, item: Item, scratch: int) -> None:
    """Pack the queries of an item and start its states, padding rows included."""
    rows = item.heads * item.q_rows
    filled = (rows + get(d, MANY) - 1) // get(d, MANY) * get(d, MANY)
    for n in range(min(filled, get(d, STATE_ROWS))):
        call(get(d, BEGIN_ROW), (item.states + n * get(d, STATE_BYTES),))
        head, q = _row(item, min(n, rows - 1))
        q += item.first_row
        source = get(d, Q) + item.b * get(d, Q_B) + head * get(d, Q_H) + q * get(d, Q_I)
        target = scratch + get(d, Q_AT) + n * get(d, Q_ROW_BYTES)
        call(get(d, PACK_ROW), (source, get(d, Q_D), target, get(d, Q_FACTOR)))


@inner
def _tile_flags(d: int, item: Item, j: int, n: int) -> int:
    """Return the flags of keys [j, j + n), -1 where no row of the item sees any of them."""
    found = _tile_class(d, item, j, n) if get(d, TILE_CLASS) != 0 else 3
    if found & 1 == 0:  # no pair is attended
        return -1
    return FLAG_PARTIAL if found & 2 != 0 else 0


@inner
def _meet_tile(d: int, item: Item, scratch: int, j: int, n: int, flags: int) -> None:
    """Let the rows of an item meet keys [j, j + n)."""
    found = _find_rows(d, item, scratch, Tile(j, n, flags, 0, 0, 0, 0))
    k_at, v_at = scratch + get(d, K_AT), scratch + get(d, V_AT)
    k, k_step = _adjacent(d, K, get(d, K_WIDTH), n, found.k, found.k_step, k_at)
    v, v_step = _adjacent(d, V, get(d, V_WIDTH), n, found.v, found.v_step, v_at)
    _attend(d, item, scratch, Tile(j, n, flags, k, k_step, v, v_step))


@inner
def _meet_keys(d: int, item: Item, scratch: int) -> None:
    """Let the rows of an item meet the keys of its chunk that they may see."""
    seen = get(d, SEEN) + 8 * item.number
    store_int(seen, 0)
    if item.start >= item.end or item.q_rows == 0:
        return
    lo, hi, must_lo, must_hi = _ranges(d, item, scratch + get(d, RANGES_AT))
    if lo >= hi:
        return
    store_int(seen, 1)
    _open(d, item, scratch)
    step = get(d, TILE_KEYS)
    tile = lo // step * step
    while tile < hi:
        first = max(tile, lo // get(d, KEY_STEP) * get(d, KEY_STEP))
        end = min(tile + step, hi)
        sure = must_lo <= first and end <= must_hi
        flags = 0 if sure else _tile_flags(d, item, first, end - first)
        if flags >= 0:
            _meet_tile(d, item, scratch, first, end - first, flags)
        tile += step


@inner
def _put_row(d: int, item: Item, number: int, state: int) -> None:
    """Turn the state of a row into its part of the outputs."""
    head, q = _row(item, number)
    call(get(d, FINISH_ROW), (state,))
    size = get(d, ELEMENT_BYTES)
    m, total = load(state, size), load(state + get(d, L_AT), size)
    place = item.first_row + q
    put(d + 8 * ROW_M, item.b, head, place, m, size)
    put(d + 8 * ROW_L, item.b, head, place, total, size)
    if get(d, LSE) | get(d, MAX_LOGIT) | get(d, ENTROPY) | get(d, SUM_P2):
        fields = Statistics(LSE, MAX_LOGIT, ENTROPY, SUM_P2, MAX_FACTOR)
        tmax, e1, p2 = state + get(d, TMAX_AT), state + get(d, E1_AT), state + get(d, P2_AT)
        row_state = RowState(m * M_UNIT, total, tmax, e1, p2)
        put_statistics(d, fields, row_state, item.b, head, place, size)
    if get(d, OUT) != 0:
        sink = -math.inf
        if get(d, SINK) != 0:
            sink = float_of(call(get(d, SINK), (get(d, CONTEXT), item.b, head)))
        empty = float_of(get(d, EMPTY_FACTOR))
        factor = bits_of(out_factor(empty, m * M_UNIT, total, sink))
        out = get(d, OUT) + item.b * get(d, OUT_B) + head * get(d, OUT_H) + place * get(d, OUT_I)
        call(get(d, PUT_ROW), (state, out, get(d, OUT_D), factor))


@inner
def _merge(d: int, number: int) -> None:
    """Merge the states of the kv head whose first item it is, in the order of the keys.

    Then write its rows.
    """
    item = _item(d, number)
    rows = item.heads * item.q_rows
    item_bytes = get(d, STATE_ROWS) * get(d, STATE_BYTES)
    target = 0
    for chunk in range(item.chunks):
        if load_int(get(d, SEEN) + 8 * (item.number + chunk)) == 0:
            continue
        states = item.states + chunk * item_bytes
        if target == 0:
            target = states
            continue
        for n in range(rows):
            at = n * get(d, STATE_BYTES)
            call(get(d, MERGE_ROW), (target + at, states + at))
    for n in range(rows):
        state = (target if target != 0 else item.states) + n * get(d, STATE_BYTES)
        if target == 0:
            call(get(d, BEGIN_ROW), (state,))
        _put_row(d, item, n, state)


@inner
def _rebind(d: int, scratch: int, q: int, k: int, v: int, out: int, object_head: int) -> None:
    """Make the descriptor at `d` one of another call, whose arrays are objects at addresses."""
    rebind(d, (Q, K, V, OUT), (q, k, v, out), object_head)
    for kv_head in range(get(d, HEADS)):
        store_int(get(d, FINISHED) + 8 * kv_head, 0)
    store_int(d + 8 * STATES, scratch + get(d, STATES_AT))


@inner
def _run_item(d: int, number: int, scratch: int) -> None:
    """Run an item, and merge all of its kv head if it is the last one to be done."""
    item = _item(d, number)
    _meet_keys(d, item, scratch)
    finished = get(d, FINISHED) + 8 * (item.b * get(d, KV_HEADS) + item.kv_head)
    if fetch_add(finished, 1) == item.chunks - 1:
        _merge(d, number - item.chunk)


def _text(object_head: int) -> str:
    module = new_module("sdpakit_decode_walk")
    inlining.emit(module, "run_item", _run_item)
    inlining.emit(module, "rebind", _rebind, object_head=object_head)
    return str(module)


# What the worker calls: run_item, rebind.
WALK = KernelRecipe(ModuleRecipe(_text, (OBJECT_HEAD,)))
