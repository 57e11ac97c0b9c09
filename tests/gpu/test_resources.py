"""Reports of the assembler are read as they are, and occupancy is that of NVIDIA's calculator."""

import re
import subprocess

import pytest
from tests.gpu import sources
from tests.gpu.recorded import NO_FRAME, text

from sdpakit.backends.gpu.architectures import architecture
from sdpakit.backends.gpu.compiling import compile_source, link_ptx
from sdpakit.backends.gpu.resources import Frame, Resources, occupancy, read_report
from sdpakit.backends.gpu.toolchain import program


def test_a_report_of_nvrtc():
    report = read_report(text("nvrtc_sm_80"))
    assert report.kernels == {
        "calling": Resources(64, Frame(416, 0, 0), barriers=0, shared=0, constant=364),
        "product": Resources(18, NO_FRAME, barriers=0, shared=768, constant=376),
        "local_array": Resources(21, Frame(48, 0, 0), barriers=0, shared=0, constant=364),
    }
    assert report.functions == {"_Z4workPfi": Frame(0, 812, 844)}
    assert report.remarks == ()


def test_a_report_of_nvjitlink_has_registers_and_stack_of_the_linked_code():
    report = read_report(text("nvjitlink_sm_80"))
    assert report.kernels["calling"] == Resources(64, Frame(528, 0, 0), 0, 0, 364)
    assert report.kernels["product"] == Resources(24, NO_FRAME, 0, 768, 376)
    assert report.functions == {"_Z4workPfi": Frame(528, 936, 952)}


def test_remarks_have_a_code_a_function_a_line_and_a_meaning():
    report = read_report(text("nvrtc_sm_90a_remarks"))
    ignored, injected, serialised = report.remarks
    assert (ignored.code, ignored.function, ignored.line) == ("C7508", "", None)
    assert "__launch_bounds__" in ignored.remedy
    assert (injected.code, injected.function, injected.line) == ("C7517", "touched", 123)
    assert (serialised.code, serialised.function, serialised.line) == ("C7514", "touched", None)
    assert "wait_group" in serialised.remedy
    assert all(remark.costs_speed and remark.meaning for remark in report.remarks)
    assert list(report.kernels) == ["unbounded", "touched"]


# All that ptxas 13.5 can say of lost speed, and two other lines of it.
SAYINGS = """
'setmaxnreg' ignored to allow debugging.
'setmaxnreg' ignored to maintain compatibility across compilation units.
'setmaxnreg' ignored; unable to determine register count at entry.
'setmaxnreg' ignored to maintain compatibility into 'extern' call.
'setmaxnreg' ignored to maintain minimum register requirements.
wgmma.mma_async instructions are serialized due to the presence of Extern calls in the function 'f'
wgmma.mma_async instructions are serialized due to wgmma pipeline crossing function boundary at 'f'
wgmma.mma_async instructions are serialized due to insufficient register resources for the function
wgmma.mma_async instructions are serialized due to non wgmma instructions defining input registers
wgmma.mma_async instructions are serialized due to non wgmma instructions reading accumulator \
registers
wgmma.mma_async instructions are serialized due to non wgmma instructions defining accumulator \
registers
wgmma.mma_async instructions are serialized due to ill formed pipeline stage in the function 'f'
wgmma.mma_async instructions are serialized due to program dependence on compiler-inserted \
WG.DP in divergent path in the function 'f' in line 3
""".strip().splitlines()


@pytest.mark.parametrize("saying", SAYINGS)
def test_everything_that_ptxas_says_of_lost_speed_has_a_meaning(saying):
    (remark,) = read_report(f"ptxas info    : Potential Performance Loss: {saying}").remarks
    assert (remark.code, remark.costs_speed) == ("", True)
    assert remark.meaning
    assert remark.remedy


def test_each_meaning_is_that_of_one_saying():
    meanings = {
        read_report(f"ptxas info : (C7500) {saying}").remarks[0].meaning for saying in SAYINGS
    }
    assert len(meanings) == len(SAYINGS)


def test_other_warnings_are_kept_and_cost_no_speed():
    line = "ptxas warning : Stack size for entry function 'k' cannot be statically determined"
    (remark,) = read_report(line).remarks
    assert (remark.function, remark.costs_speed, remark.meaning) == ("k", False, "")
    assert (
        read_report("ptxas info    : 0 bytes gmem\nkernel.cu(1): warning #177-D: x").remarks == ()
    )


@pytest.mark.parametrize("compiler", ["nvrtc", "nvjitlink"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_resources_are_those_that_cuobjdump_finds_in_the_code(compiler, arch, tools, tmp_path):
    names = ("PLAIN", "LOCAL_ARRAY", "PRODUCT", "SPILLING_CALL")
    module = compile_source("".join(getattr(sources, name) for name in names), arch)
    if compiler == "nvjitlink":
        module = link_ptx(module.ptx, arch)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(module.cubin)
    command = [program("cuobjdump"), "-res-usage", path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(
        r"Function (\w+):\n +REG:(\d+) STACK:(\d+) SHARED:(\d+) .*?CONSTANT\[0\]:(\d+)", said
    )
    assert {name for name, *_ in found} == set(module.report.kernels)
    for name, registers, stack, shared, constant in found:
        kernel = module.report.kernels[name]
        reserved = module.arch.shared_reserved if module.arch.capability >= (9, 0) else 0
        assert (kernel.registers, kernel.frame.stack) == (int(registers), int(stack))
        assert kernel.shared in (int(shared), int(shared) - reserved)
        assert kernel.constant in (int(constant), 0)


# Blocks on a multiprocessor by cuda_occupancy.h of CUDA 13.5, for a device with the limits of the
# architecture and all of its shared memory: registers, threads, shared memory -> blocks on each.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_120a")
CALCULATED = {
    (32, 256, 0): (4, 8, 6, 6, 6, 8, 8, 6),
    (40, 128, 1024): (8, 12, 12, 12, 12, 12, 12, 12),
    (168, 384, 167936): (0, 0, 0, 0, 0, 1, 1, 0),
    (128, 128, 20000): (3, 4, 4, 4, 4, 4, 4, 4),
    (255, 256, 0): (1, 1, 1, 1, 1, 1, 1, 1),
    (33, 96, 5000): (10, 16, 16, 16, 16, 16, 16, 16),
    (65, 224, 49152): (1, 3, 2, 3, 2, 4, 4, 2),
    (64, 1024, 40000): (1, 1, 1, 1, 1, 1, 1, 1),
    (180, 128, 65536): (1, 2, 1, 2, 1, 2, 2, 1),
    (24, 64, 100): (16, 32, 16, 16, 24, 32, 32, 24),
}


@pytest.mark.parametrize("case", CALCULATED, ids=str)
def test_occupancy_is_that_of_the_calculator(case):
    registers, threads, shared = case
    for static in (0, shared // 2):
        kernel = Resources(registers, NO_FRAME, 0, static, 0)
        found = tuple(
            occupancy(kernel, architecture(name), threads, shared - static).blocks
            for name in ARCHITECTURES
        )
        assert found == CALCULATED[case]


def test_occupancy_says_what_limits_it():
    kernel = Resources(180, NO_FRAME, 0, 0, 0)
    found = occupancy(kernel, architecture("sm_80"), 128, 65536)
    assert found.limits == {"warps": 16, "registers": 2, "shared memory": 2, "blocks": 32}
    assert found.limited_by == ("registers", "shared memory")
    assert (found.warps, found.share) == (8, 8 / 64)


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "limit"),
    [
        (32, 1025, 0, "warps"),
        (256, 32, 0, "registers"),
        (65, 1024, 0, "registers"),
        (32, 32, 163 * 1024 + 1, "shared memory"),
    ],
)
def test_what_cannot_be_launched_occupies_nothing(registers, threads, shared, limit):
    kernel = Resources(registers, NO_FRAME, 0, 0, 0)
    found = occupancy(kernel, architecture("sm_80"), threads, shared)
    assert (found.blocks, found.limited_by) == (0, (limit,))
