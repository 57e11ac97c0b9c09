"""A search in a process of its own, so that a target that hangs or dies is a finding too.

The process says what case it is about to try; whatever it said last is what it died of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from sdpakit.conformance.fuzz.features import kind
from sdpakit.conformance.fuzz.search import MOST, Finding, Search, search
from sdpakit.conformance.model import Case
from sdpakit.errors import ArgumentError

_GARBLED = (
    "crash: the target wrote to a file descriptor that is not its own, that of the kit"
    " (the case is not shrunk)"
)
_GLANCE = 0.25  # seconds between looks at a process whose pipe a child of its own holds open
_OTHER_CASES = 1_000_000  # from the seeds of one process to those of the next
LOAD_LIMIT = 120.0  # seconds until the first case, imports included
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from sdpakit.conformance.fuzz.session import child; child(sys.argv[2], int(sys.argv[3]))"
)

_PYTHON = (sys.executable, "-X", "faulthandler", "-c", _BOOT)


def fuzz(
    names: Sequence[str],
    *,
    seconds: float,
    first_seed: int = 0,
    hostile: bool = True,
    time_limit: float = 60.0,
    most: int = MOST,
    on_case: Callable[[Search], object] | None = None,
) -> Search:
    """Search for wrong answers of targets named by text; see `search`.

    Parameters
    ----------
    names : sequence of str
        Targets, see `resolve`.
    seconds : float
        How long to look.
    first_seed : int
        Seed of the first round.
    hostile : bool
        Whether operands may hold NaN, infinities and huge numbers.
    time_limit : float
        Seconds for one case, beyond which the targets hang.
    most : int
        Findings after which it ends.
    on_case : callable, optional
        Called with the state before each case.

    Returns
    -------
    Search
        A hang or a death is a finding, with the case as it was drawn, not shrunk; the search goes
        on in another process, and leaves out cases that have what all such deaths had in common.

    Raises
    ------
    ArgumentError
        If a target cannot be loaded.
    """
    state, left = Search(), seconds
    orders: dict[str, Any] = {"names": list(names), "seed": first_seed, "hostile": hostile}
    while left > 0.0 and len(state.findings) < most:
        known = [(one.known.kind, sorted(one.features)) for one in state.findings]
        attempt = _Attempt(state, time_limit, on_case)
        attempt.run({**orders, "seconds": left, "known": known, "most": most - len(known)})
        left -= attempt.seconds
        if not attempt.died or not _go_on_after(attempt.died, state):
            break
        orders["seed"] += _OTHER_CASES
    return state


def _go_on_after(died: Finding, state: Search) -> bool:
    """Keep a death; return whether a search that sets it aside has anything left to try.

    A death is not shrunk. What all deaths of a kind have in common is what they seem to take.
    """
    for place, one in enumerate(state.findings):
        if kind(one.message) == kind(died.message):
            common = one.features & died.features
            state.findings[place] = dataclasses.replace(one, features=common)
            return bool(common)
    state.add(died)
    return bool(died.features)


class _Attempt:
    """One process of a search.

    Parameters
    ----------
    state : Search
        What other processes have done; it grows.
    time_limit : float
        Seconds for one case.
    on_case : callable or None
        As for `fuzz`.

    Attributes
    ----------
    died : Finding or None
        How it ended, if that was not as it should.
    seconds : float
        How long it searched, loading apart.
    """

    def __init__(
        self, state: Search, time_limit: float, on_case: Callable[[Search], object] | None
    ) -> None:
        self._state = state
        self._time_limit = time_limit
        self._on_case = on_case
        self._before = (state.tried, state.refused)
        self._latest, self._ended = Finding("", ""), False
        self.died: Finding | None = None
        self.seconds = 0.0

    def run(self, orders: Mapping[str, Any]) -> None:
        """Start the process and follow it to its end."""
        began, how = 0.0, ""
        with _started(orders) as (process, answers, printed):
            for message in _messages(process, answers, self._time_limit):
                began = began or time.monotonic()
                if message is None:
                    process.send_signal(signal.SIGABRT)
                    break
                if "garbled" in message:
                    how = _GARBLED
                    break
                self._heard(message)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe is closed
                    process.wait(self._time_limit)
            if not self._ended:
                how = how or _how_it_ended(process, self._time_limit, printed)
                self.died = dataclasses.replace(self._latest, message=how)
        self.seconds = time.monotonic() - began if began else 0.0

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "refused" in message:
            raise ArgumentError(message["refused"])
        state = self._state
        state.tried = self._before[0] + message["tried"]
        state.refused = self._before[1] + message["of_them_refused"]
        self._ended = message.get("ended", False)
        if "source" in message:
            what = message.get("finding", "")
            self._latest = Finding(what, message["source"], frozenset(message["features"]))
            if what:
                state.add(self._latest)
        if not self._ended and self._on_case is not None:
            self._on_case(state)


@contextlib.contextmanager
def _started(
    orders: Mapping[str, Any],
) -> Iterator[tuple[subprocess.Popen[bytes], int, IO[bytes]]]:
    answers, theirs = os.pipe()
    path = json.dumps([str(entry) for entry in sys.path])
    with tempfile.TemporaryFile(buffering=0) as printed:
        process = subprocess.Popen(
            [*_PYTHON, path, json.dumps(orders), str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield process, answers, printed
        finally:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(answers)


def _messages(
    process: subprocess.Popen[bytes], answers: int, time_limit: float
) -> Iterator[Mapping[str, Any] | None]:
    """Yield what the process says, None where it says nothing for too long; end with it.

    A child that the target started may hold the pipe open for longer than the process lives, so
    that the end of the pipe is not waited for.
    """
    unread, limit = b"", max(LOAD_LIMIT, time_limit)
    last = time.monotonic()
    while True:
        is_gone = process.poll() is not None  # before the look at what it said last
        left = max(0.0, last + limit - time.monotonic())
        if not select.select([answers], [], [], 0.0 if is_gone else min(left, _GLANCE))[0]:
            if is_gone:
                return
            if left == 0.0:
                yield None
                return
            continue
        chunk = os.read(answers, 1 << 16)
        if not chunk:
            return
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            yield _message(line)
        # Its first case also compiles what all others share.
        last, limit = time.monotonic(), time_limit


def _message(line: bytes) -> Mapping[str, Any]:
    """Return what a line of the process says; one that is not from the search is a finding."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and not {"tried", "refused"}.isdisjoint(found):
            return found
    return {"garbled": True}


def _how_it_ended(process: subprocess.Popen[bytes], time_limit: float, printed: IO[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    printed.seek(0)
    said = printed.read().decode(errors="replace").strip().splitlines()[-12:]
    status = process.returncode
    if status is None or status == -signal.SIGABRT:
        first = f"hang: no answer within {time_limit:g} s (the case is not shrunk)"
    elif status < 0:
        first = f"crash: {signal.Signals(-status).name} (the case is not shrunk)"
    else:
        first = f"crash: the process ended with status {status} (the case is not shrunk)"
    return "\n  ".join([first, *said])


def child(orders_text: str, answers: int) -> None:
    """Search as the other end of `fuzz`.

    Parameters
    ----------
    orders_text : str
        JSON of what `fuzz` was asked for.
    answers : int
        Descriptor to write to.
    """
    from sdpakit.conformance.fuzz.features import Known, features
    from sdpakit.conformance.fuzz.paste import paste
    from sdpakit.conformance.targets.resolve import resolve

    orders = json.loads(orders_text)
    # Names as given, so that a pasted case finds the same targets.
    names, process = tuple(orders["names"]), os.getpid()

    def say(**message: object) -> None:
        if os.getpid() != process:
            os._exit(0)  # a fork of the target's came back here; only one of the two may go on
        os.write(answers, json.dumps(message).encode() + b"\n")

    def say_case(case: Case, state: Search, **more: object) -> None:
        told = {"source": paste(case, names), "features": sorted(features(case)), **more}
        say(tried=state.tried, of_them_refused=state.refused, **told)

    def say_finding(finding: Finding, state: Search) -> None:
        assert finding.case is not None  # it is of this process
        say_case(finding.case, state, finding=finding.message)

    try:
        targets = [resolve(name) for name in names]
    except ArgumentError as error:
        say(refused=str(error))
        return
    found = search(
        targets,
        seconds=orders["seconds"],
        first_seed=orders["seed"],
        hostile=orders["hostile"],
        most=orders["most"],
        known=[Known(one, frozenset(of_case)) for one, of_case in orders["known"]],
        before_case=say_case,
        on_finding=say_finding,
    )
    say(tried=found.tried, of_them_refused=found.refused, ended=True)
