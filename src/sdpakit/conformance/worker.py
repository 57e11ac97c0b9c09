"""The process in which a target runs: it loads the target, judges cases by id, answers in JSON.

The other end is `isolation`. Lines of JSON come and go over two pipes of their own, so that a
target may print what it likes. A third pipe carries nothing: its far end closes when the parent
dies, however it dies, and that kills this process and all that it started.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import resource
import signal
import threading
from dataclasses import asdict
from typing import IO, Any

from sdpakit.conformance.target import Target


def main(commands: int, answers: int, lifeline: int) -> None:
    """Serve one parent until it says no more.

    Parameters
    ----------
    commands, answers, lifeline : int
        File descriptors: where ids come from, where outcomes go, what closes with the parent.
    """
    _die_with_parent(lifeline)
    # A crash, and the signal that ends a hang, leave the Python stack in what was printed last.
    faulthandler.enable(all_threads=False)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # and no core file where the user works
    with os.fdopen(commands) as source, os.fdopen(answers, "w", buffering=1) as sink:
        target = _load(json.loads(source.readline()), sink)
        if target is not None:
            _serve(target, source, sink)


def _serve(target: Target, source: IO[str], sink: IO[str]) -> None:
    from sdpakit.conformance.runner import judge
    from sdpakit.conformance.selection import find

    process = os.getpid()
    for line in source:
        outcome = judge(target, find(json.loads(line)))
        if os.getpid() != process:
            os._exit(0)  # a fork of the target's came back here; only one of the two may answer
        _say(sink, asdict(outcome))


def _load(request: dict[str, Any], sink: IO[str]) -> Target | None:
    """Find the target and make all cases, so that the first case is charged for neither."""
    from sdpakit.conformance.runner import full_note
    from sdpakit.conformance.selection import select
    from sdpakit.conformance.targets.resolve import resolve
    from sdpakit.errors import SdpakitError

    try:
        target = resolve(request["target"])
    except SdpakitError as error:
        _say(sink, {"refused": str(error), "kind": type(error).__name__})
        return None
    select("stress")
    _say(sink, {"versions": dict(target.versions), "note": full_note(target)})
    return target


def _say(sink: IO[str], message: dict[str, Any]) -> None:
    sink.write(json.dumps(message, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Return a NumPy number as one of Python, and anything else as its text."""
    return value.item() if hasattr(value, "item") else str(value)


def _die_with_parent(lifeline: int) -> None:
    """Kill the process group when the lifeline closes.

    The kernel is asked to send the signal where it can do so (Linux); a thread, which must do
    elsewhere, waits for ever where a target hangs while it holds the lock of the interpreter.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
