"""What NVRTC, nvJitLink and nvdisasm 13.5.37 printed for kernels of `sources`."""

from pathlib import Path

from sdpakit.backends.gpu.architectures import architecture
from sdpakit.backends.gpu.compiling import CompiledModule
from sdpakit.backends.gpu.resources import Frame, Report, Resources, read_report

DATA = Path(__file__).parent / "data"
NO_FRAME = Frame(0, 0, 0)


def text(name):
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def module(arch, log):
    return CompiledModule(architecture(arch), "", b"", log, read_report(log))


def module_of(arch, **registers):
    """A module of kernels with so many registers and nothing else."""
    kernels = {name: Resources(count, NO_FRAME, 0, 0, 0) for name, count in registers.items()}
    return CompiledModule(architecture(arch), "", b"", "", Report(kernels, {}, ()))
