"""Calls of NVIDIA's two compilers: text in, text and bytes out, whatever they think of it.

`cuda.bindings` finds the libraries in wheels, CUDA_HOME or the system. Neither needs a driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Output:
    """What a compiler gave back.

    Attributes
    ----------
    ok : bool
        Whether it compiled.
    ptx : str
        Also of a compilation that failed later, in the assembler.
    cubin : bytes
        Machine code, empty where it failed.
    log : str
        All that it said.
    """

    ok: bool
    ptx: str
    cubin: bytes
    log: str


def compile_with_nvrtc(source: str, name: str, options: Sequence[str]) -> Output:
    """Compile CUDA C++.

    Parameters
    ----------
    source : str
        The text, header-free.
    name : str
        The file name that messages show.
    options : sequence of str
        Of NVRTC, the architecture among them; for a virtual one there is no machine code.

    Returns
    -------
    Output
        Code, or what NVRTC said against it.

    Raises
    ------
    RuntimeError
        If the library is missing or broken.
    """
    from cuda.bindings import nvrtc

    program = _answer(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )[0]
        return Output(
            ok=status == nvrtc.nvrtcResult.NVRTC_SUCCESS,
            ptx=_text(_bytes(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)),
            cubin=_bytes(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
            log=_text(_bytes(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def link_with_nvjitlink(data: bytes, kind: str, name: str, options: Sequence[str]) -> Output:
    """Compile PTX or LTO-IR.

    Parameters
    ----------
    data : bytes
        The code.
    kind : str
        "PTX" or "LTOIR".
    name : str
        The file name that messages show.
    options : sequence of str
        Of nvJitLink, the architecture among them; with "-ptx" LTO-IR becomes PTX, not machine code.

    Returns
    -------
    Output
        Machine code or PTX, or what nvJitLink said against it.

    Raises
    ------
    RuntimeError
        If the library is missing or broken.
    """
    from cuda.bindings import nvjitlink

    try:
        handle = nvjitlink.create(len(options), list(options))
    except nvjitlink.nvJitLinkError as error:  # there is no log without a handle
        return Output(ok=False, ptx="", cubin=b"", log=f"options {list(options)}: {error}")
    result = "ptx" if "-ptx" in options else "cubin"
    try:
        code, said = _linked(
            nvjitlink, handle, (data, getattr(nvjitlink.InputType, kind), name), result
        )
        log = "".join((said, _log(handle, nvjitlink, "error"), _log(handle, nvjitlink, "info")))
    finally:
        nvjitlink.destroy(handle)
    ptx, cubin = (_text(code), b"") if result == "ptx" else ("", code)
    return Output(ok=bool(code), ptx=ptx, cubin=cubin, log=log)


def _linked(
    nvjitlink: Any, handle: int, code: tuple[bytes, Any, str], result: str
) -> tuple[bytes, str]:
    """Return what was made of `code` and nothing, or nothing and what is wrong."""
    data, kind, name = code
    try:
        nvjitlink.add_data(handle, kind, data, len(data), name)
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError as error:
        return b"", f"{error}\n"
    made = bytearray(getattr(nvjitlink, f"get_linked_{result}_size")(handle))
    getattr(nvjitlink, f"get_linked_{result}")(handle, made)
    return bytes(made), ""


def _log(handle: int, nvjitlink: Any, kind: str) -> str:
    """Return the "info" or the "error" log."""
    log = bytearray(getattr(nvjitlink, f"get_{kind}_log_size")(handle))
    getattr(nvjitlink, f"get_{kind}_log")(handle, log)
    return _text(bytes(log))


def _answer(result: tuple[Any, ...]) -> Any:
    """Return what a call of NVRTC gives besides its status."""
    status, *values = result
    if status.value != 0:
        raise RuntimeError(f"NVRTC: {status.name}")
    return values[0] if values else None


def _bytes(program: Any, size: Any, fill: Any) -> bytes:
    buffer = bytes(_answer(size(program)))
    if buffer:
        _answer(fill(program, buffer))
    return buffer


def _text(data: bytes) -> str:
    return data.decode(errors="replace").rstrip("\0")
