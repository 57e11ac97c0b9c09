"""Make the PTX of the test kernels anew: ``python tests/ptxemu/kernels/make.py [name ...]``.

It needs compilers and no GPU: NVRTC (``cuda-bindings`` and ``nvidia-cuda-nvrtc``) for CUDA C++,
``numba-cuda[cu13]`` for the kernels in Python, and ``triton``. The tests need none of these:
they run the files in ``ptx``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
# Facts for debuggers, and the paths of the machine that compiled.
DEBUG = re.compile(r"^\s*(\.loc\b|\.file\b)|^\s*//(?! dynamic)|^\s*$")
# A variable of the module, as headers declare by the hundred.
VARIABLE = re.compile(r"^\.global .*?([\w$]+)(?:\[\d+\])?(?: = .*)?;$", re.MULTILINE)
DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug[^{]*\{.*?\}\s*$", re.MULTILINE | re.DOTALL)


def nvrtc(source: str, arch: str, *options: str) -> str:
    """Return the PTX of a CUDA C++ file of this folder."""
    from cuda.bindings import nvrtc as lib

    headers = [path.name for path in sorted(HERE.glob("*.cuh"))]
    texts = [(HERE / name).read_bytes() for name in headers]
    names = [name.encode() for name in headers]
    _, program = lib.nvrtcCreateProgram(
        (HERE / source).read_bytes(), source.encode(), len(names), texts, names
    )
    given = [*options, *(f"-I{folder}" for folder in library_headers())]
    flags = [f"-arch={arch}".encode(), b"-std=c++17", *(option.encode() for option in given)]
    (failed,) = lib.nvrtcCompileProgram(program, len(flags), flags)
    if failed != lib.nvrtcResult.NVRTC_SUCCESS:
        _, size = lib.nvrtcGetProgramLogSize(program)
        log = b" " * size
        lib.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    _, size = lib.nvrtcGetPTXSize(program)
    text = b" " * size
    lib.nvrtcGetPTX(program, text)
    return text.rstrip(b"\0").decode()


def library_headers() -> list[Path]:
    """Return where the headers of CUDA and of its C++ library are, if they are installed."""
    try:
        import nvidia
    except ImportError:
        return []
    found = [Path(path) / "cu13" / "include" for path in nvidia.__path__]
    return [folder for path in found for folder in (path, path / "cccl") if folder.is_dir()]


def numba(kernel: str, arch: str) -> str:
    """Return the PTX of a kernel of numba_kernels.py."""
    sys.path.insert(0, str(HERE))
    import numba_kernels

    return numba_kernels.compile_kernel(kernel, arch)


def triton(kernel: str, arch: str) -> str:
    """Return the PTX of a kernel of triton_kernels.py."""
    sys.path.insert(0, str(HERE))
    import triton_kernels

    return triton_kernels.compile_kernel(kernel, arch)


PACKAGES = {"nvrtc": "nvidia-cuda-nvrtc", "numba": "numba-cuda", "triton": "triton"}
# Name of the PTX file: compiler, its arguments.
KERNELS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "softmax": (nvrtc, ("softmax.cu", "sm_80")),
    "reductions": (nvrtc, ("reductions.cu", "sm_80")),
    "control": (nvrtc, ("control.cu", "sm_80")),
    "functions_f32": (nvrtc, ("functions.cu", "sm_80", "-DOF_F32")),
    "functions_f64": (nvrtc, ("functions.cu", "sm_80", "-device-int128")),
    "matmul_mma": (nvrtc, ("matmul_mma.cu", "sm_80")),
    "flash_mma": (nvrtc, ("flash_mma.cu", "sm_80")),
    "bulk": (nvrtc, ("bulk.cu", "sm_90")),
    "clusters": (nvrtc, ("clusters.cu", "sm_90")),
    "libcudacxx_sm80": (nvrtc, ("libcudacxx.cu", "sm_80")),
    "libcudacxx_sm90": (nvrtc, ("libcudacxx.cu", "sm_90")),
    "matmul_wgmma": (nvrtc, ("matmul_wgmma.cu", "sm_90a")),
    "flash_wgmma": (nvrtc, ("flash_wgmma.cu", "sm_90a", '-DELEMENT="bf16"')),
    "numba_softmax": (numba, ("softmax", "sm_80")),
    "numba_count": (numba, ("count", "sm_80")),
    "numba_flash": (numba, ("flash", "sm_80")),
    "numba_wgmma": (numba, ("wgmma", "sm_90a")),
    "triton_softmax_sm80": (triton, ("softmax", "sm_80")),
    "triton_softmax_sm90": (triton, ("softmax", "sm_90")),
    "triton_matmul_sm80": (triton, ("matmul", "sm_80")),
    "triton_matmul_sm90": (triton, ("matmul", "sm_90")),
    "triton_matmul_tma": (triton, ("matmul_tma", "sm_90")),
    "triton_flash_sm80": (triton, ("flash", "sm_80")),
    "triton_flash_sm90": (triton, ("flash", "sm_90")),
}


def strip(text: str) -> str:
    """Return PTX without what is for debuggers, unused variables, most comments and empty lines."""
    text = DEBUG_SECTION.sub("", text)
    names = Counter(re.findall(r"[\w$]+", text))
    lines = VARIABLE.sub(lambda found: found[0] if names[found[1]] > 1 else "", text).splitlines()
    kept = [line.rstrip() for line in lines if not DEBUG.match(line)]
    return "\n".join(kept).replace(", debug", "") + "\n"


def origin(name: str) -> str:
    """Return the line that says which compiler, as it is installed, makes a kernel of what."""
    compiler, arguments = KERNELS[name]
    package = PACKAGES[compiler.__name__]
    return f"// {', '.join(arguments)}: {package} {version(package)}, by make.py\n"


def make(name: str) -> str:
    """Return the PTX of a kernel; a process can make one, as compilers number what they made."""
    compiler, arguments = KERNELS[name]
    return origin(name) + strip(compiler(*arguments))


def main(names: list[str]) -> None:
    """Write the PTX of the kernels named, or of all."""
    if len(names) != 1:
        for name in names or KERNELS:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    path = HERE / "ptx" / f"{names[0]}.ptx"
    path.parent.mkdir(exist_ok=True)
    path.write_text(make(names[0]), encoding="utf-8")
    sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
