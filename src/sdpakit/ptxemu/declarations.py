"""Parses declarations: registers, variables with their initial values, parameters."""

from __future__ import annotations

from sdpakit.ptxemu.expressions import constant, floating, is_float, reference
from sdpakit.ptxemu.lexer import TokenStream
from sdpakit.ptxemu.program import FloatImmediate, Immediate
from sdpakit.ptxemu.scalars import TYPES
from sdpakit.ptxemu.syntax import Initial, Reference, Registers, Storage, Variable, type_size

SPACES: dict[str, Storage] = {
    f".{name}": name for name in ("reg", "param", "local", "shared", "global", "const")
}
_TYPE_NAMES = frozenset(TYPES) | {"b128"}
_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}
_OPAQUE = frozenset({".texref", ".samplerref", ".surfref"})


def registers(stream: TokenStream) -> Registers:
    """Parse what follows ``.reg``, up to and past the semicolon.

    Raises
    ------
    PtxSyntaxError
        If it is no declaration of registers.
    """
    at = stream.next.at
    vector, kind = _vector_and_type(stream)
    names: list[str] = []
    while True:
        name = stream.expect_kind("name", "the name of a register").text
        if stream.accept("<"):
            count = constant(stream, lowest=9)  # a `>` ends it
            stream.expect(">", "after the number of registers")
            names.extend(f"{name}{index}" for index in range(count))
        else:
            names.append(name)
        if not stream.accept(","):
            break
    stream.expect(";", "after the declaration of registers")
    return Registers(kind, vector, tuple(names), at)


def _vector_and_type(stream: TokenStream) -> tuple[int, str]:
    vector = 1
    if stream.next.text in _VECTORS:
        vector = _VECTORS[stream.take().text]
    return vector, _type(stream)


def _type(stream: TokenStream) -> str:
    name = stream.next.text[1:]
    if stream.next.kind == "dotted" and name in _TYPE_NAMES:
        stream.take()
        return name
    if stream.next.text in _OPAQUE:
        raise stream.error("the emulator has no textures, samplers and surfaces")
    raise stream.expected("a type such as '.b32'")


def variables(stream: TokenStream, storage: Storage, *, external: bool) -> list[Variable]:
    """Parse what follows the state space of a variable, up to and past the semicolon.

    Raises
    ------
    PtxSyntaxError
        If it is no declaration of variables.
    """
    alignment, vector, kind = _attributes(stream)
    found = [_variable(stream, storage, alignment, (vector, kind), external=external)]
    while stream.accept(","):
        found.append(_variable(stream, storage, alignment, (vector, kind), external=external))
    stream.expect(";", "after the declaration of a variable")
    return found


def _attributes(stream: TokenStream) -> tuple[int | None, int, str]:
    """Parse alignment, vector and type, in any order before the type."""
    alignment, vector = None, 1
    while True:
        if stream.accept(".align"):
            alignment = _alignment(stream)
        elif stream.next.text in _VECTORS:
            vector = _VECTORS[stream.take().text]
        elif skip_attribute(stream):
            pass
        else:
            return alignment, vector, _type(stream)


def _alignment(stream: TokenStream) -> int:
    at = stream.next.at
    alignment = constant(stream)
    if alignment < 1 or alignment & (alignment - 1):
        raise stream.error(f"expected a power of two as alignment, found {alignment}", at)
    return alignment


def skip_attribute(stream: TokenStream) -> bool:
    """Go past ``.attribute(.unified(1, 2))`` and return whether it was there.

    Raises
    ------
    PtxSyntaxError
        If it does not end.
    """
    if not stream.accept(".attribute"):
        return False
    stream.expect("(", "before the attributes")
    depth = 1
    while depth:
        if stream.next.kind == "end":
            raise stream.expected("')' after the attributes")
        depth += {"(": 1, ")": -1}.get(stream.take().text, 0)
    return True


def _variable(
    stream: TokenStream,
    storage: Storage,
    alignment: int | None,
    element: tuple[int, str],
    *,
    external: bool = False,
) -> Variable:
    name = stream.expect_kind("name", "the name of a variable")
    shape = _shape(stream)
    initial: tuple[Initial, ...] = ()
    if stream.accept("="):
        if storage not in {"global", "const"}:
            raise stream.error(f"a {storage} variable has no initial value; expected ';'", name.at)
        initial = tuple(_initial_values(stream))
    vector, kind = element
    if shape and shape[0] == 0 and initial:
        shape = (-(-len(initial) // max(vector, 1)), *shape[1:])
    natural = type_size(kind) * vector
    found = Variable(
        name.text, storage, kind, vector, alignment or natural, shape, initial, external, name.at
    )
    if len(initial) * type_size(kind) > found.size:
        raise stream.error(
            f"{len(initial)} initial values for {name.text!r} of {found.size} bytes", name.at
        )
    return found


def _shape(stream: TokenStream) -> tuple[int, ...] | None:
    sizes: list[int] = []
    while stream.accept("["):
        sizes.append(0 if stream.at("]") else constant(stream))
        stream.expect("]", "after the size of an array")
    return tuple(sizes) or None


def _initial_values(stream: TokenStream) -> list[Initial]:
    if not stream.accept("{"):
        return [_initial_value(stream)]
    found: list[Initial] = []
    first = True
    while not stream.accept("}"):
        if not first:
            stream.expect(",", "between initial values")
        first = False
        found.extend(_initial_values(stream))
    return found


def _initial_value(stream: TokenStream) -> Initial:
    at = stream.next.at
    negative = stream.next.text == "-" and is_float(stream.after_next())
    if negative:
        stream.take()
    if is_float(stream.next):
        value: Immediate | FloatImmediate | Reference = floating(stream.take(), negative=negative)
        return Initial(value, at)
    if stream.next.kind != "name" or stream.at("WARP_SZ"):
        return Initial(Immediate(constant(stream)), at)
    if stream.at("generic") and stream.after_next().text == "(":
        stream.take()
        stream.take()
        inner = reference(stream)
        stream.expect(")", "after the variable")
        outer = constant(stream, lowest=9) if stream.at("+", "-") else 0
        shifted = Reference(inner.name, inner.at, inner.component, inner.offset + outer)
        return Initial(shifted, at)
    return Initial(reference(stream), at)


def parameters(stream: TokenStream) -> tuple[Variable, ...]:
    """Parse ``(.param .u64 a, ...)``; nothing there is no parameter.

    Raises
    ------
    PtxSyntaxError
        If it is no list of parameters.
    """
    found: list[Variable] = []
    if not stream.accept("("):
        return ()
    while not stream.accept(")"):
        if found:
            stream.expect(",", "or ')' after a parameter")
        found.append(_parameter(stream))
    return tuple(found)


def _parameter(stream: TokenStream) -> Variable:
    if not stream.at(".param", ".reg"):
        raise stream.expected("'.param' or '.reg' before a parameter")
    storage: Storage = SPACES[stream.take().text]
    alignment, vector, kind = _attributes(stream)
    if stream.accept(".ptr"):  # what follows is said of the memory that it points to
        while stream.next.kind == "dotted":
            if stream.take().text == ".align":
                _alignment(stream)
    return _variable(stream, storage, alignment, (vector, kind))
