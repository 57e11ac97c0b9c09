"""Where the state spaces lie among generic addresses, and the states of bytes of global memory."""

from __future__ import annotations

GLOBAL_BASE, SHARED_BASE = 0x7F00_0000_0000, 0x7E00_0000_0000
LOCAL_BASE, PARAM_BASE = 0x7D00_0000_0000, 0x7C00_0000_0000
WINDOW_SHIFT = 40

# Bits of the state of a byte of global memory; 0 is nobody's.
ALLOCATED, INITIALISED, READ_ONLY = 1, 2, 4
PRESENT = ALLOCATED | INITIALISED
CONSTANT = PRESENT | READ_ONLY

# What memory holds before anything is written: as a float and as an index, it stands out.
POISON = 0xA5
