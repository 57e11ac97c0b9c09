import subprocess
import sys

import pytest
from bench import latency, probes
from bench.latency import Figure, Processes


def test_a_probe_answers_in_json(tmp_path):
    facts = Processes(tmp_path).probe("import_time")
    assert facts["loaded"] == []
    assert facts["seconds"]["cpu"] >= 0


def test_a_failing_probe_says_why(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)probe nothing: status 1.*KeyError"):
        Processes(tmp_path).probe("nothing")


def test_forgetting_kernels_keeps_the_driver(tmp_path):
    for name in ("sdpakit/cpu/a.o", "numba/driver.nbc"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x")
    Processes(tmp_path).forget_kernels()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["driver.nbc"]


def test_modules_of_machine_code_are_counted():
    script = (
        "from bench.native import read_loop\n"
        "from bench.probes import modules_made\n"
        "with modules_made() as count:\n"
        "    read_loop(16, 0)\n"
        "    print(count())\n"
        "read_loop(16, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_limits_are_kept_or_not():
    figure = Figure("name", "s", 0.45, 0.5, 0.4, [0.45, 0.6], {})
    assert figure.met("floor") is True
    assert figure.met("goal") is False
    assert Figure("name", "s", 0.45, None, 0.4, [0.45], {}).met("floor") is None


def test_the_peak_of_the_resident_set_is_read():
    before = probes._peak_bytes()
    block = bytearray(before)
    block[:] = b"x" * len(block)
    assert probes._peak_bytes() > before


def test_figures_come_from_the_probes():
    answers = {
        "call_overhead": {"allocating": 4.0, "into out": 3.0, "torch": None},
        "sweep": {"lengths": 50, "compile": 1, "sweep": 2},
    }
    call, into, swept = latency.call_figures(answers.__getitem__)
    assert (call.value, into.value) == (4.0, 3.0)
    assert (swept.value, swept.met("floor")) == (3.0, False)
