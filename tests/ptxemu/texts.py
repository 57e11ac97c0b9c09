"""PTX for tests: a kernel around a few lines."""

REGISTERS = """
  .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %rd<32>;
  .reg .f32 %f<32>; .reg .f64 %fd<32>;
"""


def kernel(parameters, body, *, name="k", target="sm_90a", module="", directives=""):
    """Return a module with one kernel; all common registers are declared."""
    return (
        f".version 8.4\n.target {target}\n.address_size 64\n{module}\n"
        f".visible .entry {name}({parameters}) {directives}\n{{{REGISTERS}{body}\nret;\n}}\n"
    )


# Of each thread: its number in %r0, x in %rd0, y in %rd1.
POINTERS = ".param .u64 x, .param .u64 y"
START = """
  ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [y]; mov.u32 %r0, %tid.x;
"""


def copying(body, *, width=4, **options):
    """Return a kernel of two pointers; %rd2 and %rd3 are x and y + `width` * thread."""
    lines = f"""{START}
      mul.wide.u32 %rd4, %r0, {width};
      add.u64 %rd2, %rd0, %rd4; add.u64 %rd3, %rd1, %rd4;
    """
    return kernel(POINTERS, lines + body, **options)
