"""Numbers that a user writes in a spec or an expression: which plain Python number a value is."""

from __future__ import annotations

import math
import numbers
from typing import Any, cast

from sdpakit.errors import SpecError, format_error


def plain_number(value: object) -> bool | int | float | None:
    """Return the Python number that a Python or NumPy scalar holds.

    Parameters
    ----------
    value : object
        Anything.

    Returns
    -------
    bool, int, float or None
        None where the value is no real number: any array, a string, a complex number, None.
    """
    if any((c.__module__, c.__name__) == ("numpy", "generic") for c in type(value).__mro__):
        # np.bool_ and ml_dtypes.bfloat16 are in no class of `numbers`.
        value = cast(Any, value).item()
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # a fraction can be larger than any float
            return math.inf if cast(Any, value) > 0 else -math.inf
    return None


def whole_number(where: str, value: object, *, least: int, fix: str) -> int:
    """Return a Python int that is at least `least`, or raise `SpecError` that names the field.

    Parameters
    ----------
    where : str
        Field to name in the message.
    value : object
        A Python or NumPy integer; a bool or a float is none.
    least : int
        Smallest value allowed.
    fix : str
        What to do about a number that is too small.

    Returns
    -------
    int
        The number.

    Raises
    ------
    SpecError
        If the value is no integer or is too small.
    """
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        got = f"{value!r}" if number is not None else f"{value!r} ({type(value).__name__})"
        if isinstance(number, bool) or not isinstance(number, int):
            fix = f"give a whole number, not a float, a flag or an array; {fix}"
        raise SpecError(format_error(where, got=got, allowed=f"an integer >= {least}", fix=fix))
    return number
