"""Names of run-time numbers and tables: the two placeholders, and which names a user may choose."""

from __future__ import annotations

import keyword
import re

from sdpakit.errors import SpecError, format_error
from sdpakit.expr.nodes import INDICES, Scalar

# Stands for the logit that a user's expression changes; text "x".
LOGIT = Scalar("__logit", "float")
# Stands for the position of the row under an alignment that was left open; text "pos". Only a
# spec with equal_lens gives it a meaning (MASK-2).
POSITION = Scalar("__position", "int")

# Numbers and tables that programs have themselves.
RESERVED = frozenset(
    {"scale", "softcap", "bias", "mask", "sinks", "x", "pos", "inf", "nan", *INDICES}
)
_HOISTED = re.compile(r"(window|prefix|dilated)\d+_\w+")


def check_name(where: str, name: object) -> str:
    """Return the name of a user's run-time number or table, or refuse it.

    Parameters
    ----------
    where : str
        What the name is for, said in the message.
    name : object
        What came.

    Returns
    -------
    str
        The name.

    Raises
    ------
    SpecError
        If it is not an identifier, or sdpakit uses it itself.
    """
    free = (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and name not in RESERVED
        and not _HOISTED.fullmatch(name)
    )
    if not free:
        raise SpecError(
            format_error(
                f"name of a {where}",
                got=repr(name),
                allowed="an identifier without a leading underscore, other than "
                f"{', '.join(sorted(RESERVED))} and windowN_..., prefixN_..., dilatedN_...",
                fix='choose another name, for example "slopes"',
            )
        )
    return str(name)


def check_table_name(owner: str, example: str, name: object) -> str:
    """Return the name of an array, or refuse it: the array itself with a remedy of its own.

    Parameters
    ----------
    owner : str
        Class that takes the name.
    example : str
        A name for the remedy.
    name : object
        What came.

    Returns
    -------
    str
        The name.

    Raises
    ------
    SpecError
        See `check_name`.
    """
    if not isinstance(name, str):
        raise SpecError(
            format_error(
                owner,
                got=f"{type(name).__name__} where a name is meant",
                allowed="the name of an array that every call gives in params=",
                fix=f"give a name here and the array at the call: "
                f'{owner}("{example}"), params={{"{example}": array}}',
            )
        )
    return check_name("Table", name)
