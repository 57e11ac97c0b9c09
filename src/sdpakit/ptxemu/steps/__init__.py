"""Builders of the steps of all opcodes; importing this package registers them."""

from sdpakit.ptxemu.steps import approximations as approximations
from sdpakit.ptxemu.steps import arithmetic as arithmetic
from sdpakit.ptxemu.steps import atomics as atomics
from sdpakit.ptxemu.steps import bits as bits
from sdpakit.ptxemu.steps import carry as carry
from sdpakit.ptxemu.steps import comparison as comparison
from sdpakit.ptxemu.steps import control as control
from sdpakit.ptxemu.steps import conversion as conversion
from sdpakit.ptxemu.steps import copies as copies
from sdpakit.ptxemu.steps import floating as floating
from sdpakit.ptxemu.steps import integer as integer
from sdpakit.ptxemu.steps import matrix as matrix
from sdpakit.ptxemu.steps import mbarrier as mbarrier
from sdpakit.ptxemu.steps import memory as memory
from sdpakit.ptxemu.steps import moving as moving
from sdpakit.ptxemu.steps import synchronisation as synchronisation
from sdpakit.ptxemu.steps import tensormap as tensormap
from sdpakit.ptxemu.steps import warp as warp
from sdpakit.ptxemu.steps import warpgroup as warpgroup
from sdpakit.ptxemu.steps import wmma as wmma
