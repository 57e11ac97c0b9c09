"""The example of docs/gpu.md runs, and it names the gates and architectures that there are."""

import re
from pathlib import Path

from sdpakit.backends.gpu import gates
from sdpakit.backends.gpu.architectures import ARCHITECTURES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")


BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def run(block):
    exec(compile(block, "docs/gpu.md", "exec"), {"__name__": "doc"})


def test_the_example_of_gates_runs(tools, capsys):
    gated, _ = BLOCKS
    run(gated)
    said = capsys.readouterr().out
    assert "64 Frame(" in said
    assert "bytes of spill stores" in said


def test_the_example_of_the_backend_runs(tools, capsys):
    _, calls = BLOCKS
    run(calls)
    *_, largest_error = capsys.readouterr().out.split()
    assert float(largest_error) < 2e-3


def test_every_gate_is_described():
    described = set(re.findall(r"^\| `(\w+)` \| ", TEXT, re.MULTILINE))
    made = {
        name
        for name, value in vars(gates).items()
        if hasattr(value, "findings") and name not in ("Gate", "Subject")
    }
    assert described >= made
    assert len(made) == 6


def test_every_architecture_is_named():
    (line,) = re.findall(r"has (sm_75.*?), and those with", TEXT)
    named = {f"sm_{number}" for number in re.findall(r"\d+", line)}
    assert named == {name for name in ARCHITECTURES if not name.endswith("a")}
