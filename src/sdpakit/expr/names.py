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
