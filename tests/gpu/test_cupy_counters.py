"""What the kernels of the cupy backend do, told by the emulator's counters and not by time."""

import ml_dtypes
import numpy as np
import pytest

import sdpakit as sk
from sdpakit import ptxemu

pytestmark = pytest.mark.usefixtures("tools")

WIDTH = 64


@pytest.fixture
def counted(monkeypatch):
    """A function that calls a kernel and returns the counters of its launches."""
    reports = []
    launch = ptxemu.Device.launch

    def profiled(self, *args, **options):
        report = launch(self, *args, profile=True, **options)
        reports.append(report)
        return report

    monkeypatch.setattr(ptxemu.Device, "launch", profiled)

    def count(mask, keys, **operands):
        spec = sk.AttentionSpec(
            q_heads=1, head_dim=WIDTH, dtype="bfloat16", mask=mask, batch_invariant=True
        )
        kernel = sk.compile(spec, backend="cupy", options={"launcher": "emulator"})
        q, k, v = (np.ones((1, 1, n, WIDTH), ml_dtypes.bfloat16) for n in (64, keys, keys))
        reports.clear()
        kernel(q, k, v, **operands)
        (report,) = reports
        return report.counters

    return count


def test_a_full_tile_costs_no_instruction_of_the_mask(counted):
    """A tile more costs a look at what is proven of it, and nothing for each of its pairs."""
    lengths, tiles, warps, pairs_of_a_thread = (128, 256), 2, 4, 32
    plain = [counted(None, keys) for keys in lengths]
    masked = [counted(sk.Causal("offset"), keys, q_offset=1000) for keys in lengths]
    more = [long.warp_instructions - short.warp_instructions for short, long in (plain, masked)]
    assert 0 <= (more[1] - more[0]) / (tiles * warps) < pairs_of_a_thread * 0.75


def test_matrix_instructions_do_all_products_and_no_more(counted):
    found = counted(None, 128)
    assert found.matrix_flops == 2 * 64 * 128 * (WIDTH + WIDTH)


def test_shared_memory_of_the_matrix_kernel_has_no_bank_conflict(counted):
    found = counted(None, 128)
    assert found.shared_requests > 0
    # All are ldmatrix.x4, which moves 512 bytes, 128 in a pass.
    assert found.shared_wavefronts == 4 * found.shared_requests
