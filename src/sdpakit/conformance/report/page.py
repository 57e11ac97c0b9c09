"""One page for a run: a file of its own that needs no network, no server and no other file.

What stands in the page without JavaScript is written here, escaped; the list of cases is built in
the browser from data, as text and never as markup. A content security policy lets nothing but the
script of the page run, whatever a message holds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources

from sdpakit.conformance.model import Run
from sdpakit.conformance.report.data import script_json
from sdpakit.conformance.report.facts import command, run_command
from sdpakit.conformance.report.tally import (
    SHOWN,
    WRONG,
    Shown,
    Tally,
    by_target,
    matrix,
    shown,
    target_names,
)

MARKS: dict[Shown, str] = {
    "fail": "✗",
    "error": "!",
    "hang": "…",
    "crash": "†",
    "expected": "≈",
    "refused": "–",
    "ok": "✓",
}
_WITHOUT_SCRIPT = 300  # rows of the list that stands there for readers without JavaScript


def html(run: Run) -> str:
    """Return a run as a page.

    Parameters
    ----------
    run : Run
        What to show.

    Returns
    -------
    str
        A whole document; everything it needs is in it.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": escape(_title(run)),
        "style": _asset("page.css"),
        "summary": _summary(run),
        "conditions": _conditions(run),
        "targets": _targets(run),
        "stale": _stale(run),
        "matrix": _matrix(run),
        "marks": "".join(f"<li>{_mark(v)} {v}: {_MEANINGS[v]}</li>" for v in SHOWN),
        "without_script": _without_script(run),
        "data": script_json(run),
        "script": script,
    }
    # One pass over the template: what is put in is never looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


_MEANINGS: dict[Shown, str] = {
    "fail": "a wrong answer, a missing refusal, or a refusal of what the target declares",
    "error": "another exception than the fitting one",
    "hang": "no answer within the time limit",
    "crash": "the process that ran it died",
    "expected": "a known failure, named in the ledger with its reason",
    "refused": "the target says that it does not do this",
    "ok": "right, within the bound",
}


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _title(run: Run) -> str:
    names = target_names(run)
    few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Conformance of {few}" if names else "Conformance of nothing"


def _summary(run: Run) -> str:
    if not run.outcomes:
        return "Nothing was judged: no case was chosen, or no target."
    tallies = by_target(run)
    bad = [name for name, tally in tallies.items() if tally.wrong]
    cases = len({outcome.case for outcome in run.outcomes})
    text = f"{_count(cases, 'case')} on {_count(len(tallies), 'target')}. "
    if not bad:
        refused = all(tally.counts["refused"] == tally.total for tally in tallies.values())
        said = "Everything was refused." if refused else "Nothing is wrong."
        return escape(text + said)
    parts = [f"{name} in {_count(tallies[name].wrong, 'case')}" for name in bad]
    return escape(f"{text}Wrong: {', '.join(parts)}.")


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _conditions(run: Run) -> str:
    facts = {
        "level": run.level,
        "started": run.started,
        "took": f"{run.seconds:.1f} s",
        "machine": run.machine,
        "versions": _versions(run.versions),
    }
    rows = [f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value]
    line = run_command(run)
    if line:
        rows.append(f"<dt>command</dt><dd><code>{escape(line)}</code></dd>")
    return "".join(rows)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _targets(run: Run) -> str:
    infos = {info.name: info for info in run.targets}
    rows = []
    for name, tally in by_target(run).items():
        info = infos.get(name)
        used, note = (_versions(info.versions), info.note) if info else ("", "")
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th><td>{_counts(tally)}</td>'
            f'<td class="number">{escape(share_text(tally.share))}</td>'
            f"<td>{escape('. '.join(part for part in (used, note) if part))}</td></tr>"
        )
    return "".join(rows)


def _mark(verdict: Shown) -> str:
    return f'<span class="mark {verdict}" aria-hidden="true">{MARKS[verdict]}</span>'


def _counts(tally: Tally | None) -> str:
    if tally is None or not tally.total:
        return '<span class="none">not run</span>'
    return " ".join(
        f'<span class="count {v}">{_mark(v)} {tally.counts[v]} {v}</span>'
        for v in SHOWN
        if tally.counts[v]
    )


def share_text(share: float) -> str:
    """Return a share of a bound for a reader, "" for none."""
    if share == 0.0:
        return ""
    if share == float("inf"):
        return "∞"
    return f"{share:.2f}" if 0.01 <= share < 10.0 else f"{share:.3g}"


def _stale(run: Run) -> str:
    if not run.stale:
        return ""
    rows = "".join(f"<li>{escape(entry)}</li>" for entry in run.stale)
    return f'<h2>Stale entries of the ledger</h2><ul class="stale">{rows}</ul>'


def _matrix(run: Run) -> str:
    names = target_names(run)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = [f'<thead><tr><th scope="col">family</th>{head}</tr></thead><tbody>']
    for family, row in matrix(run).items():
        label = f'<a href="#{_place(family)}">{escape(family)}</a>'
        cells = (_cell(family, name, row.get(name)) for name in names)
        rows.append(f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>')
    return "".join([*rows, "</tbody>"])


def _cell(family: str, target: str, tally: Tally | None) -> str:
    if tally is None:
        return f"<td>{_counts(None)}</td>"
    worst = next(v for v in SHOWN if tally.counts[v])
    share = share_text(tally.share)
    note = f'<small>worst <span class="number">{share}</span></small>' if share else ""
    words = ", ".join(f"{tally.counts[v]} {v}" for v in SHOWN if tally.counts[v])
    label = escape(f"{family} on {target}: {words}" + (f", worst share {share}" if share else ""))
    link = f'<a href="#{_place(family, target)}" aria-label="{label}">{_counts(tally)}{note}</a>'
    return f'<td class="cell {worst}">{link}</td>'


def _place(family: str, target: str = "") -> str:
    """Return the part of an address behind "#" that the script of the page understands."""
    from urllib.parse import quote

    of_target = f"&amp;target={quote(target, safe='')}" if target else ""
    return f"family={quote(family, safe='')}{of_target}"


def _without_script(run: Run) -> str:
    wrong = [(o, shown(run, o)) for o in run.outcomes if shown(run, o) in WRONG]
    if not wrong:
        return "<p>No case is wrong.</p>"
    rows = "".join(
        f"<tr><td>{escape(o.target)}</td><td>{escape(o.case)}</td><td>{_mark(v)} {v}</td>"
        f"<td><code>{escape(command(o.target, o.case))}</code></td></tr>"
        for o, v in wrong[:_WITHOUT_SCRIPT]
    )
    left = len(wrong) - _WITHOUT_SCRIPT
    more = f"<p>{left} more are in the JSON report.</p>" if left > 0 else ""
    columns: Iterable[str] = ("target", "case", "verdict", "command to repeat it")
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f"<table><caption>What is wrong</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{more}"
    )
