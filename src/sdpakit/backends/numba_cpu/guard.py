"""The guard of a repeated call: machine code that Python calls, and that knows the call already.

It holds the arrays against a *signature*, what was found out about the call when it went the whole
way: exact types, dtypes, shapes and strides; and `out` may be written and lies apart. Only then it
runs the worker. In Python the same comparisons take as long as the arithmetic of a small call.

What it reads of an array are fields of `PyArrayObject_fields`, the published C structure of NumPy.
Calls are remembered for layouts of four axes alone.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import ir

from sdpakit.backends.numba_cpu.abi import OBJECT_HEAD
from sdpakit.backends.numba_cpu.context import Array, Ints, address
from sdpakit.backends.numba_cpu.functions import declare, new_function, new_module
from sdpakit.backends.numba_cpu.irtypes import I32, I64, PTR, Value, whole
from sdpakit.backends.numba_cpu.recipes import ModuleRecipe

# Behind the head of any object, whose last part is its type; the rest an array has.
_TYPE, _DATA, _NDIM, _SHAPE, _STRIDES, _DTYPE, _FLAGS = -8, 0, 8, 16, 24, 40, 48
_WRITEABLE = 0x400  # NPY_ARRAY_WRITEABLE
_NDIMS = 4
_AXES = ir.VectorType(I64, _NDIMS)
_NEW_FROM_DESCR = 94  # its place in the table of functions

# Fields of a signature. First what Python calls the guard by (`PyMethodDef`), which has to live as
# long as the function: it may be part of what that is bound to. Those of q, k, v and out follow
# each other: shapes and strides, then where the bytes of each begin and end, counted from its data.
(
    _NAME,  # address of the text in _TEXT
    _FUNCTION,
    _CALLED_BY,
    _DOC,
    _TEXT,
    _WORKER,  # address of the worker
    _DESCRIPTOR,  # address of the call's descriptor
    _ARRAY,  # addresses of objects: the type of arrays, None, dtypes of q and of out
    _NONE,
    _IN_DTYPE,
    _OUT_DTYPE,
    _MAKE,  # address of `PyArray_NewFromDescr`
    _BUSY,  # what does the call while somebody else uses the scratch
    _SCRATCH,  # address of an int64: the address of the scratch, 0 while somebody uses it
    _SIZES,
) = range(15)
_SPANS = _SIZES + 4 * 2 * _NDIMS
FIELDS = _SPANS + 4 * 2

Guard = Callable[[Any, Any, Any, Any], "Array | None"]

_METH_FASTCALL = 0x80
_FUNCTION_OF = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


class Descriptor(NamedTuple):
    """Descriptor and context of a call in one array: its address, and places that hold some."""

    numbers: Ints
    where: int
    pointers: Sequence[int]


class _Keeping(np.ndarray):
    """An array that keeps alive what it holds addresses of."""

    kept: tuple[Any, ...]


class CallSignature:
    """What a call must be like to pass a guard.

    Parameters
    ----------
    function : int
        Address of the generated guard.
    worker : int
        Address of the worker, see `workers.address_of`.
    arrays : sequence of ndarray
        q, k, v and out of the call that was checked, in the axis order of the caller; out is what a
        new array would be. They are not kept.
    code : object
        What keeps alive the code at `function`, and that whose addresses are in descriptors. Each
        guard keeps it.
    """

    def __init__(self, function: int, worker: int, arrays: Sequence[Array], code: object) -> None:
        q, *_, out = arrays
        self._code = code
        self._objects = (np.ndarray, None, q.dtype, out.dtype)
        sizes = [number for x in arrays for number in (*x.shape, *x.strides)]
        spans = [number for x in arrays for number in _span(x)]
        called = (0, function, _METH_FASTCALL, 0, int.from_bytes(b"guard", sys.byteorder))
        objects = map(id, self._objects)
        numbers = (*called, worker, 0, *objects, _array_maker(), 0, 0, *sizes, *spans)
        self._fields = np.array(numbers, np.int64)

    def guard(self, descriptor: Descriptor, scratch: Ints, busy: Guard | None) -> Guard:
        """Return a guard with a copy of a descriptor of its own.

        Parameters
        ----------
        descriptor : Descriptor
            Of the call.
        scratch : (1,) int64
            The address of the scratch, 0 while somebody uses it. It guards the descriptor, too.
        busy : Guard or None
            What does the call in the meantime, if anybody may come then.

        Returns
        -------
        callable
            ``guard(q, k, v, out)`` does the call with these arrays and returns the result, a new
            one if out is None. It returns None, and has done nothing, if they do not fit.
        """
        own = np.concatenate((self._fields, descriptor.numbers)).view(_Keeping)
        own.kept = (self._objects, self._code, scratch, busy)
        here = address(own)
        own[_NAME], own[_DESCRIPTOR] = here + 8 * _TEXT, here + 8 * FIELDS
        own[_BUSY], own[_SCRATCH] = id(busy), address(scratch)
        own[FIELDS:][descriptor.pointers] += here + 8 * FIELDS - descriptor.where
        guard: Guard = _FUNCTION_OF(here, own, None)
        return guard


@functools.cache
def _array_maker() -> int:
    """Return the address of `PyArray_NewFromDescr`, from NumPy's table for extensions."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    module = importlib.import_module("numpy._core._multiarray_umath")  # as `import_array` does
    capsule = module._ARRAY_API  # noqa: SLF001 - the name that extensions find the table by
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    return cast(int, table[_NEW_FROM_DESCR])


def _span(array: Array) -> tuple[int, int]:
    """Return where the elements of an array begin and end, in bytes from the first."""
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps) + array.itemsize


def guard_module() -> ModuleRecipe:
    """Return the module with the function "guard"; it is the same for all kernels."""
    return ModuleRecipe(_text, (OBJECT_HEAD,))


def _text(head: int) -> str:
    module = new_module("sdpakit_guard")
    _Emitter(module, head).emit()
    return str(module)


class _Emitter:
    """Emits guard(signature, arguments, count), as a function of Python with METH_FASTCALL.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where it goes.
    head : int
        Bytes that every object of Python starts with.
    """

    def __init__(self, module: Any, head: int) -> None:
        self.head = head
        self.b = new_function(module, "guard", ("signature", "arguments", "count"))
        self.refusal = self.b.append_basic_block("refusal")
        array, arguments, count = self.b.function.args
        self.signature = self.of(array, _DATA)
        self.expect(self.b.icmp_unsigned("==", count, whole(4)))  # a caller may bring any number
        self.arguments = [self.load(arguments, 8 * n) for n in range(4)]

    def emit(self) -> None:
        """Emit the body."""
        b, (*operands, out) = self.b, self.arguments
        b.comment("q, k and v are arrays like those that were checked, and so is out, unless None")
        dtype = self.field(_IN_DTYPE)
        for n, array in enumerate(operands):
            self.expect_like(array, n, dtype)
        is_new = b.icmp_unsigned("==", out, self.field(_NONE))
        with b.if_then(b.not_(is_new)):
            self.expect_result(operands, out)
        scratch = self.take_scratch()
        result = self.result(out, is_new, scratch)
        self.run_worker([scratch, *operands, result])
        self.give_scratch(scratch)
        b.ret(result)
        b.position_at_end(self.refusal)
        self.python("Py_IncRef", self.field(_NONE), result=ir.VoidType())
        b.ret(self.field(_NONE))

    def expect_result(self, operands: Sequence[Value], out: Value) -> None:
        """Emit that `out` is what a new array would be, may be written, and lies apart."""
        b = self.b
        self.expect_like(out, 3, self.field(_OUT_DTYPE))
        flags = b.and_(self.of(out, _FLAGS, I32), ir.Constant(I32, _WRITEABLE))
        self.expect(b.icmp_unsigned("!=", flags, ir.Constant(I32, 0)))
        for n, array in enumerate(operands):
            self.expect_apart((out, 3), (array, n))

    def take_scratch(self) -> Value:
        """Emit what takes the scratch, or leaves the call to who does it meanwhile."""
        b, (_, arguments, count) = self.b, self.b.function.args
        place = b.inttoptr(self.field(_SCRATCH), PTR)
        scratch = b.atomic_rmw("xchg", place, whole(0), "acquire")
        with b.if_then(b.icmp_unsigned("==", scratch, whole(0)), likely=False):
            b.ret(self.python("PyObject_Vectorcall", self.field(_BUSY), arguments, count, whole(0)))
        return scratch

    def give_scratch(self, scratch: Value) -> None:
        """Emit what gives the scratch back."""
        place = self.b.inttoptr(self.field(_SCRATCH), PTR)
        self.b.atomic_rmw("xchg", place, scratch, "release")

    def result(self, out: Value, is_new: Value, scratch: Value) -> Value:
        """Emit the array of the result, owned by the caller of the guard."""
        b = self.b
        with b.if_else(is_new) as (new, given):
            with new:
                made = self.new_array()
                with b.if_then(b.icmp_unsigned("==", made, whole(0)), likely=False):
                    self.give_scratch(scratch)
                    b.ret(made)  # an error is set
                made_at = b.block
            with given:
                self.python("Py_IncRef", out, result=ir.VoidType())
                given_at = b.block
        result = b.phi(I64)
        result.add_incoming(made, made_at)
        result.add_incoming(out, given_at)
        return result

    def new_array(self) -> Value:
        """Emit a new array, contiguous as those of `numpy.empty`; 0 if there is no memory."""
        b, dtype = self.b, self.field(_OUT_DTYPE)
        self.python("Py_IncRef", dtype, result=ir.VoidType())  # the array takes a reference over
        shape = b.add(self.signature, whole(8 * (_SIZES + 3 * 2 * _NDIMS)))
        zero, flags = whole(0), ir.Constant(I32, 0)
        kind = ir.FunctionType(I64, [I64, I64, I32, I64, I64, I64, I32, I64])
        make = b.inttoptr(self.field(_MAKE), kind.as_pointer())
        ndim = ir.Constant(I32, _NDIMS)
        return b.call(make, [self.field(_ARRAY), dtype, ndim, shape, zero, zero, flags, zero])

    def run_worker(self, arguments: Sequence[Value]) -> None:
        """Emit the call of the worker; other threads of Python run beside it."""
        b = self.b
        state = self.python("PyEval_SaveThread")
        kind = ir.FunctionType(ir.VoidType(), [I64] * 6)
        worker = b.inttoptr(self.field(_WORKER), kind.as_pointer())
        b.call(worker, [self.field(_DESCRIPTOR), *arguments])
        self.python("PyEval_RestoreThread", state, result=ir.VoidType())

    def expect_like(self, array: Value, number: int, dtype: Value) -> None:
        """Emit that an object is an array of the signature's type, dtype, shape and strides."""
        b = self.b
        self.expect(b.icmp_unsigned("==", self.of(array, _TYPE), self.field(_ARRAY)))
        self.expect(b.icmp_unsigned("==", self.of(array, _NDIM, I32), ir.Constant(I32, _NDIMS)))
        different = ir.Constant(_AXES, None)
        for part, place in enumerate((_SHAPE, _STRIDES)):
            wanted = self.load(self.signature, 8 * (_SIZES + (2 * number + part) * _NDIMS), _AXES)
            found = self.load(self.of(array, place), 0, _AXES)
            different = b.or_(different, b.xor(found, wanted))
        any_axis = declare(b.module, "llvm.vector.reduce.or.v4i64", I64, [_AXES])
        unlike = b.or_(b.call(any_axis, [different]), b.xor(self.of(array, _DTYPE), dtype))
        self.expect(b.icmp_unsigned("==", unlike, whole(0)))

    def expect_apart(self, *arrays: tuple[Value, int]) -> None:
        """Emit that two arrays share no memory: one ends before the other begins."""
        b = self.b
        (begin, end), (other_begin, other_end) = (
            [b.add(self.of(x, _DATA), self.field(_SPANS + 2 * n + side)) for side in (0, 1)]
            for x, n in arrays
        )
        before = b.icmp_unsigned("<=", end, other_begin)
        self.expect(b.or_(before, b.icmp_unsigned("<=", other_end, begin)))

    def expect(self, condition: Value) -> None:
        """Emit a refusal unless the condition holds."""
        fine = self.b.append_basic_block("fine")
        self.b.cbranch(condition, fine, self.refusal)
        self.b.position_at_end(fine)

    def field(self, number: int) -> Value:
        """Return a field of the signature."""
        return self.load(self.signature, 8 * number)

    def of(self, array: Value, place: int, kind: Any = I64) -> Value:
        """Return a field of an object, which is known for an array unless it is the type."""
        return self.load(array, self.head + place, kind)

    def load(self, base: Value, offset: int, kind: Any = I64) -> Value:
        """Load an integer, or one of each axis, from an address."""
        place = self.b.inttoptr(self.b.add(base, whole(offset)), PTR)
        return self.b.load(place, typ=kind, align=4 if kind == I32 else 8)

    def python(self, name: str, *arguments: Value, result: Any = I64) -> Value:
        """Call a function of Python's C interface; objects and addresses are int64."""
        function = declare(self.b.module, name, result, [I64] * len(arguments))
        return self.b.call(function, arguments)
