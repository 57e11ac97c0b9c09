"""Global memory of the emulated device. STUB: owner C."""

from __future__ import annotations

from sdpakit.ptxemu.scalars import Array


class Device:
    """`arena` is its memory (uint8), `arena_state` the state of each byte (0 nobody's, 1 allocated, 3 initialised)."""

    arena: Array
    arena_state: Array
