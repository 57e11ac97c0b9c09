"""The adapters of peers: what they give on, what they refuse, and what the judge finds in peers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest

from sdpakit import errors
from sdpakit.conformance import cases, check
from sdpakit.conformance.model import Case
from sdpakit.conformance.peers import make, names
from sdpakit.conformance.peers.asked import CAUSAL, DENSE, KV_LENS, OTHER, WINDOW, asked
from sdpakit.conformance.peers.findings import Answer, Finding, read, stale, unexplained
from sdpakit.conformance.peers.page import counts, filled
from sdpakit.conformance.peers.peer import Peer
from sdpakit.masks import Causal, Dense, Predicate, Window
from sdpakit.spec import AttentionSpec

LIBRARIES = {
    "torch": "torch",
    "torch-math": "torch",
    "torch-flash": "torch",
    "torch-flex": "torch",
    "jax": "jax",
    "onnxruntime": "onnxruntime",
    "onnxruntime-mha": "onnxruntime",
    "onnxruntime-gqa": "onnxruntime",
    "onnx-reference": "onnx",
    "mlx": "mlx",
}
# Cases that any peer that takes them does right.
SMOKE = (
    "lengths.causal_17_by_17.float32",
    "masks.causal_bottom_right_decode.float32",
    "heads.8_on_2.float32",
    "scale.two.float32",
    "precision.unit.float32",
    "lengths.17_by_17.float32",
)
TORCH, JAX, RUNTIME = {"torch": "2.13"}, {"jax": "0.10.2"}, {"onnxruntime": "1.32.0"}
ONNX, MLX = {"onnx": "1.23.2"}, {"mlx": "0.32.4"}
# Defects that were found by hand first: peer, version, case, what is in the message.
KNOWN: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ("torch", TORCH, "scale.zero_and_causal.float32", "nan"),
    ("torch", TORCH, "scale.negative_and_causal.float32", "nan"),
    ("torch-flash", TORCH, "statistics.lse_of_empty_rows.float32", "lse"),
    ("torch", TORCH, "specials.nan_query_of_few_keys.float32", "right is nan"),
    ("torch", TORCH, "poison.nan_key_of_bool_mask.float32", "nan"),
    ("torch-math", TORCH, "poison.nan_key_of_bool_mask.float32", "nan"),
    ("torch", TORCH, "masks.dense_broadcast_keys.float32", "IndexError"),
    ("torch-math", TORCH, "masks.causal_and_dense.float32", "is_causal"),
    ("torch", TORCH, "specials.minus_infinite_logits.float64", "wrong"),
    ("jax", JAX, "empty.last_row.float32", "right is 0"),
    ("jax", JAX, "empty.by_bias.float32", "nan"),
    ("jax", JAX, "precision.unit.float64", "times its bound"),
    ("onnxruntime", RUNTIME, "bias.lowest_everywhere.float32", "right is"),
    ("onnxruntime", RUNTIME, "scale.zero.float32", "scale"),
    ("onnxruntime-mha", RUNTIME, "masks.causal_top_left_rectangle.float32", "right is 1"),
    ("onnx-reference", ONNX, "masks.left_padding_and_causal.float32", "wrong"),
    ("onnxruntime", RUNTIME, "empty.no_batch.float32", "raised"),
    ("onnxruntime", RUNTIME, "masks.dense_broadcast_keys.float32", "raised"),
    ("onnxruntime", RUNTIME, "precision.logits_beyond_half.float16", "nan"),
    ("onnx-reference", ONNX, "scale.negative.float32", "nan"),
    ("onnx-reference", ONNX, "precision.logits_beyond_half.float16", "nan"),
    ("mlx", MLX, "empty.last_row.float32", "right is 0"),
    ("mlx", MLX, "empty.by_bias.float32", "nan"),
    ("mlx", MLX, "precision.logits_beyond_half.float16", "nan"),
)


@pytest.fixture(scope="module")
def by_id() -> dict[str, Case]:
    return {case.id: case for case in cases("full")}


def _peer(name: str) -> Peer:
    pytest.importorskip(LIBRARIES[name])
    return make(name)


def test_every_peer_has_a_library_here() -> None:
    assert set(LIBRARIES) == set(names())


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_peer_does_simple_cases(name: str, by_id: dict[str, Case]) -> None:
    peer = _peer(name)
    outcomes = {case: check(peer, by_id[case]) for case in SMOKE}
    verdicts = {case: outcome.verdict for case, outcome in outcomes.items()}
    assert set(verdicts.values()) <= {"ok", "refused"}, verdicts
    assert "ok" in verdicts.values()
    assert peer.versions
    assert peer.note


@pytest.mark.parametrize(("name", "versions", "case", "text"), KNOWN)
def test_a_known_defect_is_found(
    name: str, versions: dict[str, str], case: str, text: str, by_id: dict[str, Case]
) -> None:
    peer = _peer(name)
    for package, number in versions.items():
        if not peer.versions[package].startswith(number):
            pytest.skip(f"known of {package} {number}, here is {peer.versions[package]}")
    outcome = check(peer, by_id[case])
    assert outcome.verdict in ("fail", "error")
    assert text in outcome.message


def test_torch_gives_gradients(by_id: dict[str, Case]) -> None:
    peer = _peer("torch")
    for case in ("gradients.not_causal.float64", "gradients.of_a_bias_of_pairs.float64"):
        assert check(peer, by_id[case]).verdict == "ok"


def test_jax_gives_gradients(by_id: dict[str, Case]) -> None:
    pytest.importorskip("jax")
    assert check(make("jax"), by_id["gradients.of_low_lse.float32"]).verdict in ("ok", "fail")


def test_no_library_is_imported_with_the_package() -> None:
    code = (
        "import sys, sdpakit.conformance, sdpakit.conformance.peers as p; p.names();"
        "print(sorted({'torch', 'jax', 'onnx', 'onnxruntime', 'mlx'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_missing_library_is_named_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = LIBRARIES[name]
    # An entry of None makes every import of the module an ImportError.
    for module in [m for m in sys.modules if m.split(".")[0] == wanted]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, wanted, None)
    with pytest.raises(errors.BackendUnavailableError, match="pip install"):
        make(name)


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="torch-flash"):
        make("torch-flsh")


def _spec(**fields: Any) -> AttentionSpec:
    return AttentionSpec(**{"q_heads": 2, "head_dim": 8, "dtype": "float32", **fields})


def test_a_mask_is_taken_apart() -> None:
    mask = Causal("top_left") & Window(2, 0, "top_left") & Dense() & Predicate(lambda i: i.k > 1)
    found = asked(_spec(mask=mask, kv_lens=True))
    assert found.parts == {CAUSAL, WINDOW, DENSE, OTHER, KV_LENS}
    assert found.causal_is("top_left")
    assert not found.causal_is("bottom_right")
    # An alternative is no part of a conjunction.
    assert asked(_spec(mask=Causal("top_left") | Dense())).parts == {OTHER}


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("torch", {"softcap": 2.0}, "softcap"),
        ("torch", {"sinks": True}, "sinks"),
        ("torch", {"empty_row": "nan"}, "empty rows"),
        ("torch", {"bias": "float16"}, "float16"),
        ("torch", {"logits": lambda x, i: x * 2.0}, "expression"),
        ("torch-flash", {"v_head_dim": 4}, "width"),
        ("jax", {"v_head_dim": 4}, "width"),
        ("onnxruntime", {"dtype": "bfloat16"}, "bfloat16"),
        ("onnxruntime-mha", {"kv_heads": 1}, "heads"),
        ("onnxruntime-gqa", {}, "causal"),
        ("mlx", {"bias": "float16"}, "dtype"),
    ],
)
def test_what_a_peer_cannot_be_told_is_refused(
    name: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(errors.UnsupportedSpecError, match=reason):
        _peer(name).prepare(_spec(**fields))


def test_what_is_turned_is_told() -> None:
    peer = _peer("torch")
    assert peer.turned(_spec(mask=Causal("top_left"))) == ()
    assert peer.turned(_spec(mask=Causal("bottom_right"))) == ()
    assert peer.turned(_spec(mask=Window(2, 0, "top_left"))) == ("window as a boolean array",)
    both = peer.turned(_spec(mask=Dense(), bias="float32"))
    assert both == ("the mask as -inf in the bias",)


def test_native_arguments_reach_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, seen = _peer("torch"), []
    functional = peer.torch.nn.functional  # type: ignore[attr-defined]
    plain = functional.scaled_dot_product_attention

    def spy(*operands: Any, **words: Any) -> Any:
        seen.append(words)
        return plain(*operands, **words)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    q = np.ones((1, 2, 3, 8), np.float32)
    k = np.ones((1, 1, 5, 8), np.float32)
    spec = _spec(mask=Causal("top_left"), kv_heads=1, scale=0.5)
    peer.prepare(spec)(q, k, k)
    assert seen == [{"attn_mask": None, "is_causal": True, "scale": 0.5, "enable_gqa": True}]


def test_a_bad_call_is_the_callers_and_a_good_one_the_peers() -> None:
    peer = _peer("torch-math")
    q = np.ones((1, 2, 3, 8), np.float32)
    with pytest.raises(errors.ArgumentError, match="RuntimeError"):
        peer.prepare(_spec())(q, np.ones((1, 2, 3, 7), np.float32), q)
    with pytest.raises(RuntimeError, match="is_causal"):
        peer.prepare(_spec(mask=Causal("top_left") & Dense()))(q, q, q, mask=np.ones((3, 3), bool))


FINDING = Finding("a", ("torch*",), ("empty.*",), "divergence", "it says 1")


def test_a_failure_without_a_finding_is_new() -> None:
    known = Answer("torch-math", "empty.row.float32", "fail", "")
    new = Answer("torch", "scale.zero.float32", "error", "")
    fine = Answer("jax", "scale.zero.float32", "refused", "")
    assert unexplained([FINDING], [known, new, fine]) == [new]


def test_a_finding_without_a_failure_is_stale() -> None:
    passed = Answer("torch", "empty.row.float32", "ok", "")
    failed = Answer("torch", "empty.row.float32", "fail", "")
    assert stale([FINDING], [passed], {"torch": "core"}) == [FINDING]
    assert stale([FINDING], [Answer("jax", "empty.row.float32", "ok", "")], {"jax": "full"}) == []
    assert stale([FINDING], [failed], {"torch": "core"}) == []


def test_a_finding_of_a_level_that_did_not_run_is_not_stale() -> None:
    passed, finding = Answer("torch", "empty.row.float32", "ok", ""), replace(FINDING, level="full")
    assert stale([finding], [passed], {"torch": "core"}) == []
    assert stale([finding], [passed], {"torch": "core", "torch-math": "full"}) == [finding]


def test_the_findings_name_peers_and_cases_that_there_are() -> None:
    ids = [case.id for case in cases("full")]
    for finding in read():
        assert any(fnmatchcase(name, pattern) for name in names() for pattern in finding.peers)
        assert any(fnmatchcase(case, pattern) for case in ids for pattern in finding.cases)


def test_a_page_keeps_what_is_written_by_hand() -> None:
    page = "by hand\n<!-- begin: counts -->\nold\n<!-- end: counts -->\nmore\n"
    run = {
        "started": "2026-11-30",
        "levels": {"torch": "core"},
        "versions": {"torch": {"torch": "2.13"}},
        "outcomes": {"torch": [["empty.row.float32", "ok", ""], ["empty.a.float32", "fail", "x"]]},
    }
    new = filled(page, {"counts": counts(run)})
    assert new.startswith("by hand\n")
    assert new.endswith("more\n")
    assert "old" not in new
    assert "| empty | 1 / 1 / 0 / 0 |" in new
