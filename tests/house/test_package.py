"""What the package says about itself, and what importing it brings along."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import sdpakit

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = ("numpy", "numba", "llvmlite", "cupy", "torch", "ml_dtypes", "typer", "rich")


def loaded_after(statement):
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def test_version_is_the_same_everywhere():
    assert sdpakit.__version__ == PROJECT["version"]


def test_version_of_the_installed_distribution():
    try:
        installed = version("sdpakit")
    except PackageNotFoundError:
        pytest.skip("run from a checkout that is not installed")
    assert installed == PROJECT["version"]


def test_import_loads_nothing_heavy():
    assert set(HEAVY) & set(loaded_after("import sdpakit")) == set()


def test_a_spec_needs_no_compiler():
    loaded = loaded_after(
        "import sdpakit as sk\nsk.AttentionSpec(q_heads=8, head_dim=64, mask=sk.Causal('top_left'))"
    )
    assert {"numba", "llvmlite", "cupy", "torch", "rich"} & set(loaded) == set()


def test_every_public_name_can_be_had():
    for name in sdpakit.__all__:
        assert getattr(sdpakit, name) is not None
    assert set(sdpakit.__all__) <= set(dir(sdpakit))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        sdpakit.nonsense  # noqa: B018  # reading it is the test


def test_types_are_shipped():
    assert (Path(sdpakit.__file__).parent / "py.typed").is_file()


def test_command_is_declared():
    assert PROJECT["scripts"] == {"sdpakit": "sdpakit.cli:main"}
