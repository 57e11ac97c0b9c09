"""A search in a process of its own, so that a target that hangs or dies is a finding too.

The process says what case it is about to try; whatever it said last is what it died of.
"""

from __future__ import annotations

import contextlib
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

from sdpakit.conformance.fuzz.search import Finding, Search, search
from sdpakit.conformance.model import Case
from sdpakit.errors import ArgumentError

_GARBLED = (
    "crash: the target wrote to a file descriptor that is not its own, that of the kit"
    " (the case is not shrunk)"
)
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
    on_case: Callable[[Search], object] | None = None,
) -> Search:
    """Search for a wrong answer of targets named by text; see `search`.

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
    on_case : callable, optional
        Called with the state before each case.

    Returns
    -------
    Search
        A hang or a death is a finding, with the case as it was drawn, not shrunk.

    Raises
    ------
    ArgumentError
        If a target cannot be loaded.
    """
    orders = {"names": list(names), "seconds": seconds, "seed": first_seed, "hostile": hostile}
    state, source, ended = Search(), "", False
    with _started(orders) as (process, answers, printed):
        for message in _messages(answers, time_limit):
            if message is None:
                process.send_signal(signal.SIGABRT)
                break
            if "garbled" in message:
                state.finding = Finding(_GARBLED, source)
                return state
            if "refused" in message:
                raise ArgumentError(message["refused"])
            state.tried, state.refused = message["tried"], message["of_them_refused"]
            source = message.get("source", source)
            ended = message.get("ended", False)
            if message.get("finding"):
                state.finding = Finding(message["finding"], source)
            elif not ended and on_case is not None:
                on_case(state)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it closed its pipe and lives on
                process.wait(time_limit)
        if not ended:
            state.finding = Finding(_how_it_ended(process, time_limit, printed), source)
    return state


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


def _messages(answers: int, time_limit: float) -> Iterator[Mapping[str, Any] | None]:
    """Yield what the process says, None where it says nothing for too long; end with it."""
    unread, limit = b"", max(LOAD_LIMIT, time_limit)
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([answers], [], [], max(0.0, last + limit - time.monotonic()))
        if not ready:
            yield None
            return
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
    from sdpakit.conformance.fuzz.paste import paste
    from sdpakit.conformance.targets.resolve import resolve

    orders = json.loads(orders_text)
    names = tuple(orders["names"])

    def say(**message: object) -> None:
        os.write(answers, json.dumps(message).encode() + b"\n")

    def before(case: Case, state: Search) -> None:
        # Names as given, so that the pasted case finds the same targets.
        source = paste(case, names)
        say(tried=state.tried, of_them_refused=state.refused, source=source)

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
        before_case=before,
    )
    finding = found.finding
    closing = {"finding": finding.message} if finding else {}
    say(tried=found.tried, of_them_refused=found.refused, ended=True, **closing)
