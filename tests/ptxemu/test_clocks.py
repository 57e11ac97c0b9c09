"""The detector of races against what "happens before" means, on random histories."""

from types import SimpleNamespace

import numpy as np
import pytest

from sdpakit.ptxemu.errors import KernelFault, Race
from sdpakit.ptxemu.program import Instruction
from sdpakit.ptxemu.races import RaceDetector

WARPS, BYTES, LANES = 4, 64, 2


class Machine(SimpleNamespace):
    """As much of a batch of one block, with two lanes a warp, as the detector looks at."""

    def __init__(self, race=True, proxy=True, cluster=1):
        lanes = WARPS * LANES * cluster
        super().__init__(
            checks=SimpleNamespace(race=race, proxy=proxy),
            warps=WARPS,
            blocks=[(n, 0, 0) for n in range(cluster)],
            shape=SimpleNamespace(cluster_size=cluster),
            lane_warp=np.arange(lanes) // LANES,
            memory=SimpleNamespace(shared=np.zeros(cluster * BYTES, np.uint8), stride=BYTES),
            program=SimpleNamespace(instructions=(instruction("wgmma"),)),
        )

    def indices(self, lanes):
        return lanes

    def fault(self, kind, ins, lanes, problem, remedy, bad=None):
        return kind(problem, remedy, line=ins.line, block=(0, 0, 0), thread=int(lanes[0]))


def instruction(opcode, line=1):
    return Instruction(opcode, (), (), None, False, line, opcode)


class History:
    """Events and what happens before each: sets of numbers, nothing clever."""

    def __init__(self):
        self.seen = [set() for _ in range(WARPS)]
        self.accesses = []

    def access(self, warp, kind, first, width):
        """Record an access; return whether it races with one before."""
        number = len(self.accesses)
        races = any(
            other != warp
            and before not in self.seen[warp]
            and (kind, what) not in {("read", "read"), ("atomic", "atomic")}
            and first < start + size
            and start < first + width
            for before, (other, what, start, size) in enumerate(self.accesses)
        )
        self.accesses.append((warp, kind, first, width))
        self.seen[warp].add(number)
        return races

    def meet(self, warps):
        known = set().union(*(self.seen[warp] for warp in warps))
        for warp in warps:
            self.seen[warp] = set(known)


@pytest.mark.parametrize("seed", range(60))
def test_a_race_is_found_exactly_where_nothing_orders_two_accesses(seed):
    random = np.random.default_rng(seed)
    detector, history = RaceDetector(Machine()), History()
    clocks, known = [], []
    narrowest = random.choice([1, 2, 4, 8])
    for step in range(400):
        action = random.choice(["access", "access", "meet", "exchange", "send", "receive"])
        some = random.choice(WARPS, random.integers(2, WARPS + 1), replace=False)
        warp = int(random.integers(WARPS))
        if action == "meet":
            detector.acquire(some, detector.snapshot(some))
            history.meet(some)
        elif action == "exchange":
            detector.exchange(some[None])
            history.meet(some)
        elif action == "send":
            clocks.append(detector.snapshot(np.array([warp])))
            known.append(set(history.seen[warp]))
        elif action == "receive" and clocks:
            pick = int(random.integers(len(clocks)))
            detector.acquire(np.array([warp]), clocks[pick])
            history.seen[warp] |= known[pick]
        elif action == "access":
            kind = str(random.choice(["read", "read", "write", "atomic"]))
            width = int(random.choice([w for w in (1, 2, 4, 8, 16) if w >= narrowest]))
            first = int(random.integers(BYTES // width)) * width
            expected = history.access(warp, kind, first, width)
            found = accessed(detector, kind, warp, first, width, step + 1)
            assert found == expected, (seed, step, kind, warp, first, width)
            if found:  # history ends with the first race
                return
    pytest.fail("no race in a long history without order")


def accessed(detector, kind, warp, first, width, line):
    lanes = np.array([warp * LANES])
    ins = instruction({"read": "ld", "write": "st", "atomic": "atom"}[kind], line)
    try:
        getattr(detector, kind)(ins, lanes, np.array([first]), width)
    except Race:
        return True
    return False


def test_disciplined_histories_have_no_race():
    random = np.random.default_rng(0)
    detector = RaceDetector(Machine())
    everybody = np.arange(WARPS)
    for step in range(200):
        owner = int(random.integers(WARPS))
        for _ in range(3):
            kind = str(random.choice(["read", "write", "atomic"]))
            width = int(random.choice([1, 2, 4, 8, 16]))
            first = int(random.integers(BYTES // width)) * width
            assert not accessed(detector, kind, owner, first, width, step)
        detector.exchange(everybody[None])


def test_rows_of_offsets_are_accesses_of_one_lane():
    detector = RaceDetector(Machine())
    lanes = np.array([0, LANES])
    offsets = np.array([[0, 16], [32, 48]])
    detector.write(instruction("st"), lanes, offsets, 8)
    detector.read(instruction("ld"), np.array([0]), np.array([[16, 0]]), 8)
    with pytest.raises(Race):
        detector.read(instruction("ld"), np.array([0]), np.array([[8, 48]]), 8)


def test_reads_go_on_until_all_that_opened_them_are_closed():
    detector = RaceDetector(Machine())
    store, read = instruction("st"), instruction("cp")
    lane, span = np.array([0]), np.arange(0, 64, 16)
    detector.write(store, lane, span[None], 16)
    detector.fence_proxy(lane)
    first = detector.open_read(read, 0, span, 16)
    second = detector.open_read(read, 0, span[:2], 16)
    detector.close_read(first)
    detector.write(store, lane, np.array([32]), 4)  # granules are narrower from here on
    with pytest.raises(Race, match="go on"):
        detector.write(store, lane, np.array([4]), 4)
    detector.close_read(second)
    detector.write(store, lane, np.arange(0, 64, 4)[None], 4)


def test_a_proxy_fence_may_stand_before_or_after_the_barrier():
    for fence_first in (True, False):
        detector = RaceDetector(Machine())
        writer, reader = np.array([0]), np.array([LANES])
        detector.write(instruction("st"), writer, np.array([0]), 16)
        if fence_first:
            detector.fence_proxy(writer)
        detector.exchange(np.array([[0, 1]]))
        if not fence_first:
            detector.fence_proxy(reader)
        detector.open_read(instruction("cp"), LANES, np.array([0]), 16)


@pytest.mark.parametrize("race", [True, False])
def test_a_fence_that_does_not_know_the_write_does_not_help(race):
    detector = RaceDetector(Machine(race=race))
    writer, reader = np.array([0]), np.array([LANES])
    detector.fence_proxy(reader)
    detector.write(instruction("st"), writer, np.array([0]), 16)
    detector.exchange(np.array([[0, 1]]))
    with pytest.raises(KernelFault) as caught:
        detector.open_read(instruction("cp"), LANES, np.array([0]), 16)
    assert caught.value.name == "proxy"


def test_what_the_asynchronous_proxy_wrote_needs_no_fence():
    detector = RaceDetector(Machine())
    clock = detector.issue_write(instruction("cp"), 0, 0, 64, 8)
    detector.acquire(np.array([1]), clock)
    detector.open_read(instruction("cp"), LANES, np.array([0]), 16)
    with pytest.raises(Race, match="asynchronous copy"):
        detector.open_read(instruction("cp"), 2 * LANES, np.array([0]), 16)


def test_products_of_a_warpgroup_are_known_to_its_four_warps():
    machine = Machine(cluster=2)  # two blocks of one warpgroup each
    detector = RaceDetector(machine)
    token = detector.open_read(instruction("wgmma"), 0, np.array([0]), 16)
    detector.close_read(token)
    other = np.array([5 * LANES])
    with pytest.raises(Race, match="a read by wgmma of warpgroup 0"):
        detector.write(instruction("st"), other, np.array([0]), 16)
    detector.write(instruction("st"), np.array([3 * LANES]), np.array([0]), 16)


def test_granules_may_become_narrower_after_products_were_read():
    detector = RaceDetector(Machine(cluster=2))
    detector.close_read(detector.open_read(instruction("wgmma"), 0, np.array([0]), 16))
    detector.write(instruction("st"), np.array([0]), np.array([16]), 2)
    with pytest.raises(Race, match="a read by wgmma"):
        detector.write(instruction("st"), np.array([5 * LANES]), np.array([14]), 2)


def test_each_mbarrier_has_an_agent_of_its_own():
    detector = RaceDetector(Machine())
    clocks = []
    for number in range(2 * WARPS):
        if number >= WARPS:  # each place is written twice
            detector.acquire(np.array([0]), clocks[number - WARPS])
        place = 16 * (number % WARPS)
        clocks.append(detector.issue_write(instruction("cp"), 0, place, 16, 1000 + number))
    for warp in range(1, WARPS):
        detector.acquire(np.array([warp]), clocks[WARPS + warp])
        lanes = np.array([warp * LANES])
        detector.read(instruction("ld"), lanes, np.array([16 * warp]), 16)
        with pytest.raises(Race, match="asynchronous copy"):
            detector.read(instruction("ld"), lanes, np.array([16 * ((warp + 1) % WARPS)]), 16)


@pytest.mark.parametrize(
    "copy",
    [
        lambda detector: detector.open_read(instruction("cp"), LANES, np.array([0]), 16),
        lambda detector: detector.issue_write(instruction("cp"), LANES, 0, 16, 8),
    ],
    ids=["read", "write"],
)
def test_copies_race_with_atomic_accesses(copy):
    detector = RaceDetector(Machine())
    detector.atomic(instruction("atom"), np.array([0]), np.array([0]), 4)
    with pytest.raises(Race, match="after an atomic access by warp 0"):
        copy(detector)


def test_nothing_is_recorded_when_both_checks_are_off():
    detector = RaceDetector(Machine(race=False, proxy=False))
    assert not detector.on
    assert detector.snapshot(np.array([0])) is None
    assert detector.issue_write(instruction("cp"), 0, 0, 64, 8) is None
    assert not accessed(detector, "write", 0, 0, 4, 1)
    assert not accessed(detector, "write", 1, 0, 4, 1)
    detector.exchange(np.array([[0, 1]]))
    detector.close_read(detector.open_read(instruction("cp"), 0, np.array([0]), 16))
    lanes, offsets = np.array([0]), np.array([0])
    detector.land_write(instruction("cp"), lanes, offsets, 16)
    assert not detector.land_engine_write(instruction("cp"), lanes, offsets, 16, offsets)
    assert detector.land_read(None, None) is None
