"""Commands and options; each command is a module of its own, imported when it is asked for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup


class _Help:
    """The option --help takes no value, and is to be shown so, as the other flags are."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]  # a mix-in of commands
        if option is not None:
            option.metavar = ""
        return option


class _Command(_Help, TyperCommand):
    """A command."""


class _Group(_Help, TyperGroup):
    """All commands."""


app = typer.Typer(
    name="sdpakit",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class DType(StrEnum):
    """Dtypes of operands."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


class Align(StrEnum):
    """How rows and keys are aligned (MASK-2)."""

    top_left = "top_left"
    bottom_right = "bottom_right"
    offset = "offset"


class Level(StrEnum):
    """Levels of the cases, each of which includes the one before."""

    core = "core"
    full = "full"
    stress = "stress"


class Layout(StrEnum):
    """Order of the axes of q, k, v and out."""

    bhsd = "bhsd"
    bshd = "bshd"
    thd = "thd"


TARGET_HELP = """A name (see --list), package.module:object or path/to/file.py:object; the object
is a function of q, k, v, or a target."""
MASK_HELP = """Masks joined by "&", "|", "~" (not) and parentheses: causal, window:LEFT,RIGHT
(none = unbounded), prefix:N, dilated:STEP, document, dense."""
ENTRIES_HELP = """Rows and keys of each entry of the batch, as 1x4096,40x300; needs a layout or
lengths that let entries differ."""
ALIGN_HELP = "Alignment of causal, window and dilated; may be left open if the lengths are equal."
BACKEND_HELP = "A backend of `sdpakit info`, or auto."


def _show_version(asked: bool) -> None:  # noqa: FBT001 - the form that typer calls
    if asked:
        from sdpakit import __version__

        typer.echo(f"sdpakit {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", metavar="", help="Show the version.", callback=_show_version, is_eager=True
    ),
]


@app.callback(help="A compiler for scaled dot-product attention.")
def _sdpakit(*, version: Version = False) -> None:
    """Take the options that stand before a command."""


@app.command(cls=_Command)
def info() -> None:
    """Show the backends, why one cannot run and what to do, and facts of this machine."""
    from sdpakit.cli.info import show

    show(Console())


class CacheAction(StrEnum):
    """What to do with the compiled code on disk."""

    info = "info"
    clear = "clear"


@app.command(cls=_Command)
def cache(
    action: Annotated[CacheAction, typer.Argument(help="Show what there is, or remove it.")],
) -> None:
    """Show or clear the compiled code that is kept on disk.

    The exit status of `clear` is 1 if something could not be removed.
    """
    from sdpakit.cli import cache as command

    if action is CacheAction.info:
        command.show(Console())
    elif not command.clear(Console()):
        raise typer.Exit(1)


@app.command(cls=_Command)
def explain(  # noqa: PLR0913 - one parameter for each option
    *,
    q_heads: Annotated[int, typer.Option(help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(help="Heads of k and v (as q).")] = None,
    head_dim: Annotated[int, typer.Option(help="Width of q and k.")] = 64,
    v_head_dim: Annotated[int | None, typer.Option(help="Width of v (as q).")] = None,
    dtype: Annotated[DType, typer.Option(help="Of q, k, v and out.")] = DType.float32,
    layout: Annotated[Layout, typer.Option(help="Order of axes.")] = Layout.bhsd,
    scale: Annotated[float | None, typer.Option(help="Factor (1/sqrt(head-dim)).")] = None,
    softcap: Annotated[float | None, typer.Option(help="Cap of the logits.")] = None,
    mask: Annotated[str | None, typer.Option(help=MASK_HELP)] = None,
    align: Annotated[Align | None, typer.Option(help=ALIGN_HELP)] = None,
    bias: Annotated[DType | None, typer.Option(help="An additive array of this dtype.")] = None,
    sinks: Annotated[
        bool, typer.Option("--sinks", metavar="", help="One extra logit a head.")
    ] = False,
    q_lens: Annotated[
        bool, typer.Option("--q-lens", metavar="", help="Lengths of q by entry.")
    ] = False,
    kv_lens: Annotated[
        bool, typer.Option("--kv-lens", metavar="", help="Lengths of k by entry.")
    ] = False,
    paged: Annotated[
        bool, typer.Option("--paged", metavar="", help="Keys in pages, lengths by entry.")
    ] = False,
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", metavar="", help="A row alone has the same bits.")
    ] = False,
    output: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="One result; may be repeated.")
    ] = None,
    entries: Annotated[str | None, typer.Option(help=ENTRIES_HELP)] = None,
    batch: Annotated[int, typer.Option(help="Batch entries of the call.")] = 1,
    q_len: Annotated[int, typer.Option(help="Queries of the call.")] = 2048,
    kv_len: Annotated[int | None, typer.Option(help="Keys of the call (as q-len).")] = None,
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
    stage: Annotated[str | None, typer.Option(help="Print code instead: ir, llvm, asm.")] = None,
) -> None:
    """Show what a spec compiles to, and what a call of the given sizes would do."""
    from sdpakit.cli.explain import Request, Sizes, show

    keys = q_len if kv_len is None else kv_len
    both_differ = layout is Layout.thd or q_lens == (kv_lens or paged)
    fields = {
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "dtype": str(dtype),
        "layout": str(layout),
        "scale": scale,
        "softcap": softcap,
        "bias": bias and str(bias),
        "sinks": sinks,
        "q_lens": q_lens,
        "kv_lens": kv_lens or paged,
        "paged": paged,
        "batch_invariant": batch_invariant,
        "outputs": tuple(output or ("out",)),
        "equal_lens": align is None and q_len == keys and both_differ and entries is None,
    }
    sizes = Sizes(batch, q_len, keys) if entries is None else Sizes.parse(entries)
    show(Console(), Request(fields, mask, align and str(align), sizes, backend, stage))


@app.command(cls=_Command)
def demo(
    *,
    backend: Annotated[str, typer.Option(help=BACKEND_HELP)] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Leave out the timing.")
    ] = False,
) -> None:
    """Run attention of a real model: compile, check against float64, explain, time.

    The exit status is 1 if a result lies outside its error bound.
    """
    from sdpakit.cli.demo import run

    if not run(Console(), backend=backend, timing=not quick):
        raise typer.Exit(1)


@app.command(cls=_Command)
def conformance(  # noqa: PLR0913 - one parameter for each option
    *,
    target: Annotated[list[str] | None, typer.Argument(help=TARGET_HELP)] = None,
    level: Annotated[Level, typer.Option(help="Which cases.")] = Level.core,
    family: Annotated[str | None, typer.Option(help="Only cases of this family.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="One case; may be repeated.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for one case.")] = 60.0,
    workers: Annotated[int | None, typer.Option(help="Processes (2, if the cores do).")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Known failures, a file in TOML.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write a report to keep and compare.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to read.")] = None,
    failures: Annotated[int, typer.Option(help="Failures to spell out, by target.", min=0)] = 20,
    show_list: Annotated[
        bool, typer.Option("--list", metavar="", help="List targets, rules and cases.")
    ] = False,
) -> None:
    """Judge implementations of attention against the reference and its derived error bounds.

    The exit status is 1 if something is wrong that the ledger does not name, or an entry is stale.
    """
    from sdpakit.cli import conformance as command

    if show_list:
        command.show_list(Console(), level.value, family)
        return
    request = command.Request(
        targets=target or (),
        level=level.value,
        family=family,
        ids=case or (),
        time_limit=time_limit,
        workers=workers,
        ledger=ledger,
        reports=command.report_paths(json=json, html=html),
        failures=failures,
    )
    if not command.judge(Console(), request):
        raise typer.Exit(1)


@app.command(cls=_Command)
def fuzz(
    *,
    target: Annotated[
        list[str], typer.Argument(help="One target; several are held against each other.")
    ],
    seconds: Annotated[float, typer.Option(help="How long to look.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Another seed, other cases.")] = 0,
    time_limit: Annotated[float, typer.Option(help="Seconds for one case.")] = 60.0,
    plain: Annotated[
        bool, typer.Option("--plain", metavar="", help="No NaN, infinities, huge numbers.")
    ] = False,
) -> None:
    """Judge targets on random specs; print cases that fail, shrunk and ready to paste.

    A failure like one that was found is set aside, and the search goes on, for up to five. The exit
    status is 1 if something was found.
    """
    from sdpakit.cli.fuzz import Request, run

    if not run(Console(), Request(target, seconds, time_limit, seed, plain)):
        raise typer.Exit(1)
