"""Which calls the decode kernel takes: the only place where that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

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


def decoded(call: Call) -> npt.NDArray[np.bool_]:
    """Return which batch entries go to the decode kernel.

    By their shape alone: neither threads nor strides nor what else is in the batch may show in the
    bits of a row (DET-1). So each entry of a packed call is judged by its own lengths, and those of
    a padded one all by the lengths of the arrays. Never where the bits must be those of a call with
    more rows (DET-2).
    """
    group = call.q.shape[1] // call.k.shape[1]
    if call.batch_invariant:
        return np.zeros(call.batch, np.bool_)
    if not call.packed:
        fits = call.k.shape[2] >= LEAST_KEYS and group * call.q.shape[2] <= MOST_ROWS
        return np.full(call.batch, fits)
    rows = group * call.q_len
    return (call.kv_len >= LEAST_KEYS) & (rows > 0) & (rows <= MOST_ROWS)
