"""Functions of a kernel module: arguments are int64 with names, and nothing is ever thrown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from sdpakit.backends.numba_cpu.irtypes import I64, IrType, Value


def new_module(name: str) -> Any:
    """Return an empty module; in a context of its own, so that its text is always the same."""
    return ir.Module(name=name, context=ir.Context())


def declare(module: Any, name: str, result: IrType, arguments: Sequence[IrType]) -> Value:
    """Return the function of the module with that name, declared if it was not."""
    found = module.globals.get(name)
    return found or ir.Function(module, ir.FunctionType(result, list(arguments)), name)


def new_function(
    module: Any,
    name: str,
    arguments: Sequence[str],
    *,
    result: IrType = I64,
    private: bool = False,
) -> Any:
    """Return an IRBuilder at the entry of a new function.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the function goes.
    name : str
        Its name.
    arguments : sequence of str
        Names of its int64 arguments.
    result : llvmlite.ir.Type
        What it returns.
    private : bool
        Whether only this module calls it.
    """
    function = ir.Function(module, ir.FunctionType(result, [I64] * len(arguments)), name)
    function.attributes.add("nounwind")
    if private:
        function.linkage = "internal"
    for argument, text in zip(function.args, arguments, strict=True):
        argument.name = text
    return ir.IRBuilder(function.append_basic_block("entry"))
