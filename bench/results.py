"""The record of a run: its schema, and how figures and verdicts follow from the samples.

The schema is described in bench/README.md; `SCHEMA` names its version, which changes with the
meaning of any key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

from bench.ceilings import Ceiling
from bench.oracle import Check
from bench.timing import Plan, Sample, Spread, paired_ratio, typical_seconds
from bench.workloads import Goal, Workload

SCHEMA = "sdpakit-bench/1"
OURS = "ours"

Status = Literal["ok", "wrong", "unsupported", "absent", "failed"]


class SpreadRecord(TypedDict):
    """Median and quartiles over the rounds."""

    median: float
    low: float
    high: float


class TargetRecord(TypedDict):
    """What one target did on one workload."""

    is_peer: bool
    status: Status
    reason: str
    prepare_seconds: float | None
    check: dict[str, Any] | None
    seconds: float | None
    rate: float | None
    calm_samples: int
    share: SpreadRecord | None
    ours_faster: SpreadRecord | None
    samples: list[dict[str, Any]]


class CeilingRecord(TypedDict):
    """The ceiling of a workload, sampled in its rounds."""

    resource: str
    dtype: str
    variant: str
    work: float
    rate: float | None
    samples: list[dict[str, Any]]


class GoalRecord(TypedDict):
    """What was wanted, what came, and whether it is enough; None = could not be judged."""

    share: float | None
    got_share: float | None
    ratio: float | None
    got_ratio: float | None
    against: str
    baseline: str | None
    met: bool | None


class ResultRecord(TypedDict):
    """One workload."""

    workload: dict[str, Any]
    flops: float
    kv_bytes: int
    work: float
    ceiling: CeilingRecord
    targets: dict[str, TargetRecord]
    goals: dict[str, GoalRecord]


class Document(TypedDict):
    """One run."""

    schema: str
    command: str
    started: str
    wall_seconds: float
    threads: int
    clock: str
    rounds: int
    sample_seconds: float
    environment: dict[str, Any]
    results: list[ResultRecord]


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a target fared before the clock: prepared and checked, or why not."""

    is_peer: bool
    status: Status
    reason: str = ""
    prepare_seconds: float | None = None
    check: Check | None = None


def result(
    workload: Workload,
    ceiling: Ceiling,
    attempts: Mapping[str, Attempt],
    samples: Mapping[str, Sequence[Sample]],
    plan: Plan,
) -> ResultRecord:
    """Return the record of a workload.

    Parameters
    ----------
    workload : Workload
        What was run.
    ceiling : Ceiling
        Its bound; its samples are under the name "ceiling".
    attempts : mapping of str to Attempt
        Every target that was asked.
    samples : mapping of str to sequence of Sample
        Of the ceiling and of every target whose answer was right.
    plan : Plan
        The clock.

    Returns
    -------
    ResultRecord
        Figures, verdicts and all samples.
    """
    targets = {
        name: _target(attempt, name, samples, workload.work / ceiling.work, plan)
        for name, attempt in attempts.items()
    }
    for record in targets.values():
        if record["seconds"] is not None:
            record["rate"] = workload.work / record["seconds"]
    seconds = typical_seconds(samples["ceiling"], plan)
    return {
        "workload": asdict(workload),
        "flops": workload.flops,
        "kv_bytes": workload.kv_bytes,
        "work": workload.work,
        "ceiling": {
            "resource": ceiling.resource,
            "dtype": ceiling.dtype,
            "variant": ceiling.variant,
            "work": ceiling.work,
            "rate": None if seconds is None else ceiling.work / seconds,
            "samples": [asdict(sample) for sample in samples["ceiling"]],
        },
        "targets": targets,
        "goals": {
            level: judge(goal, targets) for level, goal in workload.goals(plan.threads).items()
        },
    }


def judge(goal: Goal, targets: Mapping[str, TargetRecord]) -> GoalRecord:
    """Return whether our figures reach a goal.

    Parameters
    ----------
    goal : Goal
        Share and ratio that are wanted.
    targets : mapping of str to TargetRecord
        Figures of all targets.

    Returns
    -------
    GoalRecord
        `met` is None where ours or the baseline has no figure.
    """
    ours = targets.get(OURS)
    share = ours["share"] if ours else None
    baseline = best_peer(targets) if goal.against == "best" else goal.against
    record = targets.get(baseline) if baseline else None
    ratio = record["ours_faster"] if record else None
    got_share = share["median"] if share and goal.share is not None else None
    got_ratio = ratio["median"] if ratio and goal.ratio is not None else None
    verdicts = [
        None if got is None else got >= wanted
        for wanted, got in ((goal.share, got_share), (goal.ratio, got_ratio))
        if wanted is not None
    ]
    met = None if None in verdicts else all(verdicts)
    return {
        "share": goal.share,
        "got_share": got_share,
        "ratio": goal.ratio,
        "got_ratio": got_ratio,
        "against": goal.against,
        "baseline": baseline if goal.ratio is not None else None,
        "met": False if False in verdicts else met,
    }


def best_peer(targets: Mapping[str, TargetRecord]) -> str | None:
    """Return the fastest peer whose answer is right; None if there is none."""
    timed = {
        name: record["seconds"]
        for name, record in targets.items()
        if record["is_peer"] and record["status"] == "ok" and record["seconds"] is not None
    }
    return min(timed, key=lambda name: timed[name]) if timed else None


def failures(document: Document, required: str | None) -> list[str]:
    """Return why a run is no success: ours wrong, failed or absent, or a required goal missed.

    Parameters
    ----------
    document : Document
        The run.
    required : str or None
        Level of the goals that must be met; None = none.

    Returns
    -------
    list of str
        One line each; empty = success.
    """
    lines = []
    for entry in document["results"]:
        name = entry["workload"]["name"]
        for target, record in entry["targets"].items():
            if record["is_peer"]:
                continue
            if record["status"] == "absent":
                lines.append(f"{target} is absent: {record['reason']}")
            elif record["status"] in ("wrong", "failed"):
                lines.append(f"{name}: {target} {record['status']}: {record['reason']}")
        goal = entry["goals"].get(required) if required else None
        if goal is not None and not goal["met"]:
            lines.append(f"{name}: {required} not met: {describe_goal(goal)}")
    return list(dict.fromkeys(lines))


def describe_goal(goal: GoalRecord) -> str:
    """Return a goal beside what came, such as `share 0.83 of 0.80, ratio 1.18 of 1.10 (torch)`."""
    parts = []
    if goal["share"] is not None:
        got = "none" if goal["got_share"] is None else f"{100 * goal['got_share']:.1f}"
        parts.append(f"{got}/{100 * goal['share']:.0f} %")
    if goal["ratio"] is not None:
        got = "none" if goal["got_ratio"] is None else f"{goal['got_ratio']:.2f}"
        parts.append(f"{got}/{goal['ratio']:.2f}x {goal['baseline'] or goal['against']}")
    return ", ".join(parts)


def _target(
    attempt: Attempt,
    name: str,
    samples: Mapping[str, Sequence[Sample]],
    work_ratio: float,
    plan: Plan,
) -> TargetRecord:
    own = samples.get(name, ())
    share = paired_ratio(samples["ceiling"], own, plan)
    faster = paired_ratio(own, samples[OURS], plan) if OURS in samples else None
    return {
        "is_peer": attempt.is_peer,
        "status": attempt.status,
        "reason": attempt.reason,
        "prepare_seconds": attempt.prepare_seconds,
        "check": None
        if attempt.check is None
        else {**asdict(attempt.check), "passed": attempt.check.passed},
        "seconds": typical_seconds(own, plan),
        "rate": None,
        "calm_samples": len(plan.calm(own)),
        "share": _spread_record(share, work_ratio),
        "ours_faster": _spread_record(faster, 1.0),
        "samples": [asdict(sample) for sample in own],
    }


def _spread_record(spread: Spread | None, factor: float) -> SpreadRecord | None:
    if spread is None:
        return None
    return {
        "median": factor * spread.median,
        "low": factor * spread.low,
        "high": factor * spread.high,
    }
