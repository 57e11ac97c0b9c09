"""Compiled modules on disk: what was compiled once is not compiled again, by whatever process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from sdpakit import __version__
from sdpakit.backends.diskcache import DiskCache
from sdpakit.backends.gpu.architectures import Architecture, architecture
from sdpakit.backends.gpu.compiling import CompiledModule
from sdpakit.backends.gpu.resources import read_report
from sdpakit.backends.gpu.toolchain import toolchain

_ENDING = "cubin"

CACHE = DiskCache("gpu", magic=b"sdpakit-cubin-1\n", endings=(_ENDING,))

Code = TypeVar("Code", str, bytes)
Compiler = Callable[[Code, str | Architecture, Sequence[str]], CompiledModule]


def compiled(
    compiler: Compiler[Code], code: Code, arch: str | Architecture, options: Sequence[str] = ()
) -> CompiledModule:
    """Return a compiled module, from disk if it is there.

    Parameters
    ----------
    compiler : callable
        `compile_source`, `link_ptx` or `link_ltoir`.
    code, arch, options : object
        As these take them.

    Returns
    -------
    CompiledModule
        Equal to what the compiler returns.

    Raises
    ------
    ArgumentError, BackendUnavailableError, LoweringError
        As the compiler does.
    """
    target = architecture(arch)
    key = _key(compiler.__name__, code, target, options)
    stored = CACHE.read(key, _ENDING)
    if stored is not None:
        return _unpacked(stored, target)
    module = compiler(code, target, options)
    CACHE.write(key, _packed(module), _ENDING)
    return module


def _key(compiler: str, code: str | bytes, arch: Architecture, options: Sequence[str]) -> str:
    """Return the key: all that has a say in the result."""
    found = toolchain()
    tools = (found.nvrtc.version, found.nvjitlink.version)
    data = code.encode() if isinstance(code, str) else code
    parts = [compiler, hashlib.sha256(data).hexdigest(), arch.name, list(options), tools]
    return hashlib.sha256(json.dumps([*parts, __version__]).encode()).hexdigest()


def _packed(module: CompiledModule) -> bytes:
    """Return the texts on a line of JSON, then the code; the report follows from the log."""
    return json.dumps([module.ptx, module.log]).encode() + b"\n" + module.cubin


def _unpacked(content: bytes, arch: Architecture) -> CompiledModule:
    head, _, cubin = content.partition(b"\n")
    ptx, log = json.loads(head)
    return CompiledModule(arch, ptx, cubin, log, read_report(log))
