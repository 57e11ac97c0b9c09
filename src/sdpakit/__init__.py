"""sdpakit: a compiler for scaled dot-product attention.

Say what is meant with `AttentionSpec`, get a kernel with `compile`, or call `attention` on arrays.
Every name below is imported on first use, so that `import sdpakit` costs next to nothing.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdpakit import backends, conformance, reference
    from sdpakit.attention_api import attention
    from sdpakit.backward import BackwardKernel, Gradients, Saved, compile_backward
    from sdpakit.compiler import compile  # noqa: A004 - the verb of the package
    from sdpakit.errors import (
        ArgumentError,
        ArgumentTypeError,
        BackendError,
        BackendUnavailableError,
        CacheWarning,
        InternalError,
        ScaleWarning,
        SdpakitError,
        SpecError,
        UnknownBackendError,
        UnsupportedSpecError,
    )
    from sdpakit.expr.functions import (
        absolute,
        exp,
        floor,
        log,
        maximum,
        minimum,
        sqrt,
        tanh,
        to_float,
        to_int,
        where,
    )
    from sdpakit.expr.operands import Scalar, Table
    from sdpakit.expr.text import formula
    from sdpakit.folding import fold_scale
    from sdpakit.kernel import Kernel
    from sdpakit.logits import Alibi
    from sdpakit.masks import (
        Causal,
        Dense,
        Dilated,
        Document,
        Mask,
        Predicate,
        Prefix,
        Window,
    )
    from sdpakit.merging import merge
    from sdpakit.output import AttentionOutput
    from sdpakit.spec import AttentionSpec

__version__ = "0.1.0"

# Nanoseconds since 1970: no module of the package was loaded before. A source that has changed
# since need not be what runs (`backends.numba_cpu.sources`).
LOADED_AT = time.time_ns()

_ERRORS = (
    "ArgumentError ArgumentTypeError BackendError BackendUnavailableError CacheWarning "
    "InternalError ScaleWarning SdpakitError SpecError UnknownBackendError UnsupportedSpecError"
)
_FUNCTIONS = "absolute exp floor log maximum minimum sqrt tanh to_float to_int where"
_MASKS = "Causal Dense Dilated Document Mask Predicate Prefix Window"
_HOME: dict[str, str] = {
    name: module
    for module, names in {
        "attention_api": "attention",
        "backward": "BackwardKernel Gradients Saved compile_backward",
        "compiler": "compile",
        "errors": _ERRORS,
        "expr.functions": _FUNCTIONS,
        "expr.operands": "Scalar Table",
        "expr.text": "formula",
        "folding": "fold_scale",
        "kernel": "Kernel",
        "logits": "Alibi",
        "masks": _MASKS,
        "merging": "merge",
        "output": "AttentionOutput",
        "spec": "AttentionSpec",
    }.items()
    for name in names.split()
}
_MODULES = ("backends", "conformance", "reference")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"sdpakit.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sdpakit' has no attribute {name!r}")
    value = getattr(import_module(f"sdpakit.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "Alibi",
    "ArgumentError",
    "ArgumentTypeError",
    "AttentionOutput",
    "AttentionSpec",
    "BackendError",
    "BackendUnavailableError",
    "BackwardKernel",
    "CacheWarning",
    "Causal",
    "Dense",
    "Dilated",
    "Document",
    "Gradients",
    "InternalError",
    "Kernel",
    "Mask",
    "Predicate",
    "Prefix",
    "Saved",
    "Scalar",
    "ScaleWarning",
    "SdpakitError",
    "SpecError",
    "Table",
    "UnknownBackendError",
    "UnsupportedSpecError",
    "Window",
    "__version__",
    "absolute",
    "attention",
    "backends",
    "compile",
    "compile_backward",
    "conformance",
    "exp",
    "floor",
    "fold_scale",
    "formula",
    "log",
    "maximum",
    "merge",
    "minimum",
    "reference",
    "sqrt",
    "tanh",
    "to_float",
    "to_int",
    "where",
]
