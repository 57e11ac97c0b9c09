"""The table of architectures is the one that NVIDIA ships, and compilers agree about features."""

import importlib.util
import re
from pathlib import Path

import pytest
from tests.gpu.presence import refuse
from tests.gpu.sources import FEATURES as INSTRUCTIONS

from sdpakit.backends.gpu import architectures
from sdpakit.backends.gpu.architectures import ARCHITECTURES, FEATURES, Architecture, architecture
from sdpakit.backends.gpu.compiling import compile_source
from sdpakit.errors import ArgumentError, LoweringError

REFUSAL = r"not supported on \.target|requires \.target|cannot be compiled for architecture"
EACH = pytest.mark.parametrize("arch", ARCHITECTURES.values(), ids=str)


def test_a_name_is_taken_with_and_without_its_prefix():
    assert architecture("sm_90a") is architecture("90a") is ARCHITECTURES["sm_90a"]
    assert architecture(architecture("80")).capability == (8, 0)


@pytest.mark.parametrize("name", ["sm_99", "90b", "compute_90", "", 91, None])
def test_an_unknown_name_lists_those_that_there_are(name):
    with pytest.raises(ArgumentError) as caught:
        architecture(name)
    message = str(caught.value)
    assert message.startswith("arch: got ")
    assert ", ".join(ARCHITECTURES) in message


def test_a_name_that_is_nearly_right_gets_a_hint():
    with pytest.raises(ArgumentError, match="did you mean 'sm_90'"):
        architecture("sm_90b")


@EACH
def test_facts_of_one_architecture_fit_together(arch):
    assert arch.warps_per_sm * 32 == arch.threads_per_sm
    assert arch.features <= set(FEATURES)
    assert 48 * 1024 <= arch.shared_per_block <= arch.shared_per_sm
    assert arch.threads_per_block <= arch.threads_per_sm


def test_the_known_limits_of_blocks():
    shared = {name: arch.shared_per_block // 1024 for name, arch in ARCHITECTURES.items()}
    assert (shared["sm_75"], shared["sm_80"], shared["sm_86"]) == (64, 163, 99)
    assert (shared["sm_90a"], shared["sm_100a"], shared["sm_120a"]) == (227, 227, 99)


def nvidia_traits():
    """Return the text of NVIDIA's own table, which comes with the headers of numba-cuda."""
    places = importlib.util.find_spec("nvidia")
    folders = list(places.submodule_search_locations) if places else []
    for folder in folders:
        for path in Path(folder).glob("*/include/cccl/cuda/__device/arch_traits.h"):
            return path.read_text(encoding="utf-8")
    return refuse("NVIDIA's headers are not installed")


def trait(text, name, fact):
    """Return a fact of sm_NAME, followed through the architectures that it is derived from."""
    body = re.search(rf"arch_traits<arch_id::{name}>\(\) noexcept\n{{(.*?)\n}}", text, re.S)[1]
    found = re.search(rf"__traits\.{fact} += ([\d* ]+);", body)
    if found:
        factors = [int(factor) for factor in found[1].split("*")]
        return factors[0] * factors[-1] if len(factors) == 2 else factors[0]
    return trait(text, re.search(r"::cuda::arch_traits<arch_id::(\w+)>", body)[1], fact)


@EACH
def test_limits_are_those_of_nvidia(arch: Architecture):
    text = nvidia_traits()
    assert arch.shared_per_sm == trait(text, arch.name, "max_shared_memory_per_multiprocessor")
    assert arch.threads_per_sm == trait(text, arch.name, "max_threads_per_multiprocessor")
    assert arch.blocks_per_sm == trait(text, arch.name, "max_blocks_per_multiprocessor")
    reserved = re.search(r"reserved_shared_memory_per_block = .*\{80\}\) \? (\d+) : 0;", text)
    assert arch.shared_reserved == (int(reserved[1]) if arch.capability >= (8, 0) else 0)
    assert f"max_registers_per_thread         = {arch.registers_per_thread};" in text
    assert f"max_registers_per_multiprocessor = {arch.registers_per_sm // 1024} * 1024;" in text
    assert f"max_threads_per_block            = {arch.threads_per_block};" in text


def test_every_feature_has_an_instruction():
    assert set(INSTRUCTIONS) == set(FEATURES)


@EACH
def test_the_compiler_takes_the_features_that_are_listed_and_no_others(arch, tools):
    for feature, source in INSTRUCTIONS.items():
        if feature in arch.features:
            compile_source(source, arch)
        else:
            with pytest.raises(LoweringError, match=REFUSAL):
                compile_source(source, arch)


def test_no_name_is_listed_twice():
    assert len(architectures._TABLE) == len(ARCHITECTURES)
