"""An emulator of PTX on NumPy, which finds races, deadlocks and reads out of bounds."""

from sdpakit.ptxemu.arguments import Output
from sdpakit.ptxemu.checks import Checks
from sdpakit.ptxemu.counters import Counters
from sdpakit.ptxemu.device import Device
from sdpakit.ptxemu.errors import (
    AccumulatorInFlight,
    BarrierMisuse,
    Deadlock,
    Divergence,
    KernelFault,
    LaunchError,
    Misaligned,
    MissingProxyFence,
    MissingWait,
    OutOfBounds,
    PtxError,
    PtxSyntaxError,
    Race,
    Trap,
    UninitialisedRead,
    UnsupportedInstruction,
    UnwrittenOutput,
)
from sdpakit.ptxemu.launching import launch
from sdpakit.ptxemu.module import Module, parse
from sdpakit.ptxemu.program import Program
from sdpakit.ptxemu.reporting import Report
from sdpakit.ptxemu.tensormap import TensorMap

__all__ = [
    "AccumulatorInFlight",
    "BarrierMisuse",
    "Checks",
    "Counters",
    "Deadlock",
    "Device",
    "Divergence",
    "KernelFault",
    "LaunchError",
    "Misaligned",
    "MissingProxyFence",
    "MissingWait",
    "Module",
    "OutOfBounds",
    "Output",
    "Program",
    "PtxError",
    "PtxSyntaxError",
    "Race",
    "Report",
    "TensorMap",
    "Trap",
    "UninitialisedRead",
    "UnsupportedInstruction",
    "UnwrittenOutput",
    "launch",
    "parse",
]
