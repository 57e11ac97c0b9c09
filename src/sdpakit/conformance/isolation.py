"""Targets in processes of their own, so that one that hangs or dies costs one case, not the run.

A case has `time_limit` seconds, the first one of a process `FIRST_CASE` times as much, since it
also imports and compiles what the target needs; loading the target has `LOAD_LIMIT` seconds. All
are seconds of the clock on the wall. `worker` is the other end.
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sdpakit import errors
from sdpakit.conformance.model import Outcome, TargetInfo, Verdict, Worst
from sdpakit.conformance.selection import Check, check_id, find
from sdpakit.errors import ArgumentError, format_error

LOAD_LIMIT = 120.0
FIRST_CASE = 3.0
_GLANCE = 0.25  # seconds between looks at a process whose pipe a child of its own holds open
_GRACE = 5.0  # seconds in which a process that was told to end may do so
_TAIL = 16384
_LINES = 12

# sys.path is handed over, so that a target is found in the worker exactly where it is found here.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "pipes = [int(text) for text in sys.argv[2:]]; del sys.argv[1:]; "
    "from sdpakit.conformance.worker import main; main(*pipes)"
)


class Isolated:
    """One target in one process, which is started when needed and again after a hang or a death.

    Parameters
    ----------
    name : str
        Text that `resolve` knows.
    time_limit : float
        Seconds for one case.
    load_limit : float
        Seconds for loading the target.
    """

    def __init__(
        self, name: str, *, time_limit: float = 60.0, load_limit: float = LOAD_LIMIT
    ) -> None:
        self.name = name
        self._time_limit = time_limit
        self._load_limit = load_limit
        self._info: TargetInfo | None = None
        self._case = ""
        self._began = self._limit = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_loading = self._is_fresh = False
        self._has_ended = self._is_garbled = False

    def load(self) -> TargetInfo:
        """Start the process and return what a report says about the target.

        Returns
        -------
        TargetInfo
            With the name as it was given.

        Raises
        ------
        ArgumentError
            If the target cannot be loaded.
        """
        if self._process is None:
            self._start()
        while self._info is None:
            self._wait()
            self.poll()
        return self._info

    def begin(self, case: str) -> None:
        """Hand a case to the process; `poll` says when it is done.

        Parameters
        ----------
        case : str
            Id of a case or relation.
        """
        if self._process is None:
            self._start()
        self._case = case
        if not self._is_loading:
            self._count_from_now()
            self._forget_what_was_printed()
        self._send(case)

    def poll(self) -> Outcome | None:
        """Return the outcome of the case that was begun, or None if it is not there yet.

        Returns
        -------
        Outcome or None
            Does not wait.

        Raises
        ------
        ArgumentError
            If the target cannot be loaded.
        """
        for message in self._messages():
            if self._is_loading:
                self._loaded(message)
            elif self._case and message["case"] == self._case:
                self._case, self._is_fresh = "", False
                return _outcome(message, self.name)
        if self._has_ended:
            how = f"the process {self._reap()}"
            if self._is_garbled:
                how = "the target wrote to a file descriptor that is not its own, that of the kit"
            return self._lost("crash", how)
        if time.monotonic() - self._began > self._limit:
            self._abort()
            return self._lost("hang", f"no answer within {self._limit:g} s")
        return None

    def fileno(self) -> int:
        """Return the descriptor that has something to read when `poll` has something to say."""
        return self._answers

    def close(self) -> None:
        """End the process: at once if it is at work, else as any process ends."""
        if self._process is None:
            return
        is_idle = not self._case and not self._is_loading
        self._commands.close()
        if not (is_idle and self._ends_within(_GRACE)):
            self._kill()
        self._reap()

    def _wait(self) -> None:
        left = self._began + self._limit - time.monotonic()
        select.select([self], [], [], max(0.0, min(left, _GLANCE)))

    def _start(self) -> None:
        (read_command, write_command), (self._answers, write_answer) = os.pipe(), os.pipe()
        read_life, self._lifeline = os.pipe()
        theirs = (read_command, write_answer, read_life)
        self._printed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - _reap closes it
        path = json.dumps([str(entry) for entry in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", _BOOT, path, *map(str, theirs)],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            pass_fds=theirs,
            start_new_session=True,  # Ctrl-C is for the parent; and a group that can be killed
        )
        for descriptor in theirs:
            os.close(descriptor)
        os.set_blocking(self._answers, False)
        self._commands = os.fdopen(write_command, "wb", buffering=0)
        self._unread = b""
        self._has_ended = self._is_garbled = False
        self._is_loading = self._is_fresh = True
        self._began, self._limit = time.monotonic(), self._load_limit
        self._send({"target": self.name})

    def _count_from_now(self) -> None:
        self._began = time.monotonic()
        self._limit = self._time_limit * (FIRST_CASE if self._is_fresh else 1.0)

    def _forget_what_was_printed(self) -> None:
        """Let no earlier case speak for the next; not while the process may be at work on that."""
        # The worker shares the position.
        os.ftruncate(self._printed.fileno(), 0)
        os.lseek(self._printed.fileno(), 0, os.SEEK_SET)

    def _send(self, message: object) -> None:
        # A process that is gone is found by `poll`, which says so as the outcome of the case.
        with contextlib.suppress(BrokenPipeError):
            self._commands.write(json.dumps(message).encode() + b"\n")

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield the lines that have come; find out whether more can come."""
        is_alive = self._process is not None and self._process.poll() is None
        while True:
            try:
                chunk = os.read(self._answers, 1 << 16)
            except BlockingIOError:
                self._has_ended = not is_alive
                break
            if not chunk:
                self._has_ended = True
                break
            self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            message = _message(line)
            if message is None:
                self._kill()
                self._has_ended, self._is_garbled = True, True
                return
            yield message

    def _loaded(self, message: Mapping[str, Any]) -> None:
        if "refused" in message:
            self._reap()
            raise getattr(errors, message["kind"], ArgumentError)(message["refused"])
        self._is_loading = False
        self._info = TargetInfo(self.name, message["versions"], message["note"])
        self._count_from_now()

    def _lost(self, verdict: Verdict, what: str) -> Outcome:
        """Return the outcome for a process that is gone, which the next case starts anew."""
        said = _last_words(self._said)
        message = f"{what}\n{said}".rstrip()
        if self._info is None:
            raise ArgumentError(
                format_error(
                    "target",
                    got=f"{self.name!r}; while it was loaded, {message}",
                    allowed="a target that loads in a process of its own",
                    fix="load it in Python and see: sdpakit.conformance.targets.resolve",
                )
            )
        if self._is_loading:
            message = f"while the target was loaded again, {message}"
        case, self._case = self._case, ""
        seconds = time.monotonic() - self._began
        return Outcome(self.name, case, verdict, message=message, seconds=seconds)

    def _abort(self) -> None:
        """Kill a process that hangs; its last words are where (faulthandler, in `worker`)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)
            self._ends_within(1.0)
        self._kill()
        self._reap()

    def _kill(self) -> None:
        if self._process is not None:
            # Nothing is left to kill where the process ended by itself and had started no other.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _ends_within(self, seconds: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _reap(self) -> str:
        """Wait for the process, kill what it left behind, and say how it ended."""
        if self._process is None:
            return "is gone"
        if not self._ends_within(_GRACE):  # it has closed its pipes and lives on
            self._kill()
        status = self._process.wait()
        self._kill()
        self._said = self._read_printed()
        self._process = None
        self._printed.close()
        self._commands.close()
        os.close(self._answers)
        os.close(self._lifeline)
        return _ending(status)

    def _read_printed(self) -> str:
        descriptor = self._printed.fileno()
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, _TAIL, max(0, size - _TAIL)).decode(errors="replace")


class Pool:
    """Several processes that share the cases of one target.

    Parameters
    ----------
    name : str
        Text that `resolve` knows.
    workers : int
        How many processes.
    time_limit : float
        Seconds for one case.
    """

    def __init__(self, name: str, *, workers: int, time_limit: float) -> None:
        self.name = name
        self._members = [Isolated(name, time_limit=time_limit) for _ in range(workers)]

    def load(self) -> TargetInfo:
        """Start the first process; see `Isolated.load`."""
        return self._members[0].load()

    def run(
        self, checks: Sequence[Check], on_outcome: Callable[[Outcome], object] | None = None
    ) -> Iterator[Outcome]:
        """Judge the target.

        Parameters
        ----------
        checks : sequence of Case or (Relation, str)
            Of the kit; the processes find them by their ids.
        on_outcome : callable, optional
            Is told each outcome as soon as it is there, in whatever order.

        Yields
        ------
        Outcome
            In the order of the checks.

        Raises
        ------
        ArgumentError
            If a case is not of the kit, or the target cannot be loaded.
        """
        waiting = deque(enumerate([_id_in_kit(wanted) for wanted in checks]))
        idle, busy = deque(self._members), dict[Isolated, int]()
        done: dict[int, Outcome] = {}
        due = 0
        while due < len(checks):
            while idle and waiting:
                member = idle.popleft()
                busy[member], case = waiting.popleft()
                member.begin(case)
            select.select(list(busy), [], [], _GLANCE)
            for member in list(busy):
                if (outcome := member.poll()) is not None:
                    done[busy.pop(member)] = outcome
                    idle.append(member)
                    if on_outcome is not None:
                        on_outcome(outcome)
            while due in done:
                yield done.pop(due)
                due += 1

    def close(self) -> None:
        """End all processes."""
        for member in self._members:
            member.close()


def _id_in_kit(wanted: Check) -> str:
    name = check_id(wanted)
    if find(name) is not wanted and find(name) != wanted:
        raise ArgumentError(
            format_error(
                "case",
                got=f"a case {name!r} that is not the one of the kit",
                allowed="cases of the kit, which a process of its own finds by their ids",
                fix="judge it with `check(target, case)`",
            )
        )
    return name


def _message(line: bytes) -> Mapping[str, Any] | None:
    """Return what a line of the worker says, None if it is not from the worker."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    known = isinstance(found, dict) and not {"case", "versions", "refused"}.isdisjoint(found)
    return found if known else None


def _outcome(message: Mapping[str, Any], name: str) -> Outcome:
    fields = {**message, "target": name, "unjudged": tuple(message["unjudged"])}
    if message["worst"] is not None:
        worst = message["worst"]
        fields["worst"] = Worst(**{**worst, "index": tuple(worst["index"])})
    return Outcome(**fields)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    number = -status
    names = {int(entry): entry.name for entry in signal.Signals}
    hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
    return f"was killed by {names.get(number, f'signal {number}')}{hint}"


def _last_words(text: str) -> str:
    """Return what a process printed last, from where Python says what killed it, if it does."""
    lines = [line.rstrip()[:200] for line in text.splitlines() if line.strip()]
    starts = [n for n, line in enumerate(lines) if line.startswith("Fatal Python error")]
    chosen = lines[starts[-1] :][:_LINES] if starts else lines[-_LINES:]
    return "\n".join(f"    {line}" for line in chosen)
