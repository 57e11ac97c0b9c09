"""Arguments of a call -> `backends.base.Call`: every check of a call, before anything is written.

What a call must give follows from the spec and its program alone (`Signature`). An argument that is
missing, that does not fit or that the spec does not use is refused by name (ERR-1); nothing is
ignored, clamped or converted.
"""

from __future__ import annotations

from sdpakit.binding.backward import BoundBackward, bind_backward, bind_forward
from sdpakit.binding.call import Arguments, Bound, bind
from sdpakit.binding.signature import Signature

__all__ = [
    "Arguments",
    "Bound",
    "BoundBackward",
    "Signature",
    "bind",
    "bind_backward",
    "bind_forward",
]
