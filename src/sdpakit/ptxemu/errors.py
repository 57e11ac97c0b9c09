"""What goes wrong in a kernel, one class for each kind of fault, and what is no kernel at all."""

from __future__ import annotations


class PtxError(Exception):
    """Base of all errors of this package."""


class PtxSyntaxError(PtxError):
    """The text is not PTX; the message has line, column and what was expected."""


class UnsupportedInstruction(PtxError):
    """The emulator has no such instruction, or not in this form."""


class LaunchError(PtxError):
    """The launch does not fit the kernel: arguments, block, grid, cluster or shared memory."""


class KernelFault(PtxError):
    """The kernel did something wrong.

    Parameters
    ----------
    problem : str
        What happened, with the values in question.
    remedy : str
        What to do about it.
    line : int or None
        Of the instruction, in the PTX text.
    text : str
        The instruction.
    block : tuple of int or None
        ``%ctaid`` of the thread.
    thread : int or None
        Its number in its block, x fastest.

    Attributes
    ----------
    All parameters are attributes, and `name`, the name of the check: ``"race"``.
    """

    name = "fault"

    def __init__(
        self,
        problem: str,
        remedy: str,
        line: int | None = None,
        text: str = "",
        block: tuple[int, ...] | None = None,
        thread: int | None = None,
    ) -> None:
        self.problem, self.remedy, self.line, self.text = problem, remedy, line, text
        self.block, self.thread = block, thread
        where = f"PTX line {line}: {text}" if line is not None else ""
        who = f"block {block}, thread {thread}" if thread is not None else ""
        parts = [f"{self.name}: {problem}", where, who, f"remedy: {remedy}"]
        super().__init__("\n  ".join(part for part in parts if part))


class OutOfBounds(KernelFault):
    """An access outside every allocation, or outside the block's shared memory."""

    name = "bounds"


class Misaligned(KernelFault):
    """An address that its access width does not divide."""

    name = "alignment"


class UninitialisedRead(KernelFault):
    """A read of memory that nobody wrote."""

    name = "uninitialised"


class UnwrittenOutput(KernelFault):
    """Bytes of an output that no thread wrote."""

    name = "unwritten"


class Race(KernelFault):
    """Two accesses to the same shared memory that nothing orders."""

    name = "race"


class MissingWait(KernelFault):
    """Shared memory touched while an asynchronous copy into it is under way."""

    name = "wait"


class MissingProxyFence(KernelFault):
    """The asynchronous proxy reads what ordinary stores wrote, with no ``fence.proxy.async``."""

    name = "proxy"


class AccumulatorInFlight(KernelFault):
    """A register of a ``wgmma`` touched before its wait, or ``wgmma`` without its fence."""

    name = "accumulator"


class BarrierMisuse(KernelFault):
    """A barrier or mbarrier with too many arrivals, or counts that disagree."""

    name = "barrier"


class Deadlock(KernelFault):
    """Every thread waits, and nothing under way can wake one."""

    name = "deadlock"


class Divergence(KernelFault):
    """An instruction for a whole warp or warpgroup, run by a part of it."""

    name = "divergence"


class Trap(KernelFault):
    """The kernel executed ``trap``, or ran longer than it was allowed to."""

    name = "trap"
