"""`python -m bench.competition`: the same call alone and beside a process that is always busy.

Both share as many cores as the call has threads. In every round each target is timed alone and
beside the competitor, one after the other; the figure is how many times longer it takes.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import environment, workloads
from bench.figures import Figure, Record

if TYPE_CHECKING:
    from bench.timing import Plan, Sample

LIMIT = 2.2
CASES = ("f32_l2048_d64", "f32_l2048_d64_causal", "decode_gqa_l4096_f32")
OURS = "ours"
TARGETS = (OURS, "torch", "ort_mha", "ort_gqa")
# A competitor that gets less of a core than this is none; two threads beside it leave it a third.
LEAST_SHARE = 0.25
SETTLE_SECONDS = 0.05
# It dies with its parent, however that ends: prctl(PR_SET_PDEATHSIG, SIGKILL).
_BUSY = "import ctypes\nctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"


class Competitor:
    """A process that does nothing but use up a core, on the cores of its parent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _BUSY])
        self._stat = Path(f"/proc/{self._process.pid}/stat")
        self._process.send_signal(signal.SIGSTOP)

    def seconds(self) -> float:
        """Return the processor time that it has had."""
        fields = self._stat.read_text(encoding="ascii").rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile."""
        self._process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def beside(
    competitor: Competitor, call: Callable[[], object], count: int, number: int
) -> tuple[Sample, float]:
    """Return a sample beside the competitor, and what share of a core that had meanwhile.

    Its time is not foreign: it is meant to be there.
    """
    from bench import timing

    with competitor.running():
        before, start = competitor.seconds(), time.perf_counter()
        found = timing.sample(call, count, number, None, warm_up=False)
        wall = time.perf_counter() - start
        share = (competitor.seconds() - before) / wall
    if found.foreign is None:
        return found, share
    return replace(found, foreign=max(0.0, found.foreign - share)), share


def measure(
    calls: dict[str, Callable[[], object]], plan: Plan, competitor: Competitor
) -> dict[str, dict[str, list[Any]]]:
    """Return samples of all calls, "alone" and "beside", and the "shares" of the competitor."""
    from bench import timing
    from bench.calm import Probe

    counts = {name: timing.calibrate(call, plan.sample_seconds)[0] for name, call in calls.items()}
    found: dict[str, dict[str, list[Any]]] = {
        name: {"alone": [], "beside": [], "shares": []} for name in calls
    }
    probe = Probe()
    for number in range(timing.PATIENCE * plan.rounds):
        calm = [of for own in found.values() for of in (own["alone"], counted(own))]
        if number >= plan.rounds and all(len(plan.calm(own)) >= plan.enough for own in calm):
            break
        for name, call in calls.items():
            own, count = found[name], counts[name]
            own["alone"].append(timing.sample(call, count, number, probe, warm_up=True))
            taken, share = beside(competitor, call, count, number)
            own["beside"].append(taken)
            own["shares"].append(share)
    return found


def counted(own: dict[str, list[Any]]) -> list[Sample]:
    """Return the samples during which the competitor competed."""
    pairs = zip(own["beside"], own["shares"], strict=True)
    return [sample for sample, share in pairs if share >= LEAST_SHARE]


def figure(
    name: str,
    found: dict[str, dict[str, list[Any]]],
    reasons: dict[str, str],
    plan: Plan,
) -> Figure:
    """Return the figure of one workload.

    Parameters
    ----------
    name : str
        The workload.
    found : dict
        As `measure` returns it, of all targets whose answer was right.
    reasons : dict of str to str
        Why others were not timed.
    plan : Plan
        Which samples count.

    Returns
    -------
    Figure
        How many times longer it takes beside the competitor; of others, too.
    """
    from bench import timing

    ratios = {
        target: timing.paired_ratio(counted(own), own["alone"], plan)
        for target, own in found.items()
    }
    medians = {target: ratio.median for target, ratio in ratios.items() if ratio}
    own = found.get(OURS, {"alone": [], "beside": [], "shares": []})
    calm = {s.round for s in plan.calm(own["alone"])} & {s.round for s in plan.calm(counted(own))}
    alone = {s.round: s.wall for s in own["alone"]}
    return Figure(
        name=name,
        unit="x",
        value=medians.get(OURS),
        floor=None,
        goal=LIMIT,
        samples=[s.wall / alone[s.round] for s in own["beside"]],
        detail={
            "samples": {
                target: {key: _plain(values) for key, values in of.items()}
                for target, of in found.items()
            },
            "not timed": {target: why for target, why in reasons.items() if target != OURS},
        },
        peers={target: value for target, value in medians.items() if target != OURS},
        calm=(len(calm), len(own["alone"])),
        reason=reasons.get(OURS, ""),
    )


def _plain(values: Sequence[Any]) -> list[Any]:
    return [value if isinstance(value, float) else asdict(value) for value in values]


def run(workload: workloads.Workload, plan: Plan, competitor: Competitor) -> Figure:
    """Check all targets and time those whose answer is right."""
    from bench import inputs, oracle, targets
    from bench.run import try_target

    case = targets.Case(workload, inputs.make(workload), plan.threads)
    expected = oracle.expect(workload, case.inputs)
    calls: dict[str, Callable[[], object]] = {}
    reasons = {}
    for target in (t for t in targets.TARGETS if t.name in TARGETS):
        attempt, prepared = try_target(target, case, expected)
        if prepared is None:
            reasons[target.name] = f"{attempt.status}: {attempt.reason}"
        else:
            calls[target.name] = prepared.call
    return figure(workload.name, measure(calls, plan, competitor), reasons, plan)


Cases = Annotated[list[str] | None, typer.Option("--case", help="Run this workload; repeatable.")]
Threads = Annotated[int, typer.Option(min=2, help="Threads, and cores that are competed for.")]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds.")]
Json = Annotated[Path | None, typer.Option("--json", help="Where to write all samples.")]
Require = Annotated[str | None, typer.Option(help="Fail unless kept at this level: floor, goal.")]


def main(
    case: Cases = None,
    threads: Threads = 2,
    rounds: Rounds = 7,
    json: Json = None,
    require: Require = None,
) -> None:
    """Time calls alone and beside a busy process on the same cores."""
    if require not in (None, "floor", "goal"):
        raise typer.BadParameter(f"require: got {require!r}\n  allowed: floor, goal")
    chosen = workloads.select(None, case or CASES)
    environment.share_cores(threads)
    command = shlex.join(["python", "-m", "bench.competition", *sys.argv[1:]])
    record = Record(environment.prepare(threads), command, "perf_counter")
    from bench.timing import Plan

    competitor = Competitor()
    try:
        figures = [run(workload, Plan.of(threads, rounds), competitor) for workload in chosen]
    finally:
        competitor.end()
    sys.exit(record.finish(figures, json or environment.local_result("competition"), require))


if __name__ == "__main__":
    typer.run(main)
