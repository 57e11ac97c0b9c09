"""What is here is said with its build, what is missing with the command that brings it."""

import json
import re
import subprocess
import sys
import tomllib
import types
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sdpakit.backends.gpu import toolchain as module
from sdpakit.backends.gpu.libraries import Output
from sdpakit.backends.gpu.toolchain import require, toolchain
from sdpakit.cli.app import app
from sdpakit.errors import BackendUnavailableError

ROOT = Path(__file__).resolve().parents[2]
WIDE = {"COLUMNS": "220", "NO_COLOR": "1", "TERM": "dumb"}


def test_each_missing_part_names_its_command(no_tools):
    found = toolchain()
    assert [part.version for part in found.parts] == [None] * 4
    assert (found.ptx_version, found.driver) == ("", "")
    for part in found.parts:
        with pytest.raises(BackendUnavailableError) as caught:
            require(part)
        extra = part.name.lower()
        assert f'remedy: pip install "cuda-toolkit[{extra}]==13.*"' in str(caught.value)


@pytest.mark.parametrize("error", [RuntimeError, OSError, ImportError])
def test_a_library_that_cannot_be_loaded_is_missing(no_tools, monkeypatch, error):
    def broken():
        raise error("libnvrtc.so.13: no such file\nwhere it was looked for")

    monkeypatch.setattr(module, "_has", lambda name: name == "cuda.bindings")
    monkeypatch.setattr(module, "_probe_nvrtc", broken)
    monkeypatch.setattr(module, "_probe_nvjitlink", broken)
    found = toolchain()
    assert found.nvrtc.version is None
    assert found.nvrtc.trouble == "libnvrtc.so.13: no such file"


def test_a_library_that_says_nothing_is_missing_by_the_name_of_its_error(no_tools, monkeypatch):
    def broken():
        raise OSError

    monkeypatch.setattr(module, "_has", lambda name: name == "cuda.bindings")
    monkeypatch.setattr(module, "_probe_nvrtc", broken)
    monkeypatch.setattr(module, "_probe_nvjitlink", broken)
    assert toolchain().nvrtc.trouble == "OSError"


@pytest.mark.parametrize("kind", ["nothing", "module", "package"])
def test_whatever_else_is_called_cuda_is_no_toolchain(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.delitem(sys.modules, "cuda.bindings", raising=False)
    if kind != "nothing":
        other = types.ModuleType("cuda")
        if kind == "package":
            other.__path__ = []
        monkeypatch.setitem(sys.modules, "cuda", other)
    assert not module._has("cuda.bindings")


def test_the_build_is_that_of_emitted_code(no_tools, monkeypatch):
    ptx = "// Cuda compilation tools, release 12.9, V12.9.86\n.version 8.8\n.target sm_75\n"
    monkeypatch.setattr(module, "_has", lambda name: name == "cuda.bindings")
    monkeypatch.setattr(module, "_probe_nvrtc", lambda: ptx)
    monkeypatch.setattr(module, "_probe_nvjitlink", lambda: "nothing known")
    found = toolchain()
    assert (found.nvrtc.version, found.nvjitlink.version) == ("12.9.86", "unknown")
    assert (found.ptx_version, found.driver) == ("8.8", "525")


def test_a_probe_that_does_not_compile_is_a_missing_compiler(no_tools, monkeypatch):
    failed = Output(ok=False, ptx="", cubin=b"", log="nvrtc: error: out of order")
    monkeypatch.setattr(module, "_has", lambda name: name == "cuda.bindings")
    for name in ("compile_with_nvrtc", "link_with_nvjitlink"):
        monkeypatch.setattr(module, name, lambda *_: failed)
    found = toolchain()
    assert found.nvrtc.version is found.nvjitlink.version is None
    assert found.nvrtc.trouble == "nvrtc: error: out of order"


def test_versions_are_those_of_the_installed_wheels(tools):
    wheels = {
        "nvrtc": "nvidia-cuda-nvrtc",
        "nvJitLink": "nvidia-nvjitlink",
        "nvdisasm": "nvidia-cuda-nvdisasm",
        "cuobjdump": "nvidia-cuda-cuobjdump",
    }
    for part in tools.parts:
        try:
            assert part.version == version(wheels[part.name])
        except PackageNotFoundError:
            assert re.fullmatch(r"\d+\.\d+\.\d+", part.version)
    assert re.fullmatch(r"\d+\.\d+", tools.ptx_version)
    assert int(tools.driver) >= 525


def test_info_says_what_is_missing_and_how_to_get_it(no_tools):
    result = CliRunner().invoke(app, ["info"], env=WIDE)
    assert result.exit_code == 0, result.output
    assert "compilers for GPUs" in result.output
    assert result.output.count("missing: ") == 4
    assert 'pip install "cuda-toolkit[nvrtc]==13.*" "cuda-bindings==13.*"' in result.output


def test_info_says_what_is_there(tools):
    result = CliRunner().invoke(app, ["info"], env=WIDE)
    assert tools.nvrtc.version in result.output
    assert f"NVRTC emits PTX {tools.ptx_version}" in result.output
    assert f"drivers from {tools.driver} on" in result.output


def loaded_after(statement):
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_importing_all_of_it_loads_nothing_of_cuda():
    names = sorted(p.stem for p in (ROOT / "src/sdpakit/backends/gpu").glob("[a-z]*.py"))
    assert len(names) >= 7
    imports = "; ".join(f"import sdpakit.backends.gpu.{name}" for name in names)
    heavy = {"cuda", "cupy", "numba", "llvmlite", "numpy", "torch"}
    assert heavy & loaded_after(imports) == set()


def test_asking_where_nothing_is_installed_loads_nothing():
    statement = (
        "from sdpakit.backends.gpu import toolchain as t\n"
        "t._has = lambda name: False\n"
        "t.shutil.which = lambda name: None\n"
        "t.toolchain()"
    )
    assert {"cuda", "numba", "numpy"} & loaded_after(statement) == set()


def test_commands_name_what_the_extras_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert "cuda-bindings==13.*" in extras["cuda13"]
    toolkit = [line for name in ("cuda13", "gpu-ci") for line in extras[name] if "toolkit" in line]
    named = set(re.findall(r"[a-z]+", " ".join(re.findall(r"\[(.*?)\]", " ".join(toolkit)))))
    assert named == {"nvrtc", "nvjitlink", "nvdisasm", "cuobjdump"}
