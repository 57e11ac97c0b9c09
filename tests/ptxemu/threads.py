"""Kernels of which each thread computes ``%r9`` and stores it at its place."""

from __future__ import annotations

import numpy as np

from sdpakit import ptxemu

HEAD = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out, .param .u64 flags)
{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
    .shared .align 16 .b8 memory[4096];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r3, %r1, %r2, %r0;
    and.b32 %r4, %r0, 31;
    shr.u32 %r5, %r0, 5;
    ld.param.u64 %rd0, [out];
    mad.wide.u32 %rd0, %r3, 4, %rd0;
    ld.param.u64 %rd1, [flags];
    mov.u32 %r9, 0;
"""
TAIL = """
STORE:
    st.global.u32 [%rd0], %r9;
    ret;
}
"""


def kernel(body):
    """Return PTX; in the body `%r0` is the thread, `%r1` the block, `%r3` the thread in the grid.

    `%r4` is the lane, `%r5` the warp, `%rd1` the address of eight flags, all 0. The body ends with
    `%r9`, which is stored, or jumps to STORE.
    """
    return HEAD + body + TAIL


def run(body, threads=64, blocks=1, *, cluster=1, checks=None):
    """Return what the threads of a kernel store, one row a block, and its report."""
    out = np.full(threads * blocks, 0xDEAD, np.uint32)
    flags = np.zeros(8, np.uint32)
    report = ptxemu.launch(
        kernel(body), blocks, threads, [out, flags], cluster=cluster, checks=checks
    )
    return out.reshape(blocks, threads), report


def line(text, part):
    """Return the number of the line of a text that contains a part."""
    (found,) = [n for n, row in enumerate(text.splitlines(), 1) if part in row]
    return found


def executions(body, part, report):
    """Return how many warps executed the line of a body that contains a part."""
    return report.counters.by_line[line(kernel(body), part)]
