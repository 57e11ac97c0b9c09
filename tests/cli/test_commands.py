"""What the commands print, how they fail, and that `demo` fails when a result is wrong."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import sdpakit as sk
from sdpakit.cli import explain, machine
from sdpakit.cli.app import app

WIDE = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def invoke(*arguments):
    return CliRunner().invoke(app, arguments, env=WIDE)


def as_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "sdpakit", *arguments], capture_output=True, text=True, check=False
    )


def test_no_command_shows_the_commands():
    result = invoke()
    assert all(name in result.output for name in ("info", "explain", "demo"))


def test_info_lists_backends_versions_and_machine():
    result = invoke("info")
    assert result.exit_code == 0, result.output
    for word in ("interp", "numba_cpu", "ready", "numpy", "llvmlite", "cores", sk.__version__):
        assert word in result.output


def test_info_says_why_a_backend_cannot_run(monkeypatch):
    broken = sk.backends.BackendStatus(
        "gpu", ok=False, source="a plug-in", reason="no driver", hint="install one"
    )
    monkeypatch.setattr(sk.backends, "status", lambda: (broken,))
    result = invoke("info")
    assert all(text in result.output for text in ("gpu", "no driver", "install one", "a plug-in"))


def test_machine_facts_are_texts_and_cores_are_counted():
    assert machine.usable_cores() >= 1
    assert all(isinstance(text, str) and text for text in machine.facts().values())
    assert machine.packages()["sdpakit"] == sk.__version__


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("causal", sk.Causal("top_left")),
        ("window:128,0", sk.Window(128, 0, align="top_left")),
        ("window:none,3", sk.Window(None, 3, align="top_left")),
        ("prefix:16", sk.Prefix(16)),
        ("dilated:4", sk.Dilated(4, align="top_left")),
        ("document", sk.Document()),
        ("dense", sk.Dense()),
        ("causal & prefix:2", sk.Causal("top_left") & sk.Prefix(2)),
        ("causal|prefix:2", sk.Causal("top_left") | sk.Prefix(2)),
        ("~dense", ~sk.Dense()),
        ("dense | document & ~prefix:2", sk.Dense() | (sk.Document() & ~sk.Prefix(2))),
        ("(dense | document) & ~~prefix:2", (sk.Dense() | sk.Document()) & ~~sk.Prefix(2)),
    ],
)
def test_mask_text(text, mask):
    assert explain.parse_mask(text, "top_left") == mask


@pytest.mark.parametrize(
    "text",
    [
        *("", "causal:3", "window:1", "window:a,b", "prefix:none", "casual", "causal &"),
        *("| causal", "causal | & dense", "(causal", "causal)", "causal dense", "causal ~dense"),
        *("~", "()"),
    ],
)
def test_mask_text_without_meaning_is_refused(text):
    with pytest.raises(
        sk.ArgumentError, match=r"--mask: got .*\n  allowed: causal, .*\n  remedy: "
    ):
        explain.parse_mask(text, "top_left")


@pytest.mark.parametrize("backend", ["interp", "auto"])
def test_explain_prints_spec_and_facts(backend):
    result = invoke("explain", "--mask", "causal", "--q-len", "256", "--backend", backend)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "AttentionSpec(q_heads=8" in result.output
    assert "flops" in result.output


def test_explain_takes_ragged_and_paged_batches():
    ragged = invoke("explain", "--layout", "thd", "--entries", "1x4096, 40x300,1x700")
    assert ragged.exit_code == 0, (ragged.output, ragged.exception)
    assert "batch 3, heads 8/8, lengths at most 40 x 4096" in ragged.output
    assert "decode: 2 of 3 entries" in ragged.output
    assert re.search(r"not modelled +the speed", ragged.output)
    sizes = ("--q-len", "1", "--kv-len", "4096")
    paged = invoke("explain", "--layout", "thd", "--paged", "--batch", "5", *sizes)
    assert "paged=True" in paged.output
    assert "batch 5, heads 8/8, lengths at most 1 x 4096" in paged.output
    assert re.search(r"path +decode\n", paged.output)
    whole = invoke("explain", "--paged", "--batch-invariant", *sizes, "--entries", "1x4096,1x9")
    assert re.search(r"path +prefill\n", whole.output)
    padded = invoke("explain", "--q-lens", "--kv-lens", "--entries", "3x40,8x20")
    assert "batch 2, heads 8/8, lengths 8 x 40" in padded.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x2x3", r"--entries: got '1x2x3'\n.*ROWSxKEYS of each entry"),
        ("", r"--entries: got ''"),
        ("-1x3", r"--entries: got '-1x3'"),
        ("1x4,1x5", r"--entries: got kv lengths 4, 5\n.*\n.*--kv-lens"),
        ("1x4,2x4", r"--entries: got q lengths 1, 2\n.*\n.*--q-lens"),
    ],
)
def test_entries_without_meaning_are_refused(text, said):
    spec = sk.AttentionSpec(q_heads=1, head_dim=8)
    with pytest.raises(sk.ArgumentError, match=said):
        explain.Sizes.parse(text).given(spec)


def test_explain_prints_the_code_of_a_stage():
    result = invoke("explain", "--stage", "ir", "--softcap", "30", "--backend", "interp")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "tanh" in result.output
    assert "AttentionSpec(" not in result.output


def test_open_alignment_ends_the_command_with_both_pictures():
    result = as_command("explain", "--mask", "causal", "--q-len", "2", "--kv-len", "5")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "ArgumentError: " in result.stderr
    assert "# # # # #" in result.stderr
    assert result.stderr.endswith("remedy: name one, such as --align bottom_right\n")


def test_a_warning_is_printed_without_a_line_of_code():
    done = as_command("explain", "--scale", "0.015625", "--q-len", "8")
    assert done.returncode == 0
    assert done.stderr.startswith("ScaleWarning: scale=0.015625 is 1/64")
    assert ".py" not in done.stderr


def test_an_unknown_backend_ends_the_command_with_the_names():
    result = as_command("explain", "--backend", "numba_cpi")
    assert result.returncode == 2
    assert "UnknownBackendError: backend: got 'numba_cpi'" in result.stderr
    assert "did you mean 'numba_cpu'?" in result.stderr


def test_version_is_that_of_the_package():
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"sdpakit {sk.__version__}\n")


def test_help_of_explain_keeps_every_word_of_its_texts():
    text = " ".join(invoke("explain", "--help").output.split())
    assert "Heads of k and v (as q)." in text
    assert "Keys of the call (as q-len)." in text
    assert "One result; may be repeated." in text
    assert "--sinks <bool>" not in text


@pytest.mark.parametrize("mask", ["document", "causal & document", "dense", "document & dense"])
def test_explain_stands_in_for_the_arrays_of_a_mask(mask):
    sizes = ("--q-len", "32", "--kv-len", "48", "--align", "bottom_right")
    result = invoke("explain", "--mask", mask, *sizes, "--backend", "interp")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "lengths 32 x 48" in result.output
    assert ("belong to one document" in result.output) is ("document" in mask)


def test_a_negative_window_is_told_the_word_of_the_option():
    with pytest.raises(sk.ArgumentError, match=r"got -1\n.*\n  remedy: .* window:none,0$"):
        explain.parse_mask("window:-1,0", None)


def test_other_mistakes_of_a_spec_keep_their_remedy():
    with pytest.raises(sk.SpecError, match=r"remedy: use 1 or more"):
        CliRunner().invoke(app, ["explain", "--head-dim", "0"], catch_exceptions=False)


def test_a_mask_without_its_numbers_is_told_their_form():
    with pytest.raises(sk.ArgumentError, match=r"remedy: write window:LEFT,RIGHT with numbers "):
        explain.parse_mask("window", None)
    with pytest.raises(sk.ArgumentError, match=r"remedy: write causal; for example "):
        explain.parse_mask("causal:3", None)


@pytest.mark.parametrize("command", [(), ("info",), ("explain",), ("demo",)])
def test_help_calls_no_flag_a_value(command):
    assert "bool" not in invoke(*command, "--help").output


def test_an_unknown_option_is_refused():
    result = as_command("explain", "--heads", "3")
    assert result.returncode == 2
    assert "--heads" in result.stderr


@pytest.mark.parametrize("backend", ["interp", "auto"])
def test_demo_without_timing(backend):
    result = invoke("demo", "--quick", "--backend", backend)
    assert result.exit_code == 0, (result.output, result.exception)
    for text in ("layer 0", "layer 5", "Head 2 is saturated", "No head is saturated", "1/sqrt(D)"):
        assert text in result.output
    assert "checks passed: one for each output of" in result.output


def test_demo_fails_if_a_result_is_wrong(monkeypatch):
    from sdpakit.kernel import Kernel

    right = Kernel.__call__

    def slightly_wrong(self, *arrays, **arguments):
        results = right(self, *arrays, **arguments)
        results.out[0, 0, 0, 0] += np.float16(0.01) + results.out.dtype.type(0)
        return results

    monkeypatch.setattr(Kernel, "__call__", slightly_wrong)
    result = invoke("demo", "--quick", "--backend", "interp")
    assert result.exit_code == 1
    assert "checks failed" in result.output
    assert "layer 0 out" in result.output


def test_figures_name_what_they_see():
    from sdpakit.cli.demo.layers import Figures, describe

    def figures(**changes):
        heads = np.ones(2)
        base = {
            "logit_std": heads,
            "largest": 5 * heads,
            "entropy": 2 * heads,
            "log_n": 3 * heads,
            "sum_p2": 0.2 * heads,
        }
        return describe(Figures(**base | changes))

    assert "No head is saturated" in figures()
    assert "Head 1 is [bold]saturated" in figures(sum_p2=np.array([0.2, 0.95]))
    assert "Heads 0, 1 are [bold]saturated" in figures(sum_p2=np.array([0.99, 0.95]))
    assert "indifferent" in figures(entropy=np.full(2, 2.95))
    assert "half precision" not in figures()
    assert "half precision" in figures(largest=np.full(2, 11.2))


def test_plain_attention_is_attention():
    from sdpakit.cli.demo.speed import plain_attention

    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 9, 4)) for _ in range(3))
    for mask in (None, sk.Causal()):
        spec = sk.AttentionSpec(q_heads=2, head_dim=4, dtype="float64", mask=mask, equal_lens=True)
        truth = sk.reference.attention(spec, q, k, v)["out"]
        # Factor and -inf are float32 there: 1/2 and -inf are exact.
        np.testing.assert_array_max_ulp(
            plain_attention(q, k, v, causal=mask is not None), truth, maxulp=4096
        )


def test_speed_table_checks_before_it_times(monkeypatch):
    from sdpakit.cli.demo import speed

    monkeypatch.setattr(speed, "LENGTHS", (32,))
    monkeypatch.setattr(speed, "ROUNDS", 3)
    printed = io.StringIO()
    console = Console(width=160, file=printed)
    checks = list(speed.show(console, "interp"))
    assert [check.ok for check in checks] == [True, True]
    assert re.search(r"causal +\d+\.\d .*\n *\(\d+\.\d-\d+\.\d\)", printed.getvalue())
