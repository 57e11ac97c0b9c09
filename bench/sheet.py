"""A joined table for the terminal, or in Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.joined import PeerRecord, RowRecord, TableDocument, verdict
from bench.rows import PARTS

_COLORS = {"met": "green", "no goal": "dim", "no figure": "yellow", "not run": "yellow"}
_SHORT = {"ort_attention": "ORT Attention", "ort_mha": "ORT MHA", "ort_gqa": "ORT GQA"}
_EXPLAINED = (
    "a peer: its figure, then how many times faster ours is; calm: samples without a neighbour of "
    "all, where fewest; ~: too few of those, so all samples count"
)


def show(document: TableDocument, console: Console) -> None:
    """Print a table, then whatever was not as it should be, then where it was run."""
    peers = _peers(document)
    table = Table(title=_EXPLAINED)
    for number, name in enumerate(_header(peers)):
        table.add_column(name, justify="left" if number == 0 else "right")
    for title, records in _groups(document):
        table.add_section()
        table.add_row(f"[bold]{title}[/]")
        for record in records:
            *cells, word = _cells(record, peers)
            table.add_row(*cells, f"[{_COLORS.get(word, 'red')}]{word}[/]")
    console.print(table)
    for line in (*remarks(document), summary(document), *_where(document)):
        console.print(line, highlight=False, markup=False)


def markdown(document: TableDocument) -> str:
    """Return a table in Markdown, with what was not as it should be and where it was run."""
    peers = _peers(document)
    header = _header(peers)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for title, records in _groups(document):
        lines.append(f"| **{title}** |" + " |" * (len(header) - 1))
        lines += [f"| {' | '.join(_cells(record, peers))} |" for record in records]
    notes = (_EXPLAINED, summary(document), *remarks(document), *_where(document))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def summary(document: TableDocument) -> str:
    """Return how many rows stand how."""
    words = [verdict(record) for record in document["rows"]]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(sorted(words)))


def remarks(document: TableDocument) -> list[str]:
    """Return a line for everything that is not right: rows of ours, and peers."""
    lines: dict[str, None] = {}
    for record in document["rows"]:
        key = f"{record['part']}/{record['name']}"
        if record["reason"]:
            lines[f"{key}: {record['status']}: {record['reason']}"] = None
        for name, peer in record["peers"].items():
            if peer["status"] in ("wrong", "failed"):
                lines[f"{key}: {name} {peer['status']}: {peer['reason']}"] = None
            elif peer["status"] == "absent":
                lines[f"{name} is absent: {peer['reason']}"] = None
    return list(lines)


def _groups(document: TableDocument) -> list[tuple[str, list[RowRecord]]]:
    by_part = [
        (part.title, [r for r in document["rows"] if r["part"] == part.name]) for part in PARTS
    ]
    return [(title, records) for title, records in by_part if records]


def _peers(document: TableDocument) -> list[str]:
    names: dict[str, None] = {}
    for record in document["rows"]:
        names.update(dict.fromkeys(n for n, peer in record["peers"].items() if _took_part(peer)))
    return list(names)


def _took_part(peer: PeerRecord) -> bool:
    return peer["status"] not in ("unsupported", "absent")


def _header(peers: list[str]) -> list[str]:
    shown = [_SHORT.get(name, name) for name in peers]
    return ["row", "ceiling", "ours", "share", *shown, "best peer", "calm", "got/goal", "goal"]


def _cells(record: RowRecord, peers: list[str]) -> list[str]:
    """Return the cells of a row; the last one is the verdict."""
    best, ratio, share = record["best_peer"], record["ratio"], record["share"]
    against = f"{_SHORT.get(best, best)} {ratio:.2f}x" if best and ratio is not None else "no peer"
    calm, of = record["calm"]
    run = record["status"] == "ok"
    return [
        record["name"],
        _value(record["ceiling"], record["unit"]),
        ("~" if record["disturbed"] else "") + (_value(record["ours"], record["unit"]) or "none")
        if run
        else "",
        f"{100 * share:.1f} %" if share is not None else "",
        *(_peer(record["peers"].get(name)) for name in peers),
        against if run else "",
        f"{calm}/{of}" if of else "",
        record["goal"] or record["wanted"],
        verdict(record),
    ]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return (f"{value:.1f}" if value >= 100 else f"{value:.3g}") + f" {unit}".rstrip()


def _peer(peer: PeerRecord | None) -> str:
    if peer is None or not _took_part(peer):
        return ""
    if peer["status"] != "ok" or peer["value"] is None:
        return peer["status"] if peer["status"] != "ok" else "none"
    faster = peer["ours_faster"]
    return _value(peer["value"], "") + ("" if faster is None else f" ({faster:.2f}x)")


def _where(document: TableDocument) -> list[str]:
    """Return on what the rows were measured: one line for each machine and set of versions."""
    lines: dict[str, None] = {}
    for run in document["runs"]:
        facts = run["environment"]
        versions = (f"{name} {version or 'absent'}" for name, version in facts["versions"].items())
        lines[", ".join(versions)] = None
        git = facts["git"]
        state = f"{str(git['commit'])[:7]}{', changed' if git['dirty'] else ''}"
        lines[f"{facts['machine']['processor']}, {facts['machine']['cores']} cores; {state}"] = None
    return list(lines)
