"""Runs an entry of a PTX file on .npy files: ``python -m sdpakit.ptxemu kernel.ptx ...``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sdpakit.ptxemu import (
    Checks,
    KernelFault,
    LaunchError,
    Output,
    PtxError,
    Report,
    TensorMap,
    launch,
    parse,
)
from sdpakit.ptxemu.scalars import Array

_HELP = """
arguments of the kernel, one for each parameter:
  300, -1, 0x10           an integer by value
  1.5, 1e-3, inf          a float by value
  bytes:00ff12            a struct by value
  x.npy                   a pointer to a copy of an array; what the kernel writes there is dropped
  y.npy=x.npy             a pointer to a copy of x.npy, which is saved as y.npy afterwards
  y.npy=float32[4,128]    a pointer to an output: every element must be written, saved as y.npy
  y.npy=zeros:int32[64]   a pointer to zeros, saved as y.npy
  ...@box=64,128@swizzle=128B@fill=nan
                          after a pointer: a tensor map of the array; box innermost first

Arrays of types that NumPy lacks are those of the unsigned integers with their bits (bf16: uint16).
The exit status is 1 if the kernel did something wrong, 2 if it could not be launched.
"""
_SHAPED = re.compile(r"(zeros:)?(\w+)\[([\d,]*)\]")


@dataclass(frozen=True)
class _Argument:
    """What to pass to the kernel; and an array to save, and where."""

    value: Any
    array: Array | None = None
    path: Path | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_intermixed_args(argv)
    try:
        report, arguments = _run(options)
    except KernelFault as fault:
        sys.stderr.write(f"{fault}\n")
        return 1
    except (PtxError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for argument in arguments:
        if argument.path is not None and argument.array is not None:
            np.save(argument.path, argument.array)
    sys.stdout.write(report.summary(options.lines) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sdpakit.ptxemu",
        description="Run an entry of a PTX file on NumPy arrays, with no GPU, and check it.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checks = [field.name for field in fields(Checks)]
    parser.add_argument("ptx", type=Path, help="file with the kernel")
    parser.add_argument("args", nargs="*", metavar="ARG", help="arguments of the kernel, see below")
    parser.add_argument("--entry", help="which kernel, if the file has several")
    parser.add_argument("--grid", type=_sizes, default=(1,), help="blocks, as 8 or 8,2,1")
    parser.add_argument("--block", type=_sizes, default=(32,), help="threads of a block")
    parser.add_argument("--cluster", type=_sizes, default=(1,), help="blocks of a cluster")
    parser.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("--without", choices=checks, action="append", default=[], help="no check")
    parser.add_argument("--profile", action="store_true", help="count bank conflicts and sectors")
    parser.add_argument("--lines", type=int, default=0, help="show so many lines executed most")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _run(options: argparse.Namespace) -> tuple[Report, list[_Argument]]:
    module = parse(options.ptx.read_text(encoding="utf-8"))
    arguments = [_argument(text) for text in options.args]
    checks = Checks(**dict.fromkeys(options.without, False))
    report = launch(
        module,
        options.grid,
        options.block,
        [argument.value for argument in arguments],
        entry=options.entry,
        shared=options.shared,
        cluster=options.cluster,
        checks=checks,
        profile=options.profile,
    )
    return report, arguments


def _argument(text: str) -> _Argument:
    for number in (lambda: int(text, 0), lambda: float(text)):
        try:
            return _Argument(number())
        except ValueError:
            continue
    if text.startswith("bytes:"):
        return _Argument(bytes.fromhex(text.removeprefix("bytes:")))
    pointer, *modes = text.split("@")
    name, is_result, source = pointer.partition("=")
    path = Path(name) if is_result else None
    array, is_output = _array(source if is_result else name, text)
    value = _tensor_map(array, modes, text) if modes else array
    return _Argument(Output(value) if is_output else value, array, path)


def _array(source: str, text: str) -> tuple[Array, bool]:
    """Return the array that a source describes, and whether it is to be written whole."""
    if shaped := _SHAPED.fullmatch(source):
        zeros, dtype, sizes = shaped.groups()
        shape = tuple(int(size) for size in sizes.split(",") if size)
        try:
            return np.zeros(shape, dtype), zeros is None
        except TypeError as error:
            raise LaunchError(f"{text!r}: {error}; give a dtype of NumPy, as in float32") from error
    if not source.endswith(".npy"):
        raise LaunchError(
            f"{text!r} is no argument; give a number, bytes:HEX, x.npy, y.npy=x.npy or "
            "y.npy=float32[4,128]"
        )
    return np.load(source, allow_pickle=False), False


def _tensor_map(array: Array, modes: Sequence[str], text: str) -> TensorMap:
    options: dict[str, Any] = {}
    for mode in modes:
        key, _, value = mode.partition("=")
        if key not in {"box", "swizzle", "fill", "dtype"}:
            raise LaunchError(f"{text!r} has @{mode}; give @box=, @swizzle=, @fill= or @dtype=")
        options[key] = _sizes(value) if key == "box" else value
    if "box" not in options:
        raise LaunchError(f"{text!r} is a tensor map without @box=; give one")
    return TensorMap(array, **options)


if __name__ == "__main__":
    sys.exit(main())
