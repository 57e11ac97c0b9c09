"""`sdpakit explain`: a spec from options, and what it compiles to."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

import sdpakit as sk
from sdpakit.errors import ArgumentError, format_error

_FORMS = {
    "causal": "causal",
    "window": "window:LEFT,RIGHT",
    "prefix": "prefix:N",
    "dilated": "dilated:STEP",
    "document": "document",
    "dense": "dense",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a call.

    Attributes
    ----------
    batch, q_len, kv_len : int
        The lengths are the largest.
    entries : tuple of (int, int)
        Rows and keys of each batch entry; empty where all have the largest.
    """

    batch: int
    q_len: int
    kv_len: int
    entries: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Return what a text such as "1x4096,40x300" means.

        Raises
        ------
        ArgumentError
            If it is not pairs of integers from 0 on.
        """
        parts = [part.strip().split("x") for part in text.split(",")]
        if not all(len(part) == 2 and all(n.isdecimal() for n in part) for part in parts):
            raise ArgumentError(
                format_error(
                    "--entries",
                    got=repr(text),
                    allowed="ROWSxKEYS of each entry, with commas between",
                    fix="write for example --layout thd --entries 1x4096,40x300",
                )
            )
        pairs = tuple((int(rows), int(keys)) for rows, keys in parts)
        rows, keys = zip(*pairs, strict=True)
        return cls(len(pairs), max(rows), max(keys), pairs)

    def given(self, spec: sk.AttentionSpec) -> dict[str, Any]:
        """Return the arguments that tell a kernel of a spec how long each entry is.

        Raises
        ------
        ArgumentError
            If entries differ and the spec has no way to say it.
        """
        if not self.entries:
            return {}
        found: dict[str, Any] = {}
        thd = spec.layout == "thd"
        sides = ("q", thd, spec.q_lens), ("kv", thd and not spec.paged, spec.kv_lens)
        for (side, offsets, lens), lengths in zip(
            sides, zip(*self.entries, strict=True), strict=True
        ):
            if offsets:
                found[f"cu_{side}_lens"] = np.concatenate([[0], np.cumsum(lengths)])
            elif lens:
                found[f"{side}_lens"] = np.array(lengths)
            elif len(set(lengths)) > 1:
                raise ArgumentError(
                    format_error(
                        "--entries",
                        got=f"{side} lengths {', '.join(map(str, lengths))}",
                        allowed="equal lengths: the spec does not say that they differ",
                        fix=f"add --layout thd or --{side}-lens",
                    )
                )
        return found


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line.

    Attributes
    ----------
    fields : mapping
        Fields of the spec, but for the mask.
    mask, align : str or None
        Text of the mask, and the alignment of its parts.
    sizes : Sizes
        Of the call.
    backend : str
        A name, or "auto".
    stage : str or None
        The stage to print instead of the explanation.
    """

    fields: Mapping[str, Any]
    mask: str | None
    align: str | None
    sizes: Sizes
    backend: str
    stage: str | None


def show(console: Console, request: Request) -> None:
    """Compile what was asked for and print the explanation, or the code of one stage.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    request : Request
        Spec, sizes and backend.
    """
    mask = None if request.mask is None else parse_mask(request.mask, request.align)
    try:
        spec = sk.AttentionSpec(**request.fields, mask=mask)
    except sk.SpecError as error:
        if request.align is not None or "align: got none" not in str(error):
            raise
        raise _in_words_of_options(error, "name one, such as --align bottom_right") from None
    kernel = sk.compile(spec, backend=request.backend)
    if request.stage is not None:
        code = kernel.inspect(request.stage)
        console.out(code if isinstance(code, str) else code.hex(), highlight=False)
        return
    console.out(repr(spec), highlight=False)
    console.out("")
    sizes, ids = request.sizes, _document_ids(mask, request)
    given = sizes.given(spec) | ({"params": ids} if ids else {})
    explanation = kernel.explain(batch=sizes.batch, q_len=sizes.q_len, kv_len=sizes.kv_len, **given)
    console.out(str(explanation), highlight=False)
    if ids:
        console.out("\nStand-in for the ids: all rows and keys belong to one document.")


def _document_ids(mask: sk.Mask | None, request: Request) -> dict[str, Any]:
    """Return stand-ins for the tables of a mask, which are the ids of `document` alone."""
    longest = max(request.sizes.q_len, request.sizes.kv_len, 0)
    tables = () if mask is None else mask.tables()
    return {
        table.name: np.broadcast_to(np.zeros((), table.dtype), (1, longest)) for table in tables
    }


def parse_mask(text: str, align: str | None) -> sk.Mask:
    """Return the mask that a text such as "causal & window:128,0" means.

    Parameters
    ----------
    text : str
        Parts joined by "&" and "|", with "~" for "not" and parentheses; "&" binds tighter than
        "|", as in Python. See the help of the option for the parts.
    align : str or None
        Alignment of the parts that have one.

    Returns
    -------
    Mask
        The parts, joined.

    Raises
    ------
    ArgumentError
        If a part is none of the known forms, or is missing.
    """
    words = (word.strip() for word in re.findall(r"[&|~()]|[^&|~()]+", text))
    tokens = deque(word for word in words if word)
    mask = _any_of(tokens, align)
    if tokens:
        raise _unknown(tokens[0])
    return mask


def _any_of(tokens: deque[str], align: str | None) -> sk.Mask:
    mask = _all_of(tokens, align)
    while tokens and tokens[0] == "|":
        tokens.popleft()
        mask = mask | _all_of(tokens, align)
    return mask


def _all_of(tokens: deque[str], align: str | None) -> sk.Mask:
    mask = _operand(tokens, align)
    while tokens and tokens[0] == "&":
        tokens.popleft()
        mask = mask & _operand(tokens, align)
    return mask


def _operand(tokens: deque[str], align: str | None) -> sk.Mask:
    token = tokens.popleft() if tokens else ""
    if token == "~":
        return ~_operand(tokens, align)
    if token != "(":
        return _part(token, align)
    mask = _any_of(tokens, align)
    if not tokens or tokens.popleft() != ")":
        raise _unknown("( without )")
    return mask


def _part(text: str, align: str | None) -> sk.Mask:
    name, _, rest = text.partition(":")
    numbers = [_number(text, word) for word in rest.split(",")] if rest else []
    match name, numbers:
        case "causal", []:
            return sk.Causal(align)
        case "window", [left, right]:
            return _window(left, right, align)
        case "prefix", [int(length)]:
            return sk.Prefix(length)
        case "dilated", [int(step)]:
            return sk.Dilated(step, align=align)
        case "document", []:
            return sk.Document()
        case "dense", []:
            return sk.Dense()
    raise _unknown(text)


def _window(left: int | None, right: int | None, align: str | None) -> sk.Mask:
    try:
        return sk.Window(left, right, align=align)
    except sk.SpecError as error:
        fix = "write none for a side without end, such as window:none,0"
        raise _in_words_of_options(error, fix) from None


def _in_words_of_options(error: sk.SpecError, fix: str) -> ArgumentError:
    """Return an error with a remedy that can be typed, in place of one in Python."""
    said, _, _ = str(error).rpartition("\n  remedy: ")
    return ArgumentError(f"{said}\n  remedy: {fix}")


def _number(text: str, word: str) -> int | None:
    if word.strip() == "none":
        return None
    try:
        return int(word)
    except ValueError:
        raise _unknown(text) from None


def _unknown(text: str) -> ArgumentError:
    example = 'write for example --mask "causal & window:128,0" --align bottom_right'
    form = _FORMS.get(text.partition(":")[0].strip())
    numbers = " with numbers for the capitals" if form and ":" in form else ""
    return ArgumentError(
        format_error(
            "--mask",
            got=repr(text),
            allowed=", ".join(_FORMS.values()) + ', joined by "&", "|", "~" and parentheses',
            fix=f"write {form}{numbers}; {example.removeprefix('write ')}" if form else example,
        )
    )
