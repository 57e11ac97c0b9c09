"""Whether what was read from JSON is of an annotated kind."""

import types
import typing


def fits(value, kind):
    """Say whether a value read from JSON is of an annotated kind."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        same = isinstance(value, dict) and set(value) == set(hints)
        return same and all(fits(value[key], hints[key]) for key in hints)
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(i, arguments[1]) for i in value.values())
    if origin is types.UnionType:
        return any(fits(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    return kind is typing.Any or isinstance(value, (float, int) if kind is float else kind)
