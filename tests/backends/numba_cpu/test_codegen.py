"""Compilation, its caches, and the choice of the ISA."""

import ctypes
import errno
import io
import os
import re
import subprocess
import sys
import threading
import warnings

import pytest
from tests.backends.numba_cpu.kernels import function, of_text

from sdpakit.backends import diskcache
from sdpakit.backends.numba_cpu import codegen, recipes, sources
from sdpakit.backends.numba_cpu.isa import ENVIRONMENT_VARIABLE, available_isas, select_isa
from sdpakit.backends.numba_cpu.recipes import KernelRecipe, ModuleRecipe
from sdpakit.errors import ArgumentError, CacheWarning, InternalError


def text_of(number: int) -> str:
    return f"define i64 @answer() {{\nentry:\n  ret i64 {number}\n}}\n"


def recipe_of(number: int) -> KernelRecipe:
    return KernelRecipe(ModuleRecipe(text_of, (number,)))


def answer(code) -> int:
    return function(code, "answer", 0, ctypes.c_int64)()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache on disk and none in the process; somebody may edit a source meanwhile."""
    monkeypatch.setattr(sources, "digest", lambda: "these")
    monkeypatch.setenv(diskcache.DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.delenv(diskcache.SWITCH_VARIABLE, raising=False)
    monkeypatch.setattr(diskcache, "_warned", set())
    codegen.clear_loaded()
    return tmp_path / "cpu"


def build(number: int):
    before = codegen.compile_count()
    code = codegen.compile_kernel(recipe_of(number), select_isa())
    assert answer(code) == number
    return code, codegen.compile_count() - before


def test_equal_recipes_are_compiled_once(cache):
    first, compiled = build(1)
    again, more = build(1)
    assert (compiled, more) == (1, 0)
    assert first is again
    assert not first.from_cache


def test_another_process_finds_the_object(cache):
    build(2)
    codegen.clear_loaded()
    code, compiled = build(2)
    assert compiled == 0
    assert code.from_cache


@pytest.mark.parametrize("suffix", ["o", "name"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_damaged_entries_are_rebuilt(cache, damage, suffix):
    """Without a name the text is made, and leads to the object."""
    build(3)
    (entry,) = cache.glob(f"*.{suffix}")
    good = entry.read_bytes()
    flipped = bytearray(good)
    flipped[-40] ^= 1
    bad = {"truncated": good[:-7], "flipped": flipped, "empty": b"", "foreign": b"not ours"}
    entry.write_bytes(bad[damage])
    codegen.clear_loaded()
    _, compiled = build(3)
    assert compiled == (suffix == "o")
    assert entry.read_bytes() == good


@pytest.mark.parametrize("suffix", ["o", "name"])
def test_an_entry_under_the_name_of_another_is_not_taken(cache, suffix):
    """A copied file would make one kernel compute what another should."""
    build(31)
    (wrong,) = cache.glob(f"*.{suffix}")
    content = wrong.read_bytes()
    build(32)
    for entry in cache.glob(f"*.{suffix}"):
        entry.write_bytes(content)
    codegen.clear_loaded()
    assert build(32)[1] == (suffix == "o")


def test_a_user_without_a_home_means_no_cache_and_one_warning(cache, monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    for name in (diskcache.DIRECTORY_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(diskcache.Path, "home", nobody)
    with pytest.warns(CacheWarning, match="home") as seen:
        assert build(33)[1] == 1
    assert len(seen) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_regular_file_is_no_entry(cache, kind):
    """Nor is it waited for: nobody ever writes to the pipe, and the device never ends."""
    build(34)
    (entry,) = cache.glob("*.o")
    entry.unlink()
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "device":
        entry.symlink_to("/dev/zero")
    else:
        entry.mkdir()
    codegen.clear_loaded()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert build(34)[1] == 1
    assert len(seen) == (kind == "directory")  # which cannot be replaced by a file
    assert entry.is_dir() or entry.is_file()


def test_processes_that_want_the_same_kernel_at_once_all_get_it(cache):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILES_THE_SAME, str(cache.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate()[0] for child in children] == ["35\n"] * 3
    assert [child.returncode for child in children] == [0] * 3
    assert sorted(path.suffix for path in cache.iterdir()) == [".name", ".o"]
    codegen.clear_loaded()
    assert codegen.compile_kernel(of_text(text_of(35)), select_isa()).from_cache


COMPILES_THE_SAME = """
import ctypes, os, sys, warnings
warnings.simplefilter("error")
os.environ["SDPAKIT_CACHE_DIR"] = sys.argv[1]
from sdpakit.backends.numba_cpu import codegen, recipes
from sdpakit.backends.numba_cpu.isa import select_isa
isa = select_isa()
print("ready", flush=True)
sys.stdin.readline()
text = "define i64 @answer() {\\nentry:\\n  ret i64 35\\n}\\n"
recipe = recipes.KernelRecipe(recipes.ModuleRecipe(str, (text,)))
code = codegen.compile_kernel(recipe, isa)
print(ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("answer"))())
"""


def module_text(name: str, body: str) -> str:
    return f"{body}\ndefine i64 @{name}() {{\nentry:\n  %x = call i64 @base()\n  ret i64 %x\n}}\n"


def test_a_module_that_two_kernels_share_is_compiled_once(cache):
    """Even across processes: each module has an entry of its own, and calls cross their borders."""
    base = "define i64 @base() {\nentry:\n  ret i64 77\n}\n"
    answers = []
    for comment in ("; one", "; two"):
        own = module_text("answer", f"{comment}\ndeclare i64 @base()")
        recipe = of_text(own, ModuleRecipe(str, (base,)))
        code = codegen.compile_kernel(recipe, select_isa())
        answers.append(answer(code))
        assert not code.from_cache
        assert code.asm.count("base:") == 1
        codegen.clear_loaded()
    assert answers == [77, 77]
    assert len(list(cache.glob("*.o"))) == 3


def test_texts_that_come_out_equal_share_an_object(cache):
    build(41)
    code = codegen.compile_kernel(of_text(text_of(41)), select_isa())
    assert code.from_cache
    assert sorted(path.suffix for path in cache.iterdir()) == [".name", ".name", ".o"]


def test_other_sources_mean_another_text_and_unknown_ones_no_name(cache, monkeypatch):
    """What was made of an earlier emitter is found by its text alone."""
    made = []

    def text(number):
        made.append(number)
        return text_of(number)

    def builds(digest: str | None) -> tuple[bool, int, int]:
        codegen.clear_loaded()
        recipes._text.cache_clear()
        monkeypatch.setattr(sources, "digest", lambda: digest)
        code = codegen.compile_kernel(KernelRecipe(ModuleRecipe(text, (42,))), select_isa())
        names = len(list(cache.glob("*.name")))
        return code.from_cache, len(made), names

    assert builds("one") == (False, 1, 1)
    assert builds("one") == (True, 1, 1)
    assert builds("two") == (True, 2, 2)
    assert builds(None) == (True, 3, 2)
    assert builds("one") == (True, 3, 2)


def test_no_half_written_entries_stay(cache):
    build(4)
    assert sorted(path.suffix for path in cache.iterdir()) == [".name", ".o"]


def test_a_directory_that_cannot_be_made_means_no_cache_and_one_warning(cache, monkeypatch):
    cache.parent.joinpath("file").write_text("in the way")
    monkeypatch.setenv(diskcache.DIRECTORY_VARIABLE, str(cache.parent / "file"))
    with pytest.warns(CacheWarning, match=diskcache.DIRECTORY_VARIABLE) as seen:
        _, compiled = build(5)
    assert compiled == 1
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(6)[1] == 1


@pytest.mark.parametrize("stage", ["create", "write", "replace"])
def test_a_full_disk_means_no_cache_and_one_warning(cache, monkeypatch, stage):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile(io.FileIO):
        write = full

    def nearly_full(**kwargs):
        return FullFile(cache / "partial", "w")

    if stage == "replace":
        monkeypatch.setattr(diskcache.Path, "replace", full)
    else:
        found = full if stage == "create" else nearly_full
        monkeypatch.setattr(diskcache.tempfile, "NamedTemporaryFile", found)
    with pytest.warns(CacheWarning, match="No space left") as seen:
        assert [build(number)[1] for number in (7, 8)] == [1, 1]
    assert len(seen) == 1
    assert list(cache.iterdir()) == []


def test_the_cache_can_be_switched_off(cache, monkeypatch):
    monkeypatch.setenv(diskcache.SWITCH_VARIABLE, "0")
    assert build(8)[1] == 1
    assert not cache.exists()


def test_threads_that_want_the_same_kernel_compile_it_once(cache):
    before = codegen.compile_count()
    found = []
    start = threading.Barrier(8)

    def work():
        start.wait()
        found.append(codegen.compile_kernel(recipe_of(9), select_isa()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codegen.compile_count() - before == 1
    assert len({id(code) for code in found}) == 1


def test_isas_have_objects_of_their_own(cache):
    for name in available_isas():
        assert answer(codegen.compile_kernel(recipe_of(10), select_isa(name))) == 10
    assert len(list(cache.glob("*.o"))) == len(available_isas())


def test_text_and_assembly_can_be_read(cache):
    code, _ = build(11)
    assert code.recipe.text() == text_of(11)
    assert "answer" in code.asm


def test_an_unknown_function_is_a_defect_of_ours(cache):
    code, _ = build(12)
    with pytest.raises(InternalError, match="nothing_like_it"):
        code.address("nothing_like_it")


def test_the_isa_is_named_by_argument_or_environment(monkeypatch):
    lowest, best = available_isas()[0], available_isas()[-1]
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert select_isa().name == select_isa("auto").name == best
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, lowest)
    assert select_isa().name == lowest
    assert select_isa(best).name == best


def test_an_isa_that_the_host_lacks_is_refused(monkeypatch):
    with pytest.raises(ArgumentError, match="avx1024"):
        select_isa("avx1024")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "sve9")
    with pytest.raises(ArgumentError, match=ENVIRONMENT_VARIABLE):
        select_isa()


@pytest.mark.skipif("avx2" not in available_isas(), reason="the host has no AVX2 to be kept from")
def test_a_lower_isa_uses_no_instruction_of_a_higher_one():
    """Machine code for AVX2 has no zmm register, that for the baseline no ymm and no call."""
    from sdpakit.backends.numba_cpu.layout import PanelLayout
    from sdpakit.backends.numba_cpu.module import emit_module, shared_modules

    for name, foreign in (("avx2", ("zmm", "ymm16")), ("baseline", ("ymm", "vfmadd"))):
        isa = select_isa(name)
        layout = PanelLayout(isa, "float16", "float16", 5, 17)
        recipe = of_text(emit_module(layout), *shared_modules(layout))
        assembly = codegen.compile_kernel(recipe, isa).asm
        assert not [word for word in foreign if word in assembly]
        called = set(re.findall(r"\tcallq?\t([a-z]\w*)|\$([a-z]\w*), %r", assembly))
        names = {name for pair in called for name in pair if name}
        assert not [name for name in names if not re.match("mem|qk_|pv_", name)], names
