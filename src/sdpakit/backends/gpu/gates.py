"""What machine code must be like, said as data and judged without a GPU.

A kernel can give right results and be worth nothing: with registers spilled, products that wait for
each other, or no matrix instruction at all. A gate names one such property. Those about a launch
are given its shape, as a kernel does not know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from sdpakit.backends.gpu.architectures import WARP, Architecture
from sdpakit.backends.gpu.compiling import CompiledModule
from sdpakit.backends.gpu.resources import Frame, Report, Resources, occupancy
from sdpakit.backends.gpu.sass import OPCODES, Census, take_census
from sdpakit.errors import format_error


@dataclass(frozen=True, slots=True)
class Finding:
    """One property that code lacks.

    Attributes
    ----------
    function : str
        The kernel, or a function that it calls.
    got, allowed, remedy : str
        What came, what would be right, what to do.
    """

    function: str
    got: str
    allowed: str
    remedy: str

    def __str__(self) -> str:
        """Return it in the form of every message of sdpakit."""
        return format_error(self.function, got=self.got, allowed=self.allowed, fix=self.remedy)


@dataclass(frozen=True)
class Subject:
    """What gates look at; machine code is read only if one of them asks for it.

    Attributes
    ----------
    arch : Architecture
        What the code runs on.
    report : Report
        Of the assembler.
    cubin : bytes
        The code.
    """

    arch: Architecture
    report: Report
    cubin: bytes

    @cached_property
    def census(self) -> Mapping[str, Census]:
        """Instructions by function."""
        return take_census(self.cubin)


class Gate(Protocol):
    """One property that code must have."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield where the code lacks it."""
        ...


def judge(compiled: CompiledModule, gates: Sequence[Gate]) -> list[Finding]:
    """Return where code breaks its gates.

    Parameters
    ----------
    compiled : CompiledModule
        The code; each gate asks about all its kernels.
    gates : sequence of Gate
        What it must be like.

    Returns
    -------
    list of Finding
        Empty = nothing is wrong.

    Raises
    ------
    BackendUnavailableError
        If a gate asks for instructions and nvdisasm is missing.
    """
    subject = Subject(compiled.arch, compiled.report, compiled.cubin)
    return [finding for gate in gates for finding in gate.findings(subject)]


@dataclass(frozen=True, slots=True)
class NoSpills:
    """No register is spilled to local memory, in kernels and in what they call."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield functions with spills."""
        kernels = {name: it.frame for name, it in subject.report.kernels.items()}
        for name, frame in (kernels | dict(subject.report.functions)).items():
            if frame.spill_stores or frame.spill_loads:
                yield Finding(name, self._amount(frame), "none", self._remedy(name, subject))

    @staticmethod
    def _amount(frame: Frame) -> str:
        return f"{frame.spill_stores} bytes of spill stores, {frame.spill_loads} of spill loads"

    @staticmethod
    def _remedy(name: str, subject: Subject) -> str:
        kernel = subject.report.kernels.get(name)
        has = f"it has {kernel.registers} registers a thread: " if kernel else ""
        return f"{has}take smaller tiles, more threads, or a larger limit in __launch_bounds__"


@dataclass(frozen=True, slots=True)
class NoLocalMemory:
    """Nothing is read from local memory or written to it: arrays stay in registers."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield functions with LDL or STL."""
        for name, census in subject.census.items():
            loads, stores = census.count("LDL"), census.count("STL")
            if loads or stores:
                yield Finding(
                    name,
                    f"{loads} LDL and {stores} STL",
                    "no access to local memory",
                    "spill nothing, and index arrays by constants only (unroll loops over them)",
                )


@dataclass(frozen=True, slots=True)
class NoLostSpeed:
    """The assembler did not give up what it was asked for (its C75xx remarks)."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield each remark about lost speed."""
        for remark in subject.report.remarks:
            if remark.costs_speed:
                place = f", PTX line {remark.line}" if remark.line is not None else ""
                yield Finding(
                    remark.function or ", ".join(subject.report.kernels),
                    f"{remark.code}{place}: {remark.meaning or remark.text}",
                    "no remark of potential performance loss",
                    remark.remedy or "look up this remark of ptxas",
                )


@dataclass(frozen=True, slots=True)
class HasInstructions:
    """An instruction stands in every kernel, often enough.

    Attributes
    ----------
    opcode : str
        Such as "HGMMA" or, with modifiers, "HMMA.16816.F32.BF16".
    at_least : int
        How often.
    """

    opcode: str
    at_least: int = 1

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield kernels with fewer of them."""
        meaning = OPCODES.get(self.opcode.split(".")[0], "an instruction of the machine")
        for name in subject.report.kernels:
            census = subject.census[name]
            if (count := census.count(self.opcode)) < self.at_least:
                there = ", ".join(f"{known} {n}" for known, n in census.known().items())
                yield Finding(
                    name,
                    f"{count} {self.opcode} ({meaning}) among {there or 'none that tells much'}",
                    f"at least {self.at_least}",
                    "look whether the compiler removed the work, or another instruction does it",
                )


@dataclass(frozen=True, slots=True)
class FitsLaunch:
    """Every kernel can be launched in this shape.

    Attributes
    ----------
    threads : int
        Of a block.
    dynamic_shared : int
        Bytes of shared memory that the launch adds.
    """

    threads: int
    dynamic_shared: int = 0

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield each limit that a kernel passes."""
        arch = subject.arch
        if self.threads > arch.threads_per_block:
            yield Finding(
                ", ".join(subject.report.kernels),
                f"{self.threads} threads in a block",
                f"{arch.threads_per_block} on {arch}",
                "take fewer warps, each with more of the tile",
            )
        for name, kernel in subject.report.kernels.items():
            yield from self._shared(name, kernel, arch)
            yield from self._registers(name, kernel, arch)

    def _shared(self, name: str, kernel: Resources, arch: Architecture) -> Iterator[Finding]:
        shared = kernel.shared + self.dynamic_shared
        if shared > arch.shared_per_block:
            yield Finding(
                name,
                f"{shared} bytes of shared memory ({kernel.shared} of them static)",
                f"{arch.shared_per_block} for a block on {arch}",
                "take smaller tiles or fewer stages",
            )

    def _registers(self, name: str, kernel: Resources, arch: Architecture) -> Iterator[Finding]:
        limit = occupancy(kernel, arch, self.threads).limits["registers"]
        if limit == 0 and self.threads <= arch.threads_per_block:
            warps = -(-self.threads // WARP)
            yield Finding(
                name,
                f"{kernel.registers} registers for each thread of {warps} warps",
                f"{arch.registers_per_sm} registers of a multiprocessor of {arch}",
                f"declare __launch_bounds__({self.threads}), or take fewer warps",
            )


@dataclass(frozen=True, slots=True)
class Occupies:
    """At least so many blocks are resident on a multiprocessor.

    Attributes
    ----------
    blocks : int
        How many.
    threads : int
        Of a block.
    dynamic_shared : int
        Bytes of shared memory that the launch adds.
    """

    blocks: int
    threads: int
    dynamic_shared: int = 0

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield kernels of which fewer fit."""
        for name, kernel in subject.report.kernels.items():
            fit = occupancy(kernel, subject.arch, self.threads, self.dynamic_shared)
            if fit.blocks < self.blocks:
                yield Finding(
                    name,
                    f"{fit.blocks} blocks of {self.threads} threads on a multiprocessor",
                    f"at least {self.blocks} on {subject.arch}",
                    f"take less of what limits them: {', '.join(fit.limited_by)}",
                )
