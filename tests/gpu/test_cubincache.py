"""What was compiled is not compiled again; a bad cache is a slow one and nothing worse."""

import subprocess
import sys
import warnings

import pytest
from tests.gpu import sources
from tests.gpu.recorded import text

import sdpakit
from sdpakit.backends.gpu import cubincache
from sdpakit.backends.gpu.architectures import architecture
from sdpakit.backends.gpu.compiling import CompiledModule, compile_source
from sdpakit.backends.gpu.cubincache import compiled
from sdpakit.backends.gpu.resources import read_report
from sdpakit.backends.gpu.toolchain import Part, Toolchain
from sdpakit.errors import CacheWarning, LoweringError


class Compiler:
    """Counts its calls; what it makes tells what it was given."""

    __name__ = "compile_source"

    def __init__(self):
        self.calls = 0

    def __call__(self, code, arch, options):
        self.calls += 1
        log = text("nvrtc_sm_80")
        return CompiledModule(
            architecture(arch), f"{code!r}\n{options}", b"\x7fELF\n\0\n", log, read_report(log)
        )


@pytest.fixture
def compiler(cache, monkeypatch):
    monkeypatch.setattr(cubincache, "toolchain", lambda: tools("13.5.37"))
    return Compiler()


def tools(nvrtc, nvjitlink="13.5.37"):
    none = Part("", "", None, "")
    return Toolchain(Part("", "", nvrtc, ""), Part("", "", nvjitlink, ""), none, none, "9.5")


def test_a_module_is_found_as_it_was(compiler):
    first = compiled(compiler, "source", "80")
    again = compiled(compiler, "source", architecture("sm_80"))
    assert compiler.calls == 1
    assert first == again
    assert first.report.kernels == again.report.kernels


@pytest.mark.parametrize(
    "change",
    ["source", "bytes", "arch", "options", "more options", "compiler", "nvrtc", "nvjitlink", "us"],
)
def test_whatever_has_a_say_makes_another_entry(compiler, monkeypatch, change):
    call = {"code": "source", "arch": "80", "options": ["-DA", "-DB"]}
    compiled(compiler, **call)
    match change:
        case "source":
            call["code"] = "Source"
        case "bytes":
            call["code"] = b"another"
        case "arch":
            call["arch"] = "86"
        case "options":
            call["options"] = ["-DB", "-DA"]
        case "more options":
            call["options"] = ["-DA", "-DB", "-DC"]
        case "compiler":
            monkeypatch.setattr(compiler, "__name__", "link_ptx", raising=False)
        case "nvrtc":
            monkeypatch.setattr(cubincache, "toolchain", lambda: tools("13.5.38"))
        case "nvjitlink":
            monkeypatch.setattr(cubincache, "toolchain", lambda: tools("13.5.37", "13.4.1"))
        case "us":
            monkeypatch.setattr(cubincache, "__version__", "9.9")
    compiled(compiler, **call)
    assert compiler.calls == 2
    compiled(compiler, **call)
    assert compiler.calls == 2


def test_the_version_in_the_key_is_that_of_the_package():
    assert cubincache.__version__ == sdpakit.__version__


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "another entry", "directory"])
def test_damaged_entries_are_compiled_anew(compiler, cache, damage):
    good = compiled(compiler, "source", "80")
    (entry,) = cache.iterdir()
    content = entry.read_bytes()
    match damage:
        case "truncated":
            entry.write_bytes(content[:-1])
        case "foreign":
            entry.write_bytes(b"something else\n" + content)
        case "empty":
            entry.write_bytes(b"")
        case "another entry":
            compiled(compiler, "another source", "80")
            (other,) = set(cache.iterdir()) - {entry}
            entry.write_bytes(other.read_bytes())
            compiler.calls -= 1
        case "directory":
            entry.unlink()
            entry.mkdir()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert compiled(compiler, "source", "80") == good
    assert compiler.calls == 2
    assert len(seen) == (damage == "directory")  # which cannot be replaced by a file


def test_a_cache_that_cannot_be_written_is_one_warning(compiler, cache):
    cache.parent.joinpath("gpu").write_text("in the way")
    with pytest.warns(CacheWarning, match="SDPAKIT_CACHE_DIR") as seen:
        compiled(compiler, "source", "80")
    compiled(compiler, "source", "80")  # another warning would be an error
    assert len(seen) == 1
    assert compiler.calls == 2


def test_the_cache_can_be_switched_off(compiler, cache, monkeypatch):
    monkeypatch.setenv("SDPAKIT_CACHE", "0")
    compiled(compiler, "source", "80")
    compiled(compiler, "source", "80")
    assert compiler.calls == 2
    assert not cache.exists()


def test_a_refusal_is_not_kept(compiler, cache):
    def refusing(code, arch, options):
        raise LoweringError("no")

    for _ in range(2):
        with pytest.raises(LoweringError):
            compiled(refusing, "source", "80")
    assert not cache.exists()


def test_another_process_finds_what_was_really_compiled(cache, tools):
    module = compiled(compile_source, sources.PLAIN, "sm_90a")
    program = (
        "import sys\n"
        "from sdpakit.backends.gpu import cubincache\n"
        "def compile_source(*_): raise SystemExit('compiled again')\n"
        "module = cubincache.compiled(compile_source, sys.stdin.read(), 'sm_90a')\n"
        "print(module.cubin.hex(), module.report.kernels['plain'].registers)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=sources.PLAIN, capture_output=True, text=True
    )
    assert done.stdout.split() == [
        module.cubin.hex(),
        str(module.report.kernels["plain"].registers),
    ], done.stderr
