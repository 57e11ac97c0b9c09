"""The kit in pytest: options, the items of `pytest --pyargs sdpakit.conformance`, a decorator.

pytest loads this module in every run once sdpakit is installed, so it imports nothing of the kit
before a test or an option asks for it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from sdpakit.conformance.model import LEVELS, Outcome, Run, TargetInfo, Worst
from sdpakit.errors import SdpakitError

if TYPE_CHECKING:
    from sdpakit.conformance.ledger import Ledger
    from sdpakit.conformance.runner import AnyTarget, Subject

PROPERTY = "sdpakit"  # the property of a test report in which an outcome travels, also under xdist
WRONG = ("fail", "error", "hang", "crash")


def parametrize(
    target: AnyTarget,
    level: str = "core",
    expected_failures: Mapping[str, str] | None = None,
    *,
    relations: bool = True,
    time_limit: float = 60.0,
) -> pytest.MarkDecorator:
    """Make one test of each case; the test takes `check` and calls it.

    Parameters
    ----------
    target : str, Target or callable
        What is judged. A text gets a process of its own, which may hang or die; an object or a
        plain function is judged in the process of the tests.
    level : {"core", "full", "stress"}
        Which cases.
    expected_failures : mapping of str to str, optional
        Reasons, each with the number of a thread, by patterns of case ids.
    relations : bool
        Whether relations are among the cases.
    time_limit : float
        Seconds for a case of a target named by text.

    Returns
    -------
    pytest.MarkDecorator
        For a test function. Refused cases are skipped; expected failures are xfail, and one that
        passes all the same fails.

    Raises
    ------
    ArgumentError
        If an argument has no meaning, or a pattern matches no case.

    Examples
    --------
    >>> @parametrize("numba_cpu", expected_failures={"strides.*": "me/attention#12: copies"})
    ... def test_conformance(check):
    ...     check()
    """
    from sdpakit.conformance.ledger import Ledger
    from sdpakit.conformance.runner import prepare
    from sdpakit.conformance.selection import as_level, select

    subject = prepare(target, time_limit=time_limit, workers=1)
    ids = select(as_level(level), with_relations=relations)
    expected: Mapping[tuple[str, str], str] = {}
    if expected_failures:
        expected = _expected(Ledger.of(subject.name, expected_failures), [subject.name], ids)
    return pytest.mark.parametrize("check", [*_params([subject], ids, expected, prefix=False)])


class CheckItem:
    """One case of one target: the argument `check` of a test.

    Parameters
    ----------
    subject : Subject
        The target.
    case : str
        Id of the case or relation.
    expected : str
        Why it is known to fail, "" if it should pass.
    """

    def __init__(self, subject: Subject, case: str, expected: str) -> None:
        self.subject = subject
        self.case = case
        self.expected = expected
        self.outcome: Outcome | None = None

    def __call__(self) -> Outcome:
        """Judge, and end the test as the verdict asks for.

        Returns
        -------
        Outcome
            Where the verdict is "ok".
        """
        from sdpakit.conformance.report import command
        from sdpakit.conformance.selection import find

        [outcome] = self.subject.run([find(self.case)])
        self.outcome = outcome
        if self.expected and outcome.verdict in WRONG:
            pytest.xfail(self.expected)
        if self.expected:
            pytest.fail(_stale(outcome, self.expected), pytrace=False)
        if outcome.verdict == "refused":
            pytest.skip(f"refused: {outcome.message}")
        if outcome.verdict in WRONG:
            again = command(outcome.target, outcome.case)
            pytest.fail(f"{outcome.verdict}: {outcome.message}\n  again: {again}", pytrace=False)
        return outcome

    def record(self) -> str:
        """Return all that a report needs as text, "" before the call."""
        if self.outcome is None:
            return ""
        info = asdict(self.subject.load())
        fields = {"outcome": asdict(self.outcome), "info": info, "expected": self.expected}
        return json.dumps(fields, default=float)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; see the help of pytest."""
    add = parser.getgroup("sdpakit", "conformance of attention (sdpakit)").addoption
    add(
        "--sdpakit-target",
        action="append",
        default=[],
        metavar="NAME",
        help="judge this: a name, package.module:object, or file.py:object; may be repeated",
    )
    add("--sdpakit-level", choices=LEVELS, default="core", help="which cases (core)")
    add("--sdpakit-report", metavar="FILE", help="write a report: .json or .html")
    add("--sdpakit-ledger", metavar="FILE", help="known failures, a file in TOML")
    add(
        "--sdpakit-time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for one case of a target (60)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin a session; what has no meaning is refused before anything is collected."""
    if not config.option.sdpakit_target and _asks_for_the_kit(config):
        raise pytest.UsageError(_no_target())
    try:
        session = _Session(config)
    except SdpakitError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(session, _Session.NAME)


def items(config: pytest.Config) -> list[Any]:
    """Return the parameters of the test that `pytest --pyargs sdpakit.conformance` collects.

    Parameters
    ----------
    config : pytest.Config
        Of this run.

    Returns
    -------
    list of pytest.param
        One for each target and case; a lone stand-in where no target is named, which is answered
        with a usage error when all is collected.
    """
    session = config.pluginmanager.get_plugin(_Session.NAME)
    if session is None:
        raise pytest.UsageError("the plugin sdpakit is switched off: drop -p no:sdpakit")
    return [*session.params()] or [pytest.param(None, id="no-target")]


class _Session:
    """What one run of pytest knows of the kit: the targets asked for, and all outcomes."""

    NAME = "sdpakit-session"

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._targets: list[str] = list(dict.fromkeys(option.sdpakit_target))
        self._level = option.sdpakit_level
        self._report: str | None = option.sdpakit_report
        self._subjects: list[Subject] = []
        self._ids: list[str] = []
        self._known: Mapping[tuple[str, str], str] = {}
        self._is_xdist_worker = hasattr(config, "workerinput")
        self._started, self._begin = datetime.now(UTC), time.perf_counter()
        self._outcomes: list[Outcome] = []
        self._seen: Counter[str] = Counter()  # tests by target, those without a question included
        self._infos: dict[str, TargetInfo] = {}
        self._expected: dict[tuple[str, str], str] = {}
        self._written = ""
        if self._report is not None:
            from sdpakit.conformance.report import check_path

            check_path(self._report)
        if self._targets:
            self._prepare(option)

    def _prepare(self, option: Any) -> None:
        from sdpakit.conformance.ledger import Ledger
        from sdpakit.conformance.runner import prepare
        from sdpakit.conformance.selection import select

        limit = option.sdpakit_time_limit
        self._ids = select(self._level)
        if option.sdpakit_ledger is not None:
            ledger = Ledger.read(option.sdpakit_ledger)
            self._known = _expected(ledger, self._targets, self._ids)
        self._subjects = [prepare(name, time_limit=limit, workers=1) for name in self._targets]
        if not self._is_xdist_worker:
            for subject in self._subjects:
                subject.load()

    def params(self) -> Iterable[Any]:
        """Return the parameters of the items of the targets asked for."""
        return _params(self._subjects, self._ids, self._known, prefix=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse a run that would judge nothing and look like a success."""
        checks = [_check_of(item) for item in items]
        if any(_is_stand_in(item) for item in items):
            raise pytest.UsageError(_no_target())
        found = {check.subject for check in checks if check is not None}
        if not found.issuperset(self._subjects):
            names = ", ".join(self._targets)
            raise pytest.UsageError(
                f"--sdpakit-target {names}: no case of it was collected\n"
                "  allowed: together with the tests of the kit\n"
                "  remedy: add --pyargs sdpakit.conformance"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the outcome travel in the report, which xdist hands over."""
        report = yield
        check = _check_of(item)
        if call.when == "call" and check is not None and (record := check.record()):
            report.user_properties.append((PROPERTY, record))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect an outcome."""
        for name, text in report.user_properties if report.when == "call" else ():
            if name == PROPERTY:
                self._keep(json.loads(str(text)))

    def _keep(self, record: dict[str, Any]) -> None:
        fields = record["outcome"]
        worst = fields["worst"]
        if worst is not None:
            fields["worst"] = Worst(**{**worst, "index": tuple(worst["index"])})
        outcome = Outcome(**{**fields, "unjudged": tuple(fields["unjudged"])})
        self._seen[outcome.target] += 1
        if not outcome.asked:
            return
        self._outcomes.append(outcome)
        self._infos.setdefault(outcome.target, TargetInfo(**record["info"]))
        if record["expected"]:
            self._expected[outcome.target, outcome.case] = record["expected"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, fail where a target refused all there is, and end the processes."""
        checks = [check for item in session.items if (check := _check_of(item))]
        for subject in {check.subject for check in checks}.union(self._subjects):
            subject.close()
        if self._is_xdist_worker or not self._outcomes:
            return
        if self._report is not None:
            from sdpakit.conformance.report import write

            self._written = str(write(self._run(), self._report))
        if self._only_refusals() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """End the processes of a run that did not come to its end."""
        for subject in self._subjects:
            subject.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say in one line for each target how it fared."""
        if not self._outcomes:
            return
        terminalreporter.section("sdpakit conformance")
        for target in self._infos:
            terminalreporter.write_line(_summary(target, self._of(target)))
        for target in self._only_refusals():
            text = f"{target}: it refused every case of level {self._level}: nothing was judged"
            terminalreporter.write_line(text, red=True)
        if self._written:
            terminalreporter.write_line(f"report: {self._written}")

    def _of(self, target: str) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if outcome.target == target]

    def _only_refusals(self) -> list[str]:
        """Return the targets that refused a whole level."""
        from sdpakit.conformance.runner import judged_nothing

        whole = [name for name in self._targets if self._seen[name] == len(self._ids)]
        return [target for target in whole if judged_nothing(self._of(target))]

    def _run(self) -> Run:
        from sdpakit.conformance.runner import machine, versions

        stale = [
            _stale(outcome, reason)
            for outcome in self._outcomes
            if (reason := self._expected.get((outcome.target, outcome.case)))
            and outcome.verdict not in WRONG
        ]
        return Run(
            targets=tuple(self._infos.values()),
            outcomes=tuple(self._outcomes),
            level=self._level,
            started=self._started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._begin,
            versions=versions(),
            machine=machine(),
            expected=self._expected,
            stale=tuple(stale),
        )


def _params(
    subjects: Iterable[Subject],
    ids: Iterable[str],
    expected: Mapping[tuple[str, str], str],
    *,
    prefix: bool,
) -> Iterable[Any]:
    for subject in subjects:
        for case in ids:
            check = CheckItem(subject, case, expected.get((subject.name, case), ""))
            yield pytest.param(check, id=f"{subject.name}-{case}" if prefix else case)


def _expected(
    ledger: Ledger, targets: Iterable[str], ids: Iterable[str]
) -> Mapping[tuple[str, str], str]:
    """Return which failures a ledger expects: those it would take if everything failed."""
    outcomes = tuple(Outcome(target, case, "fail") for target in targets for case in ids)
    return ledger.apply(Run((), outcomes, "core", "", 0.0, {}, "")).expected


def _check_of(item: pytest.Item) -> CheckItem | None:
    spec = getattr(item, "callspec", None)
    check = None if spec is None else spec.params.get("check")
    return check if isinstance(check, CheckItem) else None


def _is_stand_in(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    module = getattr(getattr(item, "module", None), "__name__", "")
    return (
        spec is not None and spec.id == "no-target" and module.endswith("conformance.test_target")
    )


def _asks_for_the_kit(config: pytest.Config) -> bool:
    """Return whether the kit is named as a package; known before xdist starts its workers."""
    named = {str(argument).partition("::")[0] for argument in config.option.file_or_dir or ()}
    kit = __name__.rpartition(".")[0]
    return bool(config.option.pyargs) and not named.isdisjoint({kit, f"{kit}.test_target"})


def _no_target() -> str:
    from sdpakit.conformance.targets import names

    return (
        "--sdpakit-target: no target was named\n"
        f"  allowed: {', '.join(names())}, package.module:object, path/to/file.py:object\n"
        "  remedy: pytest --pyargs sdpakit.conformance --sdpakit-target numba_cpu"
    )


def _stale(outcome: Outcome, reason: str) -> str:
    return f"{outcome.target}, {outcome.case}: {outcome.verdict}, but expected to fail: {reason}"


def _summary(target: str, outcomes: list[Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in outcomes)
    worst = max(outcomes, key=lambda outcome: outcome.share)
    numbers = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    share = f"largest error {worst.share:.3g} of its bound in {worst.case}"
    return f"{target}: {numbers}; {share}"
