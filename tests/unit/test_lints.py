"""Scales that look like known mistakes give one warning; legal ones give none."""

import math
import pickle
import re
import warnings

import numpy as np
import pytest

from sdpakit import AttentionSpec, ScaleWarning
from sdpakit.lints import Widths, find_mistake, mistakes


def spec(scale, **fields):
    return AttentionSpec(**({"q_heads": 12, "head_dim": 64} | fields), scale=scale)


# lint, scale, fields, what the text names, temperature relative to the intended one
MISTAKES = [
    ("model_width", 768**-0.5, {}, r"1/sqrt\(768\), of .* q_heads \* head_dim = 12 \* 64", 3.464),
    ("kv_width", 256**-0.5, {"kv_heads": 4}, r"width of all kv heads, 4 \* 64", 2.0),
    ("v_head_dim", 512**-0.5, {"head_dim": 576, "v_head_dim": 512}, "of v_head_dim", 0.9428),
    ("padded_width", 88**-0.5, {"head_dim": 81}, "padded from 81 to 88", 1.042),
    ("padded_width", 96**-0.5, {"head_dim": 80}, "padded from 80 to 96", 1.095),
    ("padded_width", 128**-0.5, {"head_dim": 80}, "padded from 80 to 128", 1.265),
    ("padded_width", 192**-0.5, {"head_dim": 160}, "padded from 160 to 192", 1.095),
    ("padded_width", 256**-0.5, {"head_dim": 192}, "padded from 192 to 256", 1.155),
    ("padded_width", 1024**-0.5, {"head_dim": 576}, "padded from 576 to 1024", 1.333),
    ("padded_width", 4**-0.5, {"head_dim": 3, "q_heads": 5}, "padded from 3 to 4", 1.155),
    ("double_division", 1 / 64, {}, r"1/64 = \(1/sqrt\(64\)\)\^2, the factor applied twice", 8.0),
    ("inverted", 8.0, {}, r"sqrt\(64\), the inverse of the factor", 1 / 64),
    ("base_two", math.log2(math.e) / 8, {}, r"log2\(e\)/sqrt\(64\)", 0.6931),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "scale", "fields", "text", "temperature"), MISTAKES, ids=range(13)
)
def test_mistakes_are_named_with_their_effect(name, scale, fields, text, temperature):
    with pytest.warns(ScaleWarning, match=text) as caught:
        made = spec(scale, **fields)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    message = str(caught[0].message)
    assert f"temperature {temperature:.4g} times the intended one" in message
    spread = float(re.search(r"standard deviation (\S+) instead of 1", message).group(1))
    assert math.isclose(spread, 1 / temperature, rel_tol=1e-3)
    assert ("flatter" in message) == (temperature > 1)
    widths = Widths(made.q_heads, made.kv_heads, made.head_dim, made.v_head_dim)
    assert find_mistake(scale, widths).name == name
    assert made.scale == scale


def test_every_row_of_the_table_is_tested():
    widths = Widths(q_heads=12, kv_heads=4, head_dim=80, v_head_dim=72)
    assert {m.name for m in mistakes(widths)} == {row[0] for row in MISTAKES}


@pytest.mark.parametrize(
    ("scale", "fields"),
    [
        (None, {}),
        (1.0, {}),  # folded into the weights (FOLD-1)
        (0.125, {}),
        (64**-0.5, {"v_head_dim": 128}),
        (0.0, {}),
        (-1.0, {}),
        (-(768**-0.5), {}),
        (0.3, {}),
        (1 / 16, {"head_dim": 256, "q_heads": 1}),  # one head: the model width is the head width
        (1.0, {"head_dim": 1}),
        (1.0, {"head_dim": 1, "q_heads": 1}),
        (64**-0.25, {}),  # the other half of a factor that was folded into one projection
        (144**-0.5, {"head_dim": 128, "q_heads": 32}),  # Gemma 2 27B: width 4608 over 32 heads
        (192**-0.5, {"head_dim": 576, "v_head_dim": 512, "q_heads": 16}),  # absorbed MLA
        (np.float16(0.125), {}),
        (96**-0.5, {"head_dim": 96}),
    ],
    ids=range(16),
)
def test_legal_scales_are_silent(scale, fields):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec(scale, **fields)


@pytest.mark.parametrize("round_to", [np.float16, np.float32])
def test_rounded_mistakes_are_still_recognised(round_to):
    with pytest.warns(ScaleWarning, match="model width"):
        spec(round_to(768**-0.5))


@pytest.mark.parametrize("head_dim", range(1, 600))
def test_the_right_factor_is_silent_for_every_width(head_dim):
    for q_heads, kv_heads, v_head_dim in ((1, 1, head_dim), (8, 2, 128), (12, 12, 2 * head_dim)):
        widths = Widths(q_heads, kv_heads, head_dim, v_head_dim)
        for right in (head_dim**-0.5, float(np.float16(head_dim**-0.5)), 1.0):
            assert find_mistake(right, widths) is None


def test_copies_do_not_warn_again():
    with pytest.warns(ScaleWarning):
        made = spec(768**-0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pickle.loads(pickle.dumps(made)) == made
