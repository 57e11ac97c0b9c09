"""Whether neighbours slow this core down, told by a probe that is not what is measured.

Two hardware threads share the units of a core, and on a virtual machine the other one may belong to
a stranger. Nothing in the accounts of the system shows it. What shows it is how much a core issues
at once: four chains of operations take as long as one chain while the core is alone, and up to
twice as long while it gives every other cycle to somebody else. Both are timed here, a moment
apart, so the clock of the core cancels, and no quiet time is needed to know what is normal.
"""

from __future__ import annotations

import time

from bench.native import NativeFunction, chain_loop

# Alone a probe reads 1.00 to 1.05; with company, by what that does, 1.2 to 2.
SLOWDOWN_LIMIT = 1.15
WAIT_SECONDS = 1.0
# So many undisturbed samples are enough to leave out the others.
ENOUGH_QUIET = 3
_CHAINS = 4  # the least that cores of today issue in a cycle
_PASSES = 2_500  # some tens of microseconds


class Probe:
    """Times four chains beside one chain."""

    def __init__(self) -> None:
        self._one, self._four = chain_loop(1), chain_loop(_CHAINS)
        self.slowdown()

    def slowdown(self) -> float:
        """Return how many times longer four chains take than one.

        Of one chain the shorter of two times counts: a timer's interrupt falls into it now and
        then. One in the four chains passes for company.
        """
        before = _seconds(self._one)
        four = _seconds(self._four)
        return four / min(before, _seconds(self._one))

    def wait(self) -> float:
        """Run the probe until it has no company, for a while at most; return the last slowdown."""
        end = time.perf_counter() + WAIT_SECONDS
        while (slowdown := self.slowdown()) > SLOWDOWN_LIMIT and time.perf_counter() < end:
            time.sleep(0.002)
        return slowdown


def _seconds(loop: NativeFunction) -> float:
    start = time.perf_counter()
    loop(_PASSES)
    return time.perf_counter() - start
