"""The page of a run in a real browser; runs where a Chromium is found."""

import pytest
from tests.conformance.browser import Browser, find_browser
from tests.conformance.test_report import CAUSAL, HOSTILE, MIXED, WORST, outcome, run_of

from sdpakit.conformance import cases, report
from sdpakit.conformance.model import TargetInfo

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on PATH and none named by SDPAKIT_CHROMIUM"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def load(browser, tmp_path):
    """Return a callable that shows a run in the browser, at a hash."""
    browser.size(1280)
    browser.media(prefers_color_scheme="light")

    def show(run, place=""):
        path = report.write(run, tmp_path / "run.html")
        browser.open(path.as_uri() + place)
        return browser

    yield show
    assert browser.problems == []


def crowd(targets=10, level="core"):
    """Return a run of many targets in which every seventh outcome is wrong."""
    names = [f"target-{i}" for i in range(targets - 1)] + ["a/very/long/path/of/a/file.py:object"]
    verdicts = ("fail", "ok", "ok", "refused", "ok", "ok", "ok")
    found = [
        outcome(case.id, verdicts[(place + i) % 7], name, share=0.5, message="out is wrong " * 9)
        for i, name in enumerate(names)
        for place, case in enumerate(cases(level))
    ]
    return run_of(*found, targets=tuple(TargetInfo(name, {}, "a note " * 9) for name in names))


def shown_cases(page):
    return page.run("[...document.querySelectorAll('details.case')].map(x => x.id.slice(5))")


def status(page):
    return page.run("document.getElementById('status').textContent")


def test_what_is_wrong_is_shown_first(load):
    page = load(MIXED)
    assert shown_cases(page) == [
        CAUSAL,
        "scale.two.float32",
        "softcap.applied.float32",
        "sinks.share_of_a_quarter.float32",
    ]
    assert status(page) == "4 of 7 cases. The others are filtered out."
    page.run("document.getElementById('everything').click()")
    assert len(shown_cases(page)) == 7
    assert status(page) == "All 7 cases."


def test_filters(load):
    page = load(MIXED)
    page.run("document.querySelector('#verdicts input[value=crash]').click()")
    assert "softcap.applied.float32" not in shown_cases(page)
    page.run("document.getElementById('everything').click()")
    page.run("document.querySelector('#verdicts input[value=expected]').click()")
    assert shown_cases(page) == ["bias.of_float32.float32"]
    page.run("document.getElementById('everything').click()")
    page.run(
        """(() => { const x = document.getElementById('target'); x.value = 'other';
        x.dispatchEvent(new Event('change')); })()"""
    )
    assert shown_cases(page) == [CAUSAL]
    page.run("document.getElementById('everything').click()")
    page.run(
        """(() => { const x = document.getElementById('text'); x.value = 'MASK-2 wrong';
        x.dispatchEvent(new Event('input')); })()"""
    )
    page.until("document.querySelectorAll('details.case').length === 1")
    assert shown_cases(page) == [CAUSAL]


def test_a_link_leads_to_a_case_and_all_is_said_there(load):
    page = load(MIXED, f"#{CAUSAL}")
    item = f"document.getElementById('case={CAUSAL}')"
    assert page.run(f"{item}.open")
    assert page.run(f"document.activeElement === {item}.querySelector('summary')")
    text = " ".join(page.run(f"{item}.innerText").split())
    for said in (
        "fail: mine",
        "ok: other",
        "out is wrong",
        "where out[0, 1, 2, 3] got NaN right is -infinity bound 1e-6",
        "share of the bound: ∞",
        "catches: a causal mask with the other alignment",
        "MASK-2 Position of query row i: p = i + off, where off is 0 for",
        "https://github.com/ml-explore/mlx/issues/2835",
        "bound hard (inputs chosen to hurt)",
        f"seed {report.about(CAUSAL).seed}",
        f"sdpakit conformance mine --case {CAUSAL}",
        f"sdpakit conformance other --case {CAUSAL}",
    ):
        assert said in text


def test_a_link_to_what_is_filtered_out_shows_it(load):
    page = load(MIXED, "#masks.true_attends.float32")
    assert page.run("document.getElementById('case=masks.true_attends.float32').open")
    assert "not judged\nlse, entropy" in page.run("document.getElementById('families').innerText")


@pytest.mark.parametrize("place", ["#nothing", "#%E0%A4%A", "#family=none", "#run", "#"])
def test_a_link_to_nothing_does_nothing(load, place):
    assert len(shown_cases(load(MIXED, place))) == 4


def test_a_cell_leads_to_its_cases(load):
    page = load(MIXED)
    page.run("document.querySelector('.matrix a[href*=\"target=other\"]').click()")
    page.until("document.getElementById('target').value === 'other'")
    assert shown_cases(page) == [CAUSAL]
    page.run("document.getElementById('everything').click()")
    page.run("document.querySelector('.matrix a[href*=\"target=other\"]').click()")
    page.until("document.getElementById('target').value === 'other'")  # twice the same link


def test_hostile_text_runs_nothing(load):
    case = f"masks.{HOSTILE}"
    run = run_of(
        outcome(case, "fail", target=HOSTILE, message=HOSTILE, worst=WORST),
        outcome("run", "fail", target=HOSTILE, message=HOSTILE),
        outcome("__proto__.x", "error", target=HOSTILE),
    )
    page = load(run)
    page.run("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    page.until(
        "document.querySelectorAll('.message').length === 2 && document.querySelector('.command')"
    )
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelector('.message').textContent") == HOSTILE
    assert shown_cases(page)[0] == case


@pytest.mark.parametrize("width", [360, 1280])
def test_a_page_fits_its_window(load, width):
    page = load(crowd())
    page.size(width)
    wide = "document.documentElement.scrollWidth"
    assert page.run(wide) <= width
    page.run(f"location.hash = '{CAUSAL}'")
    page.until(f"document.getElementById('case={CAUSAL}')?.open")
    page.until(f"document.getElementById('case={CAUSAL}').querySelector('.command')")
    assert page.run(wide) <= width


def test_a_page_of_many_outcomes_opens_closed(load):
    page = load(crowd(level="full"))
    assert shown_cases(page) == []
    assert page.run("document.querySelectorAll('details.family').length") > 15
    assert page.run("document.querySelectorAll('*').length") < 5000


def test_all_is_reached_by_keyboard_and_the_focus_is_seen(load):
    page = load(MIXED)
    page.press("Tab")
    assert page.run("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(60):
        page.press("Tab")
        seen.add(page.run("document.activeElement.tagName"))
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        if page.run("document.activeElement !== document.body"):
            assert outline == "solid"
        if page.run("document.activeElement.closest('details.case') !== null"):
            break
    assert {"A", "DIV", "INPUT", "SELECT", "BUTTON", "SUMMARY"} <= seen
    page.press("Enter")
    page.until("document.activeElement.parentElement.open")
    page.until("document.activeElement.parentElement.querySelector('.command button')")
    page.run("document.activeElement.parentElement.querySelector('.command button').focus()")
    page.press("Enter")
    page.until("/Copied|Selected/.test(document.activeElement.textContent)")


def test_controls_have_names(load):
    page = load(MIXED)
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    kinds = ("button", "link", "checkbox", "combobox", "searchbox", "textbox", "region", "search")
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if node.get("role", {}).get("value") in kinds
    ]
    assert len(found) > 20
    assert [kind for kind, name in found if not name] == []
    assert ("link", "masks on mine: 1 fail, 1 ok, worst share ∞") in found


def test_dark_and_light(load):
    page = load(MIXED)
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.run(colour) == "rgb(255, 255, 255)"
    page.media(prefers_color_scheme="dark")
    assert page.run(colour) == "rgb(13, 17, 23)"


def test_on_paper_what_is_wrong_is_open(load):
    page = load(MIXED)
    assert not page.run("document.querySelector('details.case[open]')")
    page.send("Page.printToPDF")
    assert page.run("document.querySelectorAll('details.case[open] .message').length") >= 4


def test_without_javascript(browser, load):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page = load(MIXED)
        text = page.run("document.body.innerText")
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert "What is wrong" in text
    assert f"sdpakit conformance mine --case {CAUSAL}" in text
    assert "Show everything" not in text


@pytest.mark.parametrize("run", [run_of(), run_of(outcome("odd", "refused", target=""))])
def test_odd_runs_open(load, run):
    page = load(run)
    assert status(page) == ("There is no case." if not run.outcomes else "All 1 case.")
