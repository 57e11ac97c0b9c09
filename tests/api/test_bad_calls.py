"""Missing, unknown and surplus arguments of everything public: one helpful exception (ERR-1)."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from tests.api.refusals import refuses

import sdpakit as sk
from sdpakit.calling import checked_call

SPEC = sk.AttentionSpec(q_heads=2, head_dim=4)
X = np.zeros((1, 2, 3, 4), np.float32)


@pytest.fixture(scope="module")
def kernel():
    return sk.compile(SPEC, "interp")


@pytest.fixture(scope="module")
def backward():
    return sk.compile_backward(SPEC, "interp")


@pytest.mark.parametrize(
    ("given", "named", "got", "fix"),
    [
        ((X, X, X), {"scale": 1.0}, "'scale'", "scale belongs to the spec"),
        ((X, X, X), {"kv_len": X}, "'kv_len'", "did you mean 'kv_lens'?"),
        ((X, X, X), {"zzz": 1}, "'zzz'", "leave 'zzz' away"),
        ((X, X), {}, "no v", "give v too"),
        ((), {}, "no q, k and v", "give q, k and v too"),
        ((X, X, None), {}, "no v", "give v too"),
        ((X, X, X, X), {}, "4 arguments without a name", "such as bias="),
    ],
)
def test_kernel(kernel, given, named, got, fix):
    with refuses(sk.ArgumentTypeError, "Kernel", got, fix):
        kernel(*given, **named)


def test_an_operand_of_none_is_not_given(kernel):
    assert kernel(X, X, X, bias=None, params=None).shape == X.shape


def test_methods_of_kernels(kernel):
    with refuses(sk.ArgumentTypeError, "LoadedCode.inspect", "'nope'", "leave"):
        kernel.inspect(nope=1)
    with refuses(sk.ArgumentTypeError, "Kernel.explain", "1 argument without", "such as batch="):
        kernel.explain(1)


def test_backward(backward):
    with refuses(sk.ArgumentTypeError, "BackwardKernel", "no dout", "give dout too"):
        backward(X, X, X)
    with refuses(sk.ArgumentTypeError, "BackwardKernel.forward", "no v", "give v too"):
        backward.forward(X, X)
    with refuses(sk.ArgumentTypeError, "scale", "unknown", "belongs to the spec"):
        backward(X, X, X, X, scale=1.0)


@pytest.mark.parametrize(
    ("call", "where", "got", "fix"),
    [
        (lambda: sk.Table("t"), "Table", "no dtype and ndim", "give dtype and ndim too"),
        (lambda: sk.Scalar(), "Scalar", "no name", "give name too"),
        (lambda: sk.Dilated(), "Dilated", "no step", "give step too"),
        (lambda: sk.Prefix(), "Prefix", "no length", "give length too"),
        (lambda: sk.Window(1), "Window", "no right", "give right too"),
        (lambda: sk.Window(1, left=2), "Window", "'left' twice", "by its place or by its name"),
        (lambda: sk.Causal(alin="offset"), "Causal", "'alin'", "did you mean 'align'?"),
        (lambda: sk.Dense(1), "Dense", "1 argument without a name", "give none"),
        (lambda: sk.AttentionSpec(q_heads=1), "AttentionSpec", "no head_dim", "give head_dim too"),
    ],
)
def test_parts_of_specs(call, where, got, fix):
    with refuses(sk.SpecError, where, got, fix):
        call()


# Classes that sdpakit makes for its users, and exceptions, which may be raised with any text.
MADE = {"AttentionOutput", "BackwardKernel", "Gradients", "Kernel", "Mask", "Saved"}
CALLED = [
    name
    for name in sk.__all__
    if callable(getattr(sk, name))
    and name not in MADE
    and not (isinstance(getattr(sk, name), type) and issubclass(getattr(sk, name), Exception))
]


@pytest.mark.parametrize("name", [*CALLED, "reference.attention", "reference.detail"])
def test_everything_public(name):
    called = sk
    for part in name.split("."):
        called = getattr(called, part)
    named = {} if name == "reference.detail" else {"nonsense_": 1}
    with pytest.raises(sk.SdpakitError, match=r"got .*\n  allowed: .*\n  remedy: "):
        called(**named)


def test_an_error_of_the_body_is_not_hidden():
    @checked_call
    def one(x):
        return x + "of the body"

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        one(0)
    assert not isinstance(caught.value, sk.SdpakitError)


def test_help_shows_the_parameters():
    assert list(inspect.signature(sk.fold_scale).parameters) == ["w_q", "w_k", "head_dim", "how"]
    assert list(inspect.signature(sk.Window).parameters) == ["left", "right", "align"]
