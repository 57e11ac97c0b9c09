"""Kernels as compilers emit them do what NumPy does in float64, and no check complains."""

import re

import numpy as np
import pytest
from tests.ptxemu import compiled, functions

from sdpakit import ptxemu

LAUNCHES = {
    "softmax": compiled.softmax,
    "softmax, one column": lambda: compiled.softmax(2, 1),
    "summarise": compiled.summarise,
    "summarise, less than a warp": lambda: compiled.summarise(7),
    "histogram": compiled.histogram,
    "sum in order": compiled.sum_in_order,
    "collatz": compiled.collatz,
    "sort each": compiled.sort_each,
    "polynomial": compiled.polynomial,
    "calculate": compiled.calculate,
    "functions of f32": functions.of_f32,
    "functions of f64": functions.of_f64,
    "functions of s64": functions.of_s64,
    "matmul mma": compiled.matmul_mma,
    "matmul mma, even": lambda: compiled.matmul_mma(64, 64, 64),
    "flash mma": compiled.flash_mma,
    "flash mma, batch": lambda: compiled.flash_mma((40, 70), (4, 2), 2, causal=False),
    "flash mma, rows without a key": lambda: compiled.flash_mma((90, 50)),
    "flash mma, one query": lambda: compiled.flash_mma((1, 33)),
    "flash wgmma": compiled.flash_wgmma,
    "flash wgmma, batch": lambda: compiled.flash_wgmma((40, 300), (2, 1), 2, causal=False),
    "flash wgmma, rows without a key": lambda: compiled.flash_wgmma((150, 60), (1, 1)),
    "matmul wgmma": compiled.matmul_wgmma,
    "matmul wgmma, one step": lambda: compiled.matmul_wgmma(64, 64, 64),
    "bulk scale": compiled.bulk_scale,
    "cluster sum": compiled.cluster_sum,
    "multicast": compiled.multicast,
    "hand over, sm_80": lambda: compiled.hand_over(80),
    "hand over, sm_90": lambda: compiled.hand_over(90),
    "piped, sm_80": lambda: compiled.piped(80),
    "piped, sm_90": lambda: compiled.piped(90),
    "reversed, sm_80": lambda: compiled.reversed_tiles(80),
    "reversed, sm_90": lambda: compiled.reversed_tiles(90),
    "numba softmax": compiled.numba_softmax,
    "numba count": compiled.numba_count,
    "numba flash": compiled.numba_flash,
    "numba wgmma": compiled.numba_wgmma,
    "triton softmax, sm_80": lambda: compiled.triton_softmax(80),
    "triton softmax, sm_90": lambda: compiled.triton_softmax(90),
    "triton matmul, sm_80": lambda: compiled.triton_matmul(80),
    "triton matmul, sm_90": lambda: compiled.triton_matmul(90),
    "triton matmul, TMA": compiled.triton_matmul_tma,
    "triton flash, sm_80": lambda: compiled.triton_flash(80),
    "triton flash, sm_90": lambda: compiled.triton_flash(90),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_results_are_right(name):
    launch = LAUNCHES[name]()
    launch.run()
    launch.compare()


@pytest.mark.parametrize("name", ["flash mma", "flash wgmma", "summarise", "triton matmul, sm_90"])
def test_checks_change_no_bit(name):
    checked, unchecked = LAUNCHES[name](), LAUNCHES[name]()
    unchecked.checks = ptxemu.Checks.only()
    assert checked.run().counters == unchecked.run().counters
    for (with_checks, *_), (without, *_) in zip(checked.results, unchecked.results, strict=True):
        np.testing.assert_array_equal(with_checks, without)


def test_two_compilers_agree_to_the_bit():
    of_nvrtc, of_numba = compiled.flash_mma(), compiled.numba_flash()
    of_nvrtc.run()
    of_numba.run()
    np.testing.assert_array_equal(of_nvrtc.results[0][0], of_numba.results[0][0])


def test_counters_know_the_work_of_tensor_cores():
    m, n, k = 128, 64, 96
    report = compiled.matmul_mma(m, n, k).run()
    assert report.counters.matrix_flops == 2 * m * n * k
    report = compiled.matmul_wgmma(m, n, 128).run()
    assert report.counters.matrix_flops == 2 * m * n * 128


def test_swizzle_saves_bank_conflicts():
    launch = compiled.matmul_mma(64, 64, 64)
    launch.profile = True
    counters = launch.run().counters
    assert counters.shared_wavefronts == counters.shared_requests * 4  # four matrices each


FILES = sorted(compiled.PTX.glob("*.ptx"))


def test_every_file_is_run():
    assert {path.stem for path in FILES} == {launch().name for launch in LAUNCHES.values()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_says_its_origin_and_no_place(path):
    text = path.read_text(encoding="utf-8")
    assert re.match(r"// .*: (nvidia-cuda-nvrtc|numba-cuda|triton) [\d.]+, by make\.py\n", text)
    assert not re.search(r"\.loc\b|\.file\b|\.debug|/\w+/\w+/", text)
    assert len(text) < 60_000
