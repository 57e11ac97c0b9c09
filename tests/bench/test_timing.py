import pytest
from bench.calm import Probe
from bench.timing import (
    PATIENCE,
    SLOW_ROUNDS,
    Plan,
    Sample,
    measure,
    paired_ratio,
    spread,
    typical_seconds,
)


def sample(number, cpu, wall=None, foreign=0.0, slowdown=1.0):
    return Sample(number, 1, cpu if wall is None else wall, cpu, foreign, 0.0, slowdown)


def test_spread_is_median_and_quartiles():
    found = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)
    assert spread([7.0]).low == spread([7.0]).high == 7.0


def test_one_thread_is_judged_by_processor_time_and_several_by_wall_time():
    samples = [sample(n, cpu=1.0, wall=3.0) for n in range(3)]
    assert typical_seconds(samples, Plan(threads=1)) == 1.0
    assert typical_seconds(samples, Plan(threads=2)) == 3.0


def test_wall_samples_of_busy_moments_do_not_count():
    samples = [sample(0, 1.0, foreign=0.0), sample(1, 9.0, foreign=0.9)]
    assert typical_seconds(samples, Plan(threads=2)) == 1.0
    assert typical_seconds(samples, Plan(threads=1)) == 5.0
    assert typical_seconds(samples[1:], Plan(threads=2)) is None


def test_ratios_are_paired_by_round():
    # The processor gets slower on the way: the ratio stays 2, that of medians would not.
    ours = [sample(n, 1.0 if n < 2 else 2.0) for n in range(5)]
    peer = [sample(n, 2.0 if n < 2 else 4.0) for n in range(5)]
    assert paired_ratio(peer[:3], ours, Plan()) == spread([2.0])
    assert paired_ratio(peer, ours, Plan()) == spread([2.0] * 5)
    assert paired_ratio([], ours, Plan()) is None


def test_every_call_is_sampled_in_every_round_in_turning_order():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    samples = measure(calls, Plan(rounds=3, sample_seconds=1e-9))
    assert {name: [s.round for s in found] for name, found in samples.items()} == {
        name: [0, 1, 2] for name in "abc"
    }
    assert "".join(order[-18:]) == "aabbccbbccaaccaabb"  # each warmed up


def test_slow_calls_are_sampled_in_fewer_rounds(monkeypatch):
    monkeypatch.setattr("bench.timing.SLOW_SECONDS", 0.0)
    samples = measure({"slow": lambda: None}, Plan(rounds=SLOW_ROUNDS + 4, sample_seconds=1e-9))
    assert len(samples["slow"]) == SLOW_ROUNDS


def test_a_sample_divides_by_its_calls():
    (found,) = measure({"call": lambda: sum(range(20_000))}, Plan(rounds=1, sample_seconds=0.02))[
        "call"
    ]
    assert found.calls > 1
    assert found.cpu * found.calls == pytest.approx(0.02, rel=0.9)


def test_rounds_go_on_while_too_few_samples_are_quiet(monkeypatch):
    busy = iter(range(1000))
    monkeypatch.setattr("bench.timing._machine_seconds", lambda: (float(next(busy)), 0.0))
    samples = measure({"call": lambda: None}, Plan(threads=2, rounds=4, sample_seconds=1e-9))
    assert len(samples["call"]) == 4 * PATIENCE
    assert typical_seconds(samples["call"], Plan(threads=2)) is None


def test_samples_with_a_neighbour_on_the_core_do_not_count_where_three_have_none():
    calm = [sample(n, 1.0) for n in range(3)]
    disturbed = [sample(n, 2.0, slowdown=1.7) for n in range(3, 9)]
    assert typical_seconds(calm + disturbed, Plan()) == 1.0
    assert typical_seconds(calm[:2] + disturbed, Plan()) == 2.0


def test_ratios_take_rounds_in_which_neither_was_disturbed():
    ours = [sample(n, 2.0 if n == 4 else 1.0, slowdown=1.7 if n == 4 else 1.0) for n in range(5)]
    peer = [sample(n, 4.0 if n == 3 else 2.0, slowdown=1.7 if n == 3 else 1.0) for n in range(5)]
    assert paired_ratio(peer, ours, Plan()) == spread([2.0] * 3)
    few = paired_ratio(peer[2:], ours[2:], Plan())  # one round is left: all of them count
    assert few == spread([2.0, 4.0, 1.0])


def test_ratios_take_undisturbed_samples_of_other_rounds_where_pairs_are_few():
    ours = [sample(n, 1.0 if n < 4 else 3.0, slowdown=1.0 if n < 4 else 1.7) for n in range(8)]
    peer = [sample(n, 5.0 if n < 4 else 2.0, slowdown=1.7 if n < 4 else 1.0) for n in range(8)]
    assert paired_ratio(peer, ours, Plan()) == spread([2.0] * 4)


def test_rounds_go_on_while_neighbours_disturb(monkeypatch, alone):
    monkeypatch.setattr(alone, "slowdown", lambda self: 1.7)
    samples = measure({"call": lambda: None}, Plan(rounds=4, sample_seconds=1e-9))
    assert len(samples["call"]) == 4 * PATIENCE
    assert {s.slowdown for s in samples["call"]} == {1.7}


def test_the_probe_waits_for_the_core_and_gives_up(monkeypatch):
    monkeypatch.setattr("bench.calm.WAIT_SECONDS", 0.05)
    probe = Probe()
    slowdowns = iter([1.9, 1.6, 1.02])
    monkeypatch.setattr(probe, "slowdown", lambda: next(slowdowns))
    assert probe.wait() == 1.02
    monkeypatch.setattr(probe, "slowdown", lambda: 1.9)
    assert probe.wait() == 1.9
