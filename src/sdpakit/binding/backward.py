"""Arguments of a backward call -> `backends.base.BackwardCall`, and gradients on the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdpakit.arrays import Operand, export, import_array, new_zeros
from sdpakit.backends.base import BackwardCall, Call
from sdpakit.binding.call import Arguments, bind
from sdpakit.binding.signature import OPERAND_TABLES, Signature
from sdpakit.dtypes import FLOATS
from sdpakit.errors import ArgumentError, format_error

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BoundForward:
    """Checked operands: a call without outputs, and the library of q (None is NumPy)."""

    call: Call
    namespace: Any | None


@dataclass(frozen=True, slots=True)
class BoundBackward:
    """A checked backward call.

    Attributes
    ----------
    call : BackwardCall
        What a launcher gets, but for what the forward pass saved.
    made : mapping of str to ndarray
        The gradients as the caller sees them.
    namespace : object or None
        Library of the gradients; None is NumPy.
    """

    call: BackwardCall
    made: Mapping[str, Array]
    namespace: Any | None

    def results(self) -> dict[str, Any]:
        """Return the gradients by name, in the library of q."""
        return {name: export(array, self.namespace) for name, array in self.made.items()}


def bind_forward(signature: Signature, arguments: Arguments) -> BoundForward:
    """Check the operands of a call.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        As for `bind`.
    """
    bound = bind(signature, arguments, dry=True)
    return BoundForward(replace(bound.call, outputs={}), bound.namespace)


def bind_backward(signature: Signature, arguments: Arguments, dout: object) -> BoundBackward:
    """Check the arguments of a backward call and make arrays of zeros for its gradients.

    Parameters
    ----------
    signature : Signature
        What the kernel takes.
    arguments : Arguments
        The operands of the forward pass.
    dout : object
        Gradient with respect to `out`.

    Returns
    -------
    BoundBackward
        A call that a launcher can trust.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        For the first argument that does not fit; nothing has been computed by then.
    """
    forward = bind_forward(signature, arguments)
    upstream = _bind_dout(signature, forward.call, dout)
    made = {
        name: new_zeros(operand.view.shape, operand.dtype)
        for name, operand in _operands(signature, arguments).items()
    }
    views = {name: _as_called(signature, name, array) for name, array in made.items()}
    return BoundBackward(BackwardCall(forward.call, upstream, views, {}), made, forward.namespace)


def differentiated_tables(signature: Signature) -> tuple[str, ...]:
    """Return the tables of params= that have a gradient: floats that the logit may depend on."""
    return tuple(name for name in signature.logit_tables if name not in OPERAND_TABLES)


def _operands(signature: Signature, arguments: Arguments) -> dict[str, Operand]:
    """Return the operand of each gradient, as the caller gave it (GRAD-3); all were checked."""
    spec = signature.spec
    found = {f"d{name}": (name, getattr(arguments, name)) for name in "qkv"}
    if spec.bias is not None:
        found["dbias"] = "bias", arguments.bias
    if spec.sinks:
        found["dsinks"] = "sinks", arguments.sinks
    params: Any = arguments.params
    for name in differentiated_tables(signature):
        found[f"dparams.{name}"] = f"params[{name!r}]", params[name]
    return {name: import_array(where, value, FLOATS) for name, (where, value) in found.items()}


def _as_called(signature: Signature, name: str, array: Array) -> Array:
    """Return a gradient in the axis order of a `BackwardCall`."""
    if name in ("dq", "dk", "dv"):
        return array.swapaxes(1, 2) if signature.spec.layout == "bshd" else array
    return array[(None,) * (4 - array.ndim)] if name == "dbias" else array


def _bind_dout(signature: Signature, call: Call, dout: object) -> Array:
    spec = signature.spec
    view = import_array("dout", dout, (spec.out_dtype,)).view
    batch, heads, rows, _ = call.q.shape
    swapped = spec.layout == "bshd"
    lengths = (rows, heads) if swapped else (heads, rows)
    shape = (batch, *lengths, spec.v_head_dim)
    if view.shape != shape:
        raise ArgumentError(
            format_error(
                "dout",
                got=f"shape {view.shape}",
                allowed=f"shape {shape}, that of out in layout {spec.layout!r}",
                fix="give the gradient with respect to out; numpy.broadcast_to costs no memory",
            )
        )
    return view.swapaxes(1, 2) if swapped else view
