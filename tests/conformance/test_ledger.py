"""A ledger names known failures, and goes stale loudly."""

import pytest

from sdpakit.conformance import Ledger, Outcome, Run
from sdpakit.conformance.ledger import Entry
from sdpakit.errors import ArgumentError, ArgumentTypeError

CAUSAL = "masks.causal_random.float32"
POISON = "poison.nan_in_masked_keys.float32"
REASON = "owner/repo#123: wrong"


def run_of(**verdicts):
    outcomes = tuple(
        Outcome(target, case, verdict)
        for target, found in verdicts.items()
        for case, verdict in found.items()
    )
    return Run((), outcomes, "core", "2026-01-01T00:00:00+00:00", 1.0, {}, "machine")


def ledger(*entries):
    return Ledger(Entry(*entry) for entry in entries)


@pytest.mark.parametrize("verdict", ["fail", "error", "hang", "crash"])
def test_a_known_failure_is_expected(verdict):
    run = run_of(mine={CAUSAL: verdict})
    found = ledger(("mine", CAUSAL, REASON)).apply(run)
    assert found.expected == {("mine", CAUSAL): REASON}
    assert found.stale == ()
    assert found.outcomes == run.outcomes
    assert (run.expected, run.stale) == ({}, ())


@pytest.mark.parametrize(("verdict", "does"), [("ok", "passes"), ("refused", "refuses")])
def test_what_no_longer_fails_is_stale(verdict, does):
    found = ledger(("mine", CAUSAL, REASON)).apply(run_of(mine={CAUSAL: verdict}))
    assert found.expected == {}
    assert found.stale == (f"mine {does} {CAUSAL}, expected to fail by {CAUSAL!r}: {REASON}",)


def test_a_pattern_covers_its_cases_of_its_target_alone():
    run = run_of(
        mine={CAUSAL: "fail", "masks.dense.float32": "error", "scale.zero.float32": "fail"},
        other={CAUSAL: "fail"},
    )
    found = ledger(("mine", "masks.*", REASON)).apply(run)
    assert set(found.expected) == {("mine", CAUSAL), ("mine", "masks.dense.float32")}


def test_a_pattern_of_targets():
    run = run_of(**{"torch": {CAUSAL: "fail"}, "torch-math": {CAUSAL: "ok"}, "jax": {CAUSAL: "ok"}})
    found = ledger(("torch*", CAUSAL, REASON)).apply(run)
    assert set(found.expected) == {("torch", CAUSAL)}
    assert len(found.stale) == 1
    assert found.stale[0].startswith("torch-math passes")


def test_a_target_whose_name_holds_marks_of_patterns():
    run = run_of(**{"a[1].py:f": {CAUSAL: "fail"}})
    assert ledger(("a[1].py:f", CAUSAL, REASON)).apply(run).expected


def test_one_sentence_for_many_stale_cases():
    run = run_of(mine={f"masks.case_{n}.float32": "ok" for n in range(9)})
    (sentence,) = ledger(("mine", "masks.*", REASON)).apply(run).stale
    assert "masks.case_4.float32 and 4 more" in sentence
    assert "case_5" not in sentence


def test_an_entry_of_a_case_or_target_that_did_not_run_says_nothing():
    found = ledger(("mine", "strides.*", REASON), ("absent", CAUSAL, REASON)).apply(
        run_of(mine={CAUSAL: "ok"})
    )
    assert (found.expected, found.stale) == ({}, ())


def test_what_an_entry_that_says_nothing_is_about_is_told():
    run = run_of(mine={CAUSAL: "fail"})
    known = ledger(
        ("mine", CAUSAL, REASON),
        ("mine", "strides.*", REASON),
        ("mime", CAUSAL, REASON),
        ("x.py:attention", CAUSAL, REASON),
    )
    assert known.apply(run).stale == ()
    assert known.unused(run) == [
        "'strides.*' of 'mine': none of its cases was selected in this run",
        f"{CAUSAL!r} of 'mime': no target of this run (mine) has this name; did you mean 'mine'?",
        f"{CAUSAL!r} of 'x.py:attention': no target of this run (mine) has this name",
    ]


def test_relations_and_cases_of_the_user_have_ids_too():
    own = "mine.own.float32"
    run = run_of(mine={"relations.layouts.float32": "fail", own: "fail"})
    found = ledger(("mine", "relations.layouts.*", REASON), ("mine", own, REASON)).apply(run)
    assert len(found.expected) == 2


def test_a_pattern_that_matches_no_case_is_an_error_with_near_ids():
    with pytest.raises(ArgumentError) as caught:
        ledger(("mine", "masks.causal_randm.float32", REASON)).apply(run_of())
    assert CAUSAL in str(caught.value)
    with pytest.raises(ArgumentError, match="--list"):
        ledger(("mine", "qqqq", REASON)).apply(run_of())


def test_the_first_of_two_entries_gives_the_reason():
    found = ledger(("mine", CAUSAL, "#1 a"), ("mine", "masks.*", "#2 b")).apply(
        run_of(mine={CAUSAL: "fail"})
    )
    assert found.expected == {("mine", CAUSAL): "#1 a"}


@pytest.mark.parametrize("reason", ["owner/repo#123", "see #7", "a-b/c.d#1: text", "(#12)"])
def test_reasons_with_a_thread(reason):
    assert ledger(("mine", CAUSAL, reason)).entries[0].reason == reason


@pytest.mark.parametrize("reason", ["", "known", "#", "#0", "issue 12", "# 12"])
def test_reasons_without_a_thread_are_errors(reason):
    with pytest.raises(ArgumentError, match="number of a thread"):
        ledger(("mine", CAUSAL, reason))


def test_the_same_entry_twice_is_an_error():
    with pytest.raises(ArgumentError, match="twice"):
        ledger(("mine", CAUSAL, "#1"), ("mine", CAUSAL, "#2"))


def test_of_a_mapping():
    found = Ledger.of("mine", {CAUSAL: REASON}).apply(run_of(mine={CAUSAL: "fail"}))
    assert found.expected == {("mine", CAUSAL): REASON}


# ------------------------------------------------------------------------------------------- files


def read(tmp_path, text):
    path = tmp_path / "ledger.toml"
    path.write_text(text, encoding="utf-8")
    return Ledger.read(path)


GOOD = f'[[expected]]\ntarget = "mine"\ncases = "masks.*"\nreason = "{REASON}"\n'


def test_a_file(tmp_path):
    found = read(tmp_path, GOOD + GOOD.replace("masks", "poison"))
    assert found.entries == (
        Entry("mine", "masks.*", REASON),
        Entry("mine", "poison.*", REASON),
    )


def test_an_empty_file_expects_nothing(tmp_path):
    run = run_of(mine={CAUSAL: "fail"})
    assert read(tmp_path, "# nothing\n").apply(run) == run


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("[[expected]\n", ArgumentError, "TOML"),
        ("[expected]\n", ArgumentError, "two brackets"),
        ("[[expcted]]\n", ArgumentError, "expcted"),
        ("[[expected]]\n", ArgumentError, "entry 1"),
        (GOOD + 'since = "1"\n', ArgumentError, "since"),
        (GOOD.replace("reason", "reson"), ArgumentError, "reson"),
        (GOOD.replace('"masks.*"', "3"), ArgumentTypeError, "entry 1: cases"),
        (GOOD.replace('"masks.*"', '["masks.*"]'), ArgumentTypeError, "entry 1: cases"),
        (GOOD.replace('"mine"', '""'), ArgumentTypeError, "entry 1: target"),
        ("expected = [1]\n", ArgumentError, "entry 1"),
        (GOOD.replace("#123", ""), ArgumentError, "number of a thread"),
    ],
    ids=range(11),
)
def test_bad_files(tmp_path, text, error, part):
    with pytest.raises(error) as caught:
        read(tmp_path, text)
    assert part in str(caught.value)
    assert "remedy:" in str(caught.value)


def test_a_file_that_is_not_there_or_is_no_text(tmp_path):
    with pytest.raises(ArgumentError, match="No such file"):
        Ledger.read(tmp_path / "nowhere.toml")
    with pytest.raises(ArgumentError, match="Is a directory"):
        Ledger.read(tmp_path)
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="TOML"):
        Ledger.read(path)
