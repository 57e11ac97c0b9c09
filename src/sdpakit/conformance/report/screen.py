"""A run in the terminal: the matrix, as many tables as the width asks for, then the failures.

All text that comes from a target goes through `Text`, never through markup, and loses its control
characters: a message must not be able to colour or clear the terminal.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sdpakit.conformance.model import Outcome, Run, Worst
from sdpakit.conformance.report.facts import about, command, first_sentence
from sdpakit.conformance.report.tally import (
    SHOWN,
    WRONG,
    Shown,
    Tally,
    by_rule,
    by_target,
    matrix,
    shown,
    target_names,
)
from sdpakit.conformance.rules import rule_text

_STYLES: dict[Shown, str] = {
    "fail": "bold red",
    "error": "bold red",
    "hang": "bold red",
    "crash": "bold red",
    "expected": "yellow",
    "refused": "cyan",
    "ok": "green",
}
_GAP = 2  # blanks between two columns
_INDENT = 2  # blanks before what is said of a failure
_LONGEST = 1200  # characters of a message; the JSON has all of it


class Screen:
    """What `report.terminal` returns; lays itself out for the width that it is given.

    Parameters
    ----------
    run : Run
        What to show.
    failures : int or None
        How many failures of each target to spell out; None for all.
    """

    def __init__(self, run: Run, failures: int | None) -> None:
        self._run = run
        self._failures = failures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the parts, top to bottom."""
        run = self._run
        yield _conditions(run)
        if not run.outcomes:
            yield Text("\nNothing was judged: no case was chosen, or no target.")
        else:
            yield Text("")
            yield from _tables(run, options.max_width)
            yield from _failures(run, self._failures, options.max_width)
        for entry in run.stale:
            yield Text.assemble(("\nstale ", "bold red"), plain(entry))
        yield Text("")
        yield from _verdicts(run)


def plain(text: str) -> str:
    """Return a text without what would steer a terminal: controls and directions of writing.

    Parameters
    ----------
    text : str
        From anywhere.

    Returns
    -------
    str
        Line breaks stay; other controls show as escapes.
    """
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else ascii(c)[1:-1]
        for c in text.replace("\t", "    ").replace("\r\n", "\n")
    )


def amount(share: float) -> str:
    """Return a share of a bound in at most five characters, "" for none.

    Parameters
    ----------
    share : float
        Error over bound.

    Returns
    -------
    str
        "0.31", "12", "3e+05", "inf".
    """
    if share == 0.0:
        return ""
    if 0.01 <= share < 100.0:
        return f"{share:.2f}" if share < 10.0 else f"{share:.0f}"
    return f"{share:.0e}" if abs(share) != float("inf") else "inf"


def number(x: float) -> str:
    """Return a value of an output as short as it still tells float32 values apart."""
    return f"{x:.9g}"


def _conditions(run: Run) -> Text:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    line = Text("conformance", style="bold")
    line.append(f", level {run.level}, {plain(run.started)}, {run.seconds:.1f} s", style="not bold")
    for part in (versions, run.machine):
        if part:
            line.append(f"\n{plain(part)}", style="not bold dim")
    for info in run.targets:
        used = ", ".join(f"{name} {version}" for name, version in info.versions.items())
        said = ". ".join(part for part in (used, info.note) if part)
        if said:
            line.append(f"\n{plain(info.name)}: ", style="not bold")
            line.append(plain(said), style="not bold dim")
    return line


def _tables(run: Run, width: int) -> Iterator[Table | Text]:
    """Yield one table in words if it fits, else as many in letters as are needed."""
    names, rows = target_names(run), matrix(run)
    first = max(len(family) for family in (*rows, "family")) + _GAP + 1
    for in_words in (True, False):
        sizes = [_width(run, rows, name, in_words=in_words) for name in names]
        groups = _groups(sizes, width - first + _GAP + 1)  # the last column has no gap
        if len(groups) == 1 and groups[0] == len(names):
            break
    start = 0
    for count in groups:
        if start:
            yield Text("")
        yield _table(run, rows, names[start : start + count], in_words=in_words)
        start += count
    if not in_words:
        yield _legend(run)
    yield Text("number on the right: largest error as a share of its bound", style="dim")


def _groups(sizes: Sequence[int], room: int) -> list[int]:
    """Return how many columns go into each table, one at least."""
    groups, left = [0], room
    for size in sizes:
        if groups[-1] and size > left:
            groups.append(0)
            left = room
        groups[-1] += 1
        left -= size
    return groups


def _width(run: Run, rows: dict[str, dict[str, Tally]], name: str, *, in_words: bool) -> int:
    """Return the width of the two columns of a target, gaps and separators included."""
    tallies = [row.get(name) for row in rows.values()]
    cells = [_cell(tally, in_words=in_words) for tally in (*tallies, by_target(run)[name])]
    counts = max(len(cell.plain) for cell, _ in cells)
    share = max(len(text) for _, text in cells)
    return max(counts, len(plain(name))) + share + 2 * (_GAP + 1)


def _table(
    run: Run, rows: dict[str, dict[str, Tally]], names: Sequence[str], *, in_words: bool
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("family", no_wrap=True, overflow="ellipsis")
    for name in names:
        table.add_column(Text(plain(name)), overflow="fold")
        table.add_column("", justify="right", no_wrap=True)
    for family, row in rows.items():
        table.add_row(Text(plain(family)), *_cells(row, names, in_words=in_words))
    if len(rows) > 1:
        table.add_section()
        table.add_row("all", *_cells(by_target(run), names, in_words=in_words), style="bold")
    return table


def _cells(row: dict[str, Tally], names: Sequence[str], *, in_words: bool) -> list[Text]:
    found: list[Text] = []
    for name in names:
        counts, share = _cell(row.get(name), in_words=in_words)
        tally = row.get(name)
        wrong = tally is not None and tally.share > 1.0
        found += [counts, Text(share, style=_STYLES["fail"] if wrong else "dim")]
    return found


def _cell(tally: Tally | None, *, in_words: bool) -> tuple[Text, str]:
    """Return the counts, what is wrong first, and the share."""
    text = Text()
    if tally is None or not tally.total:
        return Text("-", style="dim"), ""
    for name in SHOWN:
        count = tally.counts[name]
        if not count:
            continue
        said = f"{count} {name}" if in_words else f"{count}{_letter(name)}"
        text.append(" " * bool(text.plain))
        text.append(said, style=_STYLES[name])
    return text, amount(tally.share)


def _letter(name: Shown) -> str:
    return "" if name == "ok" else name[0].upper() if name != "expected" else "X"


def _legend(run: Run) -> Text:
    came = {shown(run, outcome) for outcome in run.outcomes}
    parts = [f"{_letter(name)} {name}" for name in SHOWN if name in came and name != "ok"]
    return Text(", ".join(["without a letter: ok", *parts]), style="dim")


def _failures(run: Run, limit: int | None, width: int) -> Iterator[Text | Padding]:
    for name in target_names(run):
        wrong = [o for o in run.outcomes if o.target == name and shown(run, o) in WRONG]
        for outcome in wrong[:limit]:
            yield _head(run, outcome)
            yield Padding(_failure(outcome, width - _INDENT), (0, 0, 0, _INDENT))
        left = 0 if limit is None else len(wrong) - limit
        if left > 0:
            text = f"\n{left} more of {plain(name)}: a report by --html or --json has them all"
            yield Text(text, style="bold red")


def _head(run: Run, outcome: Outcome) -> Text:
    verdict = shown(run, outcome)
    name, target = plain(outcome.case), plain(outcome.target)
    return Text.assemble("\n", (verdict, _STYLES[verdict]), " ", (name, "bold"), " on ", target)


def _failure(outcome: Outcome, width: int) -> Text:
    case = about(outcome.case)
    message, *_ = outcome.message.partition(f"\n  {outcome.case} ")  # the rest is said below
    lines = [Text(plain(_shortened(message, _LONGEST)))] if message else []
    if outcome.worst is not None and place(outcome.worst) not in message:
        lines.append(Text(f"worst: {plain(sentence(outcome.worst))}"))
    if case.catches:
        lines.append(Text(f"catches: {plain(case.catches)}"))
    lines += [
        Text.assemble((f"{rule}: ", "bold"), first_sentence(rule_text(rule))) for rule in case.rules
    ]
    if case.source:
        lines.append(Text(f"reported: {case.source}", style="dim"))
    again = f"repeat: {plain(command(outcome.target, outcome.case))}"
    if len(again) > width:  # in two lines that a shell takes as one
        again = again.replace(" --case ", " \\\n  --case ")
    lines.append(Text(again))
    return Text("\n").join(lines)


def place(worst: Worst) -> str:
    """Return an element as the messages of the judge name it."""
    return f"{worst.output}{list(worst.index)}"


def sentence(worst: Worst) -> str:
    """Return the worst element in words."""
    return (
        f"{place(worst)} = {number(worst.got)}, right is {number(worst.right)}, "
        f"{worst.share:.3g} times its bound of {worst.bound:.3g}"
    )


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[:room]}... ({len(text) - room} more characters)"


def _commonest_reason(run: Run, name: str) -> str:
    """Return the reason that most refusals of a target give, and how many do."""
    reasons = Counter(plain(o.message) for o in run.outcomes if o.target == name)
    reason, times = reasons.most_common(1)[0]
    return f"{times} of them by: {_shortened(reason, _LONGEST)}"


def _cases(count: int) -> str:
    return f"{count} case{'s' * (count != 1)}"


def _verdicts(run: Run) -> Iterator[Text]:
    for name, tally in by_target(run).items():
        if not tally.total:
            yield Text(f"{plain(name)}: nothing judged")
        elif tally.wrong:
            text = f"{plain(name)}: {tally.wrong} of {tally.total} wrong"
            yield Text(text, style=_STYLES["fail"])
            rules = by_rule(run, name).items()
            yield Text(f"  by rule: {', '.join(f'{rule}: {_cases(n)}' for rule, n in rules)}")
        elif tally.counts["refused"] == tally.total:
            text = f"{plain(name)}: refused all {tally.total}, {_commonest_reason(run, name)}"
            yield Text(text, style=_STYLES["refused"])
        else:
            kept = [f"{tally.counts[v]} {v}" for v in SHOWN if tally.counts[v]]
            yield Text(f"{plain(name)}: nothing wrong ({', '.join(kept)})", style=_STYLES["ok"])
    if run.stale:
        yield Text(f"ledger: {len(run.stale)} stale", style=_STYLES["fail"])
