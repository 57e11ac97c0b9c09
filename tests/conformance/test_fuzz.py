"""The fuzzer: it finds planted faults, shrinks them, and what it prints is the same case again."""

import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import sdpakit as sk
from sdpakit.conformance import builtin_targets, check
from sdpakit.conformance.fuzz import Hostile, Operands
from sdpakit.conformance.fuzz.differential import split
from sdpakit.conformance.fuzz.features import Known, Learned, features, kind
from sdpakit.conformance.fuzz.paste import paste
from sdpakit.conformance.fuzz.search import Finding, Search, search
from sdpakit.conformance.fuzz.session import fuzz
from sdpakit.conformance.fuzz.strategies import cases
from sdpakit.conformance.inputs import Draw
from sdpakit.conformance.model import Case, Shape
from sdpakit.conformance.targets.function import FunctionTarget
from sdpakit.conformance.targets.naive import Naive
from sdpakit.errors import ArgumentError
from sdpakit.logits import Alibi
from sdpakit.masks import Causal, Dense

TARGETS = builtin_targets()
NOTHING = frozenset()
FEW = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class NoCap(Naive):
    name = "no_cap"

    def attention(self, spec, q, k, v, **operands):
        made = object.__new__(type(spec))
        for field in dataclasses.fields(spec):
            value = None if field.name == "softcap" else getattr(spec, field.name)
            object.__setattr__(made, field.name, value)
        return super().attention(made, q, k, v, **operands)


def pasted(source):
    """Run a pasted program; return the case that it makes."""
    names = {}
    exec(source.split("print(")[0], names)
    return names["case"]


@pytest.mark.parametrize(("backend", "examples"), [("interp", 60), ("numba_cpu", 12)])
def test_random_specs(backend, examples):
    @settings(FEW, max_examples=examples)
    @given(cases())
    def judge(case):
        outcome = check(TARGETS[backend], case)
        assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}\n{paste(case)}"

    judge()


@pytest.mark.parametrize("target", ["naive", "reference"])
def test_random_gradients(target):
    @settings(FEW)
    @given(cases(gradients=True))
    def judge(case):
        outcome = check(TARGETS[target], case)
        assert outcome.verdict == "ok", f"{outcome.verdict}: {outcome.message}\n{paste(case)}"

    judge()


def test_every_packing_is_drawn_and_some_entries_are_long_enough_to_decode():
    drawn, longest = set(), []

    @settings(FEW, max_examples=120)
    @given(cases())
    def collect(case):
        drawn.update(features(case))
        longest.append(max(case.operands().get("kv_lens", [0]), default=0))

    collect()
    assert {"layout thd", "layout bshd", "paged", "batch_invariant"} <= drawn
    assert max(longest) >= 128


@pytest.mark.parametrize(
    ("thd", "page_size"), [(True, 0), (True, 1), (True, 7), (False, 1), (False, 7)]
)
def test_a_packed_recipe_has_the_keys_and_rows_of_the_padded_one(thd, page_size):
    shape = Shape(3, 4, 2, 9, 30, 8)
    padded = Operands(q_lens=thd, kv_lens=True)(Draw(shape, "float32", 7))
    spec = sk.AttentionSpec(
        q_heads=4, kv_heads=2, head_dim=8, outputs=("lse",), q_lens=thd, kv_lens=True
    )
    packed = Operands(thd=thd, page_size=page_size)(Draw(shape, "float32", 7))
    paged, layout = page_size > 0, "thd" if thd else "bhsd"
    other = spec.replace(layout=layout, q_lens=False, kv_lens=paged, paged=paged)
    if thd:
        packed["q"] = packed["q"][0].swapaxes(0, 1)
        if not paged:
            packed |= {name: packed[name][0].swapaxes(0, 1) for name in "kv"}
    whole = sk.reference.attention(spec, **padded)["lse"]
    found = sk.reference.attention(other, **packed)["lse"]
    if thd:
        lengths = padded["q_lens"]
        whole = np.concatenate([x[:, :n].T for x, n in zip(whole, lengths, strict=True)])
        assert np.isneginf(found[len(whole) :]).all()
        found = found[: len(whole)]
    np.testing.assert_allclose(found, whole, rtol=1e-13)


@settings(FEW)
@given(cases())
def test_a_pasted_case_is_the_same_case(case):
    again = pasted(paste(case))
    assert (again.id, again.shape, again.bound) == (case.id, case.shape, case.bound)
    assert again.attention_spec() == case.attention_spec()
    first, second = case.operands(), again.operands()
    assert first.keys() == second.keys()
    for name, value in flat(first).items():
        other = flat(second)[name]
        assert value.tobytes() == other.tobytes()
        assert value.strides == other.strides


def flat(operands):
    return {**operands, **operands.get("params", {}), "params": np.zeros(0)}


def test_a_fault_is_found_and_shrunk():
    found = search([NoCap()], seconds=120, hostile=False, most=1)
    assert found.finding is not None
    assert "fail" in found.finding.message
    assert "(" not in found.finding.message.splitlines()[-1]  # nobody knows which rule it broke
    case = pasted(found.finding.source)
    assert check(NoCap(), case).verdict == "fail"
    assert check(Naive(), case).verdict == "ok"
    assert case.shape.batch * case.shape.q_heads * case.shape.q_len == 1
    assert case.spec["mask"] is None
    assert case.spec["softcap"] == 2.0


def test_the_same_seed_gives_the_same_finding():
    first, second = (
        search([NoCap()], seconds=120, first_seed=3, hostile=False, most=1) for _ in "ab"
    )
    assert first.finding == second.finding


class TwiceWrong(Naive):
    """Divides by the number of keys, and gives `out` no width where there are lengths.

    Not so where rows are packed or keys paged, which have shapes of their own.
    """

    name = "twice_wrong"

    def attention(self, spec, q, k, v, **operands):
        if spec.layout == "thd" or spec.paged:
            return super().attention(spec, q, k, v, **operands)
        if k.shape[2 if spec.layout == "bhsd" else 1] == 0:
            raise ZeroDivisionError("by no keys")
        found = super().attention(spec, q, k, v, **operands)
        return {**found, "out": found["out"][..., :0]} if spec.kv_lens else found


def test_one_finding_does_not_hide_others():
    found = search([TwiceWrong()], seconds=250, first_seed=1, hostile=False, most=2)
    kinds = {finding.known.kind: finding.features for finding in found.findings}
    assert len(kinds) == 2
    error, shape = sorted(kinds)
    assert error.startswith("error: the call raised ZeroDivisionError")
    assert kinds[error] == {"kv_len 0"}
    assert shape.startswith("fail: out has shape (#, #, #, #), right is")
    assert kinds[shape] == {"kv_lens"}
    for finding in found.findings:
        assert check(TwiceWrong(), pasted(finding.source)).verdict in ("fail", "error")


def test_a_known_failure_is_no_finding():
    known = [Known("error: the call raised RuntimeError: out of paper (test_fuzz.py:#)", NOTHING)]
    assert search([Raising()], seconds=3, hostile=False, known=known).findings == []
    wrong = search([NoCap()], seconds=120, hostile=False, known=known, most=1)
    assert wrong.finding is not None


def test_a_finding_takes_the_place_of_those_that_are_only_it_and_more():
    state = Search()
    for number, some in enumerate(({"a", "b"}, {"c"}, {"a"}, {"d"})):
        state.add(Finding(f"fail: {number}", "", frozenset(some)))
    state.add(Finding("error: 1", "", frozenset({"a", "b"})))
    assert [sorted(finding.features) for finding in state.findings] == [
        ["c"],
        ["a"],
        ["d"],
        ["a", "b"],
    ]


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "fail: out[0, 12] = -0.5, right is 1.5e-07, 3 times; 4 of 5 are wrong\n  fuzz.1",
            "fail: out[#, #] = #, right is #, # times",
        ),
        ("fail: out[0] = nan, right is inf", "fail: out[#] = nan, right is inf"),
        ("error: x (a.py:3)", "error: x (a.py:#)"),
    ],
)
def test_failures_are_alike_but_for_their_numbers(message, wanted):
    assert kind(message) == wanted


def test_features_of_a_case():
    spec = {
        "dtype": "float16",
        "softcap": 2.0,
        "mask": ~(Causal("top_left") & Dense()),
        "logits": Alibi("slopes", "offset"),
        "sinks": True,
        "kv_lens": False,
        "empty_row": "zero",
    }
    recipe = Operands(hostile=(Hostile("v", math.nan),), order="bshd")
    case = dataclasses.replace(CASE, spec=spec, shape=Shape(kv_len=0), recipe=recipe)
    joined = {"mask", "mask Not", "mask And", "mask Causal top_left", "mask Dense"}
    assert features(case) == joined | {
        "dtype float16",
        "softcap",
        "logits Alibi offset",
        "sinks",
        "kv_len 0",
        "hostile v",
        "order bshd",
    }
    assert features(CASE) == frozenset()


def plain_only(q, k, v):
    """Plain attention, which can be told nothing."""
    spec = sk.AttentionSpec(
        q_heads=q.shape[1],
        kv_heads=k.shape[1],
        head_dim=q.shape[3],
        v_head_dim=v.shape[3],
        dtype=q.dtype.name,
    )
    return Naive().prepare(spec)(q, k, v)["out"]


def test_what_a_target_refuses_is_drawn_less():
    found = search([FunctionTarget(plain_only)], seconds=8, hostile=False)
    assert not found.findings
    assert found.tried >= 100, "this machine is too slow to learn anything"
    assert found.judged >= 0.3 * found.tried


def test_what_is_refused_is_left_out_and_let_in_again():
    learned = Learned()
    for name in ("softcap", "scale"):
        for _ in range(3):
            given = dataclasses.replace(CASE, spec={"dtype": "float32", name: 2.0})
            learned.add(given, refused=True)
    assert learned.without(1) | learned.without(2) == {"dtype float32", "softcap", "scale"}
    learned.add(CASE, refused=False)  # what is judged once is not left out
    assert {learned.without(1), learned.without(2)} == {
        frozenset({"scale"}),
        frozenset({"softcap"}),
    }
    assert learned.without(8) == frozenset()


@settings(FEW)
@given(cases(without=frozenset({"softcap", "mask Causal offset", "dtype float16", "mask Or"})))
def test_features_that_are_left_out_are_not_drawn(case):
    assert not features(case) & {"softcap", "mask Causal offset", "dtype float16", "mask Or"}


def test_nothing_is_found_where_nothing_is_wrong():
    found = search([TARGETS["reference"]], seconds=3)
    assert found.finding is None
    assert found.tried > 0


def test_the_clock_ends_the_search():
    assert search([TARGETS["reference"]], seconds=0.0).tried == 0


class Renamed(Naive):
    def __init__(self, name):
        self.name = name


def test_several_targets_are_held_against_each_other():
    found = search(
        [Renamed("a"), Renamed("b"), Renamed("c"), NoCap()], seconds=120, hostile=False, most=1
    )
    assert found.finding is not None
    message = found.finding.message
    assert "out splits 3 to 1" in message
    assert "a, b, c, (the reference)" in message
    assert "no_cap: 1 of 1 elements differ" in message


CASE = Case(id="fuzz.one", rules=(), catches="", shape=Shape(), spec={"dtype": "float32"})


class Raising(Naive):
    name = "raising"

    def attention(self, spec, q, k, v, **operands):
        raise RuntimeError("out of paper")


class Wide(Naive):
    name = "wide"

    def attention(self, spec, q, k, v, **operands):
        found = super().attention(spec, q, k, v, **operands)
        return {name: np.concatenate([x, x], axis=-1) for name, x in found.items()}


def test_what_the_sides_of_a_split_say():
    assert split([Naive(), Renamed("b")], CASE).message == ""
    assert "raising: raised RuntimeError: out of paper" in split([Naive(), Raising()], CASE).message
    assert "wide: shape (1, 2, 5, 16), not (1, 2, 5, 8)" in split([Naive(), Wide()], CASE).message
    assert split([Raising(), Raising()], CASE).message == ""  # both on one side


def test_hostile_values_land_where_they_are_told():
    shape = Shape(q_len=6, kv_len=9)
    made = Operands(hostile=(Hostile("k", math.nan, 1, whole_rows=True),))(
        Draw(shape, "float32", 1)
    )
    assert np.isnan(made["k"]).all(axis=-1).sum() == 1
    assert np.isnan(made["k"]).sum() == shape.head_dim
    made = Operands(hostile=(Hostile("v", math.inf, 2),))(Draw(shape, "float32", 1))
    assert 1 <= np.isinf(made["v"]).sum() <= 2
    assert not np.isnan(made["q"]).any()


SLEEPY = """
import os, time
from sdpakit.conformance.targets.naive import Naive

class Sleeps(Naive):
    name = "sleeps"
    def attention(self, *given, **operands):
        time.sleep(60)

class Dies(Naive):
    name = "dies"
    def attention(self, *given, **operands):
        os._exit(7)

class LeavesAChild(Naive):  # which holds the pipe to the kit open
    name = "leaves_a_child"
    def attention(self, *given, **operands):
        if os.fork() == 0:
            time.sleep(100)
        os._exit(7)

class ComesBackTwice(Naive):
    name = "comes_back_twice"
    def attention(self, *given, **operands):
        os.fork()
        return super().attention(*given, **operands)

class DiesOrErrs(Naive):
    name = "dies_or_errs"
    def attention(self, spec, *given, **operands):
        if spec.softcap is not None and spec.kv_lens:
            os._exit(7)
        if spec.sinks:
            raise RuntimeError("no sinks")
        return super().attention(spec, *given, **operands)

class Segfaults(Naive):
    name = "segfaults"
    def attention(self, *given, **operands):
        import ctypes
        ctypes.string_at(0)
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [("Sleeps", "hang: no answer within"), ("Dies", "status 7"), ("Segfaults", "SIGSEGV")],
)
def test_a_hang_and_a_death_are_findings(tmp_path, name, says):
    file = tmp_path / "bad.py"
    file.write_text(SLEEPY)
    found = fuzz([f"{file}:{name}"], seconds=5, time_limit=2.0)
    assert found.finding is not None
    assert says in found.finding.message
    assert pasted(found.finding.source.split("print(")[0]).id.startswith("fuzz.")


def test_a_death_is_seen_although_a_child_holds_the_pipe(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(SLEEPY)
    began = time.monotonic()
    found = fuzz([f"{file}:LeavesAChild"], seconds=5, time_limit=60.0)
    assert "status 7" in found.finding.message
    assert time.monotonic() - began < 50


def test_a_fork_that_comes_back_says_nothing(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(SLEEPY)
    found = fuzz([f"{file}:ComesBackTwice"], seconds=2, time_limit=60.0)
    assert found.findings == []
    assert found.judged > 0


def test_a_death_hides_nothing_that_another_process_finds(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(SLEEPY)
    found = fuzz([f"{file}:DiesOrErrs"], seconds=60, time_limit=60.0, hostile=False, most=2)
    kinds = [finding.known.kind for finding in found.findings]
    assert "crash: the process ended with status # (the case is not shrunk)" in kinds
    assert "error: the call raised RuntimeError: no sinks (bad.py:#)" in kinds


def test_a_target_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="no_such_target"):
        fuzz(["no_such_target"], seconds=1)
