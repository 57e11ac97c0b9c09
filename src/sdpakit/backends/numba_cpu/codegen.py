"""Recipe -> object code -> callable addresses, with a cache in the process and one on disk.

On disk an object lies under the digest of its text, and beside it, for each recipe that led to this
text, the name of the object. So a kernel that is known costs no text, and after an edit of the
emitter only the modules whose text came out differently are compiled anew.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

from sdpakit.backends.numba_cpu import sources
from sdpakit.backends.numba_cpu.forks import LLVM_LOCK, computed_once
from sdpakit.backends.numba_cpu.isa import Isa
from sdpakit.backends.numba_cpu.objectcache import CACHE, NAME, OBJECT
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe, described
from sdpakit.errors import InternalError

_LOADED: dict[tuple[KernelRecipe, Isa], KernelModule] = {}  # changed under LLVM_LOCK, as the next
_OBJECTS: dict[tuple[ModuleRecipe, Isa], bytes] = {}  # of modules that kernels share
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
    """Loaded machine code of one kernel; addresses are valid as long as the object lives.

    Attributes
    ----------
    recipe : KernelRecipe
        What it is made of.
    isa : Isa
        What it was compiled for.
    from_cache : bool
        Whether LLVM had nothing to compile for it.
    """

    def __init__(
        self, recipe: KernelRecipe, isa: Isa, codes: Sequence[bytes], *, from_cache: bool
    ) -> None:
        self.recipe = recipe
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
            texts = [_emit(module.text(), self.isa, "emit_assembly") for module in self.recipe]
        return "\n".join(texts)


@functools.cache
def _tools() -> str:
    """Return what turns a text into code: LLVM, and how this file uses it."""
    with LLVM_LOCK:
        import llvmlite

        version = ".".join(map(str, _llvm().llvm_version_info))
    return f"llvmlite {llvmlite.__version__}, LLVM {version}, {_pipeline()}"


def _pipeline() -> str:
    """Return what stands for the way from text to code: an edit of it makes other keys."""
    steps = (function.__code__ for function in (_target_machine, _optimised, _emit))
    return repr([(step.co_code, step.co_names, step.co_consts) for step in steps])


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _recipe_key(recipe: ModuleRecipe, isa: Isa, emitter: str | None) -> str | None:
    """Return the key under which the name of the object is kept, None where none can be trusted."""
    if emitter is None:
        return None
    return _key("recipe", emitter, _tools(), described(isa), recipe.description)


def _text_key(text: str, isa: Isa) -> str:
    return _key("text", _tools(), described(isa), text)


def _object(recipe: ModuleRecipe, isa: Isa, emitter: str | None) -> tuple[bytes, bool]:
    """Return the object code of one module, and whether it was there already.

    `emitter` is what `sources.digest` says of the sources that make its text.
    """
    found = _OBJECTS.get((recipe, isa))
    if found is not None:
        return found, True
    alias = _recipe_key(recipe, isa, emitter)
    name = CACHE.read(alias, NAME) if alias is not None else None
    found = CACHE.read(name.decode(), OBJECT) if name is not None else None
    return (found, True) if found is not None else _object_of_text(recipe, isa, alias)


def _object_of_text(recipe: ModuleRecipe, isa: Isa, alias: str | None) -> tuple[bytes, bool]:
    """Return the same by way of the text, and keep it under its alias, too."""
    text = recipe.text()
    key = _text_key(text, isa)
    stored = CACHE.read(key, OBJECT)
    code: bytes = _emit(text, isa, "emit_object") if stored is None else stored
    if stored is None:
        CACHE.write(key, code, OBJECT)
    # Asked again: parts of the emitter may have been loaded only now.
    if alias is not None and sources.digest() is not None:
        CACHE.write(alias, key.encode(), NAME)
    return code, stored is not None


def _load(recipe: KernelRecipe, isa: Isa) -> KernelModule:
    global _COUNT
    emitter = sources.digest()
    codes, known = zip(*(_object(module, isa, emitter) for module in recipe), strict=True)
    for module, code in zip(recipe.shared, codes[1:], strict=True):
        _OBJECTS[module, isa] = code
    _COUNT += not all(known)
    return KernelModule(recipe, isa, codes, from_cache=all(known))


def compile_kernel(recipe: KernelRecipe, isa: Isa) -> KernelModule:
    """Return the loaded code of a kernel; equal recipes in one process give the same object.

    Parameters
    ----------
    recipe : KernelRecipe
        Whole modules.
    isa : Isa
        What to compile for; must be one that the host runs.
    """
    with LLVM_LOCK:  # LLVM itself runs in one thread at a time
        found = _LOADED.get((recipe, isa))
        if found is None:
            found = _LOADED[recipe, isa] = _load(recipe, isa)
        return found


def compile_count() -> int:
    """Return how many kernels LLVM has compiled in this process; cache hits do not count."""
    return _COUNT


def clear_loaded() -> None:
    """Forget the code of this process; what is in use stays alive, in every thread."""
    with LLVM_LOCK:
        _LOADED.clear()
        _OBJECTS.clear()
