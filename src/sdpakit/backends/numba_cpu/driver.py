"""The walk over an item, its KV tiles and panels, compiled once for every spec.

All sizes, strides and addresses of generated functions come in an int64 descriptor, so this file
knows no dtype, no head width and no mask, and its compiled form is kept as that of any module of a
kernel. What may stand in it is said in `inlining.py`. Where a batch entry lies comes with it: first
row, first key, or pages (RAGGED-1, PAGED-1). An item is a range of query rows of a range of query
heads that read one kv head. For each item, KV tiles are packed once, a group of them at a time, and
met by every panel of the item that sees keys of it; a panel is opened before the first such group
and closed after the last. Tiles lie on an absolute grid and a panel starts at a multiple of its
width, so neither the partition into items nor the groups of tiles ever show in the bits (DET-1).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sdpakit.backends.numba_cpu import inlining
from sdpakit.backends.numba_cpu.abi import (
    FLAG_FIRST_SHIFT,
    FLAG_NONFINITE_V,
    FLAG_PARTIAL,
    M_UNIT,
    OBJECT_HEAD,
    RANGE_BYTES,
)
from sdpakit.backends.numba_cpu.driver_parts import (
    RowState,
    Statistics,
    load,
    of_entry,
    out_factor,
    put,
    put_statistics,
    rebind,
    store,
)
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.inlining import inner
from sdpakit.backends.numba_cpu.instructions import (
    call,
    float_of,
    get,
    load_int,
    prefetch,
    store_int,
)
from sdpakit.backends.numba_cpu.microkernels import CACHE_LINE
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe
from sdpakit.backends.numba_cpu.workers import OWN_FIELDS

# Fields of the descriptor. X, X_B, X_H, X_I, X_D: address and byte strides of an array.
(
    BATCH,
    KV_HEADS,
    GROUP,  # query heads for each kv head (SHAPE-2)
    ROW_CHUNKS,
    CHUNK_ROWS,  # query rows of an item, a multiple of WIDTH
    HEAD_CHUNKS,
    CHUNK_HEADS,  # query heads of an item
    HEADS_AS_ROWS,  # 1; or the group, if its heads stand in as the rows of a q of one row
    WIDTH,  # queries of a panel
    ROW_STEP,  # a step may start at multiples of this inside a tile
    BLOCK_KV,  # keys of a tile
    ELEMENT_BYTES,  # of the accumulation dtype
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
    OUT,
    OUT_B,
    OUT_H,
    OUT_I,
    OUT_D,
    LSE,  # address 0: not wanted; so for the three below
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
    PAGES_MEET,  # 1 if keys of page n + 1 follow those of page n at the stride of keys
    ORDER,  # address of (batch entry, chunk of its rows), int64, for each item of one kv head; or 0
    CONTEXT,  # address of ctx (see context.py)
    Q_FACTOR,  # bits of a float64: factor of q while it is packed
    MAX_FACTOR,  # bits of a float64: natural units in one unit of tmax
    EMPTY_FACTOR,  # bits of a float64: 0.0 or NaN, the out of a row without keys
    BEGIN,  # addresses of generated functions; 0 for the last three: not needed
    STEP,
    PACK_Q,
    PACK_K,
    PACK_V,
    UNPACK_O,
    KEY_RANGES,
    TILE_CLASS,
    SINK,
    TILE_GROUP,  # tiles that are packed before the panels meet them
    PAIR_BYTES,  # a pair is a packed K tile and its packed V tile
    V_IN_PAIR,
    K_ROW_BYTES,  # of a row in the memory of the caller
    V_ROW_BYTES,
    PAIRS_AT,  # offsets into the scratch of a thread
    PACKED_AT,
    P_AT,
    STAGING_AT,
    FACTORS_AT,
    RANGES_AT,
    PANELS_AT,
    PANEL_BYTES,  # a panel is q, o and the statistics
    O_AT,
    M_AT,
    L_AT,
    TMAX_AT,
    E1_AT,
    P2_AT,
    FIELDS,
) = range(OWN_FIELDS, OWN_FIELDS + 98)


class Item(NamedTuple):
    """Query rows [row, row_end) of query heads [head, head + heads) of a batch entry."""

    b: int
    kv_head: int
    head: int
    heads: int
    row: int
    row_end: int
    panels: int  # for each head
    kv_len: int
    first_row: int  # of the batch entry in q and in the outputs
    first_key: int


@inner
def _item(d: int, number: int) -> Item:
    """Decode an item; the last rows come first, as they see most keys under a causal mask."""
    rest, head_chunk = divmod(number, get(d, HEAD_CHUNKS))
    rest, kv_head = divmod(rest, get(d, KV_HEADS))
    if get(d, ORDER) == 0:
        chunk, b = divmod(rest, get(d, BATCH))
        row = (get(d, ROW_CHUNKS) - 1 - chunk) * get(d, CHUNK_ROWS)
    else:
        b = load_int(get(d, ORDER) + 16 * rest)
        row = load_int(get(d, ORDER) + 16 * rest + 8) * get(d, CHUNK_ROWS)
    q_rows = load_int(get(d, Q_LEN) + 8 * b) * get(d, HEADS_AS_ROWS)
    row_end = min(row + get(d, CHUNK_ROWS), q_rows)
    first = head_chunk * get(d, CHUNK_HEADS)
    heads = min(get(d, CHUNK_HEADS), get(d, GROUP) - first)
    panels = max(0, (row_end - row + get(d, WIDTH) - 1) // get(d, WIDTH))
    head = kv_head * get(d, GROUP) + first
    kv_len = load_int(get(d, KV_LEN) + 8 * b)
    starts = of_entry(get(d, Q_START), b), of_entry(get(d, KV_START), b)
    return Item(b, kv_head, head, heads, row, row_end, panels, kv_len, starts[0], starts[1])


@inner
def _panel(d: int, item: Item, scratch: int, panel: int) -> Any:
    """Return address, head, first row and number of rows of a panel of the item."""
    head, block = divmod(panel, item.panels)
    row = item.row + block * get(d, WIDTH)
    address = scratch + get(d, PANELS_AT) + panel * get(d, PANEL_BYTES)
    return address, item.head + head, row, min(get(d, WIDTH), item.row_end - row)


@inner
def _query_rows(d: int, panel: Any) -> Any:
    """Return first query row and number of query rows of a panel, as expressions see them."""
    _, _, row, rows = panel
    return (row, rows) if get(d, HEADS_AS_ROWS) == 1 else (0, 1)


@inner
def _find_ranges(d: int, item: Item, panel: Any, ranges: int) -> None:
    """Store which keys some row of the panel may see, and which every row sees for certain.

    Where no row sees a key, the first range is that from 0 to 0.
    """
    row, rows = _query_rows(d, panel)
    if get(d, KEY_RANGES) == 0:
        lo, hi, must_lo, must_hi = 0, item.kv_len, 0, item.kv_len
    else:
        box = (item.b, panel[1], row, row + rows - 1)
        call(get(d, KEY_RANGES), (get(d, CONTEXT), *box, ranges))
        lo = max(0, load_int(ranges))
        hi = min(item.kv_len, load_int(ranges + 8))
        must_lo, must_hi = load_int(ranges + 16), load_int(ranges + 24)
        if hi <= lo:
            lo, hi = 0, 0
    store_int(ranges, lo)
    store_int(ranges + 8, hi)
    store_int(ranges + 16, must_lo)
    store_int(ranges + 24, must_hi)


@inner
def _rows_of_q(d: int, item: Item, panel: Any) -> int:
    """Return the address of the first row of q of a panel."""
    _, head, row, _ = panel
    row += item.first_row
    return get(d, Q) + item.b * get(d, Q_B) + head * get(d, Q_H) + row * get(d, Q_I)


@inner
def _keys_at(d: int, item: Item, j: int, end: int) -> Any:
    """Return addresses of key and value j, and how many of [j, end) follow at their strides."""
    if get(d, PAGES) == 0:
        place, row, run = item.b, item.first_key + j, end - j
    else:
        number, row = divmod(j, get(d, PAGE_SIZE))
        pages = get(d, PAGES) + 8 * item.b * get(d, PAGES_B)
        place, run = load_int(pages + 8 * number), get(d, PAGE_SIZE) - row
        if get(d, PAGES_MEET) != 0:
            following = place + 1
            # PAGED-2: the table is read no further than there are keys.
            while j + run < end and load_int(pages + 8 * (number + following - place)) == following:
                run += get(d, PAGE_SIZE)
                following += 1
        run = min(run, end - j)
    k = get(d, K) + place * get(d, K_B) + item.kv_head * get(d, K_H) + row * get(d, K_J)
    v = get(d, V) + place * get(d, V_B) + item.kv_head * get(d, V_H) + row * get(d, V_J)
    return k, v, run


@inner
def _find_all_ranges(d: int, item: Item, scratch: int) -> Any:
    """Find the ranges of every panel; return the range of keys that any of them may see."""
    lo, hi = item.kv_len, 0
    for number in range(item.heads * item.panels):
        panel = _panel(d, item, scratch, number)
        ranges = scratch + get(d, RANGES_AT) + number * RANGE_BYTES
        _find_ranges(d, item, panel, ranges)
        if load_int(ranges) < load_int(ranges + 8):
            lo = min(lo, load_int(ranges))
            hi = max(hi, load_int(ranges + 8))
    return lo, hi


@inner
def _open_panel(d: int, item: Item, panel: Any) -> None:
    """Pack the queries of a panel and start its state."""
    address, _, _, rows = panel
    source = _rows_of_q(d, item, panel)
    call(get(d, PACK_Q), (source, get(d, Q_I), get(d, Q_D), rows, address, get(d, Q_FACTOR)))
    call(get(d, BEGIN), (address + get(d, O_AT), address + get(d, M_AT)))


@inner
def _prefetch_rows(source: int, stride: int, rows: int, row_bytes: int) -> None:
    for row in range(rows):
        for at in range(0, row_bytes, CACHE_LINE):
            prefetch(source + row * stride + at)


@inner
def _prefetch_keys(d: int, item: Item, j: int, end: int) -> None:
    """Fetch keys and values [j, end).

    Packing does nothing but wait for memory, the steps hardly touch it: so each step of a group
    fetches its share of the next group, whose packing then finds everything near.
    """
    while j < end:
        k, v, run = _keys_at(d, item, j, end)
        _prefetch_rows(k, get(d, K_J), run, get(d, K_ROW_BYTES))
        _prefetch_rows(v, get(d, V_J), run, get(d, V_ROW_BYTES))
        j += run


@inner
def _step_flags(d: int, item: Item, panel: Any, ranges: int, tile: int, n: int) -> Any:
    """Return flags and end of the step of a panel over keys [tile, tile + n); an end of 0: none."""
    lo, hi = load_int(ranges), load_int(ranges + 8)
    first = 0 if lo <= tile else (lo - tile) // get(d, ROW_STEP) * get(d, ROW_STEP)
    end = min(n, hi - tile)
    if first >= end:
        return 0, 0
    full = load_int(ranges + 16) <= tile + first and tile + end <= load_int(ranges + 24)
    flags = first << FLAG_FIRST_SHIFT
    if full:
        return flags, end
    if get(d, TILE_CLASS) != 0:
        row, rows = _query_rows(d, panel)
        rows_box = (item.b, panel[1], row, row + rows - 1)
        box = (get(d, CONTEXT), *rows_box, tile + first, tile + end - 1)
        found = call(get(d, TILE_CLASS), box)
        if found & 1 == 0:  # no pair is attended
            return 0, 0
        if found & 2 == 0:  # every pair is attended
            return flags, end
    return flags | FLAG_PARTIAL, end


@inner
def _pack_tile(d: int, item: Item, scratch: int, tile: int, n: int, pair: int) -> int:
    """Pack keys and values of a tile; return the flag of a value that is not finite."""
    step, staging = get(d, ROW_STEP), scratch + get(d, STAGING_AT)
    row, found = 0, 0
    while row < n:
        k, v, run = _keys_at(d, item, tile + row, tile + n)
        end = row + run
        filled = end if end < n else (n + step - 1) // step * step
        call(get(d, PACK_K), (k, get(d, K_J), get(d, K_D), run, pair, row, filled))
        target = pair + get(d, V_IN_PAIR)
        found |= call(get(d, PACK_V), (v, get(d, V_J), get(d, V_D), run, target, staging, row))
        row = end
    return found * FLAG_NONFINITE_V


@inner
def _attend_tile(
    d: int, item: Item, scratch: int, panel: Any, ranges: int, tile: int, slot: int
) -> None:
    """Let a panel attend to the keys of a tile that it may see; pack the tile if nobody has."""
    n = min(get(d, BLOCK_KV), item.kv_len - tile)
    flags, end = _step_flags(d, item, panel, ranges, tile, n)
    if end == 0:
        return
    pair = scratch + get(d, PAIRS_AT) + slot * get(d, PAIR_BYTES)
    packed = scratch + get(d, PACKED_AT) + 8 * slot
    if load_int(packed) < 0:
        store_int(packed, _pack_tile(d, item, scratch, tile, n, pair))
    keys = (pair, pair + get(d, V_IN_PAIR), end, tile, flags | load_int(packed))
    whole = load_int(ranges + 16), load_int(ranges + 24)
    address = panel[0]
    state = (address, address + get(d, O_AT), scratch + get(d, P_AT), address + get(d, M_AT))
    rows_seen = _query_rows(d, panel)
    call(get(d, STEP), (get(d, CONTEXT), *keys, *state, item.b, panel[1], *rows_seen, *whole))


@inner
def _sink(d: int, b: int, head: int, row: int) -> float:
    """Return the sink of a row of the driver (SINK-1), -inf if there is none."""
    if get(d, SINK) == 0:
        return -math.inf
    heads = get(d, HEADS_AS_ROWS)
    head = head if heads == 1 else head * heads + row
    return float_of(call(get(d, SINK), (get(d, CONTEXT), b, head)))


@inner
def _put_statistics(d: int, b: int, head: int, row: int, state: int, m_and_l: Any) -> None:
    """Store the statistics of the row whose state lies at `state`; m is in log2 units."""
    size, start = get(d, ELEMENT_BYTES), state - get(d, M_AT)
    fields = Statistics(LSE, MAX_LOGIT, ENTROPY, SUM_P2, MAX_FACTOR)
    tmax, e1, p2 = start + get(d, TMAX_AT), start + get(d, E1_AT), start + get(d, P2_AT)
    row_state = RowState(m_and_l[0], m_and_l[1], tmax, e1, p2)
    put_statistics(d, fields, row_state, b, head, row, size)


@inner
def _close_panel(d: int, item: Item, scratch: int, panel: Any) -> None:
    """Turn the state of a panel into rows of the outputs."""
    address, head, row, rows = panel
    element_bytes = get(d, ELEMENT_BYTES)
    factors = scratch + get(d, FACTORS_AT)
    wants_statistics = get(d, LSE) | get(d, MAX_LOGIT) | get(d, ENTROPY) | get(d, SUM_P2)
    wants_more = wants_statistics | get(d, ROW_M) | get(d, ROW_L) | get(d, SINK)
    for lane in range(rows):
        state = address + get(d, M_AT) + lane * element_bytes
        total = load(state + get(d, L_AT) - get(d, M_AT), element_bytes)
        m, sink = 0.0, -math.inf
        if wants_more:
            m = load(state, element_bytes) * M_UNIT
            sink = _sink(d, item.b, head, row + lane)
            place = item.first_row + row + lane
            put(d + 8 * ROW_M, item.b, head, place, m / M_UNIT, element_bytes)
            put(d + 8 * ROW_L, item.b, head, place, total, element_bytes)
            if wants_statistics:
                _put_statistics(d, item.b, head, place, state, (m, total))
        factor = out_factor(float_of(get(d, EMPTY_FACTOR)), m, total, sink)
        store(factors + lane * element_bytes, factor, element_bytes)
    if get(d, OUT) != 0:
        place = item.first_row + row
        out = get(d, OUT) + item.b * get(d, OUT_B) + head * get(d, OUT_H) + place * get(d, OUT_I)
        call(
            get(d, UNPACK_O),
            (address + get(d, O_AT), factors, out, get(d, OUT_I), get(d, OUT_D), rows),
        )


@inner
def _meets(ranges: int, start: int, end: int, lo: int) -> bool:
    """Return whether the panel with these ranges takes part in the group of keys [start, end).

    One that sees no key, and is opened and closed all the same, belongs to the group of key `lo`.
    """
    first, last = load_int(ranges), load_int(ranges + 8)
    return first < end and start < last if first < last else start <= lo


@inner
def _run_group(d: int, item: Item, scratch: int, start: int, lo: int, hi: int) -> None:
    """Let the panels meet the tiles of a group from key `start`, one panel after another.

    A panel meets all tiles of the group while its state is in the nearest cache. It is opened
    before the first group that it sees and closed after the last, so that reading q and writing out
    lie between products instead of waiting for memory together, and panels that see few keys have
    not left the near caches when they are closed.
    """
    block = get(d, BLOCK_KV)
    end = min(start + get(d, TILE_GROUP) * block, hi)
    tiles = max(0, (end - start + block - 1) // block)
    for slot in range(tiles):
        store_int(scratch + get(d, PACKED_AT) + 8 * slot, -1)  # not packed yet
    panels = item.heads * item.panels
    later = end  # the next key to fetch for the next group
    stop = min(end + tiles * block, hi)
    all_ranges, steps = scratch + get(d, RANGES_AT), 0
    for number in range(panels):
        if _meets(all_ranges + number * RANGE_BYTES, start, end, lo):
            steps += tiles
    share = (stop - later + steps - 1) // max(steps, 1)
    for number in range(panels):
        ranges = all_ranges + number * RANGE_BYTES
        if not _meets(ranges, start, end, lo):
            continue
        panel = _panel(d, item, scratch, number)
        if start <= load_int(ranges) or start <= lo:
            _open_panel(d, item, panel)
        for slot in range(tiles):
            if later < stop:
                _prefetch_keys(d, item, later, min(later + share, stop))
                later += share
            _attend_tile(d, item, scratch, panel, ranges, start + slot * block, slot)
        if load_int(ranges + 8) <= end:
            _close_panel(d, item, scratch, panel)


@inner
def _run_item(d: int, number: int, scratch: int) -> None:
    """Run an item."""
    item = _item(d, number)
    lo, hi = _find_all_ranges(d, item, scratch)
    hi = max(lo, hi)  # where no key is seen, one group whose tiles nobody meets writes the rows
    start = lo // get(d, BLOCK_KV) * get(d, BLOCK_KV)
    while True:
        _run_group(d, item, scratch, start, lo, hi)
        start += get(d, TILE_GROUP) * get(d, BLOCK_KV)
        if start >= hi:
            return


@inner
def _rebind(d: int, _scratch: int, q: int, k: int, v: int, out: int, object_head: int) -> None:
    """Make the descriptor at `d` one of another call, whose arrays are objects at addresses."""
    rebind(d, (Q, K, V, OUT), (q, k, v, out), object_head)


def _text(object_head: int) -> str:
    module = new_module("sdpakit_walk")
    inlining.emit(module, "run_item", _run_item)
    inlining.emit(module, "rebind", _rebind, object_head=object_head)
    return str(module)


# What the worker calls: run_item, rebind.
WALK = KernelRecipe(ModuleRecipe(_text, (OBJECT_HEAD,)))
