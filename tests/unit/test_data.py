"""The shipped operands are what their note says."""

import hashlib
from importlib.resources import files

import numpy as np
import pytest

from sdpakit import data
from sdpakit.errors import ArgumentError


def test_the_note_names_this_very_file():
    folder = files("sdpakit.data")
    digest = hashlib.sha256((folder / "minilm_qkv.npz").read_bytes()).hexdigest()
    assert digest in (folder / "ORIGIN.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("layer", data.LAYERS)
def test_shapes_and_lengths(layer):
    operands = data.minilm(layer)
    for array in (operands.q, operands.k, operands.v):
        assert (array.shape, array.dtype) == ((4, 12, 58, 32), np.dtype("float16"))
        assert np.isfinite(array).all()
    assert operands.lengths.tolist() == [21, 18, 35, 58]


def test_layers_differ():
    assert not np.array_equal(data.minilm(0).q, data.minilm(5).q)


def test_a_layer_that_is_not_shipped_is_refused():
    with pytest.raises(ArgumentError, match=r"layer: got 3\n  allowed: 0 \| 5\n  remedy: "):
        data.minilm(3)
