"""Interleaved timing: every call in every round, all samples kept.

One thread is judged by the processor time of the whole process, so that helper threads count and
other processes do not, and by samples without a neighbour on the core (`calm.py`) where there are
enough. Several threads are judged by wall time, and only by samples during which others hardly used
the processor.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.calm import ENOUGH_QUIET, SLOWDOWN_LIMIT, Probe

# Share of one core that other processes may use before a wall-time sample is set aside.
FOREIGN_LIMIT = 0.15

# Calls this long are sampled in fewer rounds, so that a slow peer does not take the whole run.
SLOW_SECONDS = 1.5
SLOW_ROUNDS = 3

# Calls up to this long run once before each sample; longer ones warm up on the way.
WARM_SECONDS = 0.25

# Where too few samples are quiet, rounds go on up to so many times their number.
PATIENCE = 3

_MAX_CALLS = 100_000
_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed batch of calls.

    Attributes
    ----------
    round : int
        Samples of different calls with the same round stood next to each other.
    calls : int
        Calls in the batch.
    wall, cpu : float
        Wall and processor seconds of one call.
    foreign : float or None
        Processor time that others took meanwhile, as a share of one core; None where the system
        does not say.
    stolen : float or None
        The same for time that a hypervisor gave to other machines.
    slowdown : float
        What the probe of `calm.py` read, the worse of before and after; 1 = the core is alone.
    """

    round: int
    calls: int
    wall: float
    cpu: float
    foreign: float | None
    stolen: float | None
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How to sample.

    Attributes
    ----------
    threads : int
        1 = processor time, more = wall time.
    rounds : int
        Rounds over all calls.
    sample_seconds : float
        Least length of a batch.
    patience : float
        Rounds past their number, for samples that nobody disturbs, begin within so many seconds.
    """

    threads: int = 1
    rounds: int = 7
    sample_seconds: float = 0.06
    patience: float = math.inf

    @classmethod
    def of(cls, threads: int, rounds: int, patience: float = math.inf) -> Plan:
        """Return the plan for so many threads.

        Other processes are seen through a counter of 10 ms: samples of wall time must be long
        beside it.
        """
        return cls(threads, rounds, 0.06 if threads == 1 else 0.25, patience)

    @property
    def clock(self) -> str:
        """Name of the clock that samples are judged by, as in the results."""
        return "process_time" if self.threads == 1 else "perf_counter"

    def seconds(self, sample: Sample) -> float:
        """Return the seconds of one call by the clock of the plan."""
        return sample.cpu if self.threads == 1 else sample.wall

    def calm(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples that nobody disturbed, as far as it shows."""
        if self.threads == 1:
            return [s for s in samples if s.slowdown <= SLOWDOWN_LIMIT]
        return [s for s in samples if s.foreign is None or s.foreign <= FOREIGN_LIMIT]

    def usable(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples that count.

        Those that nobody disturbed. With one thread all of them where those are too few: a
        neighbour slows down what stands side by side alike, though not by the same factor.
        """
        calm = self.calm(samples)
        return list(samples) if self.threads == 1 and len(calm) < self.enough else calm

    @property
    def enough(self) -> int:
        """How many undisturbed samples are enough."""
        return min(ENOUGH_QUIET, self.rounds)

    def has_enough(self, samples: Mapping[str, Sequence[Sample]]) -> bool:
        """Say whether every call has undisturbed samples: as many as were asked for, or a few."""
        return all(len(self.calm(own)) >= self.enough for own in samples.values())


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


def measure(calls: Mapping[str, Callable[[], object]], plan: Plan) -> dict[str, list[Sample]]:
    """Sample every call once a round, in an order that turns from round to round.

    Parameters
    ----------
    calls : mapping of str to callable
        What to time.
    plan : Plan
        Rounds and lengths.

    Returns
    -------
    dict of str to list of Sample
        In the order of `calls`.
    """
    counts = {name: calibrate(call, plan.sample_seconds) for name, call in calls.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    names, probe = list(calls), Probe()
    end = time.perf_counter() + plan.patience
    for number in range(PATIENCE * plan.rounds):
        if number >= plan.rounds and (plan.has_enough(samples) or time.perf_counter() >= end):
            break
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            count, seconds = counts[name]
            if seconds < SLOW_SECONDS or len(plan.usable(samples[name])) < SLOW_ROUNDS:
                warm_up = seconds < WARM_SECONDS
                samples[name].append(sample(calls[name], count, number, probe, warm_up=warm_up))
    return samples


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value."""
    ordered = sorted(values)
    last = len(ordered) - 1

    def at(share: float) -> float:
        place = share * last
        below = int(place)
        above = min(below + 1, last)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Spread(median(ordered), at(0.25), at(0.75))


def typical_seconds(samples: Sequence[Sample], plan: Plan) -> float | None:
    """Return the median seconds of one call over the samples that count; None if none does."""
    usable = plan.usable(samples)
    return median(plan.seconds(s) for s in usable) if usable else None


def paired_ratio(
    numerator: Sequence[Sample], denominator: Sequence[Sample], plan: Plan
) -> Spread | None:
    """Return how many times longer the first call takes, from pairs of the same round.

    Pairs stand next to each other in time, so a processor that slows down slows both. Where few
    rounds have a pair that nobody disturbed, but both calls have enough samples of that kind, each
    of the first is held against the median of the second: on a core that is alone, times are alike
    from round to round.

    Parameters
    ----------
    numerator, denominator : sequence of Sample
        Samples of two calls.
    plan : Plan
        The clock, and which samples count.

    Returns
    -------
    Spread or None
        None where no round has a usable sample of both.
    """
    ratios = _ratios(plan.usable(numerator), plan.usable(denominator), plan)
    if plan.threads == 1 and len(ratios) < plan.enough:
        calm = plan.calm(denominator)
        if min(len(calm), len(plan.calm(numerator))) >= plan.enough:
            base = median(plan.seconds(s) for s in calm)
            ratios = [plan.seconds(s) / base for s in plan.calm(numerator)]
        else:
            ratios = _ratios(numerator, denominator, plan)
    return spread(ratios) if ratios else None


def _ratios(above: Sequence[Sample], below: Sequence[Sample], plan: Plan) -> list[float]:
    seconds = {s.round: plan.seconds(s) for s in below}
    return [plan.seconds(s) / seconds[s.round] for s in above if s.round in seconds]


def calibrate(call: Callable[[], object], sample_seconds: float) -> tuple[int, float]:
    """Return how many calls fill a sample, and the seconds of one."""
    call()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - start
        if taken >= sample_seconds / 2 or count >= _MAX_CALLS:
            one = taken / count
            return max(1, min(_MAX_CALLS, round(sample_seconds / max(one, 1e-9)))), one
        count *= 2


def sample(
    call: Callable[[], object], count: int, number: int, probe: Probe | None, *, warm_up: bool
) -> Sample:
    """Time one batch of calls.

    Parameters
    ----------
    call : callable
        What to time.
    count : int
        Calls in the batch.
    number : int
        The round.
    probe : Probe or None
        Waits for the core to be alone; None where company is what is measured.
    warm_up : bool
        Call once before.

    Returns
    -------
    Sample
        Seconds of one call.
    """
    slowdown = probe.wait() if probe else 1.0
    if warm_up:
        call()  # brings back what others have pushed out of the caches
    busy, stolen = _machine_seconds()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    slowdown = max(slowdown, probe.slowdown()) if probe else slowdown
    if busy is None or stolen is None:
        return Sample(number, count, wall / count, cpu / count, None, None, slowdown)
    busy_after, stolen_after = _machine_seconds()
    assert busy_after is not None
    assert stolen_after is not None
    foreign = max(0.0, busy_after - busy - cpu) / wall
    stolen = (stolen_after - stolen) / wall
    return Sample(number, count, wall / count, cpu / count, foreign, stolen, slowdown)


def _machine_seconds() -> tuple[float | None, float | None]:
    """Return the seconds that all cores have been busy, and those that a hypervisor took."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None, None
    user, nice, system, _, _, irq, soft_irq, stolen = (int(field) for field in fields[:8])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft_irq) / ticks, stolen / ticks
