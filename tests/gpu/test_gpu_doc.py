"""The example of docs/gpu.md runs, and it names the gates and architectures that there are."""

import re
from pathlib import Path

from sdpakit.backends.gpu import gates
from sdpakit.backends.gpu.architectures import ARCHITECTURES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_the_example_runs(tools, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/gpu.md", "exec"), {"__name__": "doc"})
    said = capsys.readouterr().out
    assert "64 Frame(" in said
    assert "bytes of spill stores" in said


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
