"""What a launch did, in numbers that do not depend on the machine it was emulated on. STUB: owner C."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Counts of a launch.

    Attributes
    ----------
    warp_instructions, thread_instructions : int
        Executed, guards ignored.
    by_line : Counter
        Warp instructions by PTX line.
    by_opcode : Counter
        Warp instructions by opcode.
    matrix_flops : int
        Of mma and wgmma, two for each multiply-add.
    shared_requests, shared_wavefronts : int
        Warp-wide accesses to shared memory, and the passes that their banks need; equal without conflicts.
    global_requests, global_sectors : int
        Warp-wide accesses to global memory, and the 32-byte sectors that they touch.
    copied_bytes : int
        Moved by asynchronous copies.
    """

    warp_instructions: int = 0
    thread_instructions: int = 0
    matrix_flops: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    copied_bytes: int = 0
    by_line: Counter[int] = field(default_factory=Counter)
    by_opcode: Counter[str] = field(default_factory=Counter)
