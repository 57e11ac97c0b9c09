"""Run one instruction of PTX on arrays, one element a thread."""

from __future__ import annotations

import numpy as np

from sdpakit import ptxemu


def execute(instructions, results, **values):
    """Return what instructions leave in registers.

    Parameters
    ----------
    instructions : str
        PTX whose registers are the names of `results` and `values`.
    results : dict
        Name to NumPy dtype of each register that is wanted; ``bool`` is a predicate.
    values : numpy.ndarray
        What each source register holds, by name; broadcast against each other.
    """
    values = dict(
        zip(values, np.broadcast_arrays(*map(np.atleast_1d, values.values())), strict=True)
    )
    count = len(next(iter(values.values()))) if values else 32
    values = {name: np.ascontiguousarray(value) for name, value in values.items()}
    outputs = {name: np.zeros(count, dtype) for name, dtype in results.items()}
    arrays = {**values, **{f"{name}_out": array for name, array in outputs.items()}}
    block = 128
    ptxemu.launch(
        _kernel(instructions, values, outputs, count, block),
        -(-count // block),
        block,
        list(arrays.values()),
        checks=ptxemu.Checks.only(),
    )
    found = list(outputs.values())
    return found[0] if len(found) == 1 else found


def _kernel(instructions, values, outputs, count, block):
    lines = []
    for name, array in values.items():
        lines += [*_declare(name, array.dtype), *_address(name, name, array.dtype)]
        lines += _load(name, array.dtype)
    for name, array in outputs.items():
        lines += [] if name in values else _declare(name, array.dtype)
    lines.append(instructions.rstrip(";") + ";")
    for name, array in outputs.items():
        lines += _address(f"{name}_out", name, array.dtype) + _store(name, array.dtype)
    names = [*values, *(f"{name}_out" for name in outputs)]
    parameters = ", ".join(f".param .u64 arg_{name}" for name in names)
    body = "\n    ".join(lines)
    return _FRAME.format(parameters=parameters, body=body, count=count, block=block)


_FRAME = """.version 8.5
.target sm_90
.address_size 64
.visible .entry test({parameters})
{{
    .reg .b64 %base, %at;
    .reg .b32 %index, %thread, %block, %byte;
    .reg .b16 %short;
    .reg .pred %beyond;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.s32 %index, %block, {block}, %thread;
    setp.ge.u32 %beyond, %index, {count};
    @%beyond bra $end;
    {body}
$end:
    ret;
}}
"""


def _declare(name, dtype):
    kind = "pred" if dtype.kind == "b" else f"b{8 * max(dtype.itemsize, 2)}"
    return [f".reg .{kind} {name};"]


def _address(parameter, name, dtype):
    return [
        f"ld.param.u64 %base, [arg_{parameter}];",
        f"mad.wide.u32 %at, %index, {dtype.itemsize}, %base;",
    ]


def _load(name, dtype):
    if dtype.kind == "b":
        return ["ld.global.u8 %short, [%at];", f"setp.ne.u16 {name}, %short, 0;"]
    return [f"ld.global.u{8 * dtype.itemsize} {name}, [%at];"]


def _store(name, dtype):
    if dtype.kind == "b":
        return [f"selp.u16 %short, 1, 0, {name};", "st.global.u8 [%at], %short;"]
    return [f"st.global.u{8 * dtype.itemsize} [%at], {name};"]
