"""Key ranges and tile classes of emitted code: sound on random masks, exact on the known ones."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.backends.numba_cpu.emitted import Emitted, call_of, mask_program
from tests.passes.tiles import DENSE, masks, truth, worlds

from sdpakit.expr.nodes import Binary, Const, Index, Load, Scalar

Q, K = Index("q"), Index("k")


def bind(mask, world):
    call = call_of((world.q_len, world.kv_len, world.q_offset), world.scalars, world.tables)
    return Emitted(mask_program(mask), mask, int_bits=64).with_call(call)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(masks(), worlds(), st.integers(0, 2**32 - 1))
def test_sound_and_equal_to_brute_force_on_random_masks(mask, world, seed):
    rng = np.random.default_rng(seed)
    bound = bind(mask, world)
    for b in range(world.batch):
        value, n = truth(mask, world, b, 1), int(world.kv_len[b])
        lo, hi = sorted(int(x) for x in rng.integers(0, world.q_rows, 2))
        maybe_lo, maybe_hi, must_lo, must_hi = bound.key_ranges(b, 1, lo, hi)
        rows = value[lo : hi + 1, :n]
        assert 0 <= maybe_lo <= must_lo <= must_hi <= maybe_hi <= n
        keys = np.arange(n)
        assert not rows[:, (keys < maybe_lo) | (keys >= maybe_hi)].any()
        assert rows[:, must_lo:must_hi].all()

        k_lo, k_hi = sorted(int(x) for x in rng.integers(0, world.kv_rows, 2))
        tile = value[lo : hi + 1, k_lo : k_hi + 1]
        can_true, can_false = bound.tile_class(b, 1, lo, hi, k_lo, k_hi)
        assert can_true or not tile.any()
        assert can_false or tile.all()

        j = int(rng.integers(0, world.kv_rows))
        found = bound.values(b, 1, lo, hi, j)
        right = value[np.minimum(lo + np.arange(len(found)), hi), j]
        np.testing.assert_array_equal(found, right)


def test_causal_and_window_are_exact():
    left = Scalar("left", "int")
    mask = Binary("and", Binary("le", K, Q), Binary("le", Binary("sub", Q, left), K))
    bound = Emitted(mask_program(mask), mask).with_call(
        call_of(([1000], [1000], [0]), {"left": 10}, {})
    )
    assert bound.key_ranges(0, 0, 100, 105) == (90, 106, 95, 101)
    assert bound.tile_class(0, 0, 100, 105, 200, 300) == (False, True)
    assert bound.tile_class(0, 0, 100, 105, 95, 100) == (True, False)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_documents_are_found_by_bisection_if_they_ascend(dtype):
    rows, keys = Load("rows", dtype, (Q,)), Load("keys", dtype, (Index("b"), K))
    mask = Binary("eq", rows, keys)
    ids = np.repeat(np.arange(5), 20).astype(dtype)
    emitted = Emitted(mask_program(mask), mask, int_bits=64)
    tables = {"rows": ids[::2], "keys": np.stack([ids, ids])[:, ::-1][:, ::-1]}
    bound = emitted.with_call(call_of(([50] * 2, [100] * 2, [0] * 2), {}, tables))
    assert bound.key_ranges(1, 0, 10, 19) == (20, 40, 20, 40)
    assert bound.key_ranges(1, 0, 5, 12)[:2] == (0, 40)
    shuffled = np.random.default_rng(0).permutation(ids)[None]
    bound = emitted.with_call(call_of(([50], [100], [0]), {}, tables | {"keys": shuffled}))
    assert bound.key_ranges(0, 0, 10, 19) == (0, 100, 0, 0)


@pytest.mark.parametrize("strides", ["packed", "every other", "broadcast"])
def test_tiles_of_a_dense_mask_are_classified_by_reading_them(strides):
    array = np.zeros((2, 2, 40, 150), bool)
    array[1, 0, 8:16, 16:32] = True
    array[1, 0, 16:24, :] = True
    array[1, 0, 20, 70] = False
    if strides == "every other":
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    if strides == "broadcast":
        array = np.broadcast_to(array[1:, :1], (2, 2, 40, 150))
    bound = Emitted(mask_program(DENSE), DENSE).with_call(
        call_of(([40] * 2, [150] * 2, [0] * 2), {}, {"dense": array})
    )
    assert bound.tile_class(1, 0, 8, 15, 16, 31) == (True, False)
    assert bound.tile_class(1, 0, 8, 15, 32, 149) == (False, True)
    assert bound.tile_class(1, 0, 8, 16, 16, 32) == (True, True)
    assert bound.tile_class(1, 0, 16, 23, 0, 69) == (True, False)
    assert bound.tile_class(1, 0, 16, 23, 0, 70) == (True, True)


def test_a_box_too_large_to_read_may_be_anything():
    array = np.ones((1, 1, 100, 200), bool)
    bound = Emitted(mask_program(DENSE), DENSE).with_call(
        call_of(([100], [200], [0]), {}, {"dense": array})
    )
    assert bound.tile_class(0, 0, 0, 99, 0, 199) == (True, True)
    assert bound.tile_class(0, 0, 0, 31, 0, 191) == (True, False)


def test_a_constant_mask_is_known():
    mask = Const(False)
    bound = Emitted(mask_program(mask), mask).with_call(call_of(([4], [9], [0]), {}, {}))
    lo, hi, *_ = bound.key_ranges(0, 0, 0, 3)
    assert lo >= hi
    assert bound.tile_class(0, 0, 0, 3, 0, 8) == (False, True)
