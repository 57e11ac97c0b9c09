"""A plain function is told what its parameters can say, and what they cannot is refused."""

import functools

import numpy as np
import pytest

from sdpakit import AttentionSpec, Causal, Dense, Document, Predicate, Prefix, Window
from sdpakit.conformance import FunctionTarget, cases, check, check_relation, relations
from sdpakit.conformance.inputs import np_dtype
from sdpakit.errors import ArgumentError, ArgumentTypeError, UnsupportedSpecError
from sdpakit.logits import Alibi

FORWARD = [c for c in cases("core") if not c.gradients and not c.heavy and not c.refuses]
PLAIN = next(c for c in FORWARD if set(c.spec) <= {"dtype", "outputs"})
BY_ID = {case.id: case for case in cases()}
ACCUM = {"float16": np.float32, "bfloat16": np.float32, "float32": np.float32}


def softmax_of(q, k, v, *, scale=None, mask=None, bias=None, softcap=None, sinks=None):
    """Attention as a reader of this page would write it; q, k, v are (B, H, L, width)."""
    accum = ACCUM.get(q.dtype.name, np.float64)
    group = q.shape[1] // max(k.shape[1], 1)
    q, k, v = (x.astype(accum) for x in (q, *(np.repeat(x, group, axis=1) for x in (k, v))))
    with np.errstate(all="ignore"):
        x = q @ k.swapaxes(-1, -2) * accum(1 / np.sqrt(q.shape[-1]) if scale is None else scale)
        if softcap is not None:
            x = accum(softcap) * np.tanh(x / accum(softcap))
        if bias is not None:
            x = x + bias.astype(accum)
        x = np.where(True if mask is None else mask, x, -np.inf)
        m = x.max(axis=-1, initial=-np.inf, keepdims=True)
        top = np.where(m == -np.inf, accum(0), m)
        e = np.exp(x - top)
        total = e.sum(axis=-1, keepdims=True)
        lse = (top + np.log(total))[..., 0]
        if sinks is not None:
            s = sinks.astype(accum)[:, None, None]
            joint = np.maximum(top, s)
            e, total = np.exp(x - joint), np.exp(x - joint).sum(axis=-1, keepdims=True)
            total = total + np.exp(s - joint)
        present = x != -np.inf
        out = np.zeros((*x.shape[:3], v.shape[-1]), accum)
        for j in range(x.shape[-1]):  # select, never multiply (MASK-3)
            out += np.where(present[..., j, None], e[..., j, None] * v[:, :, None, j], 0)
        empty = ~present.any(axis=-1)
        out = np.where(empty[..., None], 0, out / np.where(empty[..., None], 1, total))
        lse = np.where(empty, -np.inf, lse)
    return out, lse.astype(accum)


def everything(
    q, k, v, *, scale=None, mask=None, bias=None, softcap=None, sinks=None, return_lse=False
):
    out, lse = softmax_of(q, k, v, scale=scale, mask=mask, bias=bias, softcap=softcap, sinks=sinks)
    out = out.astype(q.dtype)
    return (out, lse) if return_lse else out


@pytest.mark.parametrize("case", FORWARD, ids=lambda c: c.id)
def test_a_function_that_can_be_told_everything_passes(case):
    outcome = check(FunctionTarget(everything), case)
    assert outcome.verdict in ("ok", "refused"), outcome.message


def test_what_it_refuses_has_a_reason_of_its_own():
    """No more is refused than a function with these parameters must."""
    reasons = {}
    for case in FORWARD:
        try:
            FunctionTarget(everything, outputs=case.attention_spec().outputs).prepare(
                case.attention_spec()
            )
        except UnsupportedSpecError as error:
            for reason in error.reasons["everything"]:
                reasons.setdefault(reason, []).append(case.id)
    assert set(reasons) <= {
        "has no parameter for a logit expression",
        "has no parameter for out_dtype",
        "has no parameter for empty_row='nan'",
        "has one parameter bias, and the spec has a bias and Alibi",
        "has no parameter cu_q_lens",
        "has no parameter block_table",
    }


def test_a_relation_takes_a_function():
    by_id = {relation.id: relation for relation, _ in relations()}
    for name in ("relations.permuted_keys", "relations.appended_keys"):
        outcome = check_relation(everything, by_id[name], "float32")
        assert outcome.verdict == "ok", outcome.message


def test_a_bare_function_is_adopted():
    outcome = check(everything, BY_ID["masks.causal_random.float32"])
    assert (outcome.target, outcome.verdict, outcome.unjudged) == ("everything", "ok", ())


def test_only_out_is_asked_of_a_function_without_return_lse():
    def plain(q, k, v):
        return softmax_of(q, k, v)[0]

    outcome = check(plain, PLAIN)
    assert outcome.verdict == "ok", outcome.message
    assert "lse" in outcome.unjudged
    assert FunctionTarget(plain).outputs == ("out",)


def test_a_wrong_function_fails():
    def wrong(q, k, v, *, mask=None):
        return softmax_of(q, k, v, mask=None if mask is None else ~mask)[0]

    assert check(wrong, BY_ID["masks.causal_random.float32"]).verdict == "fail"


def test_a_mask_added_as_a_large_number_fails_on_poison():
    def multiplied(q, k, v, *, mask=None):
        x = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
        x = x if mask is None else np.where(mask, x, np.float32(-1e30))
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True) @ v

    poisoned = [c for c in FORWARD if c.family == "poison" and c.dtype == "float32"]
    verdicts = {check(multiplied, case).verdict for case in poisoned}
    assert "fail" in verdicts


# ------------------------------------------------------------------------------ what is told


class Noting:
    """Notes the keyword arguments of its calls."""

    def __init__(self, *names, result=None):
        self.calls = []
        self.result = result
        parameters = ", ".join(f"{name}={name!r}" for name in names)
        scope = {"note": self.note}
        source = f"lambda q, k, v{', ' if names else ''}{parameters}: note(q, k, v, locals())"
        self.function = eval(source, scope)

    def note(self, q, k, v, given):
        self.calls.append({n: x for n, x in given.items() if n not in "qkv"})
        out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
        return out if self.result is None else self.result


def told(names, operands=None, align=None, q_len=3, **spec):
    """Return the keyword arguments of one call."""
    noting = Noting(*names)
    target = FunctionTarget(noting.function, align=align)
    made = AttentionSpec(q_heads=2, head_dim=4, **{"outputs": ("out",), **spec})
    q, k, v = (np.zeros((2, 2, n, 4), np.float32) for n in (q_len, 5, 5))
    target.prepare(made)(q=q, k=k, v=v, **(operands or {}))
    return {n: x for n, x in noting.calls[0].items() if not (isinstance(x, str) and x == n)}


def refused(names, align=None, **spec):
    with pytest.raises(UnsupportedSpecError) as caught:
        told(names, align=align, **spec)
    (reasons,) = caught.value.reasons.values()
    return list(reasons)


def test_a_scale_that_the_spec_leaves_open_is_left_to_a_default_of_none():
    def none(q, k, v, scale=None):
        assert scale is None
        return q

    def one(q, k, v, scale=1.0):
        assert scale == 0.5
        return q

    def asked(q, k, v, scale):
        assert scale == 0.5
        return q

    spec = AttentionSpec(q_heads=2, head_dim=4)
    x = np.zeros((1, 2, 3, 4), np.float32)
    for function in (none, one, asked):
        assert FunctionTarget(function).prepare(spec)(q=x, k=x, v=x)["out"] is x


def test_numbers_come_as_they_are():
    assert told(["scale", "softcap"], scale=-0.25, softcap=3.0) == {"scale": -0.25, "softcap": 3.0}


def test_arrays_come_as_they_are():
    bias, sinks = np.zeros((5,), np.float64), np.zeros(2, np.float32)
    found = told(["bias", "sinks"], {"bias": bias, "sinks": sinks}, bias="float64", sinks=True)
    assert found["bias"] is bias
    assert found["sinks"] is sinks


def test_bfloat16_and_poison_come_as_they_are():
    seen = []

    def function(q, k, v, mask=None):
        seen.append((q, k, v))
        return q

    x = np.full((1, 2, 3, 4), np.nan, np_dtype("bfloat16"))
    spec = AttentionSpec(q_heads=2, head_dim=4, dtype="bfloat16", mask=Causal("top_left"))
    FunctionTarget(function).prepare(spec)(q=x, k=x, v=x)
    assert all(given is x for given in seen[0])


LENS = {"q_lens": np.array([3, 2]), "kv_lens": np.array([5, 1])}
IN_LENS = (np.arange(3)[:, None] < LENS["q_lens"][:, None, None, None]) & (
    np.arange(5) < LENS["kv_lens"][:, None, None, None]
)


def test_lengths_go_into_the_mask_where_they_have_no_parameter():
    found = told(["mask"], LENS, q_lens=True, kv_lens=True)
    assert list(found) == ["mask"]
    assert found["mask"].shape == (2, 2, 3, 5)
    assert found["mask"].dtype == bool
    assert (found["mask"] == IN_LENS).all()


def test_lengths_come_by_name_where_they_can():
    found = told(["q_lens", "kv_lens", "mask"], LENS, q_lens=True, kv_lens=True)
    assert set(found) == {"q_lens", "kv_lens"}
    assert found["kv_lens"] is LENS["kv_lens"]
    some = told(["kv_lens", "mask"], LENS, q_lens=True, kv_lens=True)
    assert set(some) == {"kv_lens", "mask"}
    assert (some["mask"] == IN_LENS).all()


def test_causal_and_window_come_by_name_where_alignment_agrees():
    both = Causal("top_left") & Window(2, None, "top_left")
    names = ["causal", "window", "mask"]
    assert told(names, align="top_left", mask=both) == {"causal": True, "window": (2, None)}
    made = {"mask": Causal(), "equal_lens": True}
    assert told(["causal"], q_len=5, **made) == {"causal": True}
    for align in (None, "bottom_right"):
        dense = told(names, align=align, mask=Causal("top_left"))
        assert list(dense) == ["mask"]
        assert (dense["mask"] == np.tri(3, 5, dtype=bool)).all()


def test_a_mask_of_which_a_part_has_no_name_comes_whole():
    mask = Causal("top_left") & Predicate(lambda i: i.k != 1)
    found = told(["causal", "mask"], align="top_left", mask=mask)
    assert list(found) == ["mask"]
    assert (found["mask"] == (np.tri(3, 5, dtype=bool) & (np.arange(5) != 1))).all()


def test_bottom_right_follows_true_lengths():
    found = told(["mask"], {"kv_lens": np.array([5, 3])}, mask=Causal("bottom_right"), kv_lens=True)
    assert (found["mask"][0, 0] == np.tri(3, 5, 2, dtype=bool)).all()
    assert (found["mask"][1, 0] == np.tri(3, 5, 0, dtype=bool)).all()


def test_an_array_of_a_mask_comes_in_full():
    dense = np.array([True, False, True, True, False])
    found = told(["mask"], {"mask": dense}, mask=Dense())
    assert (found["mask"] == np.broadcast_to(dense, (2, 2, 3, 5))).all()


def test_tables_of_a_mask_are_worked_out():
    params = {"n": np.array([1, 4])}
    found = told(["mask"], {"params": params}, mask=Prefix("n"))
    assert (found["mask"].sum(axis=-1) == params["n"][:, None, None]).all()


def test_alibi_comes_as_a_bias():
    params = {"slopes": np.array([1.0, -0.5], np.float32)}
    found = told(["bias"], {"params": params}, logits=Alibi(align="bottom_right"))
    distance = np.arange(5) - (np.arange(3)[:, None] + 2)
    assert found["bias"].dtype == np.float32
    assert (found["bias"] == params["slopes"][:, None, None] * distance).all()
    assert "Alibi as a bias" in FunctionTarget(everything).note


def test_parameters_that_must_be_given_are():
    def function(q, k, v, mask, bias, softcap, causal, window, sinks, kv_lens, return_lse):
        assert mask.all()
        assert mask.shape == (1, 2, 3, 3)
        assert {bias, softcap, window, sinks, kv_lens} == {None}
        assert causal is False
        assert return_lse is False
        return q

    x = np.zeros((1, 2, 3, 4), np.float32)
    spec = AttentionSpec(q_heads=2, head_dim=4)
    assert FunctionTarget(function).prepare(spec)(q=x, k=x, v=x)["out"] is x


def test_outputs_by_name():
    noting = Noting("outputs", result=("a", "b"))
    target = FunctionTarget(noting.function)
    assert target.outputs == ("out", "lse", "max_logit", "entropy", "sum_p2")
    x = np.zeros((1, 2, 3, 4), np.float32)
    spec = AttentionSpec(q_heads=2, head_dim=4, outputs=("entropy", "out"))
    assert target.prepare(spec)(q=x, k=x, v=x) == {"entropy": "a", "out": "b"}
    assert noting.calls[0]["outputs"] == ("entropy", "out")


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("names", "spec", "reason"),
    [
        ([], {"scale": 1.0}, "has no parameter scale"),
        ([], {"softcap": 1.0}, "has no parameter softcap"),
        ([], {"bias": "float32"}, "has no parameter bias"),
        ([], {"sinks": True}, "has no parameter sinks"),
        ([], {"kv_lens": True}, "has no parameter kv_lens or mask"),
        (["kv_lens"], {"q_lens": True}, "has no parameter q_lens or mask"),
        ([], {"mask": Causal("top_left")}, "has no parameter causal or mask for Causal"),
        ([], {"mask": Window(1, 0, "top_left")}, "has no parameter window or mask for Window"),
        (["causal"], {"mask": Document("d")}, "has no parameter mask for Document"),
        (
            ["causal"],
            {"mask": Causal("top_left")},
            "causal is of no known alignment (say align=), the mask is top_left, and has no "
            "parameter mask",
        ),
        (
            ["mask", "bias"],
            {"logits": lambda x, i: x * 2.0},
            "has no parameter for a logit expression",
        ),
        (
            ["mask"],
            {"logits": Alibi(align="top_left")},
            "has no parameter bias, which Alibi would need",
        ),
        (
            ["bias"],
            {"logits": Alibi(align="top_left"), "bias": "float32"},
            "has one parameter bias, and the spec has a bias and Alibi",
        ),
        ([], {"dtype": "float16", "out_dtype": "float32"}, "has no parameter for out_dtype"),
        ([], {"empty_row": "nan"}, "has no parameter for empty_row='nan'"),
        ([], {"outputs": ("out", "lse")}, "gives no lse"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_told_is_refused_with_the_parameter(names, spec, reason):
    assert refused(names, **spec) == [reason]


def test_another_alignment_is_refused():
    (reason,) = refused(["causal"], align="bottom_right", mask=Causal("top_left"))
    assert reason == "causal is bottom_right, the mask is top_left, and has no parameter mask"


def test_all_reasons_are_named():
    assert len(refused([], softcap=1.0, sinks=True, mask=Causal("top_left"))) == 3


def test_declares():
    def function(q, k, v):
        return q

    target = FunctionTarget(function, declares=lambda spec: spec.sinks)
    sinks = next(c for c in FORWARD if c.spec.get("sinks"))
    outcome = check(target, sinks)
    assert outcome.verdict == "fail"
    assert "refuses a spec that it declares: function: has no parameter sinks" in outcome.message
    assert check(FunctionTarget(function), sinks).verdict == "refused"


def test_bad_calls_are_not_put_to_a_function():
    outcome = check(everything, BY_ID["refusals.mask_shape.float32"])
    assert outcome.verdict == "refused"
    assert "does not check calls" in outcome.message


# ------------------------------------------------------------------------------ layout and results


def test_a_function_of_another_layout():
    def swapped(q, k, v, *, mask=None, return_lse=False):
        assert q.ndim == 4
        out, lse = softmax_of(*(x.swapaxes(1, 2) for x in (q, k, v)), mask=mask)
        return (out.swapaxes(1, 2), lse) if return_lse else out.swapaxes(1, 2)

    target = FunctionTarget(swapped, layout="bshd")
    for layout in ("bhsd", "bshd"):
        simple = [c for c in FORWARD if set(c.spec) <= {"dtype", "outputs", "mask", "layout"}]
        one = next(c for c in simple if c.spec.get("layout", "bhsd") == layout)
        outcome = check(target, one)
        assert outcome.verdict == "ok", outcome.message
        assert check(FunctionTarget(everything), one).verdict == "ok"


def test_more_results_than_are_known():
    def three(q, k, v, return_lse=False):
        return q, q, q

    outcome = check(three, PLAIN)
    assert outcome.verdict == "fail"
    assert "out is one of 3 results, of which out, lse are known" in outcome.message


def test_a_tuple_without_return_lse_is_named_by_outputs():
    def both(q, k, v):
        return softmax_of(q, k, v)

    assert "out is one of 2 results" in check(both, PLAIN).message
    outcome = check(FunctionTarget(both, outputs=("out", "lse")), PLAIN)
    assert outcome.verdict == "ok", outcome.message


def test_a_mapping_is_taken_by_name():
    def mapping(q, k, v, return_lse=True):
        return dict(zip(("lse", "out"), softmax_of(q, k, v)[::-1], strict=True))

    assert check(mapping, PLAIN).verdict == "ok"


# ------------------------------------------------------------------------------ signatures


def test_names_versions_and_notes():
    target = FunctionTarget(np.add, name="added", versions={"x": "1"})
    assert (target.name, target.versions) == ("added", {"x": "1"})
    assert FunctionTarget(functools.partial(everything)).name == "partial"
    assert FunctionTarget(everything).note.startswith("calls everything(q, k, v, scale=, softcap=")


def test_parameters_that_are_not_understood_are_named_with_what_may_be_meant():
    def function(q, k, v, *, is_causal=False, attn_mask=None, scal=None, dropout_p=0.0):
        return q

    assert FunctionTarget(function).note == (
        "calls function(q, k, v); not used: is_causal (did you mean causal?), "
        "attn_mask (did you mean mask?), scal (did you mean scale?), dropout_p"
    )
    assert "not used" not in FunctionTarget(everything).note
    assert "not used" not in FunctionTarget(lambda q, k, v, *more, **named: q).note


def test_a_package_is_named_with_its_version():
    def function(q, k, v):
        return q

    function.__module__ = "numpy.testing"
    assert FunctionTarget(function).versions == {"numpy": np.__version__}


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda q, k: q, "2 positional parameters"),
        (lambda: 0, "0 positional parameters"),
        (lambda q, k, v, is_causal: q, "a parameter 'is_causal' that must be given"),
    ],
    ids=["two", "none", "unknown"],
)
def test_other_signatures_are_errors(function, text):
    with pytest.raises(ArgumentError, match=text):
        FunctionTarget(function)


def test_any_number_of_positional_parameters_will_do():
    FunctionTarget(lambda *arrays, mask=None: arrays[0])


def test_what_is_no_function_and_names_that_are_none():
    with pytest.raises(ArgumentTypeError, match="int"):
        FunctionTarget(3)
    with pytest.raises(ArgumentError, match="upper_left"):
        FunctionTarget(everything, align="upper_left")
    with pytest.raises(ArgumentError, match="sbhd"):
        FunctionTarget(everything, layout="sbhd")
    with pytest.raises(ArgumentError, match="weights"):
        FunctionTarget(everything, outputs=("weights",))


def test_a_mask_that_is_worked_out_for_the_function_is_left_alone():
    def writes(q, k, v, *, mask=None):
        found, _ = softmax_of(q, k, v, mask=mask)
        mask[...] = True
        return found

    outcome = check(writes, BY_ID["masks.causal_random.float32"])
    assert outcome.verdict == "fail"
    assert "mask was written to" in outcome.message
