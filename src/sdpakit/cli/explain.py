"""`sdpakit explain`: a spec from options, and what it compiles to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

from rich.console import Console

import sdpakit as sk
from sdpakit.errors import ArgumentError, format_error

_FORMS = "causal, window:LEFT,RIGHT, prefix:N, dilated:STEP, document, dense"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line.

    Attributes
    ----------
    fields : mapping
        Fields of the spec, but for the mask.
    mask, align : str or None
        Text of the mask, and the alignment of its parts.
    batch, q_len, kv_len : int
        Sizes of the call.
    backend : str
        A name, or "auto".
    stage : str or None
        The stage to print instead of the explanation.
    """

    fields: Mapping[str, Any]
    mask: str | None
    align: str | None
    batch: int
    q_len: int
    kv_len: int
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
    spec = sk.AttentionSpec(**request.fields, mask=mask)
    kernel = sk.compile(spec, backend=request.backend)
    if request.stage is not None:
        code = kernel.inspect(request.stage)
        console.out(code if isinstance(code, str) else code.hex(), highlight=False)
        return
    console.out(repr(spec), highlight=False)
    console.out("")
    text = str(kernel.explain(batch=request.batch, q_len=request.q_len, kv_len=request.kv_len))
    console.out(text, highlight=False)


def parse_mask(text: str, align: str | None) -> sk.Mask:
    """Return the mask that a text such as "causal & window:128,0" means.

    Parameters
    ----------
    text : str
        Parts joined by "&"; see the help of the option.
    align : str or None
        Alignment of the parts that have one.

    Returns
    -------
    Mask
        The parts, joined by AND.

    Raises
    ------
    ArgumentError
        If a part is none of the known forms.
    """
    return reduce(and_, (_part(part.strip(), align) for part in text.split("&")))


def _part(text: str, align: str | None) -> sk.Mask:
    name, _, rest = text.partition(":")
    numbers = [_number(text, word) for word in rest.split(",")] if rest else []
    match name, numbers:
        case "causal", []:
            return sk.Causal(align)
        case "window", [left, right]:
            return sk.Window(left, right, align=align)
        case "prefix", [int(length)]:
            return sk.Prefix(length)
        case "dilated", [int(step)]:
            return sk.Dilated(step, align=align)
        case "document", []:
            return sk.Document()
        case "dense", []:
            return sk.Dense()
    raise _unknown(text)


def _number(text: str, word: str) -> int | None:
    if word.strip() == "none":
        return None
    try:
        return int(word)
    except ValueError:
        raise _unknown(text) from None


def _unknown(text: str) -> ArgumentError:
    return ArgumentError(
        format_error(
            "--mask",
            got=repr(text),
            allowed=_FORMS,
            fix='write for example --mask "causal & window:128,0" --align bottom_right',
        )
    )
