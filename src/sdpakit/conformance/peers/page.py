"""The generated parts of docs/peers.md: counts by family, findings, and answers side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sdpakit.conformance.cases import FAMILIES
from sdpakit.conformance.peers.findings import BAD, KINDS, Answer, Finding, cause

_MARKS = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with the text between its marks replaced.

    Parameters
    ----------
    page : str
        Has "<!-- begin: NAME -->" and "<!-- end: NAME -->".
    parts : mapping of str to str
        Text by name; other parts stay.

    Returns
    -------
    str
        Everything else is as it was.
    """

    def replaced(match: re.Match[str]) -> str:
        before, name, after = match.groups()
        return f"{before}{parts[name]}\n{after}" if name in parts else match.group(0)

    return _MARKS.sub(replaced, page)


def counts(run: Mapping[str, Any]) -> str:
    """Return the table of families and peers.

    Parameters
    ----------
    run : mapping
        As `__main__` keeps it.

    Returns
    -------
    str
        Markdown: ok / failed / refused / raised, of each family and in all.
    """
    peers = list(run["outcomes"])
    found: dict[tuple[str, str], Counter[str]] = {}
    for one in answers(run):
        for key in ((one.case.split(".")[0], one.peer), ("all", one.peer)):
            found.setdefault(key, Counter())[one.verdict] += 1
    ran = {family for family, _ in found}
    rows = [name for name in (*FAMILIES, "all") if name in ran]
    lines = [_row("family", *peers), _row(*["---"] * (len(peers) + 1))]
    for family in rows:
        cells = (_cell(found.get((family, peer), Counter())) for peer in peers)
        lines.append(_row(family, *cells))
    return "\n".join([_dated(run), "", *lines, ""])


def _cell(seen: Counter[str]) -> str:
    if not seen:
        return "not run"
    judged = sum(seen.values()) - seen["refused"]
    if not judged:
        return f"refused {seen['refused']}"
    raised = seen["error"] + seen["hang"] + seen["crash"]
    return f"{seen['ok']} / {seen['fail']} / {seen['refused']} / {raised}"


def _dated(run: Mapping[str, Any]) -> str:
    versions: dict[str, str] = {}
    for one in run["versions"].values():
        versions |= one
    named = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    levels = {name: run["levels"][name] for name in run["outcomes"]}
    level = ", ".join(f"{name} {value}" for name, value in levels.items())
    return f"Run of {run['started']}. {named}. Levels: {level}."


def answers(run: Mapping[str, Any]) -> list[Answer]:
    """Return the outcomes of a run."""
    return [
        Answer(peer, case, verdict, message)
        for peer, outcomes in run["outcomes"].items()
        for case, verdict, message in outcomes
    ]


def causes(findings: Sequence[Finding], run: Mapping[str, Any]) -> str:
    """Return the list of findings with the number of cases that show each.

    Parameters
    ----------
    findings : sequence of Finding
        What is known.
    run : mapping
        As `__main__` keeps it.

    Returns
    -------
    str
        Markdown, by kind.
    """
    shown: dict[str, list[Answer]] = {}
    for one in answers(run):
        found = cause(findings, one) if one.verdict in BAD else None
        if found is not None:
            shown.setdefault(found.id, []).append(one)
    lines: list[str] = []
    for kind, meaning in KINDS.items():
        known = [one for one in findings if one.kind == kind and one.id in shown]
        if known:
            lines += [f"**{kind}**: {meaning}.", ""]
            lines += [_item(one, shown[one.id]) for one in known]
            lines.append("")
    return "\n".join(lines)


def _item(finding: Finding, shown: Sequence[Answer]) -> str:
    peers = ", ".join(sorted({one.peer for one in shown}))
    thread = f" ({finding.thread})" if finding.thread else ""
    example = f"{len(shown)} failures, such as `{shown[0].case}`"
    return f"- **{finding.id}** ({peers}): {finding.says}{thread} {example}."


def side_by_side(rows: Sequence[Sequence[str]], peers: Sequence[str], head: str) -> str:
    """Return the table of questions.

    Parameters
    ----------
    rows : sequence of sequence of str
        Question, rule, and the answer of each peer.
    peers : sequence of str
        Column names.
    head : str
        Date and versions.

    Returns
    -------
    str
        Markdown.
    """
    lines = [_row("question", "sdpakit", *peers), _row(*["---"] * (len(peers) + 2))]
    return "\n".join([head, "", *(lines + [_row(*row) for row in rows]), ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
