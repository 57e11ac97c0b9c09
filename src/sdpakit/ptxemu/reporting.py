"""What a launch says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from sdpakit.ptxemu.counters import Counters
from sdpakit.ptxemu.program import Program


@dataclass(frozen=True)
class Report:
    """What a launch did.

    Attributes
    ----------
    program : Program
        What ran.
    counters : Counters
        What it executed and accessed.
    """

    program: Program
    counters: Counters

    def summary(self, lines: int = 0) -> str:
        """Return the counters in words.

        Parameters
        ----------
        lines : int
            How many of the PTX lines to show that were executed most.
        """
        counters = self.counters
        opcodes = ", ".join(f"{name} {count}" for name, count in counters.by_opcode.most_common(8))
        said = [
            f"{self.program.name} ({self.program.target}): {counters.warp_instructions} warp "
            f"instructions, {counters.thread_instructions} thread instructions",
            f"  most of them: {opcodes}",
        ]
        if counters.matrix_flops:
            said.append(f"  tensor cores: {counters.matrix_flops} operations")
        if counters.copied_bytes:
            said.append(f"  asynchronous copies: {counters.copied_bytes} bytes")
        if counters.accesses:
            said += self._accesses()
        if lines:
            said += self._hottest(lines)
        return "\n".join(said)

    def _accesses(self) -> list[str]:
        counters = self.counters
        return [
            f"  shared memory: {counters.shared_requests} requests, {counters.shared_wavefronts} "
            f"wavefronts, {counters.bank_conflicts} of them for bank conflicts",
            f"  global memory: {counters.global_requests} requests, {counters.global_sectors} "
            f"sectors of 32 bytes for {counters.global_bytes} bytes ({counters.sector_use:.2f})",
        ]

    def _hottest(self, lines: int) -> list[str]:
        texts = {ins.line: ins.text for ins in self.program.instructions}
        return [
            f"  {count:>10} x line {line}: {texts.get(line, '')}"
            for line, count in self.counters.by_line.most_common(lines)
        ]
