"""A plain function as a target: what its signature says that it can be told, and nothing else.

A mask or a length that the function has no parameter of its own for comes to it in one boolean
array, worked out by the reference. What cannot be said so is refused, with the missing parameter.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit.conformance.inputs import Array
from sdpakit.conformance.intake import Unfit, as_array, by_name
from sdpakit.conformance.target import OUTPUTS, BadCalls, BaseTarget, refusal
from sdpakit.conformance.witness import Witness
from sdpakit.errors import ArgumentError, ArgumentTypeError, format_error
from sdpakit.expr.nodes import Index, Load
from sdpakit.logits import Alibi
from sdpakit.masks import And, Causal, Mask, Window
from sdpakit.reference.expressions import evaluate
from sdpakit.reference.forward import scope_of
from sdpakit.reference.masks import offset, visible
from sdpakit.reference.operands import Operands, accum_dtype, prepare

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

UNDERSTOOD: tuple[str, ...] = (
    "scale",
    "softcap",
    "bias",
    "mask",
    "causal",
    "window",
    "q_lens",
    "kv_lens",
    "sinks",
    "return_lse",
    "outputs",
)
# What other libraries call the same thing, or what a reader may take for it.
_ALIASES = {
    "is_causal": "causal",
    "attn_mask": "mask",
    "attention_mask": "mask",
    "attn_bias": "bias",
    "attention_bias": "bias",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "logit_cap": "softcap",
    "logits_soft_cap": "softcap",
    "window_size": "window",
    "sliding_window": "window",
    "local_window_size": "window",
    "q_seqlens": "q_lens",
    "kv_seqlens": "kv_lens",
    "query_seq_lengths": "q_lens",
    "key_value_seq_lengths": "kv_lens",
    "s_aux": "sinks",
    "return_softmax_lse": "return_lse",
    "return_residual": "return_lse",
}


class FunctionTarget(BaseTarget):
    """A function of q, k, v, and of those keyword parameters that it has.

    Parameters
    ----------
    function : callable
        Takes q, k, v by position. These keyword parameters are understood: `scale` (a number; left
        out where the spec leaves it open and the default is None), `softcap` (a number), `bias`
        (float array that broadcasts to (B, Hq, Lq, Lk)), `mask` (bool (B, Hq, Lq, Lk), True = may
        attend: the whole mask and all lengths), `causal` (bool), `window` ((left, right), None for
        an open side), `q_lens` and `kv_lens` (int (B,)), `sinks` (float (Hq,)), `return_lse`
        (bool), `outputs` (tuple of output names). Gives an array, a tuple (out, lse) or as
        `outputs` has it, or a mapping by name.
    name : str, optional
        In reports; default the name of the function.
    align : {"top_left", "bottom_right"}, optional
        Which corner `causal` and `window` of the function are aligned to (MASK-2). If it is not
        said, the two are used where lengths are promised to be equal, and other masks need `mask`.
    layout : {"bhsd", "bshd"}
        Order of the axes of q, k, v and out of the function.
    declares : callable, optional
        From a spec to whether it is promised, so that a refusal is a failure; default nothing is.
    versions : mapping, optional
        Versions for the report; default that of the package the function is from.
    outputs : sequence of str, optional
        Outputs that the function gives; default all if it takes `outputs`, "out" and "lse" if it
        takes `return_lse`, else "out".

    Raises
    ------
    ArgumentError
        If the signature is not of this kind, or `align` or `layout` is no such name.
    ArgumentTypeError
        If `function` cannot be called.

    Notes
    -----
    It checks no calls: what a bad call does to a bare function says little, so cases about bad
    calls are not put to it (`bad_calls` "unchecked"). Arrays come as they are, with their strides
    and NaN, and never as copies; bfloat16 is that of ml_dtypes. `Alibi` comes as a float bias.
    """

    bad_calls: BadCalls = "unchecked"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        align: str | None = None,
        layout: str = "bhsd",
        declares: Callable[[AttentionSpec], bool] | None = None,
        versions: Mapping[str, str] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        if not callable(function):
            raise _kind_error(function)
        _check_choice("align", align, (None, "top_left", "bottom_right"))
        _check_choice("layout", layout, ("bhsd", "bshd"))
        self._function = function
        self._takes, self._unused = _parameters(function)
        self._align = align
        self._layout = layout
        self._declares = declares
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.outputs = self._outputs(outputs)
        self.versions = _versions(function) if versions is None else dict(versions)
        self.note = self._note()

    def declares(self, spec: AttentionSpec) -> bool:
        """Return what was said when the target was made, by default False."""
        return bool(self._declares(spec)) if self._declares is not None else False

    def prepare(self, spec: AttentionSpec) -> Callable[..., dict[str, Any]]:
        """Return a callable for the spec; see `Target.prepare`."""
        reasons = [*self._untold(spec), *self._unmasked(spec)]
        if reasons:
            raise refusal(self.name, *reasons)
        return functools.partial(self._call, spec)

    def _outputs(self, said: Sequence[str] | None) -> tuple[str, ...]:
        if said is not None:
            for name in said:
                _check_choice("outputs", name, OUTPUTS)
            return tuple(said)
        if "outputs" in self._takes:
            return OUTPUTS
        return ("out", "lse") if "return_lse" in self._takes else ("out",)

    def _note(self) -> str:
        given = "".join(f", {name}=" for name in UNDERSTOOD if name in self._takes)
        parts = [f"calls {self.name}(q, k, v{given})"]
        if "mask" in self._takes:
            parts.append("masks without a parameter of their own as a boolean array")
        if "bias" in self._takes:
            parts.append("Alibi as a bias")
        if self._unused:
            parts.append(f"not used: {', '.join(map(_with_near, self._unused))}")
        return "; ".join(parts)

    def _untold(self, spec: AttentionSpec) -> Iterator[str]:
        """Say what the function cannot be told, masks and lengths apart."""
        asked = {
            "scale": spec.scale is not None,
            "softcap": spec.softcap is not None,
            "bias": spec.bias is not None,
            "sinks": spec.sinks,
            "cu_q_lens": spec.layout == "thd",
            "block_table": spec.paged,
            "batch_invariant": spec.batch_invariant,
        }
        for name, wanted in asked.items():
            if wanted and name not in self._takes:
                yield f"has no parameter {name}"
        if isinstance(spec.logits, Alibi):
            if "bias" not in self._takes:
                yield "has no parameter bias, which Alibi would need"
            elif spec.bias is not None:
                yield "has one parameter bias, and the spec has a bias and Alibi"
        elif spec.logits is not None:
            yield "has no parameter for a logit expression"
        if spec.out_dtype != spec.dtype:
            yield "has no parameter for out_dtype"
        if spec.empty_row != "zero":
            yield f"has no parameter for empty_row={spec.empty_row!r}"
        missing = [name for name in spec.outputs if name not in self.outputs]
        if missing:
            yield f"gives no {', '.join(missing)}"

    def _unmasked(self, spec: AttentionSpec) -> Iterator[str]:
        """Say which parts of the mask and which lengths the function cannot be told."""
        if "mask" in self._takes:
            return
        told: set[str] = set()
        for part in _parts(spec.mask):
            name = self._own(part)
            if name and name not in told:
                told.add(name)
            else:
                yield self._why_dense(part)
        for name in _lengths(spec):
            if name not in self._takes:
                yield f"has no parameter {name} or mask"

    def _own(self, part: Mask) -> str:
        """Return the parameter that says a part of a mask, "" if there is none."""
        name = {Causal: "causal", Window: "window"}.get(type(part), "")
        if name not in self._takes or not isinstance(part, (Causal, Window)):
            return ""
        # Without an alignment in the spec lengths are equal, and the two corners agree.
        return name if part.align in (None, self._align) else ""

    def _why_dense(self, part: Mask) -> str:
        name = {Causal: "causal", Window: "window"}.get(type(part), "")
        if name and isinstance(part, (Causal, Window)) and name in self._takes:
            own = self._align or "of no known alignment (say align=)"
            if part.align not in (None, self._align):
                return f"{name} is {own}, the mask is {part.align}, and has no parameter mask"
        either = f"{name} or mask" if name and name not in self._takes else "mask"
        return f"has no parameter {either} for {type(part).__name__}"

    def _masks(self, spec: AttentionSpec) -> dict[str, Any] | None:
        """Return the arguments that say the whole mask, or None where it takes a dense one."""
        told: dict[str, Any] = {}
        for part in _parts(spec.mask):
            name = self._own(part)
            if not name or name in told:
                return None
            told[name] = (part.left, part.right) if isinstance(part, Window) else True
        if any(name not in self._takes for name in _lengths(spec)):
            return None
        return told

    def _call(self, spec: AttentionSpec, q: Any, k: Any, v: Any, **operands: Any) -> dict[str, Any]:
        swap = spec.layout != self._layout
        own = [x.swapaxes(1, 2) if swap else x for x in (q, k, v)]
        told = self._told(spec, functools.partial(prepare, spec, q, k, v, operands), operands)
        # What was worked out here no witness of the kit sees; the rest are operands of the call.
        ours = {
            name: x
            for name, x in told.items()
            if isinstance(x, np.ndarray) and x is not operands.get(name)
        }
        witness = Witness(ours)
        found = self._named(spec, self._function(*own, **told))
        if changed := witness.complaints():
            return {name: Unfit(f"was judged no further: {changed[0]}") for name in spec.outputs}
        if swap and "out" in found:
            out = as_array(found["out"])
            found["out"] = out if isinstance(out, Unfit) or out.ndim != 4 else out.swapaxes(1, 2)
        return found

    def _told(
        self, spec: AttentionSpec, read: Callable[[], Operands], operands: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the keyword arguments; `read` gives the operands as the reference has them."""
        told: dict[str, Any] = {
            name: None for name, p in self._takes.items() if p.default is p.empty
        }
        told.update(self._scalars(spec))
        told.update((name, operands[name]) for name in ("bias", "sinks") if _asks(spec, name))
        told.update((n, operands[n]) for n in _lengths(spec) if n in self._takes)
        if isinstance(spec.logits, Alibi):
            told["bias"] = _alibi(read())
        if "causal" in told:
            told["causal"] = False
        masks = self._masks(spec)
        if masks is None:
            told["mask"] = _dense(read())
        else:
            told.update(masks)
            if "mask" in told:
                told["mask"] = np.ones(read().full_shape, bool)
        return told

    def _scalars(self, spec: AttentionSpec) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if spec.softcap is not None:
            told["softcap"] = spec.softcap
        if spec.scale is not None:
            told["scale"] = spec.scale
        elif "scale" in self._takes and self._takes["scale"].default is not None:
            told["scale"] = 1.0 / math.sqrt(spec.head_dim)
        if "return_lse" in self._takes:
            told["return_lse"] = "lse" in spec.outputs
        if "outputs" in self._takes:
            told["outputs"] = spec.outputs
        return told

    def _named(self, spec: AttentionSpec, result: Any) -> dict[str, Any]:
        """Return what the function gave, by output name."""
        if isinstance(result, Mapping) or hasattr(result, "_asdict"):
            return by_name(result, spec.outputs)
        names = spec.outputs if "outputs" in self._takes else self.outputs
        if not isinstance(result, tuple):
            return {names[0]: result}
        if len(result) > len(names):
            came = f"is one of {len(result)} results, of which {', '.join(names)} are known"
            return {"out": Unfit(came)}
        return dict(zip(names, result, strict=False))


def _parameters(
    function: Callable[..., Any],
) -> tuple[dict[str, inspect.Parameter], tuple[str, ...]]:
    """Return what is understood behind three positional parameters, and the names of the rest."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {}, ()  # some built-in functions have no signature: q, k and v it is
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < 3 and not any_number:
        raise _signature_error(function, f"{len(positional)} positional parameters")
    first = positional[:3]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    rest = [p for p in parameters if p not in first and p.kind not in several]
    by_keyword = [p for p in rest if p.kind is not p.POSITIONAL_ONLY]
    found = {p.name: p for p in by_keyword if p.name in UNDERSTOOD}
    for p in rest:
        if p.default is p.empty and p.name not in found:
            raise _signature_error(function, f"a parameter {p.name!r} that must be given")
    return found, tuple(p.name for p in rest if p.name not in found)


def _with_near(name: str) -> str:
    """Return the name of a parameter that is not understood, and the one that may be meant."""
    near = _ALIASES.get(name) or next(iter(get_close_matches(name, UNDERSTOOD, n=1)), "")
    return f"{name} (did you mean {near}?)" if near else name


def _signature_error(function: Callable[..., Any], got: str) -> ArgumentError:
    name = getattr(function, "__name__", type(function).__name__)
    return ArgumentError(
        format_error(
            f"function {name}",
            got=got,
            allowed=f"q, k, v by position, and any of {', '.join(UNDERSTOOD)} by keyword",
            fix="wrap it in a function that has these parameters",
        )
    )


def _kind_error(function: object) -> ArgumentTypeError:
    kind, fix = type(function).__name__, "give the function itself"
    return ArgumentTypeError(format_error("function", got=kind, allowed="a function", fix=fix))


def _check_choice(where: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        names = ", ".join(map(repr, allowed))
        fix = "take one of these"
        raise ArgumentError(format_error(where, got=repr(value), allowed=names, fix=fix))


def _versions(function: Callable[..., Any]) -> dict[str, str]:
    package = str(getattr(function, "__module__", None) or "").partition(".")[0]
    try:
        return {package: metadata.version(package)} if package else {}
    except metadata.PackageNotFoundError:
        return {}  # a script, or a package that goes by another name


def _asks(spec: AttentionSpec, name: str) -> bool:
    return bool(getattr(spec, name))


def _lengths(spec: AttentionSpec) -> tuple[str, ...]:
    return tuple(name for name in ("q_lens", "kv_lens") if _asks(spec, name))


def _parts(mask: Mask | None) -> Iterator[Mask]:
    """Return the masks that are joined by AND."""
    if isinstance(mask, And):
        yield from _parts(mask.a)
        yield from _parts(mask.b)
    elif mask is not None:
        yield mask


def _dense(ops: Operands) -> Array:
    """Return which pairs the mask and the lengths let take part, (B, Hq, Lq, Lk)."""
    found = np.ones(ops.full_shape, bool)
    for b in range(ops.full_shape[0]):
        scope = scope_of(ops, b)
        i, j = scope.indices["q"], scope.indices["k"]
        found[b] = (i < ops.q_len[b]) & (j < ops.kv_len[b])
        if ops.spec.mask is not None:
            found[b] &= visible(ops.spec.mask, scope, None if ops.mask is None else ops.mask[b])
    return found


def _alibi(ops: Operands) -> Array:
    """Return what `Alibi` adds to each logit, (B, Hq, Lq, Lk) in accum_dtype."""
    logits = ops.spec.logits
    if not isinstance(logits, Alibi):
        raise TypeError(f"{logits!r} is not Alibi")
    found = np.zeros(ops.full_shape, accum_dtype(ops.spec))
    for b in range(ops.full_shape[0]):
        scope = scope_of(ops, b)
        node = Load(logits.slopes, logits.dtype, (Index("h"),))
        slopes = evaluate(node, scope)[node]
        p = scope.indices["q"] + offset(logits.align, scope)
        found[b] = slopes * (scope.indices["k"] - p)
    return found
