"""Builders of the steps of all opcodes; importing this package registers them."""

from sdpakit.ptxemu.steps import memory as memory
