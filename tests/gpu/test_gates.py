"""Each gate finds the defect that it is for, and leaves good code alone."""

from types import MappingProxyType

import pytest
from tests.gpu import sources
from tests.gpu.recorded import module, module_of, text

from sdpakit.backends.gpu import gates
from sdpakit.backends.gpu.compiling import compile_source
from sdpakit.backends.gpu.gates import (
    FitsLaunch,
    HasInstructions,
    NoLocalMemory,
    NoLostSpeed,
    NoSpills,
    Occupies,
    judge,
)
from sdpakit.backends.gpu.sass import read_disassembly


@pytest.fixture
def recorded_sass(monkeypatch):
    """Machine code of the modules is the recorded one."""
    found = MappingProxyType(read_disassembly(text("nvdisasm_sm_80")))
    monkeypatch.setattr(gates, "take_census", lambda cubin: found)


def test_spills_of_a_function_are_found():
    (finding,) = judge(module("sm_80", text("nvrtc_sm_80")), [NoSpills()])
    assert finding.function == "_Z4workPfi"
    assert finding.got == "812 bytes of spill stores, 844 of spill loads"
    assert str(finding).splitlines()[0] == f"_Z4workPfi: got {finding.got}"


def test_spills_of_a_kernel_name_its_registers():
    log = text("nvrtc_sm_80").replace(
        "0 bytes spill stores, 0 bytes", "8 bytes spill stores, 4 bytes"
    )
    found = {finding.function: finding for finding in judge(module("sm_80", log), [NoSpills()])}
    assert set(found) == {"calling", "product", "local_array", "_Z4workPfi"}
    assert "it has 18 registers a thread" in found["product"].remedy


def test_local_memory_is_found(recorded_sass):
    (finding,) = judge(module("sm_80", text("nvrtc_sm_80")), [NoLocalMemory()])
    assert finding.function == "local_array"
    assert "STL" in finding.got


def test_lost_speed_is_found_with_its_remedy():
    compiled = module("sm_90a", text("nvrtc_sm_90a_remarks"))
    found = judge(compiled, [NoLostSpeed()])
    assert [finding.function for finding in found] == ["unbounded, touched", "touched", "touched"]
    assert found[0].got.startswith("C7508: setmaxnreg has no effect")
    assert found[1].got.startswith("C7517, PTX line 123: ")
    assert judge(module("sm_80", text("nvrtc_sm_80")), [NoLostSpeed()]) == []


def test_a_remark_that_nobody_knows_is_shown_as_it_is():
    log = "ptxas info    : (C7599) Potential Performance Loss: new in the function 'f'"
    (finding,) = judge(module("sm_90a", log), [NoLostSpeed()])
    assert "Potential Performance Loss: new" in finding.got


def test_missing_instructions_are_found_among_those_that_are_there(recorded_sass):
    compiled = module_of("sm_80", product=18, plain=8)
    (finding,) = judge(compiled, [HasInstructions("HMMA.16816.F32.BF16")])
    assert finding.function == "plain"
    assert "0 HMMA.16816.F32.BF16 (matrix product of a warp" in finding.got
    assert "BAR 1" in finding.got
    assert judge(module_of("sm_80", product=18), [HasInstructions("LDSM", at_least=2)]) == []
    (finding,) = judge(module_of("sm_80", product=18), [HasInstructions("LDSM", at_least=3)])
    assert (finding.got[:6], finding.allowed) == ("2 LDSM", "at least 3")


@pytest.mark.parametrize(
    ("gate", "registers", "words"),
    [
        (FitsLaunch(1056), 32, "1056 threads in a block"),
        (FitsLaunch(128, 163 * 1024 + 16), 32, "166928 bytes of shared memory"),
        (FitsLaunch(1024), 65, "65 registers for each thread of 32 warps"),
    ],
)
def test_launches_that_cannot_be_are_found(gate, registers, words):
    (finding,) = judge(module_of("sm_80", k=registers), [gate])
    assert words in finding.got
    assert "sm_80" in finding.allowed


@pytest.mark.parametrize("gate", [FitsLaunch(1024), FitsLaunch(128, 163 * 1024)])
def test_launches_at_the_limit_are_left_alone(gate):
    assert judge(module_of("sm_80", k=64), [gate]) == []


def test_low_occupancy_is_found_with_what_limits_it():
    compiled = module_of("sm_80", few=32, many=180)
    (finding,) = judge(compiled, [Occupies(3, threads=128)])
    assert finding.function == "many"
    assert finding.got == "2 blocks of 128 threads on a multiprocessor"
    assert finding.remedy == "take less of what limits them: registers"
    assert judge(compiled, [Occupies(2, threads=128)]) == []


def test_findings_come_in_the_order_of_the_gates():
    compiled = module("sm_80", text("nvrtc_sm_80"))
    found = judge(compiled, [Occupies(33, threads=32), NoSpills()])
    assert [finding.allowed[:4] for finding in found] == ["at l"] * 3 + ["none"]
    assert judge(compiled, []) == []


DEFECTS = [
    ("SPILLING", "sm_80", NoSpills()),
    ("SPILLING", "sm_90a", NoSpills()),
    ("SPILLING_CALL", "sm_86", NoSpills()),
    ("LOCAL_ARRAY", "sm_100a", NoLocalMemory()),
    ("TOUCHED_IN_FLIGHT", "sm_90a", NoLostSpeed()),
    ("UNBOUNDED_SETMAXNREG", "sm_90a", NoLostSpeed()),
    ("UNBOUNDED_SETMAXNREG", "sm_120a", NoLostSpeed()),
    ("TILE_COPY_TO_CLUSTER", "sm_120a", NoLocalMemory()),
    ("PLAIN", "sm_89", HasInstructions("HMMA")),
]


@pytest.mark.parametrize(("name", "arch", "gate"), DEFECTS, ids=lambda value: str(value))
def test_compiled_defects_are_found(name, arch, gate, tools):
    assert judge(compile_source(getattr(sources, name), arch), [gate])


GOOD = [("PLAIN", arch, 256, "STG") for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a")] + [
    *(("PRODUCT", arch, 32, "HMMA") for arch in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a")),
    ("WARPGROUP", "sm_90a", 128, "HGMMA"),
    ("TILE_COPY", "sm_90a", 128, "UTMALDG"),
    ("TILE_COPY", "sm_100a", 128, "UTMALDG"),
    ("TILE_COPY", "sm_120a", 128, "UTMALDG"),
    ("TILE_COPY_TO_CLUSTER", "sm_90a", 128, "UTMALDG"),
]


@pytest.mark.parametrize(("name", "arch", "threads", "opcode"), GOOD)
def test_good_code_passes_every_gate(name, arch, threads, opcode, tools):
    compiled = compile_source(getattr(sources, name), arch)
    every = [
        NoSpills(),
        NoLocalMemory(),
        NoLostSpeed(),
        HasInstructions(opcode),
        FitsLaunch(threads),
        Occupies(4, threads),
    ]
    assert judge(compiled, every) == []
