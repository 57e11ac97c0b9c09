"""Which calls the decode kernel takes: the only place where that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdpakit.backends.base import Call
    from sdpakit.backends.numba_cpu.layout import PanelLayout

# Rows that read one kv head. With so many the lanes of a panel are filled well enough for the
# prefill kernel, which packs keys but does all rows at once, to be as fast.
MOST_ROWS = 16

# With fewer keys there is little to read, and nothing to split.
LEAST_KEYS = 128


def can_decode(layout: PanelLayout) -> bool:
    """Return whether a spec of this layout has a decode kernel: only without values it has none."""
    return layout.v_head_dim > 0


def decodes(call: Call) -> bool:
    """Return whether a call goes to the decode kernel.

    By its shape alone: neither threads nor strides nor what else is in the batch may show in the
    bits of a row (DET-1). Never where its bits must be those of a call with more rows (DET-2).
    """
    packed = any(x is not None for x in (call.q_start, call.kv_start, call.pages))
    if call.batch_invariant or packed:
        return False
    _, q_heads, q_len, _ = call.q.shape
    kv_heads, kv_len = call.k.shape[1:3]
    return kv_len >= LEAST_KEYS and q_heads // kv_heads * q_len <= MOST_ROWS
