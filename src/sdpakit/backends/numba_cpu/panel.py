"""The panel step: one tile of keys against one panel of W queries, as one LLVM function.

Phases, each a loop over the rows (keys) of the tile:

0. stage   dense tables [.., q, k], transposed
1. qk      S[j][:] = <q, k_j> in register tiles
2. logits  the logit expression, the mask (select, never multiply: MASK-3), maximum of each column
3. stats   new running maximum m, an even number in log2 units, and alpha = 2**(m_old - m_new), an
           exact power of two
4. exp     P = 2**(logit - m), row sums
5. pv      O = O * alpha + V^T P in register tiles

m is stored in a unit of four log2 units (`abi.M_UNIT`), so as a multiple of 1/2, and finite logits
up to the largest float stay finite (MASK-5). Two arithmetics make t, the logit in log2 units
relative to m. FAST, for logits scale * dot: t = fma(S, c, -4 * m) with c = |scale| * log2(e).
GENERAL, for logits x that an expression makes: t = (x * log2(e) / 4 - m) * 4.

Where it pays, phases 1 to 4 of a FAST tile are tried at once (`fused.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sdpakit.backends.numba_cpu import abi
from sdpakit.backends.numba_cpu.frame import PanelFrame
from sdpakit.backends.numba_cpu.fused import FusedPhase
from sdpakit.backends.numba_cpu.irtypes import Value
from sdpakit.backends.numba_cpu.layout import PanelLayout
from sdpakit.backends.numba_cpu.logits import LogitPhase, Pairs
from sdpakit.backends.numba_cpu.products import call_pv, call_qk, columns_in_memory
from sdpakit.backends.numba_cpu.softmax import SoftmaxPhase
from sdpakit.backends.numba_cpu.staging import StagingLoop


class PanelStep:
    """Emits the function `step`.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where it goes.
    layout : PanelLayout
        Sizes.
    pairs : Pairs
        Logit and mask.
    """

    def __init__(self, module: Any, layout: PanelLayout, pairs: Pairs) -> None:
        self.layout, self.pairs = layout, pairs
        self.frame = PanelFrame(module, layout)
        self.e = self.frame.e
        self.far: list[Value] = []  # rows of tables that the next panel will want, see `call_qk`

    def emit(self) -> None:
        """Emit the body."""
        e, say, layout = self.e, self.e.b.comment, self.layout
        general, has_mask = self.pairs.logit is not None, self.pairs.mask is not None
        softmax = SoftmaxPhase(self.frame, general=general, has_mask=has_mask)
        self.stage()
        if softmax.scale is not None and layout.fused:
            say("phases 1 to 4 at once, with the maximum of the tiles before")
            done = FusedPhase(self.frame, softmax.scale, has_mask=has_mask).emit()
            with e.b.if_then(e.not_(done)):
                self.apart(softmax)
        else:
            self.apart(softmax)
        say("phase 5: O = O * alpha + V^T P")
        self.pv()
        e.b.ret_void()

    def apart(self, softmax: SoftmaxPhase) -> None:
        """Emit phases 1 to 4 one by one."""
        say = self.e.b.comment
        say("phase 1: S = K Q^T, raw products")
        top = self.qk()
        say("phase 2: logits, mask (MASK-3), maximum of each column; NaN does not enter it (NUM-4)")
        top = LogitPhase(self.frame, self.pairs).emit(top)
        say("phase 3: m stays -inf until a key is seen (NUM-2); alpha is an exact power of two")
        softmax.statistics(top)
        say("phase 4: P = 2**(logit - m) and its sums; -0.0 marks an absent pair")
        softmax.weights()

    def stage(self) -> None:
        """Emit phase 0: staged tables, those of the mask only for a PARTIAL tile."""
        e, frame = self.e, self.frame
        for k, table in enumerate(self.pairs.staged):
            e.b.comment(f"phase 0: stage table {k} ({table.dtype})")
            tile = e.iadd(frame.arg["p"], e.c((k + 1) * self.layout.tile_bytes))
            wanted = frame.partial if table.for_mask else e.c1(1)
            loop = StagingLoop(e, self.layout, table, frame.arg, tile)
            with e.b.if_then(wanted):
                loop.emit()
            first, stride = loop.next_rows()
            self.far += [e.select(wanted, first, tile), e.select(wanted, stride, e.c(0))]

    def qk(self) -> list[Value]:
        """Emit phase 1; return the maximum of each column over all rows, pad rows included."""
        e, layout, frame, arg = self.e, self.layout, self.frame, self.frame.arg
        place = columns_in_memory(e, layout)
        operands = (arg["kt"], arg["qt"], frame.ahead(), arg["p"], frame.groups)
        call_qk(e, layout, operands, place, self.far)
        self._clear_rows()
        return [e.load(frame.vector(place, v)) for v in range(layout.vectors)]

    def _clear_rows(self) -> None:
        """Make the products of rows past the last key absent."""
        e, frame = self.e, self.frame

        def body(i: Value, _: list[Value]) -> Sequence[Value]:
            row = frame.weights(e.iadd(frame.n, i))
            for v in range(self.layout.vectors):
                e.store(e.const(-math.inf), frame.vector(row, v))
            return ()

        e.loop(e.isub(frame.padded, frame.n), body, (), "clear.rows")

    def pv(self) -> None:
        """Emit phase 5; its guarded form runs only where a poisoned V meets an absent pair."""
        e, frame = self.e, self.frame
        if self.layout.v_head_dim == 0:
            return
        poisoned = frame.flag(abi.FLAG_NONFINITE_V)
        if self.pairs.logit is None:
            poisoned = e.c1(0) if self.pairs.mask is None else e.and_(poisoned, frame.partial)
        names = {"vt": "vt", "p": "p", "out": "ot"}
        operands = {name: frame.arg[argument] for name, argument in names.items()} | {
            "alpha": frame.stat("alpha", 0),
            "first": frame.first,
            "n": frame.n,
            "guarded": poisoned,
        }
        call_pv(e, self.layout, operands)
