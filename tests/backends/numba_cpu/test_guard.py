"""The guard of a repeated call: what it lets through, what it refuses, what it leaves as it was."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from sdpakit.backends.numba_cpu import codegen, guard
from sdpakit.backends.numba_cpu.codegen import compile_kernel
from sdpakit.backends.numba_cpu.isa import select_isa
from sdpakit.backends.numba_cpu.recipes import KernelRecipe

SCRATCH = 12345


class Subclass(np.ndarray):
    pass


class Guarded:
    """A guard in front of a worker that writes down what it is called with."""

    def __init__(self, arrays, busy=None):
        self.calls, self.place = [], np.array([SCRATCH], np.int64)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
        self._worker = kind(self._work)
        module = compile_kernel(KernelRecipe(guard.guard_module()), select_isa())
        self.module = weakref.ref(module)
        worker = ctypes.cast(self._worker, ctypes.c_void_p).value
        signature = guard.CallSignature(
            module.address("guard"), worker, arrays, (module, self._worker)
        )
        numbers = np.array([7, 0, 8], np.int64)
        numbers[1] = where = numbers.ctypes.data
        descriptor = guard.Descriptor(numbers, where, [1])
        self.pass_through = signature.guard(descriptor, self.place, busy)

    def _work(self, descriptor, *arguments):
        numbers = (ctypes.c_int64 * 3).from_address(descriptor)
        assert (numbers[0], numbers[1] - descriptor, numbers[2]) == (7, 0, 8)
        assert self.place[0] == 0
        self.calls.append(arguments)


def operands(dtype="f4"):
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (2, 4, 5, 6))
    return [np.zeros(shape, dtype) for shape in shapes]


def test_arrays_alike_go_to_the_worker_and_out_comes_back():
    guarded = Guarded(operands())
    for arrays in (operands(), operands()):
        assert guarded.pass_through(*arrays) is arrays[3]
        assert guarded.calls.pop() == (SCRATCH, *map(id, arrays))
        assert guarded.place[0] == SCRATCH


def test_without_out_a_new_array_is_made():
    guarded = Guarded(operands("f8"))
    q, k, v, out = operands("f8")
    made = guarded.pass_through(q, k, v, None)
    assert type(made) is np.ndarray
    assert (made.shape, made.dtype, made.strides) == (out.shape, out.dtype, out.strides)
    assert made.flags.owndata
    assert made.flags.writeable
    assert guarded.calls == [(SCRATCH, id(q), id(k), id(v), id(made))]


def frozen(array):
    array.flags.writeable = False
    return array


OTHERS = {
    "None": lambda x: None,
    "a list": lambda x: x.tolist(),
    "a number": lambda x: 1.5,
    "a subclass": lambda x: x.view(Subclass),
    "a masked array": np.ma.masked_array,
    "another dtype": lambda x: x.astype("f8"),
    "integers": lambda x: x.view("i4"),
    "foreign byte order": lambda x: x.view(x.dtype.newbyteorder()),
    "one axis less": lambda x: x[0],
    "no axis": lambda x: x[0, 0, 0, 0].reshape(()),
    "one axis more": lambda x: x[None],
    "a shorter axis": lambda x: x[:, :, :-1],
    "a longer axis": lambda x: np.zeros((*x.shape[:3], x.shape[3] + 1), x.dtype),
    "other strides": np.asfortranarray,
    "negative strides": lambda x: x[..., ::-1],
}


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("other", OTHERS)
def test_anything_else_is_refused_and_nothing_is_done(number, other):
    guarded, arrays = Guarded(operands()), operands()
    if (number, other) == (3, "None"):
        return  # that asks for a new array
    arrays[number] = OTHERS[other](arrays[number])
    assert guarded.pass_through(*arrays) is None
    assert not guarded.calls
    assert guarded.place[0] == SCRATCH


def test_an_out_that_may_not_be_written_is_refused():
    guarded, (q, k, v, out) = Guarded(operands()), operands()
    assert guarded.pass_through(frozen(q), frozen(k), frozen(v), frozen(out)) is None
    assert guarded.pass_through(q, k, v, out.copy()) is not None


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("flip", [False, True])
def test_an_out_that_shares_a_byte_with_an_operand_is_refused(number, flip):
    def arrays(gap):
        """Return arrays of which operand `number` ends `gap` bytes before out begins."""
        found = operands()
        size = found[number].nbytes
        memory = np.zeros(size + gap + found[3].nbytes, np.uint8)
        found[3] = memory[size + gap :].view("f4").reshape(found[3].shape)
        found[number] = memory[:size].view("f4").reshape(found[number].shape)
        if flip:
            found[number] = found[number][:, :, ::-1, ::-1]
        return found

    guarded = Guarded(arrays(0))
    assert guarded.pass_through(*arrays(0)) is not None
    assert guarded.pass_through(*arrays(-4)) is None
    assert len(guarded.calls) == 1


def test_while_the_scratch_is_used_the_call_goes_elsewhere():
    elsewhere = []
    guarded = Guarded(operands(), lambda *arguments: elsewhere.append(arguments))
    guarded.place[0] = 0
    arrays = operands()
    for out in (arrays[3], None):
        assert guarded.pass_through(*arrays[:3], out) is None
        assert [id(x) for x in elsewhere.pop()] == [id(x) for x in (*arrays[:3], out)]
    assert guarded.place[0] == 0
    assert not guarded.calls


def test_an_error_of_who_does_it_elsewhere_comes_through():
    def busy(*_):
        raise KeyError("busy")

    guarded = Guarded(operands(), busy)
    guarded.place[0] = 0
    with pytest.raises(KeyError, match="busy"):
        guarded.pass_through(*operands())


def test_without_memory_for_a_new_array_the_scratch_is_given_back():
    *arrays, _ = operands()
    huge = np.lib.stride_tricks.as_strided(
        np.zeros(1, "f4"), (1 << 20, 1 << 20, 1 << 16, 1), (0, 0, 0, 0)
    )
    guarded = Guarded([*arrays, huge])
    for _ in range(2):
        with pytest.raises(MemoryError):
            guarded.pass_through(*arrays, None)
        assert guarded.place[0] == SCRATCH
    assert not guarded.calls


def test_references_are_neither_lost_nor_left():
    import sys

    guarded, arrays = Guarded(operands()), operands()
    watched = [*arrays, arrays[0].dtype, np.ndarray]
    for out in (arrays[3], None):
        before = [sys.getrefcount(x) for x in watched]
        for _ in range(1000):
            guarded.pass_through(*arrays[:3], out)
            guarded.pass_through(*arrays[:3], arrays[0])
        guarded.calls.clear()
        after = [sys.getrefcount(x) for x in watched]
        assert all(abs(x - y) < 100 for x, y in zip(before, after, strict=True))


def test_a_guard_outlives_its_signature_and_what_it_was_made_of():
    guarded = Guarded(operands())
    passes, calls = guarded.pass_through, guarded.calls
    assert "guard" in repr(passes)
    module = guarded.module
    guarded.place = np.zeros(1, np.int64)  # the guard keeps the one that it was given
    del guarded
    codegen.clear_loaded()
    gc.collect()
    assert module() is not None
    for _ in range(3):
        assert passes(*operands()) is not None
    assert len(calls) == 3
    del passes
    gc.collect()
    assert module() is None


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_another_number_of_arguments_is_refused_whatever_lies_behind_them(count):
    """As Python calls it: with the address of the first argument, and how many there are."""
    guarded, arrays = Guarded(operands()), operands()
    call = ctypes.pythonapi.PyObject_Vectorcall
    call.restype = ctypes.py_object
    call.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    arguments = (ctypes.py_object * 5)(*arrays, None)
    assert call(guarded.pass_through, ctypes.addressof(arguments), 4, None) is arrays[3]
    guarded.calls.clear()
    assert call(guarded.pass_through, ctypes.addressof(arguments), count, None) is None
    assert not guarded.calls
    assert guarded.place[0] == SCRATCH
