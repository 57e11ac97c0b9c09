"""Special registers of a grid of clusters of blocks of three dimensions."""

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, kernel

from sdpakit import ptxemu

GRID, BLOCK, CLUSTER = (4, 2, 2), (5, 3, 4), (2, 1, 2)


def indices():
    """Return indices of z, y, x of block and thread, for all threads of the grid in C order."""
    return np.indices((*GRID[::-1], *BLOCK[::-1])).reshape(6, -1)


def wanted():
    bz, by, bx, z, y, x = indices()
    thread = x + BLOCK[0] * (y + BLOCK[1] * z)
    lane = thread % 32
    return {
        "%tid.x": x, "%tid.y": y, "%tid.z": z,
        "%ctaid.x": bx, "%ctaid.y": by, "%ctaid.z": bz,
        "%ntid.x": 5, "%ntid.y": 3, "%ntid.z": 4,
        "%nctaid.x": 4, "%nctaid.y": 2, "%nctaid.z": 2,
        "%clusterid.x": bx // 2, "%clusterid.y": by, "%clusterid.z": bz // 2,
        "%cluster_ctaid.x": bx % 2, "%cluster_ctaid.y": 0, "%cluster_ctaid.z": bz % 2,
        "%nclusterid.x": 2, "%nclusterid.y": 2, "%nclusterid.z": 1,
        "%cluster_nctaid.x": 2, "%cluster_nctaid.y": 1, "%cluster_nctaid.z": 2,
        "%cluster_ctarank": bx % 2 + 2 * (bz % 2), "%cluster_nctarank": 4,
        "%laneid": lane, "%warpid": thread // 32, "%nwarpid": 2,
        "%lanemask_eq": 1 << lane, "%lanemask_lt": (1 << lane) - 1,
        "%lanemask_le": (2 << lane) - 1, "%lanemask_gt": 2**32 - (2 << lane),
        "%lanemask_ge": 2**32 - (1 << lane),
        "%dynamic_smem_size": 160, "%total_smem_size": 160,
    }  # fmt: skip


@pytest.mark.parametrize("name", wanted())
def test_value_of_each_thread(name):
    body = f"""
      ld.param.u64 %rd0, [x]; mov.u32 %r5, {name};
      mov.u32 %r0, %ctaid.z; mov.u32 %r1, %ctaid.y; mad.lo.u32 %r0, %r0, {GRID[1]}, %r1;
      mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r0, {GRID[0]}, %r1;
      mov.u32 %r1, %tid.z; mad.lo.u32 %r0, %r0, {BLOCK[2]}, %r1;
      mov.u32 %r1, %tid.y; mad.lo.u32 %r0, %r0, {BLOCK[1]}, %r1;
      mov.u32 %r1, %tid.x; mad.lo.u32 %r0, %r0, {BLOCK[0]}, %r1;
      mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; st.global.u32 [%rd0], %r5;
    """
    x = np.zeros(int(np.prod((*GRID, *BLOCK))), np.uint32)
    args = [ptxemu.Output(x), np.zeros(1)]
    ptxemu.launch(kernel(POINTERS, body), GRID, BLOCK, args, cluster=CLUSTER, shared=160)
    assert np.array_equal(x, np.broadcast_to(wanted()[name], x.shape).astype(np.uint32))
