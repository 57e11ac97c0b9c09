"""Builders of the steps of all opcodes; importing this package registers them."""

from sdpakit.ptxemu.steps import control as control
from sdpakit.ptxemu.steps import memory as memory
from sdpakit.ptxemu.steps import synchronisation as synchronisation
from sdpakit.ptxemu.steps import warp as warp
