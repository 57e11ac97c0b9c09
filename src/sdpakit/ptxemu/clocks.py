"""Vector clocks: what each warp knows of the accesses that others made.

Time is one counter for the whole batch; each access takes the next *stamp*, so a stamp also
tells the line of the access. A warp *knows* an access of an agent if it has waited, directly or
through others, for something that the agent did after it: if the stamp is at most what the warp
has noted for the agent.

Agents of a *domain* (a cluster; a block without clusters), by number:

- its warps;
- for each warpgroup, what its ``wgmma`` reads (all four warps wait for it, and each may pass
  that on);
- one for what bulk copies between blocks of a cluster read;
- *engines*, made when they are needed: one for each mbarrier that copies complete on.
  Who has seen a phase of an mbarrier complete has seen all copies of this and of earlier
  phases and no other copy, so that one number for each mbarrier says it exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# A clock that was handed on: what is known (row 0) and what of it is fenced for the asynchronous
# proxy (row 1), by agent. It may be narrower than the tables if engines were made since.
Clock: TypeAlias = NDArray[np.int32]
Warps: TypeAlias = NDArray[np.intp]

# Stamps of engines lie above those of warps: no floor covers them.
ENGINE_BIAS = 1 << 30
# What a warp knows of itself.
EVERYTHING = np.iinfo(np.int32).max

WARPS_OF_GROUP = 4


class Clocks:
    """Tables of what is known.

    Parameters
    ----------
    warps : int
        Of the batch.
    domain_warps : int
        Of one domain; warp ``w`` is agent ``w % domain_warps`` of domain ``w // domain_warps``.

    Attributes
    ----------
    known : numpy.ndarray
        By warp and agent: the last stamp that the warp knows.
    fenced : numpy.ndarray
        The same for what a proxy fence lies behind, too.
    floor : numpy.ndarray
        By warp: it knows all stamps of warps up to this one.
    low : int
        The least floor.
    bulk_reader : int
        The agent for what bulk copies read.
    """

    def __init__(self, warps: int, domain_warps: int) -> None:
        self.domain_warps = domain_warps
        self.groups = -(-domain_warps // WARPS_OF_GROUP)
        self.bulk_reader = domain_warps + self.groups
        self._fixed = self.bulk_reader + 1
        self._engines: dict[Hashable, int] = {}
        self._engine_count = [0] * max(warps // domain_warps, 1)
        self.lines = array("i", [0])
        every = np.arange(warps)
        self.known = np.zeros((warps, self._fixed + 4), np.int32)
        self.known[every, every % domain_warps] = EVERYTHING
        self.fenced = np.zeros_like(self.known)
        self.asynchronous = np.zeros((len(self._engine_count), self._fixed + 4), bool)
        self.floor = np.zeros(warps, np.int32)
        self._set_floor(every)

    @property
    def now(self) -> int:
        """The last stamp."""
        return len(self.lines) - 1

    def stamp(self, line: int) -> int:
        """Return the stamp of an access that happens now, at this line."""
        self.lines.append(line)
        return len(self.lines) - 1

    def line(self, stamp: int) -> int:
        """Return the line of the access that a stamp was given to; 0 if nobody made it."""
        return self.lines[stamp - ENGINE_BIAS if stamp >= ENGINE_BIAS else stamp]

    def group(self, warp: int) -> int:
        """Return the agent that stands for the products of a warp's warpgroup."""
        return self.domain_warps + warp % self.domain_warps // WARPS_OF_GROUP

    def engine(self, warp: int, key: Hashable, *, asynchronous: bool) -> int:
        """Return the agent of a domain (that of `warp`) for copies that complete on `key`.

        `asynchronous` says whether they write through the asynchronous proxy; it belongs to the
        key.
        """
        domain = warp // self.domain_warps
        agent = self._engines.get((domain, key, asynchronous))
        if agent is None:
            agent = self._fixed + self._engine_count[domain]
            self._engine_count[domain] += 1
            self._engines[domain, key, asynchronous] = agent
            if agent >= self.known.shape[1]:
                self._widen()
            self.asynchronous[domain, agent] = asynchronous
        return agent

    def _widen(self) -> None:
        more = self.known.shape[1]
        self.known = np.pad(self.known, ((0, 0), (0, more)))
        self.fenced = np.pad(self.fenced, ((0, 0), (0, more)))
        self.asynchronous = np.pad(self.asynchronous, ((0, 0), (0, more)))

    def snapshot(self, warps: Warps) -> Clock:
        """Return what warps of one domain know together, their own past included."""
        clock = np.empty((2, self.known.shape[1]), np.int32)
        if len(warps) == 1:
            warp = warps[0]
            clock[0], clock[1] = self.known[warp], self.fenced[warp]
            clock[0, warp % self.domain_warps] = self.now
            return clock
        self.known[warps].max(axis=0, out=clock[0])
        self.fenced[warps].max(axis=0, out=clock[1])
        clock[0, warps % self.domain_warps] = self.now
        return clock

    def acquire(self, warps: Warps, clock: Clock) -> None:
        """Let warps of one domain know what a clock says."""
        width = clock.shape[1]
        self.known[warps, :width] = np.maximum(self.known[warps, :width], clock[0])
        self.fenced[warps, :width] = np.maximum(self.fenced[warps, :width], clock[1])
        self._set_floor(warps)

    def exchange(self, groups: Warps) -> None:
        """Let the warps of each row know what the row knows: a barrier, many at once."""
        members = np.arange(len(groups))[:, None]
        joined = self.known[groups].max(axis=1)
        joined[members, groups % self.domain_warps] = self.now
        known = np.broadcast_to(joined[:, None], (*groups.shape, joined.shape[1])).copy()
        known[members, np.arange(groups.shape[1]), groups % self.domain_warps] = EVERYTHING
        self.known[groups] = known
        self.fenced[groups] = self.fenced[groups].max(axis=1, keepdims=True)
        self._set_floor(groups.ravel())

    def note(self, warps: Warps, agent: int, stamp: int) -> None:
        """Let warps know one access of an agent that is no warp."""
        self.known[warps, agent] = np.maximum(self.known[warps, agent], stamp)

    def fence(self, warps: Warps) -> None:
        """Mark all that warps know, and what they did, as fenced for the asynchronous proxy."""
        known = self.known[warps]
        known[np.arange(len(warps)), warps % self.domain_warps] = self.now
        self.fenced[warps] = np.maximum(self.fenced[warps], known)

    def _set_floor(self, warps: Warps) -> None:
        lowest = self.known[warps, : self.domain_warps].min(axis=1)
        self.floor[warps] = np.minimum(lowest, ENGINE_BIAS - 1)
        self.low = int(self.floor.min(initial=ENGINE_BIAS - 1))


def distinct(warps: Warps) -> Warps:
    """Return each of some warps once; they are in order, as those of sorted lanes are."""
    if len(warps) < 2:
        return warps
    new = np.empty(len(warps), bool)
    new[0] = True
    np.not_equal(warps[1:], warps[:-1], out=new[1:])
    return warps[new]


def join(clock: Clock | None, other: Clock | None) -> Clock | None:
    """Return the join of two clocks of one domain; either may be None."""
    if clock is None or other is None:
        return other if clock is None else clock
    wide, narrow = (clock, other) if clock.shape[1] >= other.shape[1] else (other, clock)
    joined = wide.copy()
    width = narrow.shape[1]
    np.maximum(joined[:, :width], narrow, out=joined[:, :width])
    return joined
