"""Which instructions machine code consists of, kernel by kernel, through nvdisasm."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sdpakit.backends.gpu import toolchain
from sdpakit.errors import LoweringError

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,\"]+)")
# An address, perhaps a guard, the opcode: `/*0240*/   @!P2 LDSM.16.M88.4 R4, [R2+UR4] ;`
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")

OPCODES: Mapping[str, str] = {
    "HMMA": "matrix product of a warp, 16-bit or tf32 operands",
    "IMMA": "matrix product of a warp, integers",
    "QMMA": "matrix product of a warp, 8-bit floats",
    "DMMA": "matrix product of a warp, float64",
    "HGMMA": "matrix product of a warpgroup, 16-bit or tf32 operands",
    "QGMMA": "matrix product of a warpgroup, 8-bit floats",
    "WARPGROUP": "order of the products of a warpgroup",
    "UTCHMMA": "matrix product of a block, accumulators in tensor memory",
    "UTMALDG": "tile copied from global to shared memory",
    "UTMASTG": "tile copied from shared to global memory",
    "UBLKCP": "bytes copied between global and shared memory by one thread",
    "LDGSTS": "16 bytes or fewer copied from global to shared memory, not waited for",
    "LDSM": "matrix fragments loaded from shared memory",
    "STSM": "matrix fragments stored to shared memory",
    "LDG": "load from global memory",
    "STG": "store to global memory",
    "LDS": "load from shared memory",
    "STS": "store to shared memory",
    "LDL": "load from local memory",
    "STL": "store to local memory",
    "SYNCS": "mbarrier",
    "BAR": "barrier of a block",
    "USETMAXREG": "registers moved between warpgroups",
    "MUFU": "exponential, logarithm, reciprocal",
    "SHFL": "values passed between the lanes of a warp",
}
"""Opcodes that tell something about a kernel, with their meaning."""


@dataclass(frozen=True, slots=True)
class Census:
    """How often each instruction stands in the code of one kernel or function.

    Attributes
    ----------
    opcodes : mapping of str to int
        By the opcode with all its modifiers, such as "LDSM.16.M88.4".
    """

    opcodes: Mapping[str, int]

    def count(self, opcode: str) -> int:
        """Return the number of instructions of an opcode, whatever modifiers follow.

        Parameters
        ----------
        opcode : str
            "LDSM" or, with the first modifiers, "LDSM.16.MT88".

        Returns
        -------
        int
            Of all that are this opcode or begin with it and a dot.
        """
        return sum(
            number
            for name, number in self.opcodes.items()
            if name == opcode or name.startswith(f"{opcode}.")
        )

    def known(self) -> dict[str, int]:
        """Return the counts of those `OPCODES` that occur."""
        counts = {opcode: self.count(opcode) for opcode in OPCODES}
        return {opcode: number for opcode, number in counts.items() if number}


def take_census(cubin: bytes) -> dict[str, Census]:
    """Return the instructions of every kernel in machine code.

    Parameters
    ----------
    cubin : bytes
        An ELF file of a compiler.

    Returns
    -------
    dict of str to Census
        By the name of the kernel; functions that were not inlined have entries, too.

    Raises
    ------
    BackendUnavailableError
        If nvdisasm is missing.
    LoweringError
        If it cannot read the code.
    """
    return read_disassembly(disassembly(cubin))


def read_disassembly(text: str) -> dict[str, Census]:
    """Return the same from what nvdisasm printed.

    Parameters
    ----------
    text : str
        Of `nvdisasm -c`.

    Returns
    -------
    dict of str to Census
        By the name of the kernel or function.
    """
    counters: dict[str, Counter[str]] = {}
    section: Counter[str] = Counter()
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = counters.setdefault(found[1], Counter())
        elif found := _INSTRUCTION.match(line):
            section[found[1]] += 1
    return {name: Census(dict(counter)) for name, counter in counters.items()}


def disassembly(cubin: bytes) -> str:
    """Return the instructions of machine code as text, as nvdisasm prints them.

    Parameters
    ----------
    cubin : bytes
        An ELF file of a compiler.

    Returns
    -------
    str
        Sections of kernels and functions, one instruction on a line.

    Raises
    ------
    BackendUnavailableError
        If nvdisasm is missing.
    LoweringError
        If it cannot read the code.
    """
    toolchain.require(toolchain.toolchain().nvdisasm)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"  # nvdisasm reads no pipe
        path.write_bytes(cubin)
        command = [str(toolchain.program("nvdisasm")), "-c", "-ndf", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoweringError(f"nvdisasm cannot read the code: {done.stderr.strip()}")
    return done.stdout
