"""Calls that a kernel has seen before: what was checked once for arrays alike is not checked again.

For NumPy arrays and a spec without further operands, shapes, strides and dtypes decide whether a
call is right and how it is dealt out. A small call then costs a few microseconds beside its
arithmetic. Everything else goes the whole way through `sdpakit.binding`, errors included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit.arrays import numpy_dtype
from sdpakit.backends.base import RepeatingLauncher

if TYPE_CHECKING:
    from sdpakit.backends.base import Launcher, Repeat
    from sdpakit.binding import Bound, Signature

Array: TypeAlias = "np.ndarray[Any, Any]"
_Key: TypeAlias = "tuple[bool | tuple[int, ...], ...]"
_MOST = 256  # shapes that are remembered


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a call: how to repeat it, and the form of its result."""

    repeat: Repeat
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Repeats:
    """The calls of one kernel that one thread can repeat, by the shapes and strides of q, k, v.

    Parameters
    ----------
    signature : Signature
        What a call must give.
    launcher : RepeatingLauncher
        Prepares calls.
    """

    __slots__ = ("_dtype", "_known", "_launcher", "_out_dtype")

    def __init__(self, signature: Signature, launcher: RepeatingLauncher) -> None:
        self._launcher = launcher
        self._dtype = numpy_dtype(signature.spec.dtype)
        self._out_dtype = numpy_dtype(signature.program.out_dtype)
        self._known: dict[_Key, _Known | None] = {}  # None: gains nothing

    @classmethod
    def of(cls, signature: Signature, launcher: Launcher) -> Repeats | None:
        """Return a memory for calls without further operands; None where a spec needs some."""
        spec = signature.spec
        needs = (spec.bias, spec.sinks or None, spec.q_lens or None, spec.kv_lens or None)
        more = signature.tables or signature.scalars or signature.takes_mask or spec.packed
        if any(need is not None for need in needs) or more or signature.takes_offset:
            return None
        if spec.outputs != ("out",) or not isinstance(launcher, RepeatingLauncher):
            return None
        return cls(signature, launcher)

    def run(self, q: Any, k: Any, v: Any, out: Any, *, serial: bool) -> Array | None:
        """Do a call that is known; None, and nothing is done, if it is not.

        Parameters
        ----------
        q, k, v, out : object
            Arguments of a call, unchecked.
        serial : bool
            Whether the caller asks for one thread: then any call may be known, else small ones.

        Returns
        -------
        ndarray or None
            `out`, or a new array.
        """
        if not (type(q) is type(k) is type(v) is np.ndarray):
            return None
        key = (serial, q.shape, k.shape, v.shape, q.strides, k.strides, v.strides)
        known, shares = self._known.get(key), np.may_share_memory
        dtype = self._dtype
        if known is None or not (q.dtype is k.dtype is v.dtype is dtype):
            return None
        if out is None:
            out = np.empty(known.shape, self._out_dtype)
        elif not self._may_write(out, known) or shares(out, q) or shares(out, k) or shares(out, v):
            return None
        known.repeat(q, k, v, out)
        return out  # type: ignore[no-any-return]  # an ndarray by now

    def _may_write(self, out: Any, known: _Known) -> bool:
        """Return whether `out` is for certain what a new array would be."""
        return (
            type(out) is np.ndarray
            and out.dtype is self._out_dtype
            and out.shape == known.shape
            and out.strides == known.strides
            and out.flags.writeable
        )

    def remember(self, q: Any, k: Any, v: Any, bound: Bound, *, serial: bool) -> None:
        """Make a call that was done ready to be repeated, if it can be.

        Parameters
        ----------
        q, k, v : object
            The arguments that `bound` was made of.
        bound : Bound
            The call, which has pairs.
        serial : bool
            Whether the caller asked for one thread.
        """
        made = bound.made.get("out")
        if made is None or not (type(q) is type(k) is type(v) is np.ndarray):
            return
        key = (serial, q.shape, k.shape, v.shape, q.strides, k.strides, v.strides)
        if key in self._known:
            return
        if len(self._known) >= _MOST:  # a full memory starts anew: simpler than ages, and rare
            self._known.clear()
        repeat = self._launcher.repeat(bound.call)
        self._known[key] = None if repeat is None else _Known(repeat, made.shape, made.strides)
