"""A text names a target, or the error says what there is."""

import sys
from importlib.metadata import EntryPoint

import pytest

from sdpakit.conformance import cases, check, names, resolve
from sdpakit.conformance.mutants import MUTANTS
from sdpakit.conformance.targets import resolve as module
from sdpakit.conformance.targets.compiled import Compiled
from sdpakit.conformance.targets.function import FunctionTarget
from sdpakit.conformance.targets.naive import Naive
from sdpakit.errors import ArgumentError, ArgumentTypeError

CASE = next(case for case in cases() if case.id == "masks.causal_random.float32")
FILE = """
import dataclasses

from sdpakit.conformance.targets.naive import Naive


def attention(q, k, v, *, scale=None):
    return q


def factory():
    return Naive()


def of_function():
    return attention


def strange():
    return 3


def failing():
    raise OSError("no device")


class Mine(Naive):
    name = "mine"


class Needs(Naive):
    def __init__(self, device):
        self.device = device


class Called:
    def __call__(self, q, k, v):
        return q


@dataclasses.dataclass
class Box:
    target: object = None


target = Mine()
box = Box(target)
number = 3
"""


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """What is loaded here is gone afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("sdpakit_target_", "given_")):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "given_target.py"
    path.write_text(FILE)
    return path


def test_names_that_come_with_sdpakit():
    assert isinstance(resolve("interp"), Compiled)
    assert resolve("numba_cpu").name == "numba_cpu"
    assert isinstance(resolve("naive"), Naive)
    assert resolve("reference").name == "reference"


def test_all_names_are_listed():
    found = names()
    assert found[:6] == ("interp", "numba_cpu", "cupy", "cupy-simt", "naive", "reference")
    assert {"torch", "torch-math", "jax", "onnxruntime", "onnx-reference"} <= set(found)
    assert len(set(found)) == len(found)
    assert not any(name.startswith("mutant:") for name in found)


def test_mutants():
    name = next(iter(MUTANTS))
    assert resolve(f"mutant:{name}").name == f"mutant:{name}"
    with pytest.raises(ArgumentError, match=f"did you mean '{name}'"):
        resolve(f"mutant:{name}x")


def test_no_mutant_needs_a_short_answer():
    with pytest.raises(ArgumentError, match="remedy: did you mean 'last_row_lost'") as caught:
        resolve("mutant:last_key_lost")
    assert len(str(caught.value)) < 400


def test_only_what_may_be_a_target_is_suggested(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from typing import Any\nimport numpy as np\nn = 1\ndef attend(q, k, v):\n    return v\n"
    )
    with pytest.raises(ArgumentError, match=r"no 'nope' in .*mine\.py\n.*: name one of attend$"):
        resolve(f"{path}:nope")


def test_unknown_names_list_what_there_is():
    with pytest.raises(ArgumentError) as caught:
        resolve("numba_cup")
    text = str(caught.value)
    assert "did you mean 'numba_cpu'?" in text
    for part in ("interp", "torch-flash", "mutant:NAME", "path/to/file.py:object"):
        assert part in text


@pytest.mark.parametrize("text", ["given_target.py", "package.module"])
def test_a_module_without_an_object(text):
    with pytest.raises(ArgumentError, match=f"name an object in it: {text}:object"):
        resolve(text)


def test_something_other_than_a_text():
    with pytest.raises(ArgumentTypeError, match="int"):
        resolve(3)


# ------------------------------------------------------------------------------- modules and files


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("target", "mine"),
        ("Mine", "mine"),
        ("factory", "naive"),
        ("box.target", "mine"),
    ],
)
def test_objects_of_a_file(file, name, target):
    assert resolve(f"{file}:{name}").name == target


@pytest.mark.parametrize("name", ["attention", "of_function", "Called"])
def test_functions_of_a_file_are_named_by_the_text(file, name):
    found = resolve(f"{file}:{name}")
    assert isinstance(found, FunctionTarget)
    assert found.name == f"{file}:{name}"
    assert found.outputs == ("out",)


def test_a_target_of_a_file_is_judged(file):
    outcome = check(resolve(f"{file}:Mine"), CASE)
    assert (outcome.target, outcome.verdict) == ("mine", "ok")


def test_a_path_relative_to_this_folder(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert resolve("given_target.py:target").name == "mine"
    assert resolve("./given_target.py:target").name == "mine"


def test_a_module_of_this_folder(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert resolve("given_target:target").name == "mine"


def test_a_file_imports_its_neighbours(tmp_path):
    (tmp_path / "given_neighbour.py").write_text("name = 'neighbour'\n")
    path = tmp_path / "given_by.py"
    path.write_text(
        "import given_neighbour\nfrom sdpakit.conformance.targets.naive import Naive\n"
        "class T(Naive):\n    name = given_neighbour.name\n"
    )
    assert resolve(f"{path}:T").name == "neighbour"


def test_two_files_of_one_name(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        source = "from sdpakit.conformance.targets.naive import Naive\nclass T(Naive):\n    name = "
        (tmp_path / folder / "given.py").write_text(f"{source}{folder!r}\n")
    assert [resolve(f"{tmp_path / one / 'given.py'}:T").name for one in "ab"] == ["a", "b"]


def test_an_installed_module():
    assert resolve("sdpakit.conformance.targets.naive:Naive").name == "naive"


@pytest.mark.parametrize(
    ("name", "error", "parts"),
    [
        ("targte", ArgumentError, ["there is no 'targte'", "did you mean 'target'?"]),
        ("zzz", ArgumentError, ["there is no 'zzz' in ", "given_target.py", "name one of "]),
        ("box.zzz", ArgumentError, ["there is no 'zzz'"]),
        ("number", ArgumentTypeError, ["which gives int", "a function of q, k, v"]),
        ("strange", ArgumentTypeError, ["which gives int"]),
        ("failing", ArgumentError, ["failing() raised OSError: no device"]),
        ("Needs", ArgumentError, ["Needs() raised TypeError", "device"]),
    ],
)
def test_objects_that_are_no_targets(file, name, error, parts):
    with pytest.raises(error) as caught:
        resolve(f"{file}:{name}")
    for part in (*parts, "remedy:"):
        assert part in str(caught.value)


def test_a_function_of_two_arguments_is_no_target(tmp_path):
    path = tmp_path / "given.py"
    path.write_text("def f(x, y):\n    return x\n")
    with pytest.raises(ArgumentError, match="2 positional parameters"):
        resolve(f"{path}:f")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("raise OSError('no driver')", "raised OSError: no driver"),
        ("import sys\nsys.exit(3)", "raised SystemExit: 3"),
        ("def f(:", "raised SyntaxError"),
        ("import given_missing", "install the package that has given_missing"),
    ],
)
def test_a_file_that_fails_to_load_shows_its_exception(tmp_path, source, part):
    path = tmp_path / "given.py"
    path.write_text(source)
    for _ in range(2):  # a module that failed is not kept
        with pytest.raises(ArgumentError) as caught:
            resolve(f"{path}:target")
        assert part in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_user_may_interrupt_a_load(tmp_path):
    path = tmp_path / "given.py"
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        resolve(f"{path}:target")


@pytest.mark.parametrize("text", ["given_nowhere:x", "given_nowhere.part:x"])
def test_a_module_that_is_not_there(text):
    with pytest.raises(ArgumentError, match="ModuleNotFoundError"):
        resolve(text)


def test_a_file_that_is_not_there(file):
    with pytest.raises(ArgumentError) as caught:
        resolve(f"{file.parent / 'given_targt.py'}:x")
    assert "there is no" in str(caught.value)
    assert "did you mean" in str(caught.value)
    with pytest.raises(ArgumentError, match="there is no"):
        resolve("nowhere/at/all.py:x")


@pytest.mark.parametrize("text", [":x", "given_target:", ":"])
def test_half_a_text(text):
    with pytest.raises(ArgumentError, match="before the colon"):
        resolve(text)


# ------------------------------------------------------------------------------------ entry points


@pytest.fixture
def installed(monkeypatch):
    """Return a function that puts entry points in place of those that are installed."""

    def install(*pairs):
        points = [EntryPoint(name, value, module.GROUP) for name, value in pairs]
        monkeypatch.setattr(module, "entry_points", lambda group: points if group else [])

    return install


def test_an_entry_point_is_found_and_listed(installed):
    installed(("theirs", "sdpakit.conformance.targets.naive:Naive"))
    assert resolve("theirs").name == "naive"
    assert names()[-1] == "theirs"


def test_an_entry_point_hides_nothing_that_comes_with_sdpakit(installed):
    installed(("interp", "sdpakit.conformance.targets.naive:Naive"))
    assert isinstance(resolve("interp"), Compiled)
    assert names().count("interp") == 1


def test_two_entry_points_of_one_name(installed):
    installed(("theirs", "a:T"), ("theirs", "b:T"))
    with pytest.raises(ArgumentError) as caught:
        resolve("theirs")
    assert "a:T of an unknown package and b:T of" in str(caught.value)
    assert names().count("theirs") == 1


def test_one_entry_point_found_twice_is_one(installed):
    value = "sdpakit.conformance.targets.naive:Naive"
    installed(("theirs", value), ("theirs", value))
    assert resolve("theirs").name == "naive"


def test_a_broken_entry_point(installed):
    installed(("theirs", "given_nowhere:T"))
    with pytest.raises(ArgumentError) as caught:
        resolve("theirs")
    assert "the entry point given_nowhere:T of an unknown package raised" in str(caught.value)


def test_a_near_miss_of_an_entry_point(installed):
    installed(("theirs-gpu", "a:T"))
    with pytest.raises(ArgumentError, match="did you mean 'theirs-gpu'"):
        resolve("theirs-gpx")
