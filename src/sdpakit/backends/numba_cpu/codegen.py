"""IR text -> object code -> callable addresses, with a cache in the process and one on disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sdpakit.backends.numba_cpu import objectcache
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK, computed_once
from sdpakit.backends.numba_cpu.isa import Isa
from sdpakit.errors import InternalError

# Part of the key of cached objects: raise it when the pipeline below changes.
PIPELINE_VERSION = 3

_LOADED: dict[str, KernelModule] = {}  # changed under LLVM_LOCK, as is the next
_OBJECTS: dict[str, bytes] = {}  # of modules that kernels share
_COUNT = 0


@dataclass(frozen=True, slots=True)
class KernelText:
    """IR text of a kernel: a module of its own, and those that it shares with other kernels.

    Each is compiled for itself and kept for itself, so that a new kernel costs its own part. They
    are linked when they are loaded: one may call functions of another.

    Attributes
    ----------
    own : str
        A whole module.
    shared : tuple of str
        Further whole modules, without a name that occurs twice.
    """

    own: str
    shared: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter((self.own, *self.shared))

    def __str__(self) -> str:
        return "\n".join(self)


@functools.cache
def _llvm() -> Any:
    """Return llvmlite's binding with the native target ready."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _target_machine(isa: Isa) -> Any:
    """Return a new target machine: an engine takes ownership of its own, so none is shared."""
    target = _llvm().Target.from_triple(_llvm().get_process_triple())
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=2, jit=True)


def _optimised(text: str, machine: Any) -> Any:
    """Return the parsed, verified and cleaned-up module.

    The kernels are vectorised and unrolled by their emitter, and invariants leave loops in the code
    generator. The pipeline of -O2 gave the same speed (plain, masked and capped logits) for six
    times the time in the optimiser.
    """
    llvm = _llvm()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_function_pass_manager()
    passes.add_simplify_cfg_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return module


def _emit(text: str, isa: Isa, form: str) -> Any:
    """Return object code or assembly; what LLVM holds for it is freed before the lock is."""
    machine = _target_machine(isa)
    return getattr(machine, form)(_optimised(text, machine))


class KernelModule:
    """Loaded machine code of one kernel; addresses are valid as long as the object lives.

    Attributes
    ----------
    ir : KernelText
        IR text as it was emitted.
    isa : Isa
        What it was compiled for.
    from_cache : bool
        Whether LLVM had nothing to compile for it.
    """

    def __init__(
        self, text: KernelText, isa: Isa, codes: Sequence[bytes], *, from_cache: bool
    ) -> None:
        self.ir = text
        self.isa = isa
        self.from_cache = from_cache
        with LLVM_LOCK:
            llvm = _llvm()
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, _target_machine(isa))
            for code in codes:
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function.

        Raises
        ------
        InternalError
            If the module has no such function.
        """
        with LLVM_LOCK:
            found: int = self._engine.get_function_address(name)
        if not found:
            raise InternalError(f"the kernel module has no function {name!r}")
        return found

    @computed_once
    def asm(self) -> str:
        """Assembly text, compiled anew from the IR."""
        with LLVM_LOCK:
            texts = [_emit(text, self.isa, "emit_assembly") for text in self.ir]
        return "\n".join(texts)


def _key(text: str, isa: Isa) -> str:
    with LLVM_LOCK:
        import llvmlite

        version = ".".join(map(str, _llvm().llvm_version_info))
    parts = (str(PIPELINE_VERSION), llvmlite.__version__, version, isa.cpu, isa.features, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _object(text: str, isa: Isa, key: str) -> tuple[bytes, bool]:
    """Return the object code of one module, and whether it was there already."""
    stored = _OBJECTS.get(key) or objectcache.read(key)
    if stored is not None:
        return stored, True
    code: bytes = _emit(text, isa, "emit_object")
    objectcache.write(key, code)
    return code, False


def _load(text: KernelText, isa: Isa, keys: Sequence[str]) -> KernelModule:
    global _COUNT
    codes, known = zip(
        *(_object(part, isa, key) for part, key in zip(text, keys, strict=True)), strict=True
    )
    _OBJECTS.update(zip(keys[1:], codes[1:], strict=True))
    _COUNT += not all(known)
    return KernelModule(text, isa, codes, from_cache=all(known))


def compile_ir(text: KernelText, isa: Isa) -> KernelModule:
    """Return the loaded code of an IR text; equal texts in one process give the same object.

    Parameters
    ----------
    text : KernelText
        Whole modules.
    isa : Isa
        What to compile for; must be one that the host runs.
    """
    keys = [_key(part, isa) for part in text]
    name = " ".join(keys)
    with LLVM_LOCK:  # LLVM itself runs in one thread at a time
        found = _LOADED.get(name)
        if found is None:
            found = _LOADED[name] = _load(text, isa, keys)
        return found


def compile_count() -> int:
    """Return how many kernels LLVM has compiled in this process; cache hits do not count."""
    return _COUNT


def clear_loaded() -> None:
    """Forget the code of this process; what is in use stays alive."""
    with LLVM_LOCK:
        _LOADED.clear()
        _OBJECTS.clear()
