"""Functions that more than one driver is written with.

Fields of a descriptor have other numbers in each driver, so these functions take what they need of
one as arguments: numbers that the driver names are constants where the functions are inlined.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sdpakit.backends.numba_cpu.abi import LN2, LOG2_E
from sdpakit.backends.numba_cpu.inlining import inner
from sdpakit.backends.numba_cpu.instructions import (
    float_of,
    get,
    load_float32,
    load_float64,
    load_int,
    store_float32,
    store_float64,
    store_int,
)
from sdpakit.backends.numba_cpu.workers import DONE_ITEMS, NEXT_ITEM


class RowState(NamedTuple):
    """What is known of a row when its last key is done: numbers, or where they lie."""

    m: float  # in log2 units
    total: float
    tmax_at: int
    e1_at: int  # this and the next are there if somebody wants what is made of them
    p2_at: int


class Statistics(NamedTuple):
    """Fields of a descriptor; where 0 stands in one that names an array, nobody wants it."""

    lse: int
    max_logit: int
    entropy: int
    sum_p2: int
    max_factor: int


@inner
def load(address: int, element_bytes: int) -> float:
    """Return the number of so many bytes at an address."""
    return load_float32(address) if element_bytes == 4 else load_float64(address)


@inner
def store(address: int, value: float, element_bytes: int) -> None:
    """Store a number of so many bytes at an address."""
    if element_bytes == 4:
        store_float32(address, value)
    else:
        store_float64(address, value)


@inner
def of_entry(numbers: int, b: int) -> int:
    """Return the number of a batch entry in the array at an address, 0 where there is none."""
    return 0 if numbers == 0 else load_int(numbers + 8 * b)


@inner
def place(array: int, b: int, head: int, row: int) -> int:
    """Return the address of a row of an array; `array` is the address of its first field."""
    return get(array, 0) + b * get(array, 1) + head * get(array, 2) + row * get(array, 3)


@inner
def put(array: int, b: int, head: int, row: int, value: float, element_bytes: int) -> None:
    """Store a statistic of a row, if it is wanted; `array` is the address of its first field."""
    if get(array, 0) != 0:
        store(place(array, b, head, row), value, element_bytes)


@inner
def out_factor(empty: float, m: float, total: float, sink: float) -> float:
    """Return 1 / denominator in units of 2**m, m in log2 units; SINK-1 joins here.

    `empty` is that of a row without keys (EMPTY-1).
    """
    if total == 0.0:
        return empty
    if sink == -math.inf:
        return 1.0 / total
    if sink == math.inf:  # exp(inf - inf)
        return math.nan
    return 1.0 / (total + 2.0 ** (sink * LOG2_E - m))


@inner
def put_statistics(
    d: int, fields: Statistics, state: RowState, b: int, head: int, row: int, element_bytes: int
) -> None:
    """Store lse and STAT-1 of a row; the sink is not in them (SINK-2)."""
    lse, max_logit = d + 8 * fields.lse, d + 8 * fields.max_logit
    entropy, sum_p2 = d + 8 * fields.entropy, d + 8 * fields.sum_p2
    total = state.total
    if total == 0.0:  # EMPTY-1
        put(lse, b, head, row, -math.inf, element_bytes)
        put(max_logit, b, head, row, -math.inf, element_bytes)
        put(entropy, b, head, row, 0.0, element_bytes)
        put(sum_p2, b, head, row, 0.0, element_bytes)
        return
    log2_l = math.log2(total)
    put(lse, b, head, row, LN2 * (state.m + log2_l), element_bytes)
    # NUM-4: a NaN does not enter the running maximum.
    largest = math.nan if math.isnan(total) else load(state.tmax_at, element_bytes)
    put(max_logit, b, head, row, float_of(get(d, fields.max_factor)) * largest, element_bytes)
    if get(d, fields.entropy) != 0 or get(d, fields.sum_p2) != 0:
        e1, p2 = load(state.e1_at, element_bytes), load(state.p2_at, element_bytes)
        put(entropy, b, head, row, LN2 * (log2_l - e1 / total), element_bytes)
        put(sum_p2, b, head, row, p2 / (total * total), element_bytes)


@inner
def rebind(d: int, fields: Any, arrays: Any, object_head: int) -> None:
    """Make the descriptor at `d` one of a call that nobody has begun, of other q, k, v and out.

    The arrays are objects of NumPy: the address of the data follows the `object_head` bytes that
    any object starts with (`PyArrayObject_fields` of its C interface).
    """
    store_int(d + 8 * NEXT_ITEM, 0)
    store_int(d + 8 * DONE_ITEMS, 0)
    store_int(d + 8 * fields[0], load_int(arrays[0] + object_head))
    store_int(d + 8 * fields[1], load_int(arrays[1] + object_head))
    store_int(d + 8 * fields[2], load_int(arrays[2] + object_head))
    store_int(d + 8 * fields[3], load_int(arrays[3] + object_head))
