"""CUDA C++, PTX or LTO-IR -> machine code for one architecture, with all that is known about it.

Machine code is made for the architecture of a device itself, never for a virtual one: a driver
compiles only the PTX of its own release or an older one. Sources are header-free, so that nothing
but the compiler has to be installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sdpakit.backends.gpu.architectures import Architecture, architecture
from sdpakit.backends.gpu.libraries import Output, compile_with_nvrtc, link_with_nvjitlink
from sdpakit.backends.gpu.resources import Report, read_report
from sdpakit.backends.gpu.toolchain import require, toolchain
from sdpakit.errors import LoweringError

_SOURCE_NAME = "kernel.cu"
_PTX_NAME = "kernel.ptx"
_LTOIR_NAME = "kernel.ltoir"

_IN_SOURCE = re.compile(rf"^{re.escape(_SOURCE_NAME)}\((\d+)\): .*error", re.MULTILINE)
_IN_PTX = re.compile(r"^ptxas .*line (\d+); (?:error|fatal)", re.MULTILINE)
_AROUND = 2  # lines shown above and below one in question
_PLACES = 3  # the first places say it all: others mostly follow from them
_TIMES = re.compile(r"^ptxas info +: Compile time = .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """Machine code of one architecture.

    Attributes
    ----------
    arch : Architecture
        What it runs on.
    ptx : str
        What it was made of.
    cubin : bytes
        The code, an ELF file.
    log : str
        What the compiler said, without times: equal sources give equal logs.
    report : Report
        Resources of the kernels, and the assembler's remarks.
    """

    arch: Architecture
    ptx: str
    cubin: bytes
    log: str
    report: Report


def compile_source(
    source: str, arch: str | Architecture, options: Sequence[str] = ()
) -> CompiledModule:
    """Compile CUDA C++; no driver is needed.

    Parameters
    ----------
    source : str
        The text, without includes.
    arch : str or Architecture
        What to compile for, such as "sm_90a".
    options : sequence of str
        More options of NVRTC, such as "-DD=64".

    Returns
    -------
    CompiledModule
        The code.

    Raises
    ------
    ArgumentError
        If there is no such architecture.
    BackendUnavailableError
        If NVRTC is missing.
    LoweringError
        If NVRTC refuses the source; the message has its log and the lines in question.
    """
    target = architecture(arch)
    require(toolchain().nvrtc)
    fixed = (f"-arch={target.name}", "-std=c++17", "--ptxas-options=-v")
    output = compile_with_nvrtc(source, _SOURCE_NAME, [*fixed, *options])
    return _module(output, target, source)


def link_ptx(ptx: str, arch: str | Architecture, options: Sequence[str] = ()) -> CompiledModule:
    """Compile PTX, of whatever compiler; no driver is needed.

    nvJitLink compiles PTX as a part of a larger program: setmaxnreg then has no effect (a remark
    says so), and functions that are not inlined cost registers. `link_ltoir` has neither defect.

    Parameters
    ----------
    ptx : str
        The text.
    arch : str or Architecture
        What to compile for, such as "sm_90a".
    options : sequence of str
        More options of nvJitLink, such as "-maxrregcount=128".

    Returns
    -------
    CompiledModule
        The code.

    Raises
    ------
    ArgumentError
        If there is no such architecture.
    BackendUnavailableError
        If nvJitLink is missing.
    LoweringError
        If nvJitLink refuses the PTX; the message has its log and the lines in question.
    """
    target = architecture(arch)
    require(toolchain().nvjitlink)
    fixed = (f"-arch={target.name}", "-verbose")
    output = link_with_nvjitlink(ptx.encode() + b"\0", "PTX", _PTX_NAME, [*fixed, *options])
    return _module(replace(output, ptx=ptx), target, "")


def link_ltoir(
    ltoir: bytes, arch: str | Architecture, options: Sequence[str] = ()
) -> CompiledModule:
    """Compile LTO-IR, which compilers emit in place of PTX, as a whole program; without a driver.

    Parameters
    ----------
    ltoir : bytes
        The code.
    arch : str or Architecture
        What to compile for, such as "sm_90a".
    options : sequence of str
        More options of nvJitLink.

    Returns
    -------
    CompiledModule
        The code.

    Raises
    ------
    ArgumentError
        If there is no such architecture.
    BackendUnavailableError
        If nvJitLink is missing.
    LoweringError
        If nvJitLink refuses the code; the message has its log.
    """
    target = architecture(arch)
    require(toolchain().nvjitlink)
    fixed = (f"-arch={target.name}", "-lto", "-verbose")
    as_text = link_with_nvjitlink(ltoir, "LTOIR", _LTOIR_NAME, [*fixed, *options, "-ptx"])
    output = link_with_nvjitlink(ltoir, "LTOIR", _LTOIR_NAME, [*fixed, *options])
    return _module(replace(output, ptx=as_text.ptx), target, "")


def _module(output: Output, arch: Architecture, source: str) -> CompiledModule:
    if not output.ok:
        raise LoweringError(_refusal(output, arch, source))
    log = _TIMES.sub("", output.log).rstrip()
    return CompiledModule(arch, output.ptx, output.cubin, log, read_report(log))


def _refusal(output: Output, arch: Architecture, source: str) -> str:
    """Return the log, and the lines that it speaks of."""
    shown = [
        *_excerpts(_SOURCE_NAME, source, _IN_SOURCE.findall(output.log)),
        *_excerpts("PTX", output.ptx, _IN_PTX.findall(output.log)),
    ]
    return "\n".join((f"code for {arch} does not compile:", output.log.strip(), *shown))


def _excerpts(name: str, text: str, numbers: Sequence[str]) -> Iterator[str]:
    lines = text.splitlines()
    for number in list(dict.fromkeys(map(int, numbers)))[:_PLACES]:
        first, last = max(number - _AROUND, 1), min(number + _AROUND, len(lines))
        yield f"{name}, line {number}:"
        for shown in range(first, last + 1):
            yield f"{'>' if shown == number else ' '} {shown:5} | {lines[shown - 1]}"
