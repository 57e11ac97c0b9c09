"""Functions of a driver mean what Python means by them."""

import ctypes
import importlib.util
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.backends.numba_cpu.kernels import bits, function, of_text

from sdpakit.backends.numba_cpu import inlining, instructions
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.functions import new_module
from sdpakit.backends.numba_cpu.inlining import inner
from sdpakit.backends.numba_cpu.instructions import (
    bits_of,
    call,
    fetch_add,
    float_of,
    get,
    load_float32,
    prefetch,
    store_float64,
    store_int,
)
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.errors import InternalError

SPECIAL = (0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan)
NUMBERS = (-7, -3, -1, 0, 1, 2, 5, 64)
LEAST = -(2**63)
LIMIT = 3


class Pair(NamedTuple):
    first: int
    second: Any


def run(driver, *numbers: int, cells: int = 8) -> list[int]:
    """Return the int64s that a driver wrote at the address that is its first argument."""
    module = new_module("test")
    inlining.emit(module, "run", driver)
    code = compile_kernel(of_text(str(module)), select_isa())
    out = np.zeros(cells, np.int64)
    function(code, "run", 1 + len(numbers))(out.ctypes.data, *numbers)
    return out.tolist()


def floats(cells: list[int]) -> list[float]:
    return np.array(cells, np.int64).view(np.float64).tolist()


@inner
def _integers(out: int, x: int, y: int) -> None:
    quotient, rest = divmod(x, y)
    results = (x + y, x - y * 2, x & y, x | ~y, x << 3, quotient, rest, min(x, max(y, 2)))
    _put_all(out, results, (x // y, x % y, -x))


@inner
def _put_all(out: int, results: Any, more: Any) -> None:
    store_int(out, results[0])
    store_int(out + 8, results[1])
    store_int(out + 16, results[2])
    store_int(out + 24, results[3])
    store_int(out + 32, results[4])
    store_int(out + 40, results[5])
    store_int(out + 48, results[6])
    store_int(out + 56, results[7])
    store_int(out + 64, more[0])
    store_int(out + 72, more[1])
    store_int(out + 80, more[2])


@pytest.mark.parametrize(("x", "y"), [*itertools.product(NUMBERS, NUMBERS)])
def test_integers(x, y):
    quotient, rest = divmod(x, y) if y else (0, 0)
    expected = [x + y, x - y * 2, x & y, x | ~y, x << 3, quotient, rest, min(x, max(y, 2))]
    assert run(_integers, x, y, cells=11) == [*expected, quotient, rest, -x]


@inner
def _quotients(out: int, x: int, y: int) -> None:
    quotient, rest = divmod(x, y)
    store_int(out, quotient)
    store_int(out + 8, rest)
    store_int(out + 16, x // y)
    store_int(out + 24, x % y)


@pytest.mark.parametrize("x", [LEAST, LEAST + 1, -LEAST - 1])
@pytest.mark.parametrize("y", [LEAST, -LEAST - 1, -2, -1, 0, 1])
def test_the_largest_integers_are_divided(x, y):
    """One quotient has no place in 64 bits and wraps around; processors would stop at it."""
    quotient, rest = divmod(x, y) if y else (0, 0)
    quotient = (quotient - LEAST) % 2**64 + LEAST
    assert run(_quotients, x, y)[:4] == [quotient, rest, quotient, rest]


@inner
def _floats(out: int, a: int, b: int) -> None:
    x, y = float_of(a), float_of(b)
    store_float64(out, x + y * 2)
    store_float64(out + 8, x - y)
    store_float64(out + 16, x / y)
    store_float64(out + 24, -x)
    store_float64(out + 32, 2.0**x)
    store_float64(out + 40, math.log2(y))
    store_int(out + 48, (1 if x < y else 0) + (2 if x == y else 0) + (4 if x != y else 0))
    store_int(out + 56, 1 if math.isnan(x) or not y else 0)


@pytest.mark.parametrize(("x", "y"), [*itertools.product(SPECIAL, SPECIAL)])
def test_floats(x, y):
    found = run(_floats, bits(x), bits(y))
    with np.errstate(all="ignore"):
        wide, other = np.float64(x), np.float64(y)
        results = [wide + other * 2, wide - other, wide / other, -wide]
        results += [np.float64(2.0) ** wide, np.log2(other)]
    np.testing.assert_array_equal(floats(found[:6]), np.array(results))
    assert found[6] == (x < y) + 2 * (x == y) + 4 * (x != y)
    assert found[7] == (math.isnan(x) or not y)


@inner
def _first_beyond(start: int, end: int, step: int, least: int) -> int:
    for number in range(start, end, step):
        if number % 2 == 1:
            continue
        if number > least:
            return number
    return -1


@inner
def _count(out: int, x: int, y: int) -> None:
    turns = 0
    while turns < 10 and x > 0:
        x //= 2
        if x == y:
            continue
        turns += 1
    store_int(out, turns)
    store_int(out + 8, _first_beyond(x, 20, 3, y))
    store_int(out + 16, _first_beyond(0, LIMIT, 1, 0))
    total = 0
    for n in range(y):
        for m in range(n, y):
            total += m
        n = 100  # the counter is Python's own
    store_int(out + 24, total)


@pytest.mark.parametrize(("x", "y"), [*itertools.product(NUMBERS, NUMBERS)])
def test_loops_and_returns(x, y):
    turns, half = 0, x
    while turns < 10 and half > 0:
        half //= 2
        turns += half != y

    def first_beyond(numbers, least):
        return next((n for n in numbers if n % 2 == 0 and n > least), -1)

    total = sum(m for n in range(y) for m in range(n, y))
    expected = [turns, first_beyond(range(half, 20, 3), y), first_beyond(range(3), 0), total]
    assert run(_count, x, y)[:4] == expected


@inner
def _swapped(pair: Pair, swap: int) -> Any:
    if swap:
        return Pair(pair.second[0], (pair.first, 9))
    return pair


@inner
def _tuples(out: int, x: int, y: int) -> None:
    pair = _swapped(Pair(x, (y, 4)), x < y)
    one, (two, three) = pair.first, pair.second
    low, high = (one, two) if three == 9 else (two, one)
    numbers = (low, *(high, three))
    store_int(out, numbers[0])
    store_int(out + 8, numbers[1])
    store_int(out + 16, numbers[2])


@pytest.mark.parametrize(("x", "y", "expected"), [(1, 2, [2, 1, 9]), (2, 1, [1, 2, 4])])
def test_tuples(x, y, expected):
    assert run(_tuples, x, y)[:3] == expected


@inner
def _guarded(out: int, address: int) -> None:
    if address != 0 and get(address, 0) == 5:
        store_int(out, 1)
    if address == 0 or get(address, 0) == 6:
        store_int(out + 8, 1)


def test_what_a_condition_guards_is_not_read():
    five = np.array([5], np.int64)
    assert run(_guarded, 0)[:2] == [0, 1]
    assert run(_guarded, five.ctypes.data)[:2] == [1, 0]


@inner
def _instructions(out: int, add: int, counter: int, numbers: int) -> None:
    store_int(out, call(add, (3, 4)))
    store_int(out + 8, fetch_add(counter, 5))
    prefetch(numbers)
    store_int(out + 16, bits_of(load_float32(numbers + 4)))


def test_instructions():
    add = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(lambda x, y: x + y)
    address = ctypes.cast(add, ctypes.c_void_p).value
    counter, numbers = np.array([7], np.int64), np.array([0.1, 0.2], np.float32)
    found = run(_instructions, address, counter.ctypes.data, numbers.ctypes.data)
    assert found[:3] == [7, 7, bits(float(numbers[1]))]
    assert counter[0] == 12


def test_python_cannot_run_an_instruction():
    with pytest.raises(NotImplementedError, match="compiled code alone"):
        instructions.load_int(0)


@inner
def _other_type(x: int) -> None:
    y = 1
    if x:
        y = 2.0
    store_int(x, y)


@inner
def _unknown_function(x: int) -> None:
    store_int(x, math.gcd(x, 2))


@inner
def _unknown_statement(x: int) -> None:
    assert x


@inner
def _truth_and_number(x: int) -> None:
    store_int(x, x + (x == 1))


@inner
def _float_bits(x: int) -> None:
    store_int(x, x | 1.0)


@inner
def _membership(x: int) -> None:
    store_int(x, 1 if x in (1, 2) else 0)


@inner
def _for_else(x: int) -> None:
    for n in range(2):
        store_int(x, n)
    else:
        store_int(x, 9)


@inner
def _while_else(x: int) -> None:
    n = 0
    while n < 2:
        n += 1
    else:
        store_int(x, n)


@inner
def _named_bounds(x: int) -> None:
    for n in range(2, step=2):
        store_int(x, n)


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (_other_type, "_other_type: double where i64 was before"),
        (_unknown_function, "_unknown_function: a driver cannot call math.gcd"),
        (_unknown_statement, "_unknown_statement: a driver cannot say `assert x`"),
        (_truth_and_number, "a driver mixes a truth value and a number"),
        (_float_bits, "a driver cannot compute BitOr of double"),
        (_membership, "a driver cannot compare by In"),
        (_for_else, "_for_else: a driver cannot say `for n in range"),
        (_while_else, "_while_else: a driver cannot say `while n < 2"),
        (_named_bounds, "_named_bounds: a driver cannot say `for n in range"),
    ],
)
def test_what_a_driver_may_not_say(driver, message):
    with pytest.raises(InternalError, match=message):
        inlining.emit(new_module("test"), "run", driver)


def test_known_parameters_are_no_longer_asked_for():
    module = new_module("test")
    inlining.emit(module, "run", _quotients, y=3)
    out = np.zeros(4, np.int64)
    function(compile_kernel(of_text(str(module)), select_isa()), "run", 2)(out.ctypes.data, -7)
    assert out.tolist() == [-3, 2, -3, 2]


def test_a_driver_is_compiled_as_it_was_loaded(tmp_path):
    """A file that changes later leaves the text to the numbers that were loaded with it."""
    path = tmp_path / "walk.py"
    text = (
        "from sdpakit.backends.numba_cpu.inlining import inner\n"
        "from sdpakit.backends.numba_cpu.instructions import store_int\n"
        "FIELD = 1\n\n\n"
        "@inner\ndef walk(out):\n    store_int(out + 8 * FIELD, 6)\n"
    )
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("walk", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text("# nothing\n" * 3 + text.replace("6", "7"), encoding="utf-8")
    assert run(module.walk)[:2] == [0, 6]


def test_a_function_without_source_is_refused():
    scope: dict[str, Any] = {}
    exec("def walk(out):\n    pass\n", scope)
    with pytest.raises(InternalError, match="no source"):
        inner(scope["walk"])
