"""Each thing that a bad target can do has its own verdict and message."""

import json
import random
import sys
import types
import warnings

import numpy as np
import pytest

from sdpakit.conformance import BaseTarget, cases, check, check_relation, collect, relations
from sdpakit.conformance.judge import concerns
from sdpakit.conformance.target import OUTPUTS, adopt, refusal
from sdpakit.conformance.targets.compiled import Compiled
from sdpakit.conformance.targets.naive import Naive
from sdpakit.errors import ArgumentTypeError

BY_ID = {case.id: case for case in cases()}
FORWARD = [case for case in cases() if not case.refuses and not case.gradients and not case.heavy]
STATISTICS = next(case for case in FORWARD if len(case.attention_spec().outputs) == 5)
CASE = BY_ID["masks.causal_random.float32"]
BAD_CALL = BY_ID["refusals.mask_shape.float32"]


class Doing(Naive):
    """Right, but for what a function makes of it."""

    name = "doing"

    def __init__(self, change=lambda found, given: found, at_prepare=lambda: None, **members):
        self.change = change
        self.at_prepare = at_prepare
        vars(self).update(members)

    def prepare(self, spec):
        self.at_prepare()
        right = super().prepare(spec)

        def attention(**given):
            operands = {name: x for name, x in given.items() if name != "out"}
            found = right(**operands)
            return self.change({name: found[name] for name in spec.outputs}, given)

        return attention


def raising(error):
    def change(*_):
        raise error

    return change


def outcome_of(change, case=CASE, **members):
    return check(Doing(change, **members), case)


def fill(found, given):
    for name, array in given.get("out", {}).items():
        array[...] = found[name]
    return {**found, **given.get("out", {})}


# ------------------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("takes_out", [False, True])
def test_what_is_right_passes_with_its_worst_element_and_time(takes_out):
    outcome = outcome_of(fill, takes_out=takes_out)
    assert (outcome.verdict, outcome.message, outcome.unjudged) == ("ok", "", ())
    assert outcome.worst.output in CASE.attention_spec().outputs
    assert outcome.worst.share == outcome.share
    assert 0.0 < outcome.share < 1.0
    assert outcome.seconds > 0.0


def test_the_worst_element_of_a_failure_is_named():
    def change(found, _given):
        found["lse"][0, 1, 3] += 1.0
        return found

    outcome = outcome_of(change)
    assert outcome.verdict == "fail"
    assert (outcome.worst.output, outcome.worst.index) == ("lse", (0, 1, 3))
    assert outcome.worst.got == pytest.approx(outcome.worst.right + 1.0)
    assert outcome.worst.share == outcome.share > 1.0


# -------------------------------------------------------------------------------- outputs not given


def test_outputs_that_a_target_does_not_give_are_unjudged():
    outcome = outcome_of(lambda found, _: found, outputs=("out",))
    assert (outcome.verdict, outcome.unjudged) == ("ok", ("lse",))


def test_the_target_is_asked_only_for_what_it_gives():
    asked = []

    class Noting(Naive):
        outputs = ("out", "entropy")

        def prepare(self, spec):
            asked.append(spec.outputs)
            return super().prepare(spec)

    assert check(Noting(), STATISTICS).verdict == "ok"
    assert asked == [("out", "entropy")]


def test_no_output_in_common_is_a_refusal():
    outcome = outcome_of(lambda found, _: found, outputs=("sum_p2",))
    assert (outcome.verdict, outcome.message) == ("refused", "doing: it gives no out, lse")


def test_a_relation_asks_only_for_what_the_target_gives():
    by_id = {relation.id: relation for relation, _ in relations()}
    only_out = Doing(outputs=("out",))
    assert check_relation(only_out, by_id["relations.permuted_keys"], "float32").verdict == "ok"
    merged = check_relation(only_out, by_id["relations.merged_parts"], "float32")
    assert (merged.verdict, merged.message) == ("refused", "doing: it gives no lse")


# --------------------------------------------------------------------------------------- exceptions


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(0), GeneratorExit(), NotImplementedError("later")]
)
def test_an_exception_is_an_error_that_says_where(error):
    text = type(error).__name__
    at_prepare = check(Doing(at_prepare=raising(error)), CASE)
    assert at_prepare.verdict == "error"
    assert at_prepare.message.startswith(f"prepare raised {text}")
    at_call = outcome_of(raising(error))
    assert at_call.verdict == "error"
    assert at_call.message.startswith(f"the call raised {text}")
    assert "test_verdicts.py:" in at_call.message


def test_the_user_may_interrupt():
    with pytest.raises(KeyboardInterrupt):
        outcome_of(raising(KeyboardInterrupt()))


def test_an_exception_without_a_text_of_its_own():
    class BrokenError(Exception):
        def __str__(self):
            raise ZeroDivisionError

    assert "BrokenError: (its text cannot be had" in outcome_of(raising(BrokenError())).message


def test_refusing_what_is_declared_is_a_failure():
    no = refusal("doing", "no causal masks")
    assert outcome_of(raising(no)).verdict == "refused"
    for members in ({"change": raising(no)}, {"at_prepare": raising(no)}):
        outcome = check(Doing(**members, declares=lambda spec: True), CASE)
        assert outcome.verdict == "fail"
        assert "refuses a spec that it declares: doing: no causal masks" in outcome.message
    assert check(Doing(raising(no), declares=lambda spec: spec.sinks), CASE).verdict == "refused"


def test_declares_may_be_broken_too():
    outcome = check(
        Doing(raising(refusal("doing", "no")), declares=raising(KeyError("declares"))), CASE
    )
    assert outcome.verdict == "error"
    assert outcome.message.startswith("declares raised KeyError")


def test_something_that_cannot_be_called_is_an_error():
    class Odd(BaseTarget):
        name = "odd"

        def prepare(self, spec):
            return None

    assert "the call raised TypeError" in check(Odd(), CASE).message


# ------------------------------------------------------------------------------------ wrong results


class OnDevice:
    """As an array of an accelerator shows itself."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise AssertionError("must not be read")


class Unreadable:
    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        raise BufferError("needs detach()")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda x: x.astype(np.float64), "out has dtype float64, right is float32"),
        (lambda x: x.astype(">f4"), "out has dtype >f4"),
        (lambda x: x.astype(np.complex128), "out has dtype complex128"),
        (lambda x: x.astype(object), "out has dtype object"),
        (lambda x: x[0], "out has shape ("),
        (lambda x: x.swapaxes(1, 2), "out has shape"),
        (lambda x: x.tolist(), "out is a list, not an array"),
        (lambda x: (x,), "out is a tuple, not an array"),
        (lambda x: x[0, 0, 0, 0], "out is a float32, not an array"),
        (lambda x: "no", "out is a str, not an array"),
        (lambda x: None, "out is None"),
        (lambda x: OnDevice(), "out is a OnDevice on the DLPack device (2, 0), not in memory"),
        (lambda x: Unreadable(), "out is a Unreadable that NumPy cannot read (needs detach())"),
    ],
)
@pytest.mark.parametrize("takes_out", [False, True])
def test_wrong_kinds_of_result(wrong, text, takes_out):
    outcome = outcome_of(lambda found, _: {**found, "out": wrong(found["out"])})
    assert outcome.verdict == "fail"
    assert text in outcome.message


def test_nothing_comes_back():
    outcome = outcome_of(lambda found, _: None)
    assert outcome.verdict == "fail"
    assert "out is None" in outcome.message
    assert "lse did not come back" in outcome.message


def test_a_missing_output():
    outcome = outcome_of(lambda found, _: {"out": found["out"]})
    assert (outcome.verdict, outcome.share) == ("fail", np.inf)
    assert outcome.message.startswith("lse did not come back")


def test_a_result_that_cannot_be_read_is_an_error():
    class Mapping(dict):
        def __getitem__(self, name):
            raise OSError("gone")

    outcome = outcome_of(lambda found, _: Mapping(found))
    assert outcome.verdict == "error"
    assert outcome.message.startswith("reading what came back raised OSError: gone")


def test_an_array_of_another_library_in_memory_of_the_cpu_is_judged():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

    wrapped = outcome_of(lambda found, _: {name: Foreign(x) for name, x in found.items()})
    assert wrapped.verdict == "ok", wrapped.message
    assert wrapped.share > 0.0


def test_tensors_of_torch_are_judged():
    torch = pytest.importorskip("torch")
    found = outcome_of(lambda found, _: {n: torch.from_numpy(x) for n, x in found.items()})
    assert found.verdict == "ok", found.message
    graded = outcome_of(
        lambda found, _: {n: torch.from_numpy(x).requires_grad_() for n, x in found.items()}
    )
    assert graded.verdict == "fail"
    assert "out is a Tensor that NumPy cannot read" in graded.message


# ------------------------------------------------------------------------- writes where it must not


@pytest.mark.parametrize("operand", ["q", "k", "v", "bias", "mask", "sinks", "q_lens", "kv_lens"])
def test_operands_are_left_alone(operand):
    case = next(c for c in FORWARD if isinstance(c.operands().get(operand), np.ndarray))

    def change(found, given):
        given[operand].reshape(-1).view(np.uint8)[:1] += 1
        return found

    outcome = outcome_of(change, case)
    assert outcome.verdict == "fail"
    assert f"{operand} was written to" in outcome.message


WITH_TABLE = next(
    case
    for case in FORWARD
    if any(isinstance(x, np.ndarray) for x in case.operands().get("params", {}).values())
)


def test_tables_are_left_alone():
    def written(found, given):
        table = next(x for x in given["params"].values() if isinstance(x, np.ndarray))
        table.reshape(-1).view(np.uint8)[:1] += 1
        return found

    def added(found, given):
        given["params"]["more"] = 1
        return found

    written_to = outcome_of(written, WITH_TABLE)
    assert written_to.verdict == "fail"
    assert "] was written to" in written_to.message
    assert "added to params=" in outcome_of(added, WITH_TABLE).message


def test_memory_beside_an_operand_is_left_alone():
    def change(found, given):
        base = given["k"]
        while base.base is not None:
            base = base.base
        base[-1] = 0.0
        return found

    assert "memory beside k was written to" in outcome_of(change).message


def test_an_operand_keeps_its_shape():
    calls = []

    def change(found, given):
        calls.append(1)
        if len(calls) == 3:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                given["q"].shape = (-1,)
        return found

    outcome = outcome_of(change)
    assert outcome.verdict == "fail"
    assert "q was given another shape" in outcome.message


def beside_out(found, given):
    for array in given.get("out", {}).values():
        array.base[-1] = 0
    return fill(found, given)


def some_of_out(found, given):
    out = given.get("out")
    if out is None:
        return found
    kept = out["out"][0, 0, 0].copy()
    result = fill(found, given)
    out["out"][0, 0, 0] = kept
    return result


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (beside_out, "1 cells beside it were written"),
        (some_of_out, "elements were not written"),
        (lambda found, given: found, "the array given as out= is not what came back"),
        (
            lambda found, given: {**fill(found, given), "lse": found["lse"]},
            "lse: the array given as out= is not what came back",
        ),
    ],
)
def test_out_is_filled_and_nothing_else(change, text):
    outcome = outcome_of(change, takes_out=True)
    assert outcome.verdict == "fail"
    assert text in outcome.message


# -------------------------------------------------------------------------------------------- state


def test_other_bits_in_a_second_call():
    noise = iter(np.arange(1, 99, dtype=np.float32))

    def change(found, _given):
        return {**found, "lse": found["lse"] + np.float32(1e-7) * next(noise)}

    outcome = outcome_of(change)
    assert outcome.verdict == "fail"
    assert "lse has other bits in a second call" in outcome.message


def test_a_result_remembered_from_another_call():
    first = {}
    outcome = outcome_of(lambda found, _: first.setdefault("kept", found))
    assert outcome.verdict == "fail"
    assert "out has the bits of an earlier call" in outcome.message


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_what_a_program_gives_for_any_operands_is_not_called_an_earlier_result(value):
    outcome = outcome_of(lambda found, _: {n: np.full_like(x, value) for n, x in found.items()})
    assert outcome.verdict == "fail"
    assert "out[" in outcome.message
    assert "earlier call" not in outcome.message


def test_memory_of_a_result_used_again():
    memory = {}

    def change(found, _given):
        for name, x in found.items():
            memory.setdefault(name, np.empty_like(x))[...] = x
        return dict(memory)

    outcome = outcome_of(change)
    assert outcome.verdict == "fail"
    assert "out of an earlier call was changed by a later one" in outcome.message


def test_memory_given_as_out_is_let_go_of():
    kept = {}

    def change(found, given):
        kept.update(given.get("out", {}))
        return fill(found, {"out": kept} if kept else {})

    outcome = outcome_of(change, takes_out=True)
    assert outcome.verdict == "fail"
    assert "the array given as out= was written to by a later call" in outcome.message


def test_sums_that_go_on_from_call_to_call():
    memory = {}

    def change(found, _given):
        memory["out"] = memory.get("out", 0) + found["out"]
        return {**found, "out": memory["out"]}

    assert outcome_of(change).verdict == "fail"


# ---------------------------------------------------------------------------- what it leaves behind


def test_what_a_target_disturbs_is_put_right(capsys):
    def change(found, _given):
        sys.stdout.write("{not json")
        np.seterr(all="raise")
        np.random.seed(1)  # noqa: NPY002 - the global state
        random.seed(1)
        warnings.simplefilter("error")
        warnings.showwarning = None
        return found

    with warnings.catch_warnings():
        before = (np.geterr(), random.getstate(), list(warnings.filters), warnings.showwarning)
        numbers = np.random.get_state()  # noqa: NPY002 - the global state
        outcome = outcome_of(change)
        after = (np.geterr(), random.getstate(), list(warnings.filters), warnings.showwarning)
        assert (outcome.verdict, after) == ("ok", before)
        assert np.array_equal(np.random.get_state()[1], numbers[1])  # noqa: NPY002
    shown = capsys.readouterr()
    assert (shown.out, "{not json" in shown.err) == ("", True)


def test_what_is_printed_does_not_mix_with_a_report(capsys):
    outcome = outcome_of(lambda found, _: sys.stdout.write("x") and found)
    sys.stdout.write(json.dumps({"verdict": outcome.verdict}))
    assert json.loads(capsys.readouterr().out) == {"verdict": "ok"}


def test_stdout_put_elsewhere_is_put_back():
    before = sys.stdout

    def change(found, _given):
        sys.stdout = None
        return found

    assert outcome_of(change).verdict == "ok"
    assert sys.stdout is before


def test_warnings_are_no_failures():
    def change(found, _given):
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        np.float32(1) / np.float32(0)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome_of(change).verdict == "ok"


# ---------------------------------------------------------------------------------------- bad calls


class Refusing(BaseTarget):
    """Raises."""

    name = "refusing"

    def __init__(self, error, at, **members):
        self.error = error
        self.at = at
        vars(self).update(members)

    def prepare(self, spec):
        if self.at == "prepare":
            raise self.error
        return raising_at_call(self.error)


def raising_at_call(error):
    def attention(**_):
        raise error

    return attention


def refusing(error, bad_calls, at="call", **members):
    return Refusing(error, at, bad_calls=bad_calls, **members)


@pytest.mark.parametrize("error", [ValueError("shapes"), TypeError("kinds")])
def test_a_foreign_target_refuses_a_bad_call_by_any_built_in_exception(error):
    assert check(refusing(error, "builtin"), BAD_CALL).verdict == "ok"
    exact = check(refusing(error, "exact"), BAD_CALL)
    assert exact.verdict == "error"
    assert "in place of ArgumentError" in exact.message


def test_other_exceptions_and_none_are_no_refusals_of_a_foreign_target():
    other = check(refusing(IndexError("list"), "builtin"), BAD_CALL)
    assert other.verdict == "error"
    assert "in place of a ValueError or TypeError from the call" in other.message
    at_prepare = check(refusing(ValueError("x"), "builtin", at="prepare"), BAD_CALL)
    assert at_prepare.verdict == "error"

    class Silent(BaseTarget):
        name = "silent"

        def prepare(self, spec):
            return lambda **_: None

    silent = check(Silent(), BAD_CALL)
    assert silent.verdict == "fail"
    assert "no ValueError or TypeError from the call was raised" in silent.message


def test_a_refusal_before_the_bad_call_says_nothing_of_it():
    no = refusal("doing", "no dense masks")
    assert check(refusing(no, "builtin", at="prepare"), BAD_CALL).verdict == "refused"
    declared = check(refusing(no, "builtin", declares=lambda spec: True), BAD_CALL)
    assert declared.verdict == "fail"


def test_a_target_that_checks_no_calls_is_not_asked():
    outcome = check(refusing(AssertionError(), "unchecked"), BAD_CALL)
    assert (outcome.verdict, outcome.message) == ("refused", "refusing: it does not check calls")


def test_out_is_not_given_to_a_target_that_takes_none():
    outcome = check(refusing(AssertionError(), "builtin"), BY_ID["refusals.out_shape.float32"])
    assert (outcome.verdict, outcome.message) == ("refused", "refusing: it takes no out=")


class WritesFirst(BaseTarget):
    """Writes, and then refuses."""

    name = "writes first"
    takes_out = True

    def __init__(self, where):
        self.where = where

    def prepare(self, spec):
        def attention(q, out, **_):
            (q if self.where == "q" else out["out"])[...] = 0.0
            raise ValueError("too late")

        return attention


@pytest.mark.parametrize(("where", "text"), [("q", "q was"), ("out", "out=out was")])
def test_nothing_is_written_before_a_refusal(where, text):
    outcome = check(WritesFirst(where), BAD_CALL)
    assert outcome.verdict == "fail"
    assert f"{text} written to" in outcome.message


def test_cases_about_the_spec_concern_sdpakit_alone():
    case = BY_ID["refusals.scale_nan.float32"]
    assert case.about_spec
    assert not concerns(Doing(), case)
    assert concerns(Doing(), CASE)
    assert concerns(Compiled("interp"), case)
    assert check(Compiled("interp"), case).verdict == "ok"
    asked = check(Doing(at_prepare=raising(AssertionError())), case)
    assert (asked.verdict, asked.asked) == ("refused", False)
    assert "about AttentionSpec" in asked.message


def test_a_run_leaves_out_what_does_not_concern_its_target():
    about_spec, about_call = "refusals.scale_nan.float32", BAD_CALL.id
    foreign = collect([Doing(bad_calls="builtin")], ids=[about_spec, about_call])
    assert [outcome.case for outcome in foreign.outcomes] == [about_call]
    own = collect([Compiled("interp")], ids=[about_spec, about_call])
    assert [outcome.verdict for outcome in own.outcomes] == ["ok", "ok"]


@pytest.mark.parametrize("case", [case for case in cases() if case.refuses], ids=lambda c: c.id)
def test_cases_are_about_the_spec_exactly_where_the_spec_refuses(case):
    if case.about_spec:
        with pytest.raises(ValueError, match="remedy"):
            case.attention_spec()
    else:
        case.attention_spec()


# ----------------------------------------------------------------------------------------- adoption


def test_an_object_with_a_name_and_prepare_alone_is_judged():
    plain = types.SimpleNamespace(name="plain", prepare=Naive().prepare)
    outcome = check(plain, CASE)
    assert (outcome.target, outcome.verdict) == ("plain", "ok")
    adopted = adopt(plain)
    assert (adopted.outputs, adopted.takes_out, adopted.note) == (OUTPUTS, False, "")
    assert not adopted.declares(CASE.attention_spec())


def test_what_an_object_has_is_kept_and_a_name_is_found():
    class Partial:
        outputs = ("out",)
        prepare = Naive().prepare

        def declares(self, spec):
            return True

    adopted = adopt(Partial())
    assert (adopted.name, adopted.outputs) == ("Partial", ("out",))
    assert adopted.declares(CASE.attention_spec())


def test_a_complete_target_is_itself():
    target = Naive()
    assert adopt(target) is target


@pytest.mark.parametrize(("given", "text"), [(3, "int"), (Naive, "the class Naive")])
def test_what_cannot_be_judged_is_said(given, text):
    with pytest.raises(ArgumentTypeError, match=text):
        check(given, CASE)
