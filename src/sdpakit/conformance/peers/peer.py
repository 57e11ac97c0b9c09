"""What every adapter shares: refusals, what is made of a mask, whose mistake an exception is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from sdpakit import reference
from sdpakit.conformance.model import Profile
from sdpakit.conformance.peers.asked import (
    DENSE,
    Asked,
    Call,
    asked,
    roots,
    takes_array,
    takes_offset,
)
from sdpakit.conformance.target import BaseTarget, refusal
from sdpakit.dtypes import DTYPES
from sdpakit.errors import (
    ArgumentError,
    BackendUnavailableError,
    SdpakitError,
    UnsupportedSpecError,
    format_error,
)
from sdpakit.expr.nodes import Const, postorder
from sdpakit.logits import Alibi

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec


_LARGE = 2**36  # of an integer literal in a user's expression


def _rounded(dtype: str) -> Profile:
    u = DTYPES[dtype].unit_roundoff
    return Profile(weights=u, delta=u, dlogits=u)


# Of peers that round weights, and their gradients, to the dtype of q where that is half as wide.
HALF_WEIGHTS = Profile(by_dtype=tuple((d, _rounded(d)) for d in ("float16", "bfloat16")))


def library(name: str, package: str) -> Any:
    """Return a module, or say how to install it.

    Parameters
    ----------
    name : str
        Module.
    package : str
        What pip calls it.

    Returns
    -------
    module
        Imported.

    Raises
    ------
    BackendUnavailableError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BackendUnavailableError(
            format_error(
                "peer",
                got=f"{name}, which cannot be imported here ({error})",
                allowed="peers whose library is installed",
                fix=f'python -m pip install "{package}"',
            )
        ) from error


class Peer(BaseTarget):
    """A library as a target.

    Attributes
    ----------
    packages : tuple of str
        Distributions whose versions the report names.
    dtypes : tuple of str
        Dtypes of q, k, v that it takes.
    has_softcap, has_sinks, has_expressions : bool
        Whether it can be told of them.
    masks_and_bias_apart : bool
        Whether it takes a boolean and an additive array in one call; else the adapter writes -inf
        into the bias where the mask is False.
    """

    packages: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16", "float64")
    outputs: tuple[str, ...] = ("out",)
    has_softcap = False
    has_sinks = False
    has_expressions = False
    masks_and_bias_apart = False

    def __init__(self) -> None:
        self.versions = {name: version(name) for name in self.packages}

    def native(self, spec: AttentionSpec, wanted: Asked) -> set[str]:
        """Return the parts of the mask that the peer has arguments for, the others being as here.

        Parameters
        ----------
        spec : AttentionSpec
            What is asked.
        wanted : Asked
            Its mask.

        Returns
        -------
        set of str
            Of the names in `asked`.
        """
        raise NotImplementedError

    def limits(self, spec: AttentionSpec) -> list[str]:
        """Return further reasons why the peer cannot be told this spec.

        Parameters
        ----------
        spec : AttentionSpec
            What is asked.

        Returns
        -------
        list of str
            Empty if there is none.
        """
        return []

    def attention(self, call: Call) -> dict[str, Any]:
        """Return the outputs of one call, as the peer gives them.

        Parameters
        ----------
        call : Call
            Operands and spec.

        Returns
        -------
        dict of str to array
            By output name, in the layout of the spec.
        """
        raise NotImplementedError

    def gradients(self, call: Call, dout: Any) -> dict[str, Any]:
        """Return the gradients of one call, as the peer gives them.

        Parameters
        ----------
        call : Call
            Operands and spec.
        dout : array
            Gradient of out.

        Returns
        -------
        dict of str to array
            "dq", "dk", "dv", and "dbias" where there is one.
        """
        raise refusal(self.name, "it has no gradients")

    def made(self, spec: AttentionSpec) -> frozenset[str]:
        """Return the parts of the mask that the adapter turns into a boolean array."""
        wanted = asked(spec)
        rest = wanted.parts - self.native(spec, wanted)
        # There is one place for a boolean array: what the caller gave joins what is made.
        return rest | ({DENSE} & wanted.parts) if rest else rest

    def turned(self, spec: AttentionSpec) -> tuple[str, ...]:
        """Return what the adapter turns into something else, for reports.

        Parameters
        ----------
        spec : AttentionSpec
            What is asked.

        Returns
        -------
        tuple of str
            Such as "window as a boolean array"; empty if the peer is told everything natively.
        """
        made = self.made(spec)
        found = [f"{part} as a boolean array" for part in sorted(made - {DENSE})]
        if isinstance(spec.logits, Alibi):
            found.append("Alibi as a bias")
        masked = made or asked(spec).dense
        if masked and _is_biased(spec) and not self.masks_and_bias_apart:
            found.append("the mask as -inf in the bias")
        return tuple(found)

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Return a callable for the spec, or refuse it; see `Target.prepare`."""
        made = self._accepted(spec)

        def attention(q: Any, k: Any, v: Any, **operands: Any) -> dict[str, Any]:
            call = Call(spec, q, k, v, operands, made)
            return self._blaming(call, lambda: self.attention(call))

        return attention

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., Mapping[str, Any]]:
        """Return a callable for the gradients, or refuse; see `Target.prepare_gradients`."""
        made = self._accepted(spec)
        if type(self).gradients is Peer.gradients:
            raise refusal(self.name, "it has no gradients")
        if spec.logits is not None:
            raise refusal(self.name, "the bias of Alibi is made by the adapter")

        def gradients(q: Any, k: Any, v: Any, *, dout: Any, **operands: Any) -> dict[str, Any]:
            call = Call(spec, q, k, v, operands, made)
            return self._blaming(call, lambda: self.gradients(call, dout))

        return gradients

    def _accepted(self, spec: AttentionSpec) -> frozenset[str]:
        reasons = [*_beyond(spec, self), *self.limits(spec)]
        if reasons:
            raise refusal(self.name, *reasons)
        return self.made(spec)

    def _blaming(self, call: Call, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what the peer gives; any exception of its own is right for a bad call."""
        _check_protocol(self.name, call, apart=self.masks_and_bias_apart)
        try:
            return run()
        except UnsupportedSpecError:
            raise
        except Exception as error:
            if not _is_right(call):
                raise ArgumentError(_of_the_peer(self.name, error)) from error
            raise


def _is_biased(spec: AttentionSpec) -> bool:
    return spec.bias is not None or isinstance(spec.logits, Alibi)


def _beyond(spec: AttentionSpec, peer: Peer) -> list[str]:
    """Return what of the spec no argument of the peer says."""
    has = {
        f"it does not take {spec.dtype}": spec.dtype not in peer.dtypes,
        "out comes in the dtype of q alone": spec.out_dtype != spec.dtype,
        "it has no choice for empty rows": spec.empty_row != "zero",
        "it says nothing of the bits of a row alone": spec.batch_invariant,
        "it has no softcap": spec.softcap is not None and not peer.has_softcap,
        "it has no sinks": bool(spec.sinks) and not peer.has_sinks,
        "it takes no expression of the logit": _has_expression(spec) and not peer.has_expressions,
        "two additive arrays in one would be another order of rounding": (
            spec.bias is not None and isinstance(spec.logits, Alibi) and not peer.has_expressions
        ),
        "it has no ragged batches (cu_q_lens)": spec.layout == "thd",
        "it has no pages of keys and values": bool(spec.paged),
        "its integers are those of int64, without the check of EXPR-1": _has_large(spec),
    }
    return [text for text, holds in has.items() if holds]


def _has_expression(spec: AttentionSpec) -> bool:
    return spec.logits is not None and not isinstance(spec.logits, Alibi)


def _has_large(spec: AttentionSpec) -> bool:
    """Return whether products of an index and a literal could leave int64."""
    nodes = (node for root in roots(spec) for node in postorder(root))
    return any(isinstance(x, Const) and x.type == "int" and abs(x.value) >= _LARGE for x in nodes)


def _check_protocol(name: str, call: Call, *, apart: bool) -> None:
    """Refuse a call that is wrong in what only sdpakit knows: a peer has nothing to be told."""
    spec = call.spec
    asks = {
        "mask": takes_array(spec.mask),
        "bias": spec.bias is not None,
        "sinks": bool(spec.sinks),
        "q_lens": spec.q_lens,
        "kv_lens": spec.kv_lens,
        "q_offset": takes_offset(spec),
        "params": bool(spec.tables() or spec.scalars()),
    }
    for operand, wanted in asks.items():
        if (call.given.get(operand) is not None) != wanted:
            raise refusal(name, f"{operand} is {'missing' if wanted else 'not asked for'}")
    mask = call.given.get("mask")
    if mask is not None and not apart and np.asarray(mask).dtype.kind != "b":
        raise refusal(name, "a float array in the place of its mask is a bias")
    if spec.equal_lens and not _are_equal(call):
        raise refusal(name, "equal_lens is a promise to sdpakit")


def _of_the_peer(name: str, error: Exception) -> str:
    return format_error(
        f"{name} on a bad call",
        got=f"{type(error).__name__}: {error}",
        allowed="any exception: a peer knows nothing of those of sdpakit",
        fix="make the call fit the spec",
    )


def _are_equal(call: Call) -> bool:
    lens = [call.given.get(name) for name in ("q_lens", "kv_lens")]
    axis = 1 if call.spec.layout == "bshd" else 2
    whole = [np.asarray(x).shape[axis] for x in (call.q, call.k)]
    rows, keys = (n if x is None else np.asarray(x) for x, n in zip(lens, whole, strict=True))
    return bool(np.all(rows == keys))


def _is_right(call: Call) -> bool:
    """Return whether the reference computes with the call."""
    bias = call.given.get("bias")
    if bias is not None and np.asarray(bias).dtype.name != call.spec.bias:
        return False
    try:
        reference.attention(call.spec, call.q, call.k, call.v, **call.given)
    except SdpakitError:
        return False
    return True
