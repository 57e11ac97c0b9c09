"""IR text -> object code -> callable addresses, with a cache in the process and one on disk."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from sdpakit.backends.numba_cpu import objectcache
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK, computed_once
from sdpakit.backends.numba_cpu.isa import Isa
from sdpakit.errors import InternalError

# Part of the key of cached objects: raise it when the pipeline below changes.
PIPELINE_VERSION = 2

_LOADED: dict[str, KernelModule] = {}  # changed under LLVM_LOCK
_COUNT = 0


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
    """Loaded machine code of one module; addresses are valid as long as the object lives.

    Attributes
    ----------
    ir : str
        IR text as it was emitted.
    isa : Isa
        What it was compiled for.
    from_cache : bool
        Whether the machine code came from the disk.
    """

    def __init__(self, text: str, isa: Isa, code: bytes, *, from_cache: bool) -> None:
        self.ir = text
        self.isa = isa
        self.from_cache = from_cache
        with LLVM_LOCK:
            llvm = _llvm()
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, _target_machine(isa))
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
            text: str = _emit(self.ir, self.isa, "emit_assembly")
        return text


def _key(text: str, isa: Isa) -> str:
    with LLVM_LOCK:
        import llvmlite

        version = ".".join(map(str, _llvm().llvm_version_info))
    parts = (str(PIPELINE_VERSION), llvmlite.__version__, version, isa.cpu, isa.features, text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(text: str, isa: Isa) -> bytes:
    global _COUNT
    _COUNT += 1
    code: bytes = _emit(text, isa, "emit_object")
    return code


def _load(text: str, isa: Isa, key: str) -> KernelModule:
    stored = objectcache.read(key)
    if stored is not None:
        return KernelModule(text, isa, stored, from_cache=True)
    code = _compile(text, isa)
    objectcache.write(key, code)
    return KernelModule(text, isa, code, from_cache=False)


def compile_ir(text: str, isa: Isa) -> KernelModule:
    """Return the loaded code of an IR text; equal texts in one process give the same object.

    Parameters
    ----------
    text : str
        A whole module.
    isa : Isa
        What to compile for; must be one that the host runs.
    """
    key = _key(text, isa)
    with LLVM_LOCK:  # LLVM itself runs in one thread at a time
        found = _LOADED.get(key)
        if found is None:
            found = _LOADED[key] = _load(text, isa, key)
        return found


def compile_count() -> int:
    """Return how many modules LLVM has compiled in this process; cache hits do not count."""
    return _COUNT


def clear_loaded() -> None:
    """Forget the modules of this process; those in use stay alive."""
    with LLVM_LOCK:
        _LOADED.clear()
