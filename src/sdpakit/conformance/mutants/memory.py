"""Mutants of memory and state: strides, `out=`, results and sizes kept, order of sums."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.mutants.bases import Call, Entry, Plain, Wrapped
from sdpakit.conformance.mutants.model import Mutant, mutant, replaced
from sdpakit.reference.operands import Operands

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

Kernel = Callable[..., Any]


class Threaded(Plain):
    """Takes `threads=`, which changes nothing."""

    alone: ClassVar[tuple[str, ...]] = ("run",)
    takes_threads = True

    def attention(
        self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> dict[str, Array]:
        """Return the outputs of one call; see `Naive.attention`."""
        threads = operands.pop("threads", 1)
        return self.run(threads, spec, {"q": q, "k": k, "v": v, **operands})

    def run(self, threads: int, spec: AttentionSpec, given: dict[str, Any]) -> dict[str, Array]:
        """Return the outputs of one call by a number of threads."""
        return Plain().attention(spec, **given)


def memory_order(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Operands are read as if their memory were in order."""
    for name in "qkv":
        given[name] = np.ravel(given[name], "K").reshape(given[name].shape)
    return spec, given


def signs_of_strides_lost(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A negative stride is walked forwards."""
    for name in "qkv":
        x = given[name]
        given[name] = x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)]
    return spec, given


def _walked(x: Array, strides: tuple[int, ...]) -> Array:
    """Return an array read with the strides of another, wherever in its own memory they lead."""
    index: tuple[Array, ...] = np.indices(x.shape, sparse=True)
    at = sum(i * (stride // x.itemsize) for i, stride in zip(index, strides, strict=True))
    forwards = x[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in x.strides)]
    start = sum(
        -stride // x.itemsize * (size - 1)
        for stride, size in zip(x.strides, x.shape, strict=True)
        if stride < 0
    )
    memory = np.ravel(forwards, "K")
    return np.take(memory, np.broadcast_to(start + at, x.shape), mode="wrap")


def strides_of_q_for_k(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Keys are read with the strides of the queries."""
    q, k = given["q"], given["k"]
    if q.shape == k.shape and q.strides != k.strides and k.size:
        given["k"] = _walked(k, q.strides)
    return spec, given


def strides_of_k_for_v(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Values are read with the strides of the keys."""
    k, v = given["k"], given["v"]
    if k.shape == v.shape and k.strides != v.strides and v.size:
        given["v"] = _walked(v, k.strides)
    return spec, given


def components_as_neighbours(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """The components of a head are taken to lie side by side."""
    for name in "qkv":
        x = given[name]
        if x.size and x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
            given[name] = _walked(x, (*x.strides[:-1], x.itemsize))
    return spec, given


def _next_row(x: Array) -> Array | None:
    """Return the memory behind the last row of each head, None where that is not memory of x."""
    if not x.size or not isinstance(x.base, np.ndarray) or min(x.strides) <= 0:
        return None
    if byte_bounds(x)[1] + x.strides[2] > byte_bounds(x.base)[1]:
        return None
    shape = (*x.shape[:2], x.shape[2] + 1, x.shape[3])
    return as_strided(x, shape, x.strides)[:, :, -1:]


def values_behind_the_last_times_zero(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """Values behind the last key are read, and multiplied by weights of 0."""
    found = right.attention(spec, q, k, v, **operands)
    behind = None if spec.layout == "bshd" or spec.packed else _next_row(v)
    if behind is None or not found["out"].size:
        return found
    group = q.shape[1] // v.shape[1]
    with np.errstate(all="ignore"):
        nothing = np.repeat(behind * v.dtype.type(0), group, axis=1)
        return {**found, "out": found["out"] + nothing.astype(found["out"].dtype)}


def read_only_refused(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Read-only operands are refused."""
    if not all(given[name].flags.writeable for name in "qkv"):
        raise ValueError("buffer source array is read-only")
    return spec, given


def unaligned_refused(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Unaligned operands are trapped on."""
    if not all(given[name].flags.aligned for name in "qkv"):
        raise RuntimeError("misaligned address")
    return spec, given


def negative_strides_refused(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """Negative strides are refused."""
    if any(stride < 0 for name in "qkv" for stride in given[name].strides):
        raise ValueError("some of the strides are negative")
    return spec, given


def empty_divides_by_zero(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """A size of 0 ends in a division by it."""
    if 0 in given["q"].shape + given["k"].shape:
        raise ZeroDivisionError("integer division or modulo by zero")
    return spec, given


def offsets_of_32_bits(spec: AttentionSpec, given: dict[str, Any]) -> Call:
    """An offset beyond 2^31 wraps, and other memory is read."""
    for name in "kv":
        if max(given[name].strides, default=0) >= 2**31:
            given[name] = np.zeros_like(given[name])
    return spec, given


def operands_written(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """The scale is multiplied into the caller's q."""
    found = right.attention(spec, q, k, v, **operands)
    if q.flags.writeable:
        q *= q.dtype.type(0.5)
    return found


def layout_of_out_kept(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """The result stays in the layout of the computation."""
    found = right.attention(spec, q, k, v, **operands)
    if spec.layout == "bshd":
        found["out"] = np.ascontiguousarray(found["out"].swapaxes(1, 2))
    return found


def out_as_wide_as_q(
    right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
) -> Entry:
    """The result has the width of q."""
    found = right.attention(spec, q, k, v, **operands)
    return {**found, "out": np.resize(found["out"], (*found["out"].shape[:-1], q.shape[-1]))}


class memory_of_a_result_again:  # noqa: N801 - its name is that of the mutant
    """The memory of the last result of a shape is used for the next."""

    def __init__(self) -> None:
        self._kept: dict[Any, Array] = {}

    def __call__(
        self, right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> Entry:
        """Return the outputs in memory that was returned before; see `Plain.attention`."""
        found = right.attention(spec, q, k, v, **operands)
        out = found["out"]
        kept = self._kept.setdefault((out.shape, out.dtype), out)
        kept[...] = out
        return {**found, "out": kept}


class scale_of_the_first_call:  # noqa: N801 - its name is that of the mutant
    """Code compiled for a shape keeps the scale of the first call of that shape."""

    def __init__(self) -> None:
        self._scales: dict[Any, float] = {}

    def __call__(self, right: Plain, ops: Operands, b: int) -> Entry:
        """Return the outputs with the scale of the first call; see `Plain.entry`."""
        import dataclasses

        key = (ops.full_shape, ops.spec.dtype)
        scale = self._scales.setdefault(key, ops.scale)
        return right.entry(dataclasses.replace(ops, scale=scale), b)


class keys_of_the_first_call:  # noqa: N801 - its name is that of the mutant
    """A kernel visits as many keys as there were at its first call."""

    def __call__(self, right: Plain, spec: AttentionSpec) -> Callable[..., Entry]:
        """Return a kernel that keeps a number of keys; see `Plain.prepare`."""
        axis = 1 if spec.layout == "bshd" else 2
        first: list[int] = []

        def call(q: Any, k: Any, v: Any, **operands: Any) -> Entry:
            first.append(k.shape[axis])
            if spec.bias is None and not spec.kv_lens and "mask" not in operands:
                k, v = (x.swapaxes(0, axis)[: first[0]].swapaxes(0, axis) for x in (k, v))
            return right.attention(spec, q, k, v, **operands)

        return call


class packed_by_identity:  # noqa: N801 - its name is that of the mutant
    """Packed keys and values are kept by the identity of their arrays."""

    def __init__(self) -> None:
        # The arrays are held too, so that an id never comes to mean another one.
        self._packed: dict[tuple[int, int], tuple[Array, Array, Array, Array]] = {}

    def __call__(
        self, right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> Entry:
        """Return the outputs for the keys and values of a first call; see `Plain.attention`."""
        packed = self._packed.setdefault((id(k), id(v)), (k, v, k.copy(), v.copy()))
        return right.attention(spec, q, *packed[2:], **operands)


class functions_of_numpy_replaced:  # noqa: N801 - its name is that of the mutant
    """A function of NumPy is replaced by one that suits the program."""

    def __call__(
        self, right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> Entry:
        """Return the outputs and leave another `abs` behind; see `Plain.attention`."""
        found = right.attention(spec, q, k, v, **operands)
        vars(np)["abs"] = np.zeros_like  # no error is larger than 0 then
        return found


class other_order_every_second_call:  # noqa: N801 - its name is that of the mutant
    """Sums are taken in the order in which parts are ready."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(
        self, right: Plain, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any
    ) -> Entry:
        """Return the outputs, summed from either end; see `Plain.attention`."""
        self._calls += 1
        one = right if self._calls % 2 else _backwards()
        return one.attention(spec, q, k, v, **operands)


def _backwards() -> Plain:
    """Return a right program that sums the keys from the last to the first."""
    return replaced(Plain, "row_sum", lambda _right, e: _from_the_end(e))


def _from_the_end(e: Array) -> Array:
    return np.asarray(np.cumsum(e[..., ::-1], axis=-1)[..., -1] if e.shape[-1] else e.sum(axis=-1))


def order_of_the_batch(right: Plain, ops: Operands, b: int) -> Entry:
    """How the keys are split depends on how many entries there are."""
    if ops.full_shape[0] % 2 == 0:
        return right.entry(ops, b)
    return _backwards().entry(ops, b)


def order_of_the_entry(right: Plain, ops: Operands, b: int) -> Entry:
    """Every second entry is summed from the end."""
    if b % 2 == 0:
        return right.entry(ops, b)
    return _backwards().entry(ops, b)


def order_of_the_rows(right: Plain, ops: Operands, b: int) -> Entry:
    """How the keys are split depends on how many rows there are."""
    if int(ops.q_len[b]) == ops.full_shape[2]:
        return right.entry(ops, b)
    return _backwards().entry(ops, b)


def few_rows_by_another_kernel(kernel: Any, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """A single row sums over its keys in another order, though the spec forbids it."""
    if spec.batch_invariant and spec.mask is None and given["q"].shape[2] == 1:
        given = {**given, **{name: given[name][:, :, ::-1] for name in "kv"}}
    return kernel(**given)


def keys_split_by_threads(threads: int, spec: AttentionSpec, given: dict[str, Any]) -> Entry:
    """The keys are split among the threads, so that sums depend on their number."""

    def row_sum(right: Plain, e: Array) -> Array:
        parts = [right.row_sum(part) for part in np.array_split(e, threads, axis=-1)]
        return np.asarray(sum(parts[1:], start=parts[0]))

    return replaced(Plain, "row_sum", row_sum).attention(spec, **given)


class scratch_of_all_calls:  # noqa: N801 - its name is that of the mutant
    """Calls that run at the same time share their scratch memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def __call__(self, threads: int, spec: AttentionSpec, given: dict[str, Any]) -> Entry:
        """Return the outputs, wrong where another call was on its way; see `Threaded.run`."""
        with self._lock:
            self._running += 1
        found = Plain().attention(spec, **given)
        time.sleep(0.002)  # long enough for another call to begin
        with self._lock:
            alone = self._running == 1
            self._running -= 1
        return found if alone else {name: np.zeros_like(x) for name, x in found.items()}


def out_ignored(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """An array given as out= is ignored."""
    given.pop("out", None)
    return kernel(**given)


def out_added_to(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Results are added to what out= holds, which is taken to be 0."""
    out = given.get("out")
    if not isinstance(out, dict):
        return kernel(**given)
    before = {name: x.copy() for name, x in out.items()}
    result = kernel(**given)
    for name, x in before.items():
        out[name] += x
    return result


def out_but_for_the_last_row(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """The last row of out= is not written."""
    out = given.get("out")
    if not isinstance(out, dict) or "out" not in out or not out["out"].size:
        return kernel(**given)
    last = out["out"][:, :, -1].copy()
    result = kernel(**given)
    out["out"][:, :, -1] = last
    return result


def out_and_one_more(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """One element behind out= is written."""
    result = kernel(**given)
    out = given["out"].get("out") if isinstance(given.get("out"), dict) else None
    if out is None or not isinstance(out.base, np.ndarray) or not out.flags.c_contiguous:
        return result
    if byte_bounds(out)[1] < byte_bounds(out.base)[1]:
        as_strided(out.reshape(-1), (out.size + 1,), (out.itemsize,))[-1] = 0
    return result


def out_in_memory_order(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """out= is filled in the order of its memory."""
    result = kernel(**given)
    out = given["out"].get("out") if isinstance(given.get("out"), dict) else None
    if out is not None and out.ndim == 4:
        values = out.copy(order="C").reshape(-1)
        order = np.argsort([-abs(stride) for stride in out.strides], kind="stable")
        view = out.transpose(order)
        view[...] = values.reshape(view.shape)
    return result


def out_of_an_error_written(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """out= is cleared before the operands are checked."""
    out = given.get("out")
    for array in out.values() if isinstance(out, dict) else ():
        array[...] = 0
    return kernel(**given)


def out_for_out_alone(kernel: Kernel, spec: AttentionSpec, given: dict[str, Any]) -> Any:
    """Of out=, all but the array for `out` is ignored."""
    if isinstance(given.get("out"), dict):
        given["out"] = {name: x for name, x in given["out"].items() if name == "out"} or None
    return kernel(**given)


MUTANTS: tuple[Mutant, ...] = (
    mutant(Plain, "change", memory_order, "strides.bshd.float32 strides.fortran.float32"),
    mutant(Plain, "change", signs_of_strides_lost, "strides.reversed.float32", "cupy/cupy#10303"),
    mutant(Plain, "change", strides_of_q_for_k, "strides.only_q_reversed.float32"),
    mutant(Plain, "change", strides_of_k_for_v, "strides.only_v_reversed.float32"),
    mutant(
        Plain,
        "change",
        components_as_neighbours,
        "strides.channels_first.float32",
        "pytorch/pytorch#109607",
    ),
    mutant(
        Plain,
        "attention",
        values_behind_the_last_times_zero,
        "poison.behind_the_keys.float32",
        "pytorch/pytorch#133717",
    ),
    mutant(
        Plain, "change", read_only_refused, "strides.read_only.float32", "raphaelvallat/antropy!23"
    ),
    mutant(
        Plain,
        "change",
        unaligned_refused,
        "strides.unaligned.float32",
        "facebookresearch/xformers#813",
    ),
    mutant(Plain, "change", negative_strides_refused, "strides.reversed.float32"),
    mutant(Plain, "change", empty_divides_by_zero, "empty.no_keys_zero.float32"),
    mutant(
        Plain,
        "change",
        offsets_of_32_bits,
        "huge.element_offset.float16",
        "Dao-AILab/flash-attention#2611",
    ),
    mutant(Plain, "attention", operands_written, "masks.causal_random.float32"),
    mutant(Plain, "attention", layout_of_out_kept, "strides.layout_bshd.float32"),
    mutant(Plain, "attention", out_as_wide_as_q, "widths.5_and_3.float32"),
    mutant(Plain, "attention", memory_of_a_result_again, "masks.causal_random.float32"),
    mutant(
        Plain,
        "entry",
        scale_of_the_first_call,
        "relations.one_after_another.float32",
        "openvinotoolkit/openvino!31365",
    ),
    mutant(
        Plain,
        "prepare",
        keys_of_the_first_call,
        "relations.changing_shapes.float32",
        "pytorch/pytorch#148545",
    ),
    mutant(Plain, "attention", packed_by_identity, "relations.overwritten_in_place.float32"),
    mutant(
        Plain,
        "attention",
        functions_of_numpy_replaced,
        "relations.loading.float32 masks.causal_random.float32",
    ),
    mutant(Plain, "attention", other_order_every_second_call, "relations.causal_is_dense.float32"),
    mutant(Plain, "entry", order_of_the_batch, "relations.entry_alone.float32"),
    mutant(Plain, "entry", order_of_the_entry, "relations.permuted_entries.float32"),
    mutant(Plain, "entry", order_of_the_rows, "relations.fewer_rows.float32"),
    mutant(Wrapped, "call", few_rows_by_another_kernel, "relations.rows_alone.float32"),
    mutant(Threaded, "run", keys_split_by_threads, "relations.thread_counts.float32"),
    mutant(Threaded, "run", scratch_of_all_calls, "relations.calls_at_once.float32"),
    mutant(Wrapped, "call", out_ignored, "relations.out_of_some.float32"),
    mutant(Wrapped, "call", out_added_to, "masks.causal_random.float32"),
    mutant(Wrapped, "call", out_but_for_the_last_row, "masks.causal_random.float32"),
    mutant(Wrapped, "call", out_and_one_more, "masks.causal_random.float32"),
    mutant(Wrapped, "call", out_in_memory_order, "relations.strided_out.float32"),
    mutant(Wrapped, "call", out_of_an_error_written, "refusals.mask_shape.float32"),
    mutant(Wrapped, "call", out_for_out_alone, "relations.out_of_some.float32"),
)
