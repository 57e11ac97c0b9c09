"""Masks: alignment, composition, the built-in ones, dense arrays, lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sdpakit.conformance.cases.make import FOUR, make
from sdpakit.conformance.cases.make import gh as _gh
from sdpakit.conformance.inputs import Array, Draw, guarded, mean_indices
from sdpakit.conformance.model import Case, Shape
from sdpakit.masks import Causal, Dense, Dilated, Document, Predicate, Prefix, Window

TOP, BOTTOM, OFFSET = Causal("top_left"), Causal("bottom_right"), Causal("offset")


def cases() -> list[Case]:
    """Return the cases of this family."""
    return [
        case
        for group in (
            _alignment(),
            _offsets(),
            _lengths(),
            _aligned_lengths(),
            _dense(),
            _broadcast_dense(),
            _documents(),
            _steps(),
            _composition(),
            _algebra(),
        )
        for some in group
        for case in some
    ]


def _flat(draw: Draw) -> dict[str, Array]:
    return draw.flat()


def _expect(shape: Shape, rows: list[list[int]]) -> Any:
    return lambda: mean_indices(rows, shape)


def _rows(q_len: int, kv_len: int, off: int) -> list[list[int]]:
    return [[j for j in range(kv_len) if j <= i + off] for i in range(q_len)]


def _alignment() -> Iterator[list[Case]]:
    for name, mask, q_len, kv_len, off, source in (
        ("top_left_rectangle", TOP, 3, 7, 0, "ml-explore/mlx#2835"),
        ("top_left_decode", TOP, 1, 8, 0, "pytorch/pytorch#103082"),
        ("bottom_right_rectangle", BOTTOM, 2, 5, 3, "Dao-AILab/flash-attention#402"),
        ("bottom_right_decode", BOTTOM, 1, 5, 4, "microsoft/onnxruntime#29020"),
        ("bottom_right_one_key_more", BOTTOM, 5, 6, 1, "gittensor-ai-lab/sparkinfer#3"),
        ("bottom_right_more_rows", BOTTOM, 6, 3, -3, "Dao-AILab/flash-attention#1778"),
    ):
        shape = Shape(q_heads=1, q_len=q_len, kv_len=kv_len)
        yield make(
            f"masks.causal_{name}",
            "MASK-2 SOFT-1",
            "a causal mask with the other alignment, or one key too many or too few",
            shape=shape,
            spec={"mask": mask},
            recipe=_flat,
            bound="hard",
            dtypes=FOUR,
            expect=_expect(shape, _rows(q_len, kv_len, off)),
            source=_gh(source),
        )
    yield make(
        "masks.causal_random",
        "MASK-2",
        "causal computed with the wrong operands in some dtype",
        shape=Shape(batch=2, q_len=19, kv_len=23),
        spec={"mask": BOTTOM},
        dtypes=FOUR,
        source=_gh("numba/numba#8138"),
    )


def _offsets() -> Iterator[list[Case]]:
    yield make(
        "masks.causal_square_left_open",
        "MASK-2",
        "an alignment that was left open, with equal lengths, read as something else",
        shape=Shape(q_len=9, kv_len=9),
        spec={"mask": Causal(), "equal_lens": True},
    )
    yield make(
        "masks.future_keys_are_loud",
        "MASK-2 MASK-3",
        "rows of a chunk that see later keys of the same chunk",
        shape=Shape(q_heads=1, q_len=5, kv_len=69),
        spec={"mask": BOTTOM},
        recipe=_loud_future,
        source=_gh("tenstorrent/tt-metal#48899"),
    )
    for name, offset in (("number", 2), ("negative", -2), ("per_entry", [0, 3, -1])):
        yield make(
            f"masks.causal_offset_{name}",
            "MASK-2",
            "an offset that is ignored, or taken from the first batch entry for all",
            shape=Shape(batch=3, q_len=4, kv_len=7),
            spec={"mask": OFFSET},
            recipe=_offset(offset),
        )
    yield make(
        "masks.causal_offset_far_past_the_keys",
        "MASK-2",
        "arithmetic on the offset that wraps at 2^31",
        shape=Shape(q_len=4, kv_len=7),
        spec={"mask": OFFSET & Window(None, 3, "offset")},
        recipe=_offset(2**40),
    )


def _loud_future(draw: Draw) -> dict[str, Array]:
    k, v = draw.k(), draw.v()
    k[:, :, 65:] *= 50
    v[:, :, 65:] *= 1e4
    return {"k": k, "v": v}


def _offset(value: Any) -> Any:
    def recipe(_draw: Draw) -> dict[str, Any]:
        return {"q_offset": np.array(value, np.int64) if isinstance(value, list) else value}

    return recipe


def _lens(q: list[int] | None, kv: list[int] | None, dtype: str = "int32") -> Any:
    def recipe(_draw: Draw) -> dict[str, Array]:
        given = {"q_lens": q, "kv_lens": kv}
        return {name: np.array(x, dtype) for name, x in given.items() if x is not None}

    return recipe


def _lengths() -> Iterator[list[Case]]:
    yield make(
        "masks.kv_lens",
        "MASK-4",
        "key lengths that are accepted and ignored, or read with the wrong stride",
        shape=Shape(batch=3, q_len=9, kv_len=9),
        spec={"kv_lens": True},
        recipe=_lens(None, [2, 9, 5]),
        dtypes=FOUR,
        source=_gh("jax-ml/jax#23349"),
    )
    yield make(
        "masks.kv_lens_one_key",
        "MASK-4",
        "a length of 1 taken for a flag",
        shape=Shape(batch=2, q_heads=1, q_len=3, kv_len=8),
        spec={"kv_lens": True},
        recipe=_lens(None, [1, 8]),
        source=_gh("jax-ml/jax#23349"),
    )
    yield make(
        "masks.both_lens",
        "MASK-4 EMPTY-1",
        "rows past the length that keep values, entries without keys that are NaN",
        shape=Shape(batch=3, q_len=4, kv_len=5),
        spec={"q_lens": True, "kv_lens": True},
        recipe=_lens([4, 0, 2], [0, 5, 1]),
        source=_gh("NVIDIA/cudnn-frontend#943"),
    )


def _aligned_lengths() -> Iterator[list[Case]]:
    yield make(
        "masks.bottom_right_of_true_lengths",
        "MASK-2 MASK-4",
        "an alignment taken from padded lengths, or from one entry for all",
        shape=Shape(batch=2, q_len=2, kv_len=6),
        spec={"mask": BOTTOM, "kv_lens": True},
        recipe=_lens(None, [3, 5]),
        source=_gh("onnx/onnx#8054"),
    )
    yield make(
        "masks.bottom_right_of_both_lengths",
        "MASK-2 MASK-4",
        "an alignment of the keys alone",
        shape=Shape(batch=3, q_len=7, kv_len=9),
        spec={"mask": BOTTOM & Window(3, None, "bottom_right"), "q_lens": True, "kv_lens": True},
        recipe=_lens([7, 2, 5], [4, 9, 5]),
    )
    yield make(
        "masks.unsigned_lens",
        "MASK-4",
        "lengths of uint64 that become floats beside int64",
        shape=Shape(batch=2, q_heads=1, q_len=3, kv_len=6),
        spec={"mask": BOTTOM, "kv_lens": True},
        recipe=_lens(None, [3, 6], "uint64"),
        source=_gh("numba/numba#7382"),
    )
    yield make(
        "masks.equal_lens_per_entry",
        "MASK-2 MASK-4",
        "lengths promised equal that are read from the arrays",
        shape=Shape(batch=3, q_len=8, kv_len=8),
        spec={"mask": Causal(), "equal_lens": True, "q_lens": True, "kv_lens": True},
        recipe=_lens([8, 3, 0], [8, 3, 0], "int64"),
    )


def _dense() -> Iterator[list[Case]]:
    shape = Shape(q_heads=1, q_len=2, kv_len=4)
    yield make(
        "masks.true_attends",
        "MASK-1",
        "a mask read as True = masked",
        shape=shape,
        spec={"mask": Dense()},
        recipe=lambda draw: {
            **draw.flat(),
            "mask": guarded(np.array([[1, 0, 0, 0], [0, 0, 1, 1]], bool)),
        },
        bound="hard",
        dtypes=FOUR,
        expect=_expect(shape, [[0], [2, 3]]),
        source=_gh("openvinotoolkit/openvino#31630"),
    )


def _broadcast_dense() -> Iterator[list[Case]]:
    for name, dims in (
        ("keys", (6,)),
        ("rows_keys", (5, 6)),
        ("column", (5, 1)),
        ("heads", (4, 1, 6)),
        ("batch", (3, 1, 1, 6)),
        ("all", (3, 4, 5, 6)),
        ("single", (1, 1, 1, 1)),
    ):
        yield make(
            f"masks.dense_broadcast_{name}",
            "MASK-1 MOD-1",
            "a mask read with the strides of another broadcast",
            shape=Shape(batch=3, q_heads=4, kv_heads=2, q_len=5, kv_len=6),
            spec={"mask": Dense()},
            recipe=_bools(*dims),
            source=_gh("jax-ml/jax#28974"),
        )
    yield make(
        "masks.dense_batch_equals_heads",
        "MASK-1 MOD-1",
        "a mask for batch entries read for heads, where there are as many of one as of the other",
        shape=Shape(batch=4, q_heads=4, q_len=6, kv_len=6),
        spec={"mask": Dense()},
        recipe=lambda draw: {
            **draw.qkv(),
            "mask": (np.arange(6) < np.array([1, 3, 6, 4])[:, None])[:, None, None, :],
        },
        source=_gh("jax-ml/jax#28974"),
    )
    yield make(
        "masks.dense_per_batch_entry",
        "MASK-1",
        "the mask of entry 1 read with the stride of entry 0",
        shape=Shape(batch=2, q_heads=1, q_len=1, kv_len=5),
        spec={"mask": Dense()},
        recipe=lambda draw: {
            **draw.flat(),
            "mask": guarded(np.array([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]], bool)[:, None, None]),
        },
        bound="hard",
        source=_gh("microsoft/onnxruntime-genai!1639"),
    )
    yield make(
        "masks.dense_strided",
        "MASK-1 SHAPE-5",
        "a transposed or reversed mask read as if it were contiguous",
        shape=Shape(q_len=6, kv_len=5),
        spec={"mask": Dense()},
        recipe=lambda draw: {"mask": draw.bools(5, 6).T[::-1]},
    )
    yield make(
        "masks.dense_blocks",
        "MASK-1 EMPTY-1",
        "a block-diagonal mask; the last two rows see nothing",
        shape=Shape(q_len=20, kv_len=20),
        spec={"mask": Dense()},
        recipe=lambda draw: {**draw.qkv(), "mask": _blocks(20, (5, 6, 7))},
        dtypes=FOUR,
        source=_gh("pytorch/pytorch#108503"),
    )


def _bools(*dims: int) -> Any:
    return lambda draw: {
        "mask": draw.bools(*dims) if dims != (1, 1, 1, 1) else guarded(np.ones(dims, bool))
    }


def _blocks(length: int, sizes: tuple[int, ...]) -> Array:
    mask = np.zeros((length, length), bool)
    start = 0
    for size in sizes:
        mask[start : start + size, start : start + size] = True
        start += size
    return mask


def _documents() -> Iterator[list[Case]]:
    yield make(
        "masks.prefix_number",
        "MASK-7",
        "a prefix that is one key too long, or compiled in from an earlier call",
        shape=Shape(q_len=5, kv_len=9),
        spec={"mask": Prefix(4)},
    )
    yield make(
        "masks.prefix_longer_than_the_keys",
        "MASK-7",
        "a prefix that reads past the keys",
        shape=Shape(q_len=5, kv_len=9),
        spec={"mask": Prefix(400)},
    )
    yield make(
        "masks.prefix_or_causal",
        "MASK-1 MASK-7",
        "prefix language model: OR taken for AND, or tiles skipped that the prefix needs",
        shape=Shape(batch=3, q_len=40, kv_len=40),
        spec={"mask": Prefix("prefix") | TOP},
        recipe=lambda _draw: {"params": {"prefix": np.array([0, 7, 35], np.int64)}},
        dtypes=FOUR,
    )
    yield make(
        "masks.documents_sorted",
        "MASK-7",
        "documents whose borders are off by one, or taken from another entry",
        shape=Shape(batch=2, q_len=37, kv_len=37),
        spec={"mask": Document() & TOP},
        recipe=lambda draw: {"params": {"doc": np.sort(draw.ints(0, 5, 2, 37), axis=1)}},
        dtypes=FOUR,
    )
    yield make(
        "masks.documents_unsorted",
        "MASK-7",
        "ids searched as if they were sorted",
        shape=Shape(batch=2, q_len=37, kv_len=41),
        spec={"mask": Document("rows", "keys")},
        recipe=lambda draw: {
            "params": {"rows": draw.ints(-2, 3, 2, 37), "keys": draw.ints(-2, 3, 2, 41)}
        },
    )
    yield make(
        "masks.documents_one_table_for_all",
        "MASK-7 EXPR-1",
        "a table with a batch axis of size 1 read past its end",
        shape=Shape(batch=3, q_len=12, kv_len=12),
        spec={"mask": Document(dtype="int64")},
        recipe=lambda draw: {"params": {"doc": draw.ints(0, 3, 1, 12, dtype="int64")}},
    )


def _steps() -> Iterator[list[Case]]:
    for align in ("top_left", "bottom_right"):
        yield make(
            f"masks.dilated_{align}",
            "MASK-7 MASK-2",
            "a remainder with the sign of C, or of k - p",
            shape=Shape(q_len=11, kv_len=17),
            spec={"mask": Dilated(3, align)},
        )
    yield make(
        "masks.dilated_causal_window",
        "MASK-1 MASK-7",
        "a step taken over tiles that the window skips",
        shape=Shape(q_len=50, kv_len=50),
        spec={"mask": Dilated(4, "top_left") & TOP & Window(20, 0, "top_left")},
    )


def _composition() -> Iterator[list[Case]]:
    shape = Shape(q_heads=1, q_len=4, kv_len=4)
    dense = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0]], bool)
    yield make(
        "masks.causal_and_dense",
        "MASK-1",
        "a causal mask that replaces the array, or is replaced by it",
        shape=shape,
        spec={"mask": TOP & Dense()},
        recipe=lambda draw: {**draw.flat(), "mask": guarded(dense)},
        bound="hard",
        expect=_expect(shape, [[0], [1], [0, 2], [0, 1, 2]]),
        source=_gh("microsoft/onnxruntime#28904"),
    )
    yield make(
        "masks.left_padding_and_causal",
        "MASK-1 EMPTY-1",
        "padding on the left, where causal leaves the padded rows without a key",
        shape=Shape(batch=2, q_len=5, kv_len=5),
        spec={"mask": TOP & Dense()},
        recipe=lambda _draw: {
            "mask": np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], bool)[:, None, None, :]
        },
        dtypes=FOUR,
        source=_gh("unslothai/unsloth!9848"),
    )
    yield make(
        "masks.key_mask_and_causal",
        "MASK-1 EMPTY-1",
        "a mask of one axis broadcast along the rows instead of the keys",
        shape=Shape(q_len=7, kv_len=7),
        spec={"mask": TOP & Dense()},
        recipe=lambda _draw: {"mask": np.array([0, 1, 1, 0, 0, 1, 0], bool)},
        source=_gh("microsoft/onnxruntime#14363"),
    )


def _algebra() -> Iterator[list[Case]]:
    yield make(
        "masks.not_causal",
        "MASK-1",
        "NOT that is dropped, or taken on tiles instead of pairs",
        shape=Shape(q_len=21, kv_len=33),
        spec={"mask": ~TOP},
    )
    yield make(
        "masks.not_of_and_or",
        "MASK-1",
        "NOT pushed inwards without swapping AND and OR",
        shape=Shape(q_len=40, kv_len=40),
        spec={"mask": ~((TOP & ~Window(5, 5, "top_left")) | Prefix(3)) | Dilated(7, "top_left")},
    )
    yield make(
        "masks.or_of_far_windows",
        "MASK-1",
        "a range of keys that covers one side of OR only",
        shape=Shape(q_len=60, kv_len=120),
        spec={"mask": Window(4, 4, "top_left") | Window(4, 4, "bottom_right")},
        dtypes=FOUR,
    )
    yield make(
        "masks.two_alignments",
        "MASK-1 MASK-2",
        "one alignment used for both masks of a spec",
        shape=Shape(q_len=9, kv_len=14),
        spec={"mask": Causal("bottom_right") & Window(6, None, "top_left")},
    )
    yield make(
        "masks.everything_at_once",
        "MASK-1 MASK-2 MASK-4 MASK-7 EMPTY-1",
        "any part of a composition that is dropped beside the others",
        shape=Shape(batch=2, q_heads=4, kv_heads=2, q_len=30, kv_len=34),
        spec={
            "mask": BOTTOM
            & Window(12, None, "bottom_right")
            & (Document("rows", "keys") | Prefix("prefix"))
            & Dense()
            & Predicate(lambda i: (i.k + i.h) % 5 != 0),
            "q_lens": True,
            "kv_lens": True,
        },
        recipe=_everything,
        dtypes=FOUR,
    )


def _everything(draw: Draw) -> dict[str, Any]:
    return {
        "q_lens": np.array([30, 17], np.int32),
        "kv_lens": np.array([34, 29], np.int32),
        "mask": draw.bools(2, 1, 30, 34, share=0.8),
        "params": {
            "rows": np.sort(draw.ints(0, 3, 2, 30), axis=1),
            "keys": np.sort(draw.ints(0, 3, 2, 34), axis=1),
            "prefix": np.array([2, 5], np.int64),
        },
    }
