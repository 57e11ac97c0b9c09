"""`python -m sdpakit.conformance.peers`: run peers, keep what came, write docs/peers.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sdpakit.conformance.cases import cases
from sdpakit.conformance.model import LEVELS, Level
from sdpakit.conformance.peers import make, names
from sdpakit.conformance.peers.findings import read, stale, unexplained
from sdpakit.conformance.peers.page import answers, causes, counts, filled, side_by_side
from sdpakit.conformance.peers.peer import Peer
from sdpakit.conformance.peers.questions import QUESTIONS, answer
from sdpakit.conformance.runner import run
from sdpakit.errors import BackendUnavailableError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the command line says.

    Parameters
    ----------
    arguments : sequence of str, optional
        In place of those of the process.

    Returns
    -------
    int
        1 if a failure has no finding or a finding is stale, else 0.
    """
    given = _parser().parse_args(arguments)
    kept = [json.loads(Path(name).read_text(encoding="utf-8")) for name in given.read]
    came = _joined(kept) if kept else _run(given.names or names(), given.level)
    if given.json:
        Path(given.json).write_text(json.dumps(came), encoding="utf-8")
    if given.write:
        _write(Path(given.write), came, ask=given.ask)
    return _report(came) if given.check else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sdpakit.conformance.peers")
    parser.add_argument("names", nargs="*", help=f"peers, by default all: {', '.join(names())}")
    parser.add_argument("--level", choices=LEVELS, default="full")
    parser.add_argument("--json", metavar="FILE", help="keep the outcomes")
    parser.add_argument("--read", metavar="FILE", action="append", default=[], help="kept outcomes")
    parser.add_argument("--write", metavar="PAGE", help="write the generated parts of a page")
    parser.add_argument("--ask", action="store_true", help="with --write, ask the questions too")
    parser.add_argument("--check", action="store_true", help="compare failures with the findings")
    return parser


def _installed(wanted: Sequence[str]) -> list[Peer]:
    found = []
    for name in wanted:
        try:
            found.append(make(name))
        except BackendUnavailableError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)  # noqa: T201 - a command prints
    return found


def _run(wanted: Sequence[str], level: Level) -> dict[str, Any]:
    """Return the outcomes, each peer in a process of its own: some of them die of a case."""
    peers = _installed(wanted)
    outcomes = {
        peer.name: [
            [one.case, one.verdict, one.message]
            for one in run(peer.name, cases(level), level=level, relations=False)
        ]
        for peer in peers
    }
    return {
        "started": datetime.now(UTC).date().isoformat(),
        "levels": {peer.name: level for peer in peers},
        "versions": {peer.name: dict(peer.versions) for peer in peers},
        "outcomes": outcomes,
    }


def _joined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"started": max(one["started"] for one in runs)}
    for part in ("levels", "versions", "outcomes"):
        merged = {name: value for one in runs for name, value in one[part].items()}
        found[part] = {name: merged[name] for name in names() if name in merged}
    return found


def _write(path: Path, came: dict[str, Any], *, ask: bool) -> None:
    parts = {"counts": counts(came), "findings": causes(read(), came)}
    if ask:
        parts["answers"] = _asked()
    path.write_text(filled(path.read_text(encoding="utf-8"), parts), encoding="utf-8")


def _asked() -> str:
    peers = _installed(names())
    rows = [(q.title, q.rule, *(answer(peer, q) for peer in peers)) for q in QUESTIONS]
    versions = {name: v for peer in peers for name, v in peer.versions.items()}
    named = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    head = f"Asked on {datetime.now(UTC).date().isoformat()}. {named}."
    return side_by_side(rows, [peer.name for peer in peers], head)


def _report(came: dict[str, Any]) -> int:
    known, outcomes = read(), answers(came)
    new, old = unexplained(known, outcomes), stale(known, outcomes, came["levels"])
    for one in new:
        print(f"no finding: {one.peer} {one.case} {one.verdict}: {one.message}")  # noqa: T201 - a command prints
    for finding in old:
        print(f"stale: {finding.id}: {', '.join(finding.peers)}")  # noqa: T201 - a command prints
    print(f"{len(new)} failures without a finding, {len(old)} stale findings")  # noqa: T201 - a command prints
    return 1 if new or old else 0


if __name__ == "__main__":
    sys.exit(main())
