"""Runs workloads: checks every target, then times those whose answer is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bench import gradients, inputs, oracle
from bench.ceilings import CeilingCache
from bench.results import SCHEMA, Attempt, Document, ResultRecord, Status, result
from bench.targets import Case, Prepared, Target, UnsupportedByTarget
from bench.timing import Plan, measure
from bench.workloads import Workload

Announce = Callable[[str], None]


def run(
    workloads: Sequence[Workload],
    targets: Sequence[Target],
    plan: Plan,
    *,
    command: str,
    announce: Announce = lambda _: None,
) -> Document:
    """Run workloads one after the other.

    Parameters
    ----------
    workloads : sequence of Workload
        What to compute.
    targets : sequence of Target
        Who computes it.
    plan : Plan
        How to sample.
    command : str
        What repeats the run, for the record.
    announce : callable
        Told what happens next, for a progress line.

    Returns
    -------
    Document
        `environment` is left empty: it is the caller's, who made it.
    """
    started, start = datetime.now(UTC), time.perf_counter()
    ceilings = CeilingCache(plan.threads)
    results = [run_workload(w, targets, plan, ceilings, announce) for w in workloads]
    return {
        "schema": SCHEMA,
        "command": command,
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": time.perf_counter() - start,
        "threads": plan.threads,
        "clock": plan.clock,
        "rounds": plan.rounds,
        "sample_seconds": plan.sample_seconds,
        "environment": {},
        "results": results,
    }


def run_workload(
    workload: Workload,
    targets: Sequence[Target],
    plan: Plan,
    ceilings: CeilingCache,
    announce: Announce,
) -> ResultRecord:
    """Check and time all targets on one workload; see `run`."""
    announce(f"{workload.name}: reference")
    case = Case(workload, inputs.make(workload), plan.threads)
    judge = gradients if workload.backward else oracle
    expected = judge.expect(workload, case.inputs)
    attempts: dict[str, Attempt] = {}
    ceiling = ceilings.of(workload)
    calls: dict[str, Callable[[], object]] = {"ceiling": ceiling.call}
    for target in targets:
        announce(f"{workload.name}: checking {target.name}")
        attempt, prepared = try_target(target, case, expected)
        attempts[target.name] = attempt
        if prepared is not None:
            calls[target.name] = prepared.call
    announce(f"{workload.name}: timing {', '.join(calls)}")
    return result(workload, ceiling, attempts, measure(calls, plan), plan)


def try_target(
    target: Target, case: Case, expected: oracle.Expected
) -> tuple[Attempt, Prepared | None]:
    """Prepare a target and compare its answer.

    Parameters
    ----------
    target : Target
        Who computes.
    case : Case
        What.
    expected : oracle.Expected
        The right answer.

    Returns
    -------
    Attempt, Prepared or None
        A call only where the answer is right.
    """

    def refused(status: Status, error: Exception) -> tuple[Attempt, None]:
        reason = str(error) if status != "failed" else f"{type(error).__name__}: {error}"
        return Attempt(target.is_peer, status, reason), None

    start = time.perf_counter()
    try:
        prepared = target.prepare(case)
        seconds = time.perf_counter() - start
        answer = prepared.to_numpy(prepared.call())
    except UnsupportedByTarget as error:
        return refused("unsupported", error)
    except ModuleNotFoundError as error:
        return refused("absent", error)
    except Exception as error:  # noqa: BLE001 - a library may raise anything; it is put on record
        return refused("failed", error)
    check = expected.check(answer, strict=not target.is_peer)
    if check.passed:
        return Attempt(target.is_peer, "ok", "", seconds, check), prepared
    reason = f"error of {check.share_of_bound:.3g} times the bound (largest {check.max_error:.2g})"
    return Attempt(target.is_peer, "wrong", reason, seconds, check), None
