"""Instructions are counted by kernel, and modifiers can be left out of a question."""

import pytest
from tests.gpu import sources
from tests.gpu.recorded import text

from sdpakit.backends.gpu.compiling import compile_source
from sdpakit.backends.gpu.sass import OPCODES, Census, read_disassembly, take_census
from sdpakit.errors import BackendUnavailableError, LoweringError


def test_a_recorded_disassembly_is_counted_by_kernel():
    found = read_disassembly(text("nvdisasm_sm_80"))
    assert set(found) == {"local_array", "product", "plain"}
    product = found["product"]
    assert (product.count("HMMA"), product.count("LDSM"), product.count("LDGSTS")) == (1, 2, 2)
    assert product.count("HMMA.16816.F32.BF16") == 1
    assert product.count("LDL") == product.count("STL") == 0
    assert found["local_array"].count("STL") > 0
    assert found["plain"].known() == {"LDG": 1, "STG": 1, "LDS": 1, "STS": 1, "BAR": 1}


def test_a_recorded_disassembly_of_a_warpgroup():
    census = read_disassembly(text("nvdisasm_sm_90a"))["warpgroup"]
    assert census.count("HGMMA") == census.count("HGMMA.64x64x16.F32.BF16") == 5
    assert census.count("WARPGROUP.ARRIVE") == census.count("WARPGROUP.DEPBAR") == 5


def test_guards_hide_no_instruction_and_are_none():
    listing = "\n".join(
        (
            '\t.section\t.text.k,"ax",@progbits',
            "        /*0000*/              @!P0 BRA `(.L_x_0) ;",
            "        /*0010*/             @UP1 UMOV UR4, 0x1 ;",
            "        /*1f0f0*/                  EXIT ;",
            ".L_x_0:",
        )
    )
    assert read_disassembly(listing)["k"].opcodes == {"BRA": 1, "UMOV": 1, "EXIT": 1}


def test_an_opcode_is_no_part_of_a_longer_one():
    census = Census({"LDS": 1, "LDSM.16.M88.4": 2, "LDS.128": 4})
    assert (census.count("LDS"), census.count("LDSM"), census.count("LDSM.16")) == (5, 2, 2)


def test_every_line_of_an_instruction_is_counted():
    listing = text("nvdisasm_sm_80")
    lines = [line for line in listing.splitlines() if line.lstrip().startswith("/*")]
    census = read_disassembly(listing)
    assert sum(sum(kernel.opcodes.values()) for kernel in census.values()) == len(lines) > 100


@pytest.mark.parametrize(
    ("name", "arch", "expected"),
    [
        ("PLAIN", "sm_75", {"LDG", "STG", "LDS", "STS", "BAR"}),
        ("PRODUCT", "sm_80", {"HMMA", "LDSM", "LDGSTS"}),
        ("PRODUCT", "sm_86", {"HMMA", "LDSM", "LDGSTS"}),
        ("PRODUCT", "sm_89", {"HMMA", "LDSM", "LDGSTS"}),
        ("PRODUCT", "sm_90a", {"HMMA", "LDSM", "LDGSTS"}),
        ("PRODUCT", "sm_100a", {"HMMA", "LDSM", "LDGSTS"}),
        ("PRODUCT", "sm_120a", {"HMMA", "LDSM", "LDGSTS"}),
        ("WARPGROUP", "sm_90a", {"HGMMA", "WARPGROUP"}),
        ("TILE_COPY", "sm_90a", {"UTMALDG", "SYNCS"}),
        ("TILE_COPY", "sm_100a", {"UTMALDG", "SYNCS"}),
        ("TILE_COPY", "sm_120a", {"UTMALDG", "SYNCS"}),
        ("LOCAL_ARRAY", "sm_86", {"LDL", "STL"}),
    ],
)
def test_instructions_of_compiled_kernels(name, arch, expected, tools):
    (census,) = take_census(compile_source(getattr(sources, name), arch).cubin).values()
    assert expected <= set(census.known())


def test_what_is_no_code_is_refused(tools):
    with pytest.raises(LoweringError, match=r"nvdisasm cannot read the code: ."):
        take_census(b"no code")


def test_without_nvdisasm_the_remedy_is_named(no_tools):
    with pytest.raises(BackendUnavailableError, match=r'pip install "cuda-toolkit\[nvdisasm'):
        take_census(b"")


def test_opcodes_have_a_meaning():
    assert all(OPCODES.values())
