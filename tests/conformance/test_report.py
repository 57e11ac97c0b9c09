"""Reports: a run survives JSON, shows in any width, and becomes one page that nothing can enter."""

import dataclasses
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from sdpakit.conformance import cases, check, report
from sdpakit.conformance.cases import FAMILIES
from sdpakit.conformance.model import Outcome, Run, TargetInfo, Worst
from sdpakit.conformance.report import facts
from sdpakit.conformance.rules import RULES, rule_text
from sdpakit.conformance.selection import select
from sdpakit.conformance.targets.naive import Naive
from sdpakit.errors import ArgumentError

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m[bold]&amp;{{data}}\u2028\u202e"


def run_of(*outcomes, **fields):
    names = dict.fromkeys(outcome.target for outcome in outcomes)
    filled = {
        "targets": tuple(TargetInfo(name, {"numpy": "2.4"}, "as it is") for name in names),
        "outcomes": outcomes,
        "level": "core",
        "started": "2026-03-01T12:00:00Z",
        "seconds": 1.5,
        "versions": {"sdpakit": "0.1.0", "Python": "3.11"},
        "machine": "x86_64, Linux",
    }
    return Run(**{**filled, **fields})


def outcome(case, verdict="ok", target="mine", **fields):
    return Outcome(target, case, verdict, **fields)


WORST = Worst("out", (0, 1, 2, 3), math.nan, -math.inf, 1e-6, math.inf)
CAUSAL = "masks.causal_top_left_rectangle.float32"
MIXED = run_of(
    outcome(CAUSAL, "fail", share=math.inf, message="out is wrong", worst=WORST),
    outcome("masks.true_attends.float32", share=0.25, unjudged=("lse", "entropy"), seconds=0.125),
    outcome("scale.zero.float32", "refused", message="mine: it has no scale", asked=False),
    outcome("scale.two.float32", "error", message="TypeError: no"),
    outcome("sinks.share_of_a_quarter.float32", "hang", message="no answer in 60 s"),
    outcome("softcap.applied.float32", "crash", message="signal 11"),
    outcome("bias.of_float32.float32", "fail", share=3.0, message="too far"),
    outcome(CAUSAL, share=0.5, target="other"),
    expected={("mine", "bias.of_float32.float32"): "rounds the bias, owner/repo#12"},
    stale=("mine: masks.gone matches no case",),
)


def printed(run, width=80, **fields):
    console = Console(file=io.StringIO(), width=width)
    console.print(report.terminal(run, **fields))
    return console.file.getvalue()


# -------------------------------------------------------------------------------------------- JSON


def through_json(run):
    return report.from_json(json.loads(json.dumps(report.to_json(run), allow_nan=False)))


def test_a_run_comes_back_from_json_as_it_was():
    back = through_json(MIXED)
    assert repr(back) == repr(MIXED)  # NaN equals itself here
    assert back.outcomes[1:] == MIXED.outcomes[1:]


def test_a_judged_run_comes_back():
    by_id = {case.id: case for case in cases("core")}
    run = run_of(
        check(Naive(), by_id[CAUSAL]), check(Naive(), by_id["refusals.width_of_k.float32"])
    )
    assert through_json(run) == run


@pytest.mark.parametrize("value", [0.1, 5e-324, 1.7976931348623157e308, -0.0, math.inf, -math.inf])
def test_numbers_keep_every_bit(value):
    back = through_json(run_of(outcome("a.b.float32", share=value)))
    assert math.copysign(1, back.outcomes[0].share) == math.copysign(1, value)
    assert back.outcomes[0].share == value


def fields_of(kind):
    return {field.name for field in dataclasses.fields(kind)}


def test_the_schema_has_the_fields_of_the_model():
    schema = report.schema()
    defs = schema["$defs"]
    for kind, described in (
        (Outcome, defs["outcome"]),
        (Worst, defs["worst"]),
        (TargetInfo, defs["target"]),
    ):
        assert set(described["properties"]) == set(described["required"]) == fields_of(kind)
    assert set(schema["properties"]) == fields_of(Run) | {"format", "version"}
    assert schema["properties"]["version"]["const"] == report.SCHEMA_VERSION


def test_reports_obey_the_schema():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(report.schema())
    jsonschema.validate(report.to_json(MIXED), report.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report.to_json(MIXED), "seconds": "long"}, report.schema())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "junit"}, "report, format: got junit"),
        ({"version": 2}, "version: got 2\n.*\n.*the sdpakit that wrote it"),
        ({"version": True}, "version: got True"),
        ({"version": "1"}, "version: got 1"),
        ({"level": "deep"}, "level: got deep\n  allowed: core, full, stress"),
        ({"seconds": "long"}, "seconds: got long"),
        ({"seconds": 10**400}, "seconds: got 1000"),
        ({"versions": {"numpy": 2}}, "versions: got .*\n  allowed: an object of strings"),
        ({"targets": {}}, "targets: got {}\n  allowed: a list of objects"),
        ({"targets": ["naive"]}, r"targets\[0\]: got naive\n  allowed: an object"),
        ({"outcomes": [{}]}, r"outcomes\[0\].target: got nothing\n  allowed: a string"),
        ({"stale": [1]}, "stale: got .*\n  allowed: a list of strings"),
        ({"more": 1}, "report, more: got a field of this name"),
    ],
)
def test_what_is_no_report_is_refused(change, match):
    with pytest.raises(ArgumentError, match=match):
        report.from_json({**report.to_json(MIXED), **change})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"verdict": "fine"}, r"outcomes\[0\].verdict: got fine"),
        ({"share": None}, r"outcomes\[0\].share: got None"),
        ({"share": False}, r"outcomes\[0\].share: got False"),
        ({"asked": 1}, r"outcomes\[0\].asked: got 1"),
        ({"worst": 3}, r"outcomes\[0\].worst: got 3"),
        ({"worst": {"output": "out"}}, r"outcomes\[0\].worst.index: got nothing"),
        ({"more": 1}, r"outcomes\[0\].more: got a field"),
    ],
)
def test_an_outcome_that_does_not_fit_is_refused(change, match):
    data = report.to_json(MIXED)
    data["outcomes"][0] = {**data["outcomes"][0], **change}
    with pytest.raises(ArgumentError, match=match):
        report.from_json(data)


@pytest.mark.parametrize("data", [None, [], "run", {}, 3])
def test_other_json_is_refused(data):
    with pytest.raises(ArgumentError, match="report, format"):
        report.from_json(data)


# ------------------------------------------------------------------------------------------- files


def test_files_by_suffix(tmp_path):
    report.write(MIXED, tmp_path / "run.json")
    report.write(MIXED, tmp_path / "run.html")
    assert repr(report.read(tmp_path / "run.json")) == repr(MIXED)
    assert (tmp_path / "run.html").read_text(encoding="utf-8") == report.html(MIXED)


def test_a_lone_surrogate_costs_no_report(tmp_path):
    run = run_of(outcome("a.b.float32", "fail", message="no file \udc80"))
    assert report.read(report.write(run, tmp_path / "run.json")) == run
    report.write(run, tmp_path / "run.html")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("run.xml", "ends in '.xml'\n  allowed: a name that ends in .json or .html"),
        ("run", "ends in ''"),
        ("none/run.json", "a folder that is not there\n.*\n  remedy: make it first: mkdir -p"),
        ("folder.html", "the folder .*\n  allowed: the path of a file"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_first(tmp_path, name, match):
    (tmp_path / "folder.html").mkdir()
    for ask in (report.check_path, lambda path: report.write(None, path)):
        with pytest.raises(ArgumentError, match=match):
            ask(tmp_path / name)


def test_a_path_without_leave_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(ArgumentError, match="may not be written"):
        report.check_path(tmp_path / "run.json")


@pytest.mark.parametrize(("text", "match"), [("{", "which is not JSON"), ("[]", "report, format")])
def test_a_broken_file_is_refused(tmp_path, text, match):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ArgumentError, match=match):
        report.read(tmp_path / "run.json")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="No such file"):
        report.read(tmp_path / "run.json")


# ---------------------------------------------------------------------------------------- counting


def test_known_failures_are_expected_and_others_wrong():
    shown = [report.shown(MIXED, each) for each in MIXED.outcomes]
    assert shown == ["fail", "ok", "refused", "error", "hang", "crash", "expected", "ok"]


def test_a_known_failure_that_passes_is_not_called_expected():
    run = run_of(outcome(CAUSAL), expected={("mine", CAUSAL): "owner/repo#1"})
    assert report.shown(run, run.outcomes[0]) == "ok"


@pytest.mark.parametrize(
    ("run", "wrong"),
    [
        (run_of(), False),
        (run_of(outcome(CAUSAL)), False),
        (run_of(outcome(CAUSAL, "refused")), False),
        (run_of(outcome(CAUSAL), stale=("old",)), True),
        *(
            (run_of(outcome(CAUSAL, verdict)), True)
            for verdict in ("fail", "error", "hang", "crash")
        ),
        (run_of(outcome(CAUSAL, "fail"), expected={("mine", CAUSAL): "a/b#1"}), False),
    ],
)
def test_what_a_run_fails_on(run, wrong):
    assert report.is_wrong(run) is wrong


def test_the_matrix_counts():
    found = report.matrix(MIXED)
    assert list(found) == [name for name in FAMILIES if name in found]
    assert found["masks"]["mine"].counts == {"fail": 1, "ok": 1}
    assert found["masks"]["mine"].share == math.inf
    assert found["masks"]["other"].share == 0.5
    assert "other" not in found["scale"]
    assert found["bias"]["mine"].share == 0.0  # a known failure


def test_every_case_and_relation_has_words():
    for name in select("stress"):
        found = report.about(name)
        assert found.known
        assert found.catches
        assert found.rules
        assert all(rule_text(rule) for rule in found.rules)


def test_every_rule_has_its_text():
    assert "absent" in rule_text("MASK-3")
    for rule in RULES:
        text = rule_text(rule)
        assert text
        assert not text.startswith("**")
        assert "\n" not in text
    assert rule_text("MASK-99") == ""


def test_an_unknown_case_is_said_to_be_one():
    assert report.about("fuzz.x.float32") == report.About("fuzz.x.float32")


def test_a_command_is_quoted():
    assert report.command("naive", CAUSAL) == f"sdpakit conformance naive --case {CAUSAL}"
    line = report.command("my kernel.py:f", "a'b")
    assert line == """sdpakit conformance 'my kernel.py:f' --case 'a'"'"'b'"""


def test_the_command_of_a_run():
    whole = [outcome(name) for name in select("core")]
    masks = [each for each in whole if each.case.startswith("masks.")]
    line = "sdpakit conformance mine"
    assert facts.run_command(run_of(*whole)) == f"{line} --level core"
    assert facts.run_command(run_of(*masks)) == f"{line} --level core --family masks"
    asked = [each for each in whole if not report.about(each.case).refuses]
    assert 0 < len(asked) < len(whole)
    assert facts.run_command(run_of(*asked)) == f"{line} --level core"
    assert facts.run_command(run_of(masks[0])) == f"{line} --case {masks[0].case}"
    assert facts.run_command(run_of(*masks[1:])) == ""
    assert facts.run_command(run_of(outcome("fuzz.of.float32"))) == ""
    assert facts.run_command(run_of()) == ""
    full = [outcome(name) for name in select("full")]
    assert facts.run_command(run_of(*full)) == ""  # more than core
    assert facts.run_command(run_of(*full, level="full")) == f"{line} --level full"


# ---------------------------------------------------------------------------------------- terminal


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_screen_stays_in_its_width_and_says_everything(width):
    text = printed(MIXED, width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    joined = "".join(text.split())
    for word in ("masks.gone", "outiswrong", f"--case{CAUSAL}", "4of7wrong", "nothingwrong(1ok)"):
        assert word in joined
    assert "\x1b" not in text  # not a terminal


def test_ten_targets_become_several_tables():
    outcomes = [outcome(CAUSAL, target=f"target-{i}", share=0.5) for i in range(10)]
    text = printed(run_of(*outcomes), 80)
    assert all(text.count(f"target-{i}") >= 2 for i in range(10))
    assert text.count("family") == 3
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_counts_stand_in_the_matrix_in_words_or_letters():
    wide, narrow = printed(MIXED, 200), printed(MIXED, 40)
    assert re.search(r"^masks +1 fail 1 ok +inf +1 ok +0.50", wide, re.M)
    assert re.search(r"^bias +1 expected +-", wide, re.M)
    assert re.search(r"^masks +1F 1 +inf$", narrow, re.M)
    assert "F fail, E error, H hang, C crash, X expected, R refused" in " ".join(narrow.split())


def test_what_is_wrong_is_summed_up_by_rule_most_first():
    names = [case.id for case in cases("core", "masks")]
    run = run_of(
        *(outcome(name, "fail", message="wrong") for name in names),
        outcome("of.my_own.float32", "error"),
        outcome("scale.two.float32", "refused"),
        outcome("bias.of_float32.float32", "fail"),
        outcome(CAUSAL, target="other"),
        expected={("mine", "bias.of_float32.float32"): "owner/repo#12"},
    )
    (line,) = [text for text in printed(run, 400).splitlines() if "by rule: " in text]
    found = [part.split(": ") for part in line.split("by rule: ")[1].split(", ")]
    counts = [int(count.split()[0]) for _, count in found]
    assert counts == sorted(counts, reverse=True)
    with_rule = sum("MASK-2" in report.about(name).rules for name in names)
    assert [rule for rule, _ in found if rule == "MASK-2"] == ["MASK-2"]
    assert f"MASK-2: {with_rule} cases" in line
    assert "no known rule: 1 case" in line
    assert not {"SCALE-1", "MOD-1"} & {rule for rule, _ in found} - {
        rule for name in names for rule in report.about(name).rules
    }


def test_failures_are_spelled_out_up_to_the_limit():
    cases_ = [case.id for case in cases("core", "masks")[:30]]
    run = run_of(*(outcome(name, "fail", message="wrong") for name in cases_))
    assert printed(run).count("repeat: ") == 20
    assert "10 more of mine" in printed(run)
    assert printed(run, failures=None).count("repeat: ") == 30
    assert "more of mine" not in printed(run, failures=None)
    assert printed(run, failures=0).count("repeat: ") == 0


def test_a_failure_has_its_rule_its_worst_element_and_its_command():
    text = " ".join(printed(MIXED, 200).split())
    assert "worst: out[0, 1, 2, 3] = nan, right is -inf, inf times its bound of 1e-06" in text
    assert "MASK-2: Position of query row i" in text
    assert "catches: a causal mask with the other alignment" in text
    assert f"repeat: sdpakit conformance mine --case {CAUSAL}" in text


def test_a_long_command_is_broken_as_a_shell_takes_it():
    wide, narrow = (re.sub(" +$", "", printed(MIXED, width), flags=re.M) for width in (200, 60))
    assert f"\n  repeat: sdpakit conformance mine --case {CAUSAL}\n" in wide
    assert f"\n  repeat: sdpakit conformance mine \\\n    --case {CAUSAL}\n" in narrow


def test_a_message_steers_no_terminal():
    run = run_of(outcome(CAUSAL, "fail", target=f"t{HOSTILE}", message=HOSTILE))
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    console.print(report.terminal(run))
    text = console.file.getvalue()
    assert "\\x1b[31m[bold]" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    ("run", "said"),
    [
        (run_of(), "Nothing was judged"),
        (run_of(targets=(TargetInfo("mine"),)), "mine: nothing judged"),
        (
            run_of(outcome(CAUSAL, "refused", message="mine: no")),
            "mine: refused all 1, 1 of them by: mine: no",
        ),
        (run_of(outcome("odd", "fail", target="")), "1 of 1 wrong"),
        (run_of(outcome(CAUSAL, "fail", message="long " * 10_000)), "more characters"),
    ],
)
def test_odd_runs_show(run, said, width):
    assert said in " ".join(printed(run, width).split())


# -------------------------------------------------------------------------------------------- page


class Page(HTMLParser):
    """What a browser would make of a page: elements, ids, addresses, text by element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.inside, self.text = [], [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "input", "img"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        assert self.inside.pop() == tag

    def handle_data(self, data):
        key = self.inside[-1] if self.inside else ""
        self.text.setdefault(key, []).append(data)


def data_of(text):
    found = re.search(r'<script id="run" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def test_a_page_is_well_formed_and_has_everything():
    page = Page(report.html(MIXED))
    assert page.inside == []
    for tag in ("noscript", "table", "main", "h1", "form"):
        assert tag in page.tags
    texts = " ".join(part for parts in page.text.values() for part in parts)
    for word in ("Conformance of mine, other", "x86_64, Linux", "numpy 2.4", "masks.gone"):
        assert word in texts


def test_a_page_needs_nothing_else():
    page = Page(report.html(MIXED))
    addresses = [value for name, value in page.attributes if name in ("src", "href", "action")]
    assert addresses
    assert all(value.startswith(("#", "data:")) for value in addresses)
    assert "@import" not in report.html(MIXED)
    assert "url(" not in report.html(MIXED)


def test_the_policy_lets_the_script_of_the_page_run_and_no_other():
    import base64
    import hashlib

    text = report.html(MIXED)
    script = re.search(r"<script>(.*)</script>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_hostile_text_stays_text():
    run = run_of(
        outcome(HOSTILE, "fail", target=HOSTILE, message=HOSTILE, worst=WORST),
        stale=(HOSTILE,),
        machine=HOSTILE,
        expected={("x", HOSTILE): HOSTILE},
        targets=(TargetInfo(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE),),
    )
    text = report.html(run)
    page = Page(text)
    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    data = data_of(text)
    assert data["cases"][0][0] == HOSTILE
    assert HOSTILE in data["texts"]
    assert data["targets"][0]["name"] == HOSTILE
    assert "".join(page.text["h1"]) == f"Conformance of {HOSTILE}"


def test_the_data_of_a_page_tells_each_outcome():
    data = data_of(report.html(MIXED))
    assert len(data["outcomes"]) == len(MIXED.outcomes)
    case, target, verdict, share, message, worst = data["outcomes"][0]
    assert data["cases"][case][0] == CAUSAL
    assert data["targets"][target]["name"] == "mine"
    assert data["verdicts"][verdict] == "fail"
    assert share == "+infinity"
    assert data["texts"][message] == "out is wrong"
    assert worst == ["out", [0, 1, 2, 3], "NaN", "-infinity", 1e-6]
    assert data["rules"]["MASK-2"].startswith("Position of query row i")
    assert data["texts"][data["outcomes"][6][8]] == "rounds the bias, owner/repo#12"
    assert data["outcomes"][1][6:8] == [data["texts"].index("lse, entropy"), 0.12]


def crowd(message):
    names = [case.id for case in cases("full")]
    return run_of(
        *(
            outcome(
                name, "fail", f"target-{i}", share=1e5 / 7, message=message(i, name), worst=WORST
            )
            for i in range(10)
            for name in names
        )
    )


def test_ten_targets_that_fail_everywhere_fit():
    text = report.html(crowd(lambda i, name: f"{i} {name} " + "out[0, 1, 2, 3] is wrong; " * 40))
    assert len(text.encode()) < 3_000_000
    assert data_of(text)["cut"]
    assert not data_of(report.html(crowd(lambda i, name: "out is wrong")))["cut"]


def test_one_long_message_is_kept_and_cut_at_last():
    kept = report.html(run_of(outcome(CAUSAL, "fail", message="x" * 3000)))
    assert "x" * 3000 in kept
    cut = report.html(run_of(outcome(CAUSAL, "fail", message="x" * 10**6)))
    assert len(cut) < 100_000
    assert data_of(cut)["texts"][1] == "x" * 4000 + "… (cut)"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (run_of(), "Nothing was judged"),
        (run_of(targets=(TargetInfo("mine"),)), "not run"),
        (run_of(outcome(CAUSAL, "refused")), "Everything was refused."),
        (run_of(outcome(CAUSAL)), "Nothing is wrong."),
        (run_of(outcome("odd", "fail", target="")), "1 case on 1 target."),
    ],
)
def test_odd_runs_make_pages(run, said):
    text = report.html(run)
    assert said in text
    assert Page(text).inside == []


def test_without_javascript_what_is_wrong_is_there():
    text = re.search(r"<noscript>(.*?)</noscript>", report.html(MIXED), re.S)[1]
    for word in (CAUSAL, "scale.two.float32", "error", "hang", "crash", "--case"):
        assert word in text
    assert "bias.of_float32.float32" not in text  # known


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(scheme):
    style = re.search(r"<style>(.*?)</style>", report.html(MIXED), re.S)[1]
    roots = re.findall(r":root \{(.*?)\}", style, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", roots[scheme]))
    papers = [name for name in colours if name == "page" or name.endswith("panel")]
    assert len(papers) == 6
    for paper in papers:
        for ink in ("text", "dim", "link", "bad", "known", "refused", "good"):
            dark, light = sorted(luminance(colours[name]) for name in (paper, ink))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {paper}"
