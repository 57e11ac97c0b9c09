"""Sources become code for each architecture without a driver, and refusals show their lines."""

import pytest
from tests.gpu import sources

from sdpakit.backends.gpu import compiling
from sdpakit.backends.gpu.compiling import compile_source, link_ltoir, link_ptx
from sdpakit.backends.gpu.libraries import Output
from sdpakit.backends.gpu.sass import take_census
from sdpakit.errors import ArgumentError, BackendUnavailableError, LoweringError

PTX = """.version 7.5
.target sm_75
.address_size 64
.visible .entry k()
{
  INSTRUCTION
  ret;
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_a_source_becomes_code_of_its_architecture(arch, tools):
    module = compile_source(sources.PLAIN, arch)
    name = module.arch.name
    assert name.removeprefix("sm_") in arch
    assert f".target {name}" in module.ptx
    assert ".visible .entry plain(" in module.ptx
    assert not module.ptx.endswith("\0")
    assert module.cubin.startswith(b"\x7fELF")
    assert module.report.kernels["plain"].shared == 1024


def test_equal_sources_give_equal_modules(tools):
    assert compile_source(sources.PLAIN, "80") == compile_source(sources.PLAIN, "80")
    assert "Compile time" not in compile_source(sources.PLAIN, "80").log


def test_options_reach_the_compiler(tools):
    source = 'extern "C" __global__ void k(int* p) { *p = NUMBER; }'
    assert "1234" in compile_source(source, "80", ["-DNUMBER=1234"]).ptx
    limited = link_ptx(compile_source(sources.LOCAL_ARRAY, "86").ptx, "86", ["-maxrregcount=24"])
    assert limited.report.kernels["local_array"].registers == 24


def test_an_error_in_a_source_is_shown_with_its_lines(tools):
    source = "\n".join(("// one", "__device__ int f() {", "  return wrong;", "}", "// five"))
    with pytest.raises(LoweringError) as caught:
        compile_source(source, "sm_80")
    message = str(caught.value)
    assert message.startswith("code for sm_80 does not compile:\n")
    assert 'identifier "wrong" is undefined' in message
    assert message.endswith(
        "kernel.cu, line 3:\n"
        "      1 | // one\n"
        "      2 | __device__ int f() {\n"
        ">     3 |   return wrong;\n"
        "      4 | }\n"
        "      5 | // five"
    )


def test_an_instruction_that_an_architecture_lacks_is_shown_in_the_ptx(tools):
    with pytest.raises(LoweringError) as caught:
        compile_source(sources.FEATURES["wgmma"], "sm_90")
    message = str(caught.value)
    assert "cannot be compiled for architecture 'sm_90'" in message or "not supported" in message
    assert ["wgmma.fence.sync.aligned;" in line for line in message.splitlines()].count(True) == 1
    assert "\n> " in message


def test_an_unknown_option_is_an_error_of_the_compiler(tools):
    with pytest.raises(LoweringError, match="--nonsense"):
        compile_source(sources.PLAIN, "80", ["--nonsense"])
    with pytest.raises(LoweringError, match="UNRECOGNIZED_OPTION"):
        link_ptx(PTX.replace("INSTRUCTION", ""), "80", ["-nonsense"])


def test_headers_are_not_looked_for(tools):
    with pytest.raises(LoweringError, match="could not open source file"):
        compile_source("#include <cuda_fp16.h>\n", "80")


def test_ptx_of_an_older_architecture_becomes_code(tools):
    module = link_ptx(PTX.replace("INSTRUCTION", ""), "sm_90a")
    assert module.cubin.startswith(b"\x7fELF")
    assert module.ptx == PTX.replace("INSTRUCTION", "")
    assert list(module.report.kernels) == ["k"]
    assert module.log == link_ptx(module.ptx, "sm_90a").log


def test_an_error_in_ptx_is_shown_with_its_lines(tools):
    with pytest.raises(LoweringError) as caught:
        link_ptx(PTX.replace("INSTRUCTION", "nonsense;"), "sm_80")
    assert str(caught.value).endswith(
        "PTX, line 6:\n"
        "      4 | .visible .entry k()\n"
        "      5 | {\n"
        ">     6 |   nonsense;\n"
        "      7 |   ret;\n"
        "      8 | }"
    )


@pytest.mark.parametrize("text", ["", "no PTX"])
def test_what_is_no_ptx_is_refused(text, tools):
    with pytest.raises(LoweringError, match="code for sm_80 does not compile"):
        link_ptx(text, "sm_80")


def test_what_is_no_ltoir_is_refused(tools):
    with pytest.raises(LoweringError, match="code for sm_80 does not compile"):
        link_ltoir(b"no code", "sm_80")


def test_ptx_for_a_later_architecture_is_refused(tools):
    with pytest.raises(LoweringError, match="sm_90a"):
        link_ptx(PTX.replace("INSTRUCTION", "").replace("sm_75", "sm_90a"), "sm_80")


def test_code_of_functions_that_were_not_inlined_is_found(tools):
    module = compile_source(sources.SPILLING_CALL, "sm_80")
    assert module.report.functions["_Z4workPfi"].spill_stores > 0
    linked = link_ptx(module.ptx, "sm_80")
    assert linked.report.functions["_Z4workPfi"].spill_stores > 0
    # A test of what nvdisasm calls functions: they have a section of their own when linked.
    assert set(take_census(linked.cubin)) == {"calling", "_Z4workPfi"}


@pytest.mark.parametrize("compiler", [compile_source, link_ptx, link_ltoir])
def test_without_a_compiler_the_remedy_is_named(compiler, no_tools):
    with pytest.raises(BackendUnavailableError, match="cuda-bindings is not installed") as caught:
        compiler("", "sm_80")
    assert 'remedy: pip install "cuda-toolkit[nv' in str(caught.value)


@pytest.mark.parametrize("compiler", [compile_source, link_ptx, link_ltoir])
def test_a_wrong_architecture_is_refused_before_anything_else(compiler, no_tools):
    with pytest.raises(ArgumentError, match="sm_75, sm_80"):
        compiler("", "sm_81")


def test_only_the_first_places_of_many_are_shown():
    log = "\n".join(f'kernel.cu({n}): error: no "{n}"' for n in (1, 1, 9, 5, 7))
    source = "\n".join(f"line{n}" for n in range(1, 10))
    output = Output(ok=False, ptx="", cubin=b"", log=log)
    message = compiling._refusal(output, compiling.architecture("80"), source)
    assert message.count(", line ") == 3
    assert ">     9 | line9" in message
    assert ">     7 | line7" not in message


def test_a_line_that_is_not_there_is_not_shown():
    log = "ptxas application ptx input, line 40; error   : missing"
    output = Output(ok=False, ptx="one\ntwo\n", cubin=b"", log=log)
    message = compiling._refusal(output, compiling.architecture("80"), "")
    assert message.endswith("missing\nPTX, line 40:")
