"""Names are those of CONTRIBUTING.md, files say what they hold, and waivers give their reasons."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "sdpakit").rglob("*.py"))
ALL_SOURCES = [
    *SOURCES,
    *sorted(p for top in ("tests", "bench", "ci") for p in (ROOT / top).rglob("*.py")),
]

FORBIDDEN_NAMES = {
    *("num_heads", "n_heads", "n_head", "nh", "num_kv_heads", "seqlen", "seq_len", "seqlens"),
    *("d_k", "embed_dim", "sm_scale", "softmax_scale", "temperature", "scores", "attn_weights"),
    *("logits_soft_cap", "attn_mask", "is_causal", "window_size"),
    *("logsumexp", "softmax_lse", "softmax_stats"),
}
FORBIDDEN_FILES = {"utils.py", "helpers.py", "common.py", "misc.py", "util.py"}


def defined_names(tree):
    """Yield what a module itself names; keywords in calls of other libraries are theirs."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def forbidden_in(text):
    return [
        (line, name) for line, name in defined_names(ast.parse(text)) if name in FORBIDDEN_NAMES
    ]


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_forbidden_name_is_defined(path):
    assert forbidden_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(num_heads): ...",
        "scores = 1",
        "self.is_causal = True",
        "class d_k: ...",
        "def seqlen(): ...",
    ],
)
def test_forbidden_names_are_found(text):
    assert len(forbidden_in(text)) == 1


def test_no_file_has_a_name_that_says_nothing():
    assert [relative(p) for p in ALL_SOURCES if p.name in FORBIDDEN_FILES] == []


WAIVER = re.compile(r"#\s*(type:\s*ignore|noqa)")
CODES = r"(?:type:\s*ignore\[[\w, -]+\]|noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)"
REASONED = re.compile(rf"#\s*{CODES}\s+[#-]\s*\S")


def unreasoned_waivers(text):
    return [
        n
        for n, line in enumerate(text.splitlines(), 1)
        if WAIVER.search(line) and not REASONED.search(line)
    ]


def test_every_waiver_of_a_linter_names_its_rule_and_reason():
    found = {
        relative(p): unreasoned_waivers(p.read_text(encoding="utf-8"))
        for p in ALL_SOURCES
        if "tests" not in p.parts  # a test may do on purpose what a linter warns of
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_waivers_without_reason_are_found():
    assert unreasoned_waivers(
        "x = 1  # noqa\ny = 2  # noqa: E501\nz = 3  # noqa: E501  # a table"
    ) == [1, 2]
    assert unreasoned_waivers("x = 1  # type: ignore[misc]") == [1]


def calls_without_reason(tree):
    """Yield the lines of skips and expected failures that do not say why."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail"}:
            parent = next(
                (c for c in ast.walk(tree) if isinstance(c, ast.Call) and c.func is node),
                None,
            )
            said = parent is not None and (
                any(k.arg == "reason" for k in parent.keywords)
                or (node.attr == "skip" and parent.args)
            )
            if not said:
                yield node.lineno


def test_every_skip_says_why():
    tests = [p for p in ALL_SOURCES if "tests" in p.parts and p != Path(__file__)]
    found = {
        relative(p): list(calls_without_reason(ast.parse(p.read_text(encoding="utf-8"))))
        for p in tests
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
