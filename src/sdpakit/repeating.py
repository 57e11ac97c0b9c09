"""Calls that a kernel has seen before: what was checked once for arrays alike is not checked again.

For NumPy arrays and a spec without further operands, shapes, strides and dtypes decide whether a
call is right and how it is dealt out. A small call then costs a few microseconds beside its
arithmetic. Everything else goes the whole way through `sdpakit.binding`, errors included.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sdpakit.arrays.storage import numpy_dtype
from sdpakit.backends.base import RepeatingLauncher

if TYPE_CHECKING:
    from sdpakit.backends.base import Launcher, Repeat
    from sdpakit.binding import Bound, Signature

Array: TypeAlias = "np.ndarray[Any, Any]"
_Key: TypeAlias = "tuple[bool | tuple[int, ...], ...]"
_MOST = 256  # shapes that are remembered


def _unknown(_q: Any, _k: Any, _v: Any, _out: Any) -> None:
    """Do no call: none is known."""


class Repeats:
    """The calls of one kernel that one thread can repeat, by the shapes and strides of q, k, v.

    Parameters
    ----------
    launcher : RepeatingLauncher
        Prepares calls.
    out_dtype : numpy.dtype
        Of a new array for the result.

    Attributes
    ----------
    latest : list of callable
        What did the last known call (see `Repeat`), for any number of threads and for one: most
        calls are like the one before.
    """

    __slots__ = ("_known", "_launcher", "_out_dtype", "latest")

    def __init__(self, launcher: RepeatingLauncher, out_dtype: np.dtype[Any]) -> None:
        self._launcher, self._out_dtype = launcher, out_dtype
        self._known: dict[_Key, Repeat | None] = {}  # None: gains nothing
        self.latest: list[Repeat] = [_unknown, _unknown]

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
        return cls(launcher, numpy_dtype(signature.program.out_dtype))

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
        known = self._known.get(
            (serial, q.shape, k.shape, v.shape, q.strides, k.strides, v.strides)
        )
        if known is None:
            return None
        self.latest[serial] = known
        return known(q, k, v, out)

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
        out = bound.given.get("out", bound.made.get("out"))
        if not (type(q) is type(k) is type(v) is np.ndarray and self._is_as_new(out)):
            return
        key = (serial, q.shape, k.shape, v.shape, q.strides, k.strides, v.strides)
        if key in self._known:
            return
        if len(self._known) >= _MOST:  # a full memory starts anew: simpler than ages, and rare
            self._known.clear()
        call = bound.call
        if not serial and call.threads == 1:  # the default, which may be another one next time
            call = replace(call, threads=2)
        self._known[key] = self._launcher.repeat(call, (q, k, v, out))

    def _is_as_new(self, out: Any) -> bool:
        """Return whether a result lies as a new array does: what is prepared writes it so."""
        if type(out) is not np.ndarray or out.dtype is not self._out_dtype:
            return False
        steps = itertools.accumulate(out.shape[:0:-1], operator.mul, initial=out.itemsize)
        return out.strides[::-1] == tuple(steps)
