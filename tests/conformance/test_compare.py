"""Comparison and judgement notice each single thing that can be wrong."""

import numpy as np
import pytest

from sdpakit.conformance import cases, check, compare
from sdpakit.conformance.compare import Receiver
from sdpakit.conformance.intake import by_name
from sdpakit.conformance.targets.naive import Naive
from sdpakit.conformance.witness import same_bits
from sdpakit.errors import ArgumentError, SpecError, UnsupportedSpecError
from sdpakit.output import AttentionOutput

RIGHT = np.array([[1.0, -2.0], [np.nan, np.inf]])
BOUND = np.array([[1e-6, 1e-6], [np.inf, np.inf]])


def judged(got, dtype="float32", reference=RIGHT, bound=BOUND):
    return compare("out", got, reference, bound, dtype)


def test_what_is_right_passes():
    found = judged(RIGHT.astype(np.float32))
    assert (found.share, found.message) == (0.0, "")


def test_share_and_place_of_the_worst_element():
    got = RIGHT.astype(np.float32)
    got[0, 1] += np.float32(5e-6)
    found = judged(got)
    assert 4.5 < found.share < 5.5
    assert "out[0, 1]" in found.message
    assert "1 of 4 elements" in found.message
    worst = found.worst
    assert (worst.output, worst.index, worst.right, worst.bound) == ("out", (0, 1), -2.0, 1e-6)
    assert worst.got == float(got[0, 1])
    assert worst.share == found.share


def test_what_passes_has_a_worst_element_too_and_what_has_no_elements_has_none():
    assert judged(RIGHT.astype(np.float32)).worst.share == 0.0
    assert judged(np.zeros((0, 3), np.float32), reference=np.zeros((0, 3))).worst is None
    assert judged(RIGHT).worst is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((1, 0), 0.0),
        ((0, 0), np.nan),
        ((0, 0), np.inf),
        ((1, 1), -np.inf),
        ((1, 1), 3e38),
        ((1, 1), np.nan),
        ((1, 0), np.inf),
    ],
)
def test_nan_and_infinity_are_strict(place, value):
    got = RIGHT.astype(np.float32)
    got[place] = value
    found = judged(got)
    assert found.share == np.inf
    assert str(list(place)) in found.message


def test_a_bound_of_nan_lets_an_infinity_and_nan_stand_for_each_other():
    right, bound = np.array([np.inf, np.nan]), np.full(2, np.nan)
    for got in ([np.inf, np.nan], [np.nan, np.inf], [np.nan, -np.inf]):
        assert judged(np.array(got), "float64", right, bound).share == 0.0
    assert judged(np.array([1.0, np.nan]), "float64", right, bound).share == np.inf
    assert judged(np.array([np.inf, 1.0]), "float64", right, bound).share == np.inf


def test_shape_dtype_and_kind():
    assert "shape" in judged(RIGHT[0].astype(np.float32)).message
    assert "dtype float64" in judged(RIGHT).message
    assert "not an array" in judged([1.0]).message
    assert judged(np.zeros((0, 3), np.float32), reference=np.zeros((0, 3))).message == ""
    assert "dtype >f4" in judged(RIGHT.astype(">f4")).message


def test_a_masked_array_hides_nothing():
    wrong = np.ma.masked_array(np.zeros((2, 2), np.float32), mask=np.ones((2, 2), bool))
    assert judged(wrong).share == np.inf


def test_overflow_of_the_output_is_an_infinity_of_the_right_sign():
    reference, bound = np.array([70000.0, -70000.0, 65000.0]), np.full(3, 40.0)
    assert not judged(
        np.array([np.inf, -np.inf, 65000], np.float16), "float16", reference, bound
    ).message
    for wrong in ([-np.inf, -np.inf, 65000], [np.inf, -np.inf, np.inf], [65504, -np.inf, 65000]):
        assert judged(np.array(wrong, np.float16), "float16", reference, bound).message


def test_a_bound_of_nothing_asks_for_equality():
    reference, bound = np.array([2.0]), np.array([0.0])
    assert not judged(np.array([2.0]), "float64", reference, bound).message
    assert judged(np.nextafter(np.array([2.0]), 3.0), "float64", reference, bound).message


def test_a_bound_that_is_no_number_judges_nothing_but_equality():
    reference = np.array([2.0])
    for bound in (np.nan, np.inf):
        assert judged(np.array([2.5]), "float64", reference, np.array([bound])).share == np.inf
        assert judged(np.array([2.0]), "float64", reference, np.array([bound])).share == 0.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_receiver_notices_what_was_not_written_and_what_was(dtype):
    receiver = Receiver((2, 3), dtype)
    assert receiver.is_untouched()
    assert "6 of 6" in receiver.complaint("out")
    receiver.array[...] = np.nan
    assert not receiver.complaint("out")
    assert not receiver.is_untouched()
    receiver.array.base[-1] = 0
    assert "1 cells beside" in receiver.complaint("out")


def test_receiver_notices_a_guard_cell():
    for place in (0, 63, -64, -1):
        receiver = Receiver((2, 3), "float32")
        receiver.array[...] = 1.0
        receiver._bits[place] = 0
        assert "beside" in receiver.complaint("out")


def test_same_bits():
    a = np.array([0.0, np.nan, 1.0], np.float32)
    assert same_bits(a, a.copy())
    assert not same_bits(a, np.array([-0.0, np.nan, 1.0], np.float32))
    assert not same_bits(a, a.astype(np.float64))
    assert not same_bits(a, a[:2])
    assert not same_bits(a, None)


def test_results_by_name():
    out, lse = np.zeros(2), np.ones(2)
    assert by_name(out, ("out",)) == {"out": out}
    named = AttentionOutput({"out": out, "lse": lse})
    assert list(by_name(named, ("out", "lse"))) == ["out", "lse"]
    assert list(by_name({"lse": lse, "more": 0}, ("out", "lse"))) == ["lse"]


CASE = next(case for case in cases() if case.id == "masks.causal_random.float32")


class Planted(Naive):
    """A target that does one thing wrong about a call that it computes right."""

    takes_out = True

    def __init__(self, wrong):
        self.wrong = wrong

    def attention(self, spec, q, k, v, *, out=None, **operands):
        found = super().attention(spec, q, k, v, **operands)
        return self.wrong(found, out, q)


def filled(found, out):
    for name, array in (out or {}).items():
        array[...] = found[name]
    return {name: (out or {}).get(name, found[name]) for name in ("out", "lse")}


def unwritten(found, out, _q):
    kept = None if out is None else out["lse"][0, 0, 0].copy()
    result = filled(found, out)
    if out is not None:
        out["lse"][0, 0, 0] = kept
    return result


def another_array(found, out, _q):
    return {**filled(found, out), "lse": found["lse"]}


def missing(found, out, _q):
    return {"out": filled(found, out)["out"]}


def other_bits(found, out, _q):
    result = filled(found, out)
    return result if out is not None else {**result, "lse": result["lse"] + np.float32(1e-6)}


def wrote_input(found, out, q):
    q[0, 0, 0, 0] += 1
    return filled(found, out)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (unwritten, "were not written"),
        (another_array, "not what came back"),
        (missing, "lse did not come back"),
        (other_bits, "other bits in a second call"),
        (wrote_input, "q was written to"),
    ],
)
def test_judgement_notices(wrong, text):
    outcome = check(Planted(wrong), CASE)
    assert outcome.verdict == "fail"
    assert text in outcome.message
    assert CASE.id in outcome.message


def test_judgement_passes_what_is_right():
    outcome = check(Planted(lambda found, out, _q: filled(found, out)), CASE)
    assert outcome.verdict == "ok", outcome.message
    assert 0.0 < outcome.share < 1.0


class Refusing(Naive):
    def __init__(self, error):
        self.error = error

    def prepare(self, spec):
        raise self.error


def test_a_refusal_is_not_a_pass_and_another_exception_is_not_a_refusal():
    refused = check(Refusing(UnsupportedSpecError("no", {"toy": ["no"]})), CASE)
    assert (refused.verdict, refused.message) == ("refused", "no")
    assert check(Refusing(NotImplementedError("NYI")), CASE).verdict == "error"
    assert check(Refusing(SpecError("bad")), CASE).verdict == "error"


def test_refusals_ask_for_the_right_exception_with_the_right_text():
    case = next(case for case in cases() if case.id == "refusals.mask_shape.float32")
    right = "mask: got x\n  allowed: broadcasts\n  remedy: y"

    class Raising(Naive):
        bad_calls = "exact"

        def __init__(self, error):
            self.error = error

        def attention(self, spec, q, k, v, **operands):
            raise self.error

    assert check(Raising(ArgumentError(right)), case).verdict == "ok"
    assert check(Raising(ArgumentError("broadcasts")), case).verdict == "fail"
    assert check(Raising(ArgumentError("remedy: none")), case).verdict == "fail"
    assert check(Raising(IndexError(right)), case).verdict == "error"

    class Silent(Naive):
        bad_calls = "exact"

        def attention(self, spec, q, k, v, **operands):
            return {"out": np.zeros(3)}

    outcome = check(Silent(), case)
    assert (outcome.verdict, "no ArgumentError was raised" in outcome.message) == ("fail", True)
