"""`import sdpakit` is light, and every public name exists."""

import subprocess
import sys

import pytest

import sdpakit

HEAVY = ("numpy", "numba", "llvmlite", "ml_dtypes", "cupy", "torch", "typer", "rich")


def loaded_after(code: str) -> set[str]:
    show = f"{code}; import sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60
    )
    return set(run.stdout.split())


def test_import_loads_nothing_heavy():
    assert loaded_after("import sdpakit") == set()


def test_spec_masks_and_expressions_load_nothing_heavy():
    code = (
        "import sdpakit as sk; sk.AttentionSpec(q_heads=2, head_dim=4, logits=lambda x, i: x * 2,"
        " mask=sk.Causal(align='top_left') & sk.Predicate(lambda i: i.k > 2)).tables()"
    )
    assert loaded_after(code) == set()


def test_every_public_name_is_there_and_listed():
    for name in sdpakit.__all__:
        assert getattr(sdpakit, name) is not None, name
    assert set(sdpakit.__all__) <= set(dir(sdpakit))
    assert sorted(sdpakit.__all__) == list(sdpakit.__all__)


def test_dir_shows_what_is_public_alone():
    assert [name for name in dir(sdpakit) if not name.startswith("__")] == [
        name for name in sdpakit.__all__ if name != "__version__"
    ]


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'sofmax'"):
        sdpakit.sofmax  # noqa: B018
