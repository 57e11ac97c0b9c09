"""Who is timed: sdpakit through its public calls, and the peers, each imported when it is used.

Every target gets what its own interface takes in the form it likes best: conversions of layout and
type, masks laid out as arrays and sessions are made in `prepare`, outside the clock; each call
allocates its result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bench.inputs import Array, Inputs, numpy_dtype, visible
from bench.onnx_models import GROUP_QUERY, MULTI_HEAD, STANDARD, OnnxAttention
from bench.workloads import PAGE_SIZE, Workload

# The plain NumPy target lays out all logits; past this many bytes it would measure the swap file.
_NUMPY_LOGITS_LIMIT = 2**31


class UnsupportedByTarget(Exception):  # noqa: N818 - it reports a property, not a mistake
    """A target has no way to say the workload; the message tells why."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload with its arrays and the threads to use."""

    workload: Workload
    inputs: Inputs
    threads: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that is ready to be timed.

    Attributes
    ----------
    call : callable
        Computes the workload and returns the target's own array or arrays.
    to_numpy : callable
        Turns that array into one of NumPy, (batch, q_heads, q_len, head_dim); gradients, of one
        batch entry, into dq, dk and dv in place of entries.
    """

    call: Callable[[], Any]
    to_numpy: Callable[[Any], Array]


class Target(Protocol):
    """An implementation of attention.

    `is_peer` tells ours from others: peers are held to the lenient bound, and may fail.
    """

    name: str
    is_peer: bool

    def prepare(self, case: Case) -> Prepared:
        """Make everything that a call needs, once.

        Raises
        ------
        ImportError
            If a package is missing.
        UnsupportedByTarget
            If the workload cannot be said.
        """
        ...


class Ours:
    """sdpakit's CPU backend, through `sdpakit.compile`; by name, so that no other can stand in.

    Parameters
    ----------
    name : str
        Name in the results.
    plain : bool
        Run the plainest form of the workload in its place (`Workload.plain`).
    threads : int or None
        Threads, where they differ from those of the run.
    """

    is_peer = False

    def __init__(
        self, name: str = "ours", *, plain: bool = False, threads: int | None = None
    ) -> None:
        self.name = name
        self._plain = plain
        self._threads = threads

    def prepare(self, case: Case) -> Prepared:
        """Compile the spec of the workload."""
        workload = case.workload.plain() if self._plain else case.workload
        if self._plain and workload == case.workload:
            raise UnsupportedByTarget("the workload is in its plainest form already")
        if self._threads == case.threads:
            raise UnsupportedByTarget(f"the whole run uses {case.threads} thread")
        threads = case.threads if self._threads is None else self._threads
        sdpakit = importlib.import_module("sdpakit")
        if workload.backward:
            return _our_gradients(sdpakit, case, threads)
        kernel = sdpakit.compile(spec_of(sdpakit, workload), backend="numba_cpu")
        given = operands_of(workload, case.inputs) | {"threads": threads}

        def call() -> Any:
            return kernel(**given)

        def to_numpy(result: Any) -> Array:
            out: Array = np.asarray(result[0] if workload.statistics else result)
            if workload.packing == "none":
                return out
            return out.reshape(workload.batch, workload.q_len, *out.shape[1:]).swapaxes(1, 2)

        return Prepared(call, to_numpy)


def operands_of(workload: Workload, inputs: Inputs) -> dict[str, Any]:
    """Return what a kernel of `spec_of` takes for a workload."""
    i = inputs
    more = {name: x for name, x in (("bias", i.bias), ("mask", i.mask)) if x is not None}
    if workload.packing == "none":
        return {"q": i.q, "k": i.k, "v": i.v, **more}
    lengths = np.array([workload.keys(b) for b in range(workload.batch)])
    q = i.q.swapaxes(1, 2).reshape(-1, *i.q.shape[1::2])
    given: dict[str, Any] = {"q": q, "cu_q_lens": np.arange(workload.batch + 1) * workload.q_len}
    tokens = [
        np.concatenate([x[b, :, :n].swapaxes(0, 1) for b, n in enumerate(lengths)])
        for x in (i.k, i.v)
    ]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    if workload.packing == "ragged":
        return {**given, "k": tokens[0], "v": tokens[1], "cu_kv_lens": starts}
    number = np.random.default_rng(0).permutation(len(tokens[0]) // PAGE_SIZE)
    pages = [np.empty_like(x).reshape(-1, PAGE_SIZE, *x.shape[1:]) for x in tokens]
    for page, x in zip(pages, tokens, strict=True):
        page[number] = x.reshape(page.shape)
    table = np.zeros((workload.batch, max(lengths) // PAGE_SIZE), np.int32)
    for b, n in enumerate(lengths // PAGE_SIZE):
        table[b, :n] = number[starts[b] // PAGE_SIZE :][:n]
    return {**given, "k": pages[0], "v": pages[1], "kv_lens": lengths, "block_table": table}


def _our_gradients(sdpakit: Any, case: Case, threads: int) -> Prepared:
    """Compile the gradients, and run the forward pass, which keeps what they need."""
    i = case.inputs
    backward = sdpakit.compile_backward(spec_of(sdpakit, case.workload), backend="numba_cpu")
    _, saved = backward.forward(i.q, i.k, i.v, threads=threads)

    def call() -> Any:
        return backward(i.q, i.k, i.v, i.dout, saved=saved, threads=threads)

    return Prepared(call, lambda found: np.concatenate((found.dq, found.dk, found.dv)))


def spec_of(sdpakit: Any, workload: Workload) -> Any:
    """Return the `AttentionSpec` of a workload."""
    statistics = ("max_logit", "entropy", "sum_p2") if workload.statistics else ()
    return sdpakit.AttentionSpec(
        q_heads=workload.q_heads,
        kv_heads=workload.kv_heads,
        head_dim=workload.head_dim,
        dtype=workload.dtype,
        mask=_mask_of(sdpakit, workload),
        bias=None if workload.bias == "none" else "float32",
        outputs=("out", *statistics),
        layout="bhsd" if workload.packing == "none" else "thd",
        paged=workload.packing == "pages",
        kv_lens=workload.packing == "pages",
    )


def _refuse_packed(workload: Workload) -> None:
    """Raise for entries that are not padded: no peer here takes them on the CPU in one call."""
    if workload.packing != "none":
        raise UnsupportedByTarget("it takes padded batches only")


def _mask_of(sdpakit: Any, workload: Workload) -> Any:
    match workload.mask:
        case "none":
            return None
        case "causal":
            return sdpakit.Causal("top_left")
        case "causal_predicate":
            return lambda i: i.k <= i.q
        case "window":
            return sdpakit.Window(workload.window, 0, align="top_left")
        case "random" | "documents":
            return sdpakit.Dense()


class Torch:
    """`torch.nn.functional.scaled_dot_product_attention` on the CPU."""

    name = "torch"
    is_peer = True

    def prepare(self, case: Case) -> Prepared:
        """Share the arrays with torch."""
        _refuse_packed(case.workload)
        torch = importlib.import_module("torch")
        torch.set_num_threads(case.threads)
        w, i = case.workload, case.inputs
        q, k, v = (_torch_tensor(torch, array) for array in (i.q, i.k, i.v))
        options: dict[str, Any] = {"enable_gqa": w.q_heads != w.kv_heads}
        if w.mask in ("causal", "causal_predicate"):
            options["is_causal"] = True
        elif (mask := dense_mask(case)) is not None:
            options["attn_mask"] = torch.from_numpy(mask)
        elif i.bias is not None:
            options["attn_mask"] = torch.from_numpy(i.bias)
        attention = torch.nn.functional.scaled_dot_product_attention
        if w.backward:
            leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
            return _torch_gradients(torch, attention(*leaves, **options), leaves, i.dout)

        def call() -> Any:
            with torch.no_grad():
                return attention(q, k, v, **options)

        return Prepared(call, _from_torch)


def _torch_gradients(torch: Any, out: Any, leaves: list[Any], dout: Array | None) -> Prepared:
    """Return a call of the backward pass over a graph that stays."""
    upstream = torch.from_numpy(dout)

    def call() -> Any:
        return torch.autograd.grad(out, leaves, upstream, retain_graph=True)

    return Prepared(call, lambda found: np.concatenate([tensor.numpy() for tensor in found]))


def _torch_tensor(torch: Any, array: Array) -> Any:
    if array.dtype == numpy_dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(tensor: Any) -> Array:
    # Every half is a float32; torch has no way to hand out bfloat16 to NumPy.
    out: Array = (tensor.float() if tensor.element_size() == 2 else tensor).numpy()
    return out


class OnnxRuntime:
    """One attention operator of ONNX Runtime on the CPU.

    Parameters
    ----------
    name : str
        Name in the results.
    operator : OnnxAttention
        Which operator, and how it takes its operands.
    """

    is_peer = True

    def __init__(self, name: str, operator: OnnxAttention) -> None:
        self.name = name
        self._operator = operator

    def prepare(self, case: Case) -> Prepared:
        """Build a model of one node and a session for it."""
        _refuse_packed(case.workload)
        if case.workload.backward:
            raise UnsupportedByTarget("no gradients at inference")
        reason = self._operator.refusal(case.workload)
        if reason:
            raise UnsupportedByTarget(reason)
        runtime = importlib.import_module("onnxruntime")
        model, feeds, shape = self._operator.build(case.workload, case.inputs, dense_mask(case))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = case.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # refusals come as exceptions too
        if case.threads == 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = _bind(runtime, session, feeds)

        def call() -> Any:
            session.run_with_iobinding(binding)
            return binding

        def to_numpy(bound: Any) -> Array:
            out: Array = bound.copy_outputs_to_cpu()[0]
            w = case.workload
            if shape == "bshd":
                out = out.reshape(w.batch, w.q_len, w.q_heads, w.head_dim).swapaxes(1, 2)
            return out

        return Prepared(call, to_numpy)


def _bind(runtime: Any, session: Any, feeds: Mapping[str, Array]) -> Any:
    """Bind operands once; outputs are allocated, but for a cache that is extended in place."""
    binding = session.io_binding()
    values = {name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        past = output.name.replace("present", "past")
        if past in values:
            binding.bind_ortvalue_output(output.name, values[past])
        else:
            binding.bind_output(output.name, "cpu")
    return binding


class PlainNumpy:
    """Two products by BLAS and a softmax between; halves go through float32."""

    name = "numpy"
    is_peer = True

    def prepare(self, case: Case) -> Prepared:
        """Lay out the mask; the rest happens in the call."""
        _refuse_packed(case.workload)
        w, i = case.workload, case.inputs
        if w.backward:
            raise UnsupportedByTarget("NumPy has no gradients")
        accumulator = np.float64 if w.dtype == "float64" else np.float32
        size = w.batch * w.q_heads * w.q_len * w.kv_len * np.dtype(accumulator).itemsize
        if size > _NUMPY_LOGITS_LIMIT:
            raise UnsupportedByTarget(f"its logits would take {size / 2**30:.1f} GiB")
        mask = dense_mask(case)
        if w.mask in ("causal", "causal_predicate"):
            mask = visible(w, np.arange(w.q_len))[None, None]
        hidden = None if mask is None else ~np.broadcast_to(mask, (1, 1, w.q_len, w.kv_len))
        dtype = numpy_dtype(w.dtype)

        def call() -> Array:
            q, k, v = (array.astype(accumulator, copy=False) for array in (i.q, i.k, i.v))
            return plain_attention(q, k, v, hidden, i.bias).astype(dtype, copy=False)

        return Prepared(call, np.asarray)


def plain_attention(
    q: Array, k: Array, v: Array, hidden: Array | None, bias: Array | None
) -> Array:
    """Return attention over bhsd arrays; `hidden` is True where a key is absent."""
    batch, q_heads, q_len, width = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(batch, kv_heads, -1, width)  # the query heads of a group share their keys
    logits = np.matmul(rows, k.swapaxes(-1, -2)).reshape(batch, q_heads, q_len, -1)
    logits *= width**-0.5
    if bias is not None:
        logits += bias
    if hidden is not None:
        np.copyto(logits, -np.inf, where=hidden)
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    out: Array = np.matmul(logits.reshape(batch, kv_heads, -1, k.shape[2]), v)
    return out.reshape(batch, q_heads, q_len, v.shape[-1])


def dense_mask(case: Case) -> Array | None:
    """Return the mask as an array where a target has no name for it: all but causal."""
    if case.inputs.mask is not None:
        return case.inputs.mask
    if case.workload.mask == "window":
        return visible(case.workload, np.arange(case.workload.q_len))[None, None]
    return None


TARGETS: tuple[Target, ...] = (
    Ours(),
    Ours("ours_plain", plain=True),
    Ours("ours_one_thread", threads=1),
    Torch(),
    OnnxRuntime("ort_attention", STANDARD),
    OnnxRuntime("ort_mha", MULTI_HEAD),
    OnnxRuntime("ort_gqa", GROUP_QUERY),
    PlainNumpy(),
)
