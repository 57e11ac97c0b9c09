"""The PTX of the test kernels is what their sources compile to, if compilers are installed."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from tests.ptxemu.compiled import PTX
from tests.ptxemu.kernels import make


def test_every_kernel_has_its_file_and_no_file_is_left_over():
    assert {path.stem for path in PTX.glob("*.ptx")} == set(make.KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("name", make.KERNELS)
def test_ptx_is_that_of_the_source(name):
    text = (PTX / f"{name}.ptx").read_text(encoding="utf-8")
    try:
        origin = make.origin(name)
    except PackageNotFoundError as missing:
        pytest.skip(f"its compiler is not installed: {missing}")
    if not text.startswith(origin):
        pytest.skip(f"made by another version of the compiler: {text.splitlines()[0]}")
    done = subprocess.run(
        [sys.executable, "-c", f"import make, sys; sys.stdout.write(make.make({name!r}))"],
        cwd=PTX.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == text, done.stderr


def test_debugging_facts_are_stripped():
    text = """.target sm_80, debug
.file 1 "/a/b.cu"
.visible .entry k()
{
\t.loc\t1 2 3
// a comment
\tret; // another

}
.section\t.debug_loc\t{\t}
.section .debug_info
{
.b8 1
}
"""
    assert make.strip(text) == ".target sm_80\n.visible .entry k()\n{\n\tret; // another\n}\n"
