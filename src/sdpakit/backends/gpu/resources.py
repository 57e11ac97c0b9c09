"""What the assembler reports of each kernel, what it warns of, and how many blocks fit.

The report is that of `ptxas -v`, which NVRTC and nvJitLink both pass on. Where nvJitLink compiled
PTX, it adds a report of the linked code: a kernel has the registers and the stack of the functions
that it calls only there. Of its other numbers, barriers are not those of the code, and shared
memory includes what the system reserves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdpakit.backends.gpu.architectures import WARP, Architecture

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"^ptxas info +: Function properties for '?([^\s']+?)'?:?$")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"^ptxas info +: Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
_LINKED_FOR = re.compile(r"^info +: Function properties for '([^']+)'")
_LINKED = re.compile(r"^info +: used (\d+) registers, used \d+ barriers, (\d+) stack")
_REMARK = re.compile(r"^ptxas (info|warning) +: (?:\((C\d+)\) )?(.+)$")
_FUNCTION = re.compile(r"function '([^']+)'")
_LINE = re.compile(r"\bline ([1-9]\d*)")  # line 0 is one that the assembler does not know
_LOSS = re.compile(r"C75\d\d|Potential Performance Loss")

_SUBPARTITIONS = 4  # of a multiprocessor: each has a quarter of its registers and warps
_REGISTER_UNIT = 256  # registers are given to a warp in such amounts


@dataclass(frozen=True, slots=True)
class Frame:
    """Local memory of a function, in bytes for each thread."""

    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes.

    Attributes
    ----------
    registers : int
        Of each thread when the kernel starts.
    frame : Frame
        Local memory.
    barriers : int
        Hardware barriers of a block.
    shared : int
        Static shared memory of a block, in bytes.
    constant : int
        Constant memory in bytes, all banks; 0 where the report has none, as that of NVRTC for 9.0.
    """

    registers: int
    frame: Frame
    barriers: int
    shared: int
    constant: int


@dataclass(frozen=True, slots=True)
class Remark:
    """A warning of the assembler, or a note that it made worse code than it was asked for.

    Attributes
    ----------
    code : str
        Such as "C7510", which differs between releases; "" where there is none.
    text : str
        What it says.
    function : str
        "" where it names none.
    line : int or None
        Of the PTX.
    meaning, remedy : str
        What that means and what to do; "" where it is not known here.
    costs_speed : bool
        Whether it says that, as all of C75xx do.
    """

    code: str
    text: str
    function: str
    line: int | None
    meaning: str
    remedy: str
    costs_speed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All that one log says.

    Attributes
    ----------
    kernels : mapping of str to Resources
        By the name of the kernel.
    functions : mapping of str to Frame
        Functions that were not inlined: their spills are those of kernels, too.
    remarks : tuple of Remark
        In the order of the log.
    """

    kernels: Mapping[str, Resources]
    functions: Mapping[str, Frame]
    remarks: tuple[Remark, ...]


# Keyed by the words, not by the code: releases have renumbered them.
_MEANINGS = (
    (
        "presence of Extern calls",
        "a function that is linked later is called between wgmmas, so each waits for the last",
        "define the function in the same source and inline it",
    ),
    (
        "crossing function boundary",
        "a function is called between wgmmas, so each waits for the last",
        "make every function that is called there __forceinline__",
    ),
    (
        "insufficient register resources",
        "accumulators and operands of the wgmmas do not fit in registers, so each waits",
        "take smaller tiles or more warpgroups, or read that operand from shared memory",
    ),
    (
        "defining input registers",
        "registers that a wgmma reads are written while it may run, so each waits",
        "write them before wgmma.fence",
    ),
    (
        "reading accumulator registers",
        "accumulators are read before the wgmmas have ended, so each waits for the last",
        "read them after wgmma.wait_group, with an empty asm volatile over them in between",
    ),
    (
        "defining accumulator registers",
        "accumulators are written while wgmmas may run, so each waits for the last",
        "write them before wgmma.fence, or begin a sum with scale-d = 0 in place of zeros",
    ),
    (
        "ill formed pipeline stage",
        "fence, commit_group and wait_group of wgmmas do not pair up on every path",
        "put each group's fence, products and commit in one straight piece of code",
    ),
    (
        "is injected",
        "the compiler orders wgmmas itself where the code does not, and may wait too early",
        "write wgmma.fence before the first product, and wait_group before results are read",
    ),
    (
        "in divergent path",
        "wgmmas stand in code that a part of a warpgroup may skip, so each waits",
        "branch on values that are the same in the whole warpgroup",
    ),
    (
        "compatibility across compilation units",
        "setmaxnreg has no effect, since code that is linked later may need more registers",
        "compile whole programs: link LTO-IR in place of PTX, no relocatable device code",
    ),
    (
        "minimum register requirements",
        "setmaxnreg has no effect, since it leaves fewer registers than the code needs",
        "ask for more registers, or let those warps do less",
    ),
    (
        "unable to determine register count at entry",
        "setmaxnreg has no effect, since the registers at the start are not known",
        "give the kernel both numbers of __launch_bounds__: its threads, and blocks (such as 1)",
    ),
    (
        "into 'extern' call",
        "setmaxnreg has no effect, since a function that is linked later is called",
        "define the function in the same source and inline it",
    ),
    (
        "to allow debugging",
        "setmaxnreg has no effect in code for a debugger",
        "compile without -G",
    ),
)


def read_report(log: str) -> Report:
    """Read the log of a compilation.

    Parameters
    ----------
    log : str
        Of NVRTC with `--ptxas-options=-v`, or of nvJitLink with `-verbose`.

    Returns
    -------
    Report
        Kernels, other functions, and remarks.
    """
    frames: dict[str, Frame] = {}
    used: dict[str, str] = {}
    linked: dict[str, str] = {}
    entry = function = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = found[1]
        elif found := _PROPERTIES.match(line):
            function = found[1]
        elif found := _FRAME.search(line):
            frames[function] = Frame(*map(int, found.groups()))
        elif _USED.match(line):
            used[entry] = line
        elif found := _LINKED_FOR.match(line):
            function = found[1]
        elif _LINKED.match(line):
            linked[function] = line
    return Report(
        kernels={
            name: _resources(line, frames[name], linked.get(name, ""))
            for name, line in used.items()
        },
        functions={name: frame for name, frame in frames.items() if name not in used},
        remarks=tuple(_remarks(log)),
    )


def _resources(line: str, frame: Frame, linked: str) -> Resources:
    """Return what the lines of a kernel say: of ptxas, and of the linker, if there is one."""
    registers, barriers, shared = (
        int(found[1]) if (found := pattern.search(line)) else 0
        for pattern in (_USED, _BARRIERS, _SHARED)
    )
    if found := _LINKED.match(linked):
        registers, stack = map(int, found.groups())
        frame = replace(frame, stack=stack)
    constant = sum(int(size) for size in _CONSTANT.findall(linked or line))
    return Resources(registers, frame, barriers, shared, constant)


def _remarks(log: str) -> list[Remark]:
    """Return what is no plain figure: each warning, and each note of lost speed."""
    found = (_REMARK.match(line.rstrip()) for line in log.splitlines())
    return [
        _remark(code or "", text)
        for kind, code, text in (match.groups() for match in found if match)
        if kind == "warning" or _LOSS.search(f"{code} {text}")
    ]


def _remark(code: str, text: str) -> Remark:
    meaning, remedy = next(((m, r) for words, m, r in _MEANINGS if words in text), ("", ""))
    where, line = _FUNCTION.search(text), _LINE.search(text)
    return Remark(
        code=code,
        text=text,
        function=where[1] if where else "",
        line=int(line[1]) if line else None,
        meaning=meaning,
        remedy=remedy,
        costs_speed=bool(_LOSS.search(f"{code} {text}")),
    )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How much of a kernel a multiprocessor holds at once.

    Attributes
    ----------
    blocks : int
        Resident blocks; 0 where not even one fits.
    warps : int
        Resident warps.
    share : float
        Of the warps that could be resident.
    limits : mapping of str to int
        Blocks that each of "warps", "registers", "shared memory" and "blocks" would allow.
    """

    blocks: int
    warps: int
    share: float
    limits: Mapping[str, int]

    @property
    def limited_by(self) -> tuple[str, ...]:
        """What allows no more blocks."""
        return tuple(name for name, limit in self.limits.items() if limit == self.blocks)


def occupancy(
    resources: Resources, arch: Architecture, threads: int, dynamic_shared: int = 0
) -> Occupancy:
    """Return how many blocks are resident on a multiprocessor.

    Registers are given to warps, in units of 256, within the quarter of the multiprocessor that
    runs them; shared memory in units of 128 bytes (256 before 8.0), a reserve for each block
    included. A test holds this against `cuda_occupancy.h`, NVIDIA's calculator.

    Parameters
    ----------
    resources : Resources
        Of the kernel.
    arch : Architecture
        Of the device.
    threads : int
        Of a block.
    dynamic_shared : int
        Shared memory that the launch adds to the static one, in bytes.

    Returns
    -------
    Occupancy
        Blocks, warps, and what limits them.
    """
    warps = -(-threads // WARP)
    shared = resources.shared + dynamic_shared
    limits = {
        "warps": arch.warps_per_sm // warps if threads <= arch.threads_per_block else 0,
        "registers": _warps_by_registers(resources.registers, arch) // warps,
        "shared memory": _blocks_by_shared(shared, arch),
        "blocks": arch.blocks_per_sm,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, blocks * warps / arch.warps_per_sm, limits)


def _warps_by_registers(registers: int, arch: Architecture) -> int:
    if registers > arch.registers_per_thread:
        return 0
    each = _rounded_up(registers * WARP, _REGISTER_UNIT) or _REGISTER_UNIT
    return arch.registers_per_sm // _SUBPARTITIONS // each * _SUBPARTITIONS


def _blocks_by_shared(shared: int, arch: Architecture) -> int:
    if shared > arch.shared_per_block:
        return 0
    unit = 128 if arch.capability >= (8, 0) else 256
    taken = _rounded_up(shared + arch.shared_reserved, unit)
    return arch.shared_per_sm // taken if taken else arch.blocks_per_sm


def _rounded_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
