"""The record of a table: rows derived from what their parts have measured, and joined with others.

The schema is described in bench/README.md; `SCHEMA` names its version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from bench.calm import ENOUGH_QUIET
from bench.results import OURS, TargetRecord, best_peer, describe_goal
from bench.rows import ROWS, WANTED, Row
from bench.timing import Plan, Sample

SCHEMA = "sdpakit-table/1"
NOT_RUN = "not run"
_UNITS = {"fma": "GF/s", "read": "GB/s"}


class PeerRecord(TypedDict):
    """A peer in a row: its figure, and how many times faster ours is."""

    status: str
    reason: str
    value: float | None
    ours_faster: float | None


class RowRecord(TypedDict):
    """One row; `entry` is what its part has written of it, with all samples."""

    part: str
    name: str
    case: str
    wanted: str
    run: int | None
    status: str
    reason: str
    unit: str
    ceiling: float | None
    ours: float | None
    share: float | None
    peers: dict[str, PeerRecord]
    best_peer: str | None
    ratio: float | None
    goal: str
    met: bool | None
    calm: list[int]
    disturbed: bool
    entry: dict[str, Any] | None


class TableDocument(TypedDict):
    """A table; `runs` are the documents of the parts without their entries."""

    schema: str
    command: str
    started: str
    wall_seconds: float
    runs: list[dict[str, Any]]
    rows: list[RowRecord]


def blank(row: Row, status: str = NOT_RUN, reason: str = "") -> RowRecord:
    """Return the record of a row of which nothing is known."""
    return {
        "part": row.part,
        "name": row.name,
        "case": row.case,
        "wanted": WANTED[row.case] if row.case else "",
        "run": None,
        "status": status,
        "reason": reason,
        "unit": "",
        "ceiling": None,
        "ours": None,
        "share": None,
        "peers": {},
        "best_peer": None,
        "ratio": None,
        "goal": "",
        "met": None,
        "calm": [0, 0],
        "disturbed": False,
        "entry": None,
    }


def derive(row: Row, entry: dict[str, Any], run: Mapping[str, Any], number: int) -> RowRecord:
    """Return the record of a measured row.

    Parameters
    ----------
    row : Row
        Which row.
    entry : dict
        One of `results` or `figures` of a part's document.
    run : mapping
        That document, without its entries.
    number : int
        Where the run stands in the table.

    Returns
    -------
    RowRecord
        All figures.
    """
    found = _of_result(row, entry, run) if "workload" in entry else _of_figure(row, entry)
    return {**found, "run": number, "entry": entry}


def _of_result(row: Row, entry: dict[str, Any], run: Mapping[str, Any]) -> RowRecord:
    targets: dict[str, TargetRecord] = entry["targets"]
    scale = 1e9
    ours, best = targets[OURS], best_peer(targets)
    goal = entry["goals"].get("goal")
    shown = [entry["ceiling"], ours]
    baseline = goal["baseline"] if goal else best
    if baseline in targets:
        shown.append(targets[baseline])
    calm, enough = _calm([record["samples"] for record in shown], run)
    faster = targets[best]["ours_faster"] if best else None
    found = blank(row, ours["status"], ours["reason"])
    return {
        **found,
        "unit": _UNITS[entry["ceiling"]["resource"]],
        "ceiling": _scaled(entry["ceiling"]["rate"], scale),
        "ours": _scaled(ours["rate"], scale),
        "share": ours["share"]["median"] if ours["share"] else None,
        "peers": {n: _peer(t, scale) for n, t in targets.items() if t["is_peer"]},
        "best_peer": best,
        "ratio": faster["median"] if faster else None,
        "goal": describe_goal(goal) if goal else "",
        "met": goal["met"] if goal else None,
        "calm": calm,
        "disturbed": not enough and ours["status"] == "ok",
    }


def _scaled(rate: float | None, scale: float) -> float | None:
    return None if rate is None else rate / scale


def _peer(record: TargetRecord, scale: float) -> PeerRecord:
    faster = record["ours_faster"]
    return {
        "status": record["status"],
        "reason": record["reason"],
        "value": _scaled(record["rate"], scale),
        "ours_faster": faster["median"] if faster else None,
    }


def _calm(
    calls: Sequence[Sequence[Mapping[str, Any]]], run: Mapping[str, Any]
) -> tuple[list[int], bool]:
    """Return the least calm of some calls, as calm samples of all, and whether those are enough."""
    plan = Plan.of(run["threads"], run["rounds"])
    counts = [(len(plan.calm([Sample(**s) for s in samples])), len(samples)) for samples in calls]
    enough = all(calm >= min(ENOUGH_QUIET, of) and of > 0 for calm, of in counts)
    return list(min(counts)), enough


def _of_figure(row: Row, entry: dict[str, Any]) -> RowRecord:
    value, goal = entry["value"], entry["goal"]
    peers: dict[str, PeerRecord] = {
        name: {
            "status": "ok",
            "reason": "",
            "value": theirs,
            "ours_faster": theirs / value if value else None,
        }
        for name, theirs in entry["peers"].items()
    }
    best = min(entry["peers"], key=entry["peers"].__getitem__, default=None)
    status, _, reason = entry["reason"].partition(": ")
    calm, of = entry["calm"]
    got = "none" if value is None else f"{value:.3g}"
    return {
        **blank(row, status or "ok", reason),
        "unit": entry["unit"],
        "ours": value,
        "peers": peers,
        "best_peer": best,
        "ratio": peers[best]["ours_faster"] if best else None,
        "goal": "" if goal is None else f"{got}/{goal:g} {entry['unit']}".rstrip(),
        "met": None if goal is None or value is None else value <= goal,
        "calm": [calm, of],
        "disturbed": calm < min(ENOUGH_QUIET, of),
    }


def join(
    earlier: TableDocument | None, document: TableDocument, rows: Sequence[Row] = ROWS
) -> TableDocument:
    """Return a table with the rows of another where this one has none of its own.

    Parameters
    ----------
    earlier : TableDocument or None
        Rows that were measured before; they are derived anew from their entries.
    document : TableDocument
        Its rows take precedence, failed ones too.
    rows : sequence of Row
        All rows, in order.

    Returns
    -------
    TableDocument
        With a record for each of `rows`, and only runs that a row refers to.
    """
    known: dict[tuple[str, str], tuple[TableDocument, RowRecord]] = {}
    for source in (earlier, document):
        for record in source["rows"] if source else ():
            if source is not None and record["status"] != NOT_RUN:
                known[record["part"], record["name"]] = source, record
    runs: list[dict[str, Any]] = []
    joined = []
    for row in rows:
        source, record = known.get((row.part, row.name), (document, blank(row)))
        if record["entry"] is None or record["run"] is None:
            joined.append(blank(row, record["status"], record["reason"]))
            continue
        run = source["runs"][record["run"]]
        if run not in runs:
            runs.append(run)
        joined.append(derive(row, record["entry"], run, runs.index(run)))
    return document | {"runs": runs, "rows": joined}


def verdict(record: RowRecord) -> str:
    """Return in a word how a row stands: met, missed, no figure, no goal, or what went wrong."""
    if record["status"] != "ok":
        return record["status"]
    if record["ours"] is None or (record["goal"] and record["met"] is None):
        return "no figure"
    if not record["goal"]:
        return "no goal"
    return "met" if record["met"] else "missed"


def failures(document: TableDocument, *, required: bool) -> list[str]:
    """Return why a table is no success.

    Parameters
    ----------
    document : TableDocument
        The table.
    required : bool
        Whether every row that has a goal must meet it, rows that were not run included.

    Returns
    -------
    list of str
        One line for each row that is wrong, failed or absent, and for each that is required.
    """
    lines = []
    for record in document["rows"]:
        name, word = f"{record['part']}/{record['name']}", verdict(record)
        if record["status"] not in ("ok", NOT_RUN):
            lines.append(f"{name}: {word}: {record['reason']}")
        elif required and word not in ("met", "no goal"):
            lines.append(f"{name}: {word}: {record['goal'] or record['wanted']}")
    return lines
