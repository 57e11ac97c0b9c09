"""Code of Numba-CUDA becomes machine code, as PTX or as a whole program."""

import numpy as np
import pytest
from tests.gpu.presence import refuse

from sdpakit.backends.gpu.compiling import link_ltoir, link_ptx
from sdpakit.backends.gpu.gates import HasInstructions, NoLocalMemory, NoLostSpeed, NoSpills, judge

# NumPy 2.5 has no row_stack, which numba-cuda 0.30 wants; its compiler warns of generic timedelta.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ARCH = "sm_90a"


@pytest.fixture
def kernel(tools, monkeypatch):
    """A kernel that gives registers back, its signature, and options of Numba's compiler."""
    try:
        from numba import cuda
        from numba.cuda.extending import intrinsic
    except ImportError as error:
        refuse(f"numba-cuda is not installed: {error}")
    if not hasattr(np, "row_stack"):
        monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)
    from llvmlite import ir
    from numba import types

    @intrinsic
    def give_back(typing_context):
        def emit(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.VoidType(), [])
            text = "setmaxnreg.dec.sync.aligned.u32 40;"
            builder.call(ir.InlineAsm(kind, text, "", side_effect=True), [])
            return context.get_dummy_value()

        return types.void(), emit

    def double(out, x, n):
        give_back()
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i] + x[i]

    signature = types.void(types.float32[::1], types.float32[::1], types.int32)
    return cuda, double, signature, {"cc": (9, 0, "a"), "launch_bounds": (128, 1)}


def test_ptx_becomes_code_whose_setmaxnreg_is_ignored(kernel):
    cuda, function, signature, options = kernel
    ptx, _ = cuda.compile_ptx(function, signature, **options)
    module = link_ptx(ptx, ARCH)
    assert judge(module, [NoSpills(), NoLocalMemory(), HasInstructions("STG")]) == []
    (finding,) = judge(module, [NoLostSpeed()])
    assert "link LTO-IR in place of PTX" in finding.remedy
    assert judge(module, [HasInstructions("USETMAXREG")])


def test_ltoir_becomes_code_that_has_it(kernel):
    cuda, function, signature, options = kernel
    ltoir, _ = cuda.compile(
        function, signature, output="ltoir", device=False, abi="numba", **options
    )
    module = link_ltoir(ltoir, ARCH)
    assert judge(module, [NoSpills(), NoLocalMemory(), NoLostSpeed()]) == []
    assert judge(module, [HasInstructions("USETMAXREG"), HasInstructions("STG")]) == []
    assert f".target {ARCH}" in module.ptx
    assert "setmaxnreg.dec.sync.aligned.u32" in module.ptx
    (name,) = module.report.kernels
    assert f".visible .entry {name}(" in module.ptx
