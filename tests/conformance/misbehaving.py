"""Targets that hang, die, print and fork; named by the path of this file, as a user would."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from sdpakit.conformance.target import refusal
from sdpakit.conformance.targets.naive import Naive


def name(target):
    return f"{Path(__file__)}:{target.__name__}"


class AtBottomRight(Naive):
    """Misbehaves under masks that are aligned at the bottom right."""

    def attention(self, spec, q, k, v, **operands):
        if "bottom_right" in repr(spec.mask):
            os.write(1, b"about to misbehave\n")
            os.write(2, b"a word on stderr\n")
            self.misbehave()
        return super().attention(spec, q, k, v, **operands)


class Sleeps(AtBottomRight):
    def misbehave(self):
        time.sleep(1000)


class HoldsTheLock(AtBottomRight):
    def misbehave(self):
        ctypes.PyDLL(None).sleep(1000)


class Segfaults(AtBottomRight):
    def misbehave(self):
        ctypes.string_at(0)


class Exits(AtBottomRight):
    def misbehave(self):
        os._exit(7)


class IsKilled(AtBottomRight):
    def misbehave(self):
        os.kill(os.getpid(), signal.SIGKILL)


class ClosesEverything(AtBottomRight):
    def misbehave(self):
        os.closerange(3, 100)


class WritesEverywhere(AtBottomRight):
    """As a library does that kept the number of a descriptor which it has closed."""

    def misbehave(self):
        for descriptor in range(3, 1024):  # a process with many open files gives high numbers
            with contextlib.suppress(OSError):
                os.write(descriptor, b"not for you\n")
        time.sleep(60)  # until it is noticed, so that one call does it


class LeavesWithPolitesse(AtBottomRight):
    def misbehave(self):
        sys.exit("enough")


class Talks(Naive):
    def attention(self, spec, q, k, v, **operands):
        sys.stdout.write('{"case": "x"}\n' * 3)
        os.write(1, b'{"case": "x"}\n')
        return super().attention(spec, q, k, v, **operands)


class Forks(Naive):
    """Both processes come back from the call; only one of them may answer."""

    def attention(self, spec, q, k, v, **operands):
        os.fork()
        return super().attention(spec, q, k, v, **operands)


class RefusesAll(Naive):
    def prepare(self, spec):
        raise refusal("refuser", "it does nothing")

    prepare_gradients = prepare


class HalvesTheScale(Naive):
    def products(self, q, k):
        return super().products(q, k) / 2


class WritesItsPid(Naive):
    """Says which process it is in, starts another one, and holds the lock for ever."""

    def attention(self, spec, q, k, v, **operands):
        child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
        place = Path(os.environ["PIDS"])
        place.with_suffix(".new").write_text(f"{os.getpid()} {child}")
        place.with_suffix(".new").replace(place)
        ctypes.PyDLL(None).sleep(1000)


def dies_while_loaded():
    os._exit(5)
