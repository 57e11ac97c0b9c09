"""``wgmma`` against NumPy, and what kernels do wrong with it."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from sdpakit import ptxemu
from sdpakit.ptxemu import fragments
from sdpakit.ptxemu.elements import ELEMENTS

HEADER = ".version 8.4\n.target sm_90a\n.address_size 64\n"
SWIZZLES = {"none": (0, 16), "128B": (1, 128), "64B": (2, 64), "32B": (3, 32)}


def places(rows, depth, size, field, *, mn_major):
    """Where the elements of a matrix are in shared memory by the PTX ISA: (rows, depth)."""
    start, leading, stride, swizzle = field
    pitch = SWIZZLES[swizzle][1]
    row, k = np.ogrid[:rows, :depth]
    run = 16 // size  # elements of a row of a core matrix
    if mn_major and swizzle == "none":
        plain = row % run * size + row // run * stride + k % 8 * 16 + k // 8 * leading
    elif mn_major:
        across = pitch // size
        plain = row % across * size + row // across * leading + k % 8 * pitch + k // 8 * stride
    else:
        second = leading if swizzle == "none" else 16
        plain = row % 8 * pitch + row // 8 * stride + k // run * second + k % run * size
    plain = plain + start
    return plain ^ (plain >> 7 & pitch // 16 - 1) << 4


def descriptor(field):
    start, leading, stride, swizzle = field
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[swizzle][0] << 62


def random_raw(kind, shape, rng):
    if kind in {"s8", "u8"}:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if kind in {"e4m3", "e5m2"}:
        return rng.integers(0, 2, shape, dtype=np.uint8) << 7 | rng.integers(
            0, 0x40, shape, dtype=np.uint8
        )
    if kind == "s32":
        return rng.integers(-1000, 1000, shape, dtype=np.int32).view(np.uint32)
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    return (bits >> 16).astype(np.uint16) if kind == "bf16" else bits


@dataclass
class Case:
    """A kernel whose warpgroups add two products (two steps along k) to an accumulator."""

    columns: int = 16
    kinds: tuple = ("f32", "f16", "f16")
    swizzle: str = "128B"
    mn_major: tuple = (False, False)
    registers: bool = False  # A
    signs: tuple = (1, 1)
    adds: bool = True
    groups: int = 2
    blocks: int = 2
    tile: int = 32768  # bytes of shared memory of a warpgroup
    more: int = 0  # bytes after those, which nobody writes
    before: str = "wgmma.fence.sync.aligned;"
    between: str = ""
    after: str = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    stored: str = "fence.proxy.async; bar.sync 0;"
    late: str = ""
    first_predicate: str = ""
    options: dict = field(default_factory=dict)

    @property
    def depth(self):
        return 32 // ELEMENTS[self.kinds[1]].size

    @property
    def layouts(self):
        return (
            fragments.warpgroup_accumulator(self.columns, self.depth, self.kinds[0]),
            fragments.warpgroup_left(self.depth, self.kinds[1]),
        )

    def fields(self):
        """Descriptors of A and B, for both steps along k: as (start, leading, stride, swizzle)."""
        pitch = SWIZZLES[self.swizzle][1]
        found = []
        for number, (rows, mn_major) in enumerate(
            zip((64, self.columns), self.mn_major, strict=True)
        ):
            size = ELEMENTS[self.kinds[1 + number]].size
            columns = -(-rows * size // pitch)
            for step in range(2):
                start = number * 16384 + step * 8192
                if mn_major and self.swizzle == "none":
                    found.append((start, 128 * -(-rows // 8), 128, "none"))
                elif mn_major:
                    found.append((start, 2 * 8 * pitch, 8 * pitch, self.swizzle))
                    assert columns * 16 * pitch <= 8192
                elif self.swizzle == "none":
                    found.append((start, 128 * -(-rows // 8), 128, "none"))
                else:
                    found.append((start, 16, 8 * pitch, self.swizzle))
        return found[0:2], found[2:4]

    def text(self):
        result, left, right = self.kinds
        layout, a_layout = self.layouts
        d = ", ".join(f"%d{i}" for i in range(layout.registers))
        scales = "" if result == "s32" else f", {self.signs[0]}, {self.signs[1]}"
        majors = ""
        if self.kinds[1] in {"f16", "bf16"}:
            chosen = self.mn_major[1:] if self.registers else self.mn_major
            majors = "".join(f", {int(m)}" for m in chosen)
        name = (
            f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{self.depth}.{result}.{left}.{right}"
        )
        count = a_layout.registers

        def product(step):
            a = ", ".join(f"%a{step * count + i}" for i in range(count))
            operand = f"{{{a}}}" if self.registers else f"%w{step}"
            predicate = "%p0" if step == 0 else "%p1"
            return f"{name} {{{d}}}, {operand}, %w{2 + step}, {predicate}{scales}{majors};"

        def transfer(kind, number, register, parameter, index):
            """Words of this thread: register after register, all threads side by side."""
            lines = [f"ld.param.u64 %w6, [{parameter}]; mad.wide.u32 %w6, %x3, 4, %w6;"]
            for i in range(number):
                move = f"ld.global.b32 %{register}{index + i}, [%w6];"
                if kind == "st":
                    move = f"st.global.b32 [%w6], %{register}{index + i};"
                lines.append(f"{move} mad.wide.u32 %w6, %x5, 4, %w6;")
            return "\n".join(lines)

        words = self.tile * self.groups // 4 // (128 * self.groups)
        return f"""{HEADER}
.extern .shared .align 1024 .b8 tile[];
.visible .entry k(.param .u64 ptile, .param .u64 pdesc, .param .u64 pa, .param .u64 pd,
  .param .u64 pout, .param .u32 adds)
{{
.reg .b32 %x<16>; .reg .b64 %w<8>; .reg .pred %p<4>;
.reg .b32 %a<{2 * count}>; .reg .b32 %d<{layout.registers}>;
mov.u32 %x0, %tid.x; mov.u32 %x1, %ctaid.x; mov.u32 %x2, %ntid.x;
mad.lo.u32 %x3, %x1, %x2, %x0; mov.u32 %x4, %nctaid.x; mul.lo.u32 %x5, %x4, %x2;
mov.u32 %x6, tile; mad.lo.u32 %x6, %x0, 4, %x6;
ld.param.u64 %w0, [ptile]; mul.lo.u32 %x7, %x1, {self.tile * self.groups}; cvt.u64.u32 %w1, %x7;
add.u64 %w0, %w0, %w1; mad.wide.u32 %w0, %x0, 4, %w0;
mov.u32 %x8, 0;
LOOP:
ld.global.b32 %x9, [%w0]; st.shared.b32 [%x6], %x9;
mad.wide.u32 %w0, %x2, 4, %w0; mad.lo.u32 %x6, %x2, 4, %x6;
add.u32 %x8, %x8, 1; setp.lt.u32 %p2, %x8, {words}; @%p2 bra LOOP;
{transfer("ld", 2 * count, "a", "pa", 0)}
{transfer("ld", layout.registers, "d", "pd", 0)}
shr.u32 %x10, %x3, 7; ld.param.u64 %w6, [pdesc]; mad.wide.u32 %w6, %x10, 32, %w6;
ld.global.b64 %w0, [%w6]; ld.global.b64 %w1, [%w6+8];
ld.global.b64 %w2, [%w6+16]; ld.global.b64 %w3, [%w6+24];
ld.param.u32 %x11, [adds]; setp.ne.u32 %p0, %x11, 0; setp.eq.u32 %p1, %x2, %x2;
{self.stored}
{self.first_predicate}
{self.before}
{product(0)}
{self.between}
{product(1)}
{self.after}
{self.late}
{transfer("st", layout.registers, "d", "pout", 0)}
ret;
}}"""

    def inputs(self, seed=0):
        rng = np.random.default_rng(seed)
        count = self.groups * self.blocks
        result, left, right = self.kinds
        a = random_raw(left, (count, 2, 64, self.depth), rng)
        b = random_raw(right, (count, 2, self.columns, self.depth), rng)
        return a, b, random_raw(result, (count, 64, self.columns), rng)

    def run(self, operands=None, **options):
        """Return raw D of each warpgroup, and the report."""
        a, b, d = operands or self.inputs()
        count, layout, a_layout = len(a), *self.layouts
        tiles = np.zeros((count, self.tile), np.uint8)
        descriptors = np.zeros((count, 2, 2), np.uint64)
        for number, (fields, matrices) in enumerate(zip(self.fields(), (a, b), strict=True)):
            size = matrices.dtype.itemsize
            for step, of in enumerate(fields):
                where = places(
                    matrices.shape[2], self.depth, size, of, mn_major=self.mn_major[number]
                )
                words = tiles.view(matrices.dtype)
                words[:, where // size] = matrices[:, step]
                for group in range(
                    count
                ):  # the warpgroups of a block have their tiles side by side
                    moved = (of[0] + group % self.groups * self.tile, *of[1:])
                    descriptors[group, number, step] = descriptor(moved)
        out = np.zeros((layout.registers, count * 128), np.uint32)
        arguments = [
            tiles.view(np.uint32),
            descriptors,
            np.concatenate([self._registers(a_layout, a[:, step]) for step in range(2)]),
            self._registers(layout, d),
            ptxemu.Output(out),
            int(self.adds),
        ]
        report = ptxemu.launch(
            self.text(),
            self.blocks,
            128 * self.groups,
            arguments,
            shared=self.tile * self.groups + self.more,
            **{**self.options, **options},
        )
        values = np.ascontiguousarray(out.T).view(ELEMENTS[self.kinds[0]].raw)
        matrices = np.empty((count, 64, self.columns), values.dtype)
        matrices[:, layout.rows, layout.columns] = values.reshape(count, *layout.rows.shape)
        return matrices, report

    @staticmethod
    def _registers(layout, matrices):
        values = np.ascontiguousarray(matrices[:, layout.rows, layout.columns])
        return np.ascontiguousarray(values.view(np.uint32).reshape(-1, layout.registers).T)

    def check(self):
        operands = self.inputs()
        found, report = self.run(operands)
        a, b, d = (
            ELEMENTS[kind].decode(raw).astype(np.float64)
            for kind, raw in zip((*self.kinds[1:], self.kinds[0]), operands, strict=True)
        )
        sign = self.signs[0] * self.signs[1]
        products = sign * (a @ b.swapaxes(2, 3))
        sizes = np.abs(a) @ np.abs(b).swapaxes(2, 3)
        exact = products.sum(axis=1) + d * self.adds
        size = sizes.sum(axis=1) + np.abs(d)
        unit = {"f16": 2.0**-11, "f32": 2.0**-24, "s32": 0}[self.kinds[0]]
        # Each step adds depth + 1 numbers in float32, and rounds to the accumulator's type.
        bound = (
            2 * (self.depth + 1) * 2.0**-24 * size * (unit > 0)
            + 2 * unit * size
            + 2.0**-24 * (self.kinds[0] == "f16")
        )
        values = ELEMENTS[self.kinds[0]].decode(found).astype(np.float64)
        assert (np.abs(values - exact) <= bound).all()
        assert report.counters.matrix_flops == len(a) * 2 * 2 * 64 * self.columns * self.depth


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("mn_major", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_operands_in_shared_memory(swizzle, mn_major, kind):
    Case(columns=64, swizzle=swizzle, mn_major=mn_major, kinds=("f32", kind, kind)).check()


@pytest.mark.parametrize("mn_major", [(False, False), (False, True)])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_in_registers(mn_major, kind):
    Case(columns=32, mn_major=mn_major, kinds=("f32", kind, kind), registers=True).check()


@pytest.mark.parametrize("columns", [8, 24, 128, 256])
def test_number_of_columns(columns):
    Case(columns=columns, swizzle="32B").check()


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        ("f16", "f16", "f16"),
        ("f32", "tf32", "tf32"),
        ("f32", "e4m3", "e5m2"),
        ("f16", "e5m2", "e5m2"),
        ("s32", "s8", "u8"),
        ("s32", "u8", "u8"),
    ],
)
def test_other_types(kinds, registers):
    Case(columns=32, kinds=kinds, swizzle="64B", registers=registers).check()


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_signs_of_operands(signs):
    Case(signs=signs).check()


def test_without_adding_what_was_in_the_registers():
    Case(adds=False).check()
    Case(adds=False, kinds=("s32", "s8", "s8")).check()


def test_warpgroups_may_differ_in_whether_they_add():
    # Of the two warpgroups of a block, only the second adds.
    case = Case(first_predicate="setp.ge.u32 %p0, %x0, 128;")
    a, b, d = case.inputs()
    found, _ = case.run((a, b, d))
    exact = (
        a.view(np.float16).astype(np.float64) @ b.view(np.float16).astype(np.float64).swapaxes(2, 3)
    ).sum(axis=1)
    exact[1::2] += d.view(np.float32)[1::2]
    assert np.allclose(found.view(np.float32), exact, rtol=0, atol=1e-4)


def test_results_appear_when_they_are_waited_for():
    """Without the check, a kernel that does not wait sees what was there before."""
    case = Case(after="wgmma.commit_group.sync.aligned;", options={"checks": ptxemu.Checks.only()})
    operands = case.inputs()
    found, _ = case.run(operands)
    assert np.array_equal(found, operands[2])


def test_groups_are_waited_for_in_order():
    """The second product adds to the accumulator of the first, in a group of its own."""
    commit = "wgmma.commit_group.sync.aligned;"
    wait = "wgmma.wait_group.sync.aligned"
    Case(between=commit, after=f"{commit} {wait} 1; {wait} 0;").check()
    with pytest.raises(ptxemu.AccumulatorInFlight):
        Case(between=commit, after=f"{commit} {wait} 1;").check()


# ---------------------------------------------------------------------------- what kernels do wrong


def test_reading_an_accumulator_in_flight():
    case = Case(after="wgmma.commit_group.sync.aligned; mov.b32 %x12, %d3;")
    with pytest.raises(
        ptxemu.AccumulatorInFlight, match=r"%d3 belongs to a wgmma in flight"
    ) as info:
        case.run()
    assert "mov.b32 %x12, %d3" in info.value.text
    assert "wait_group" in info.value.remedy


def test_reading_an_accumulator_in_flight_in_another_block():
    case = Case(after="wgmma.commit_group.sync.aligned; bar.sync 0; mov.b32 %x12, %d3;")
    with pytest.raises(ptxemu.AccumulatorInFlight, match="%d3"):
        case.run()
    waits = "setp.eq.b32 %p3, %d3, 0; @%p3 bra.uni NEXT; NEXT:"
    with pytest.raises(ptxemu.AccumulatorInFlight, match="%d3"):
        Case(after=f"wgmma.commit_group.sync.aligned; bar.sync 0; {waits}").run()


def test_writing_an_accumulator_in_flight():
    case = Case(between="mov.b32 %d0, 0;")
    with pytest.raises(ptxemu.AccumulatorInFlight, match="%d0"):
        case.run()


def test_fragments_of_a_in_flight_may_be_read_but_not_written():
    Case(registers=True, between="mov.b32 %x12, %a0;").check()
    case = Case(registers=True, between="mov.b32 %a0, 0;")
    with pytest.raises(ptxemu.AccumulatorInFlight, match="%a0"):
        case.run()


def test_registers_of_another_warpgroup_in_flight_do_not_matter():
    """The first warpgroup has waited, and uses its registers while the second has not."""
    late = """setp.ge.u32 %p3, %x0, 128; @%p3 bra SECOND;
    wgmma.wait_group.sync.aligned 0;
    bar.arrive 1, 256;
    mov.b32 %x12, %d0;
    bra DONE;
    SECOND: bar.sync 1, 256;
    wgmma.wait_group.sync.aligned 0;
    DONE:"""
    Case(after="wgmma.commit_group.sync.aligned;", late=late).check()


def test_a_kernel_that_ends_without_waiting():
    for after, problem in (
        ("wgmma.commit_group.sync.aligned; exit;", "ended with this product in flight$"),
        ("exit;", "not even committed"),
    ):
        with pytest.raises(ptxemu.AccumulatorInFlight) as info:
            Case(after=after).run()
        assert info.match(problem.rstrip("$"))
        assert "mma_async" in info.value.text


def test_no_fence_before_the_first_product():
    with pytest.raises(ptxemu.AccumulatorInFlight, match=r"no wgmma\.fence before its first"):
        Case(before="").run()
    Case(before="", options={"checks": ptxemu.Checks(accumulator=False)}).check()


WAIT = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
FENCE = "wgmma.fence.sync.aligned;"


def test_no_fence_after_other_use_of_the_accumulator():
    changed = "mov.b32 %d0, 0;"
    with pytest.raises(ptxemu.AccumulatorInFlight, match="registers of the accumulator were used"):
        Case(between=WAIT + changed).run()
    Case(between=WAIT + changed + FENCE).run()
    Case(between=WAIT).check()  # nobody touched it


def test_a_product_anew_without_a_fence():
    again = "setp.ne.u32 %p1, %x2, %x2;"
    with pytest.raises(ptxemu.AccumulatorInFlight, match="registers of the accumulator were used"):
        Case(between=WAIT + again).run()
    Case(between=WAIT + again + FENCE).run()


def test_an_accumulator_that_overlaps_one_in_flight():
    other = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {%d4, %d5, %d6, %d7}, %w0, %w2, %p1, 1, 1, 0, 0;"""
    with pytest.raises(ptxemu.AccumulatorInFlight, match="accumulators overlap"):
        Case(between=other).run()
    Case(between=WAIT + FENCE + other + WAIT + FENCE).run()


def test_a_that_is_an_accumulator_in_flight():
    other = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {%a0, %a1, %a2, %a3}, {%d4, %d5, %d6, %d7}, %w2, %p1, 1, 1, 0;"""
    with pytest.raises(ptxemu.AccumulatorInFlight, match="A is the accumulator"):
        Case(between=other).run()


def test_descriptors_that_differ_in_a_warpgroup():
    by_warp = (
        "and.b32 %x12, %x0, 32; cvt.u64.u32 %w7, %x12; shl.b64 %w7, %w7, 1; xor.b64 %w2, %w2, %w7;"
    )
    with pytest.raises(ptxemu.Divergence, match="a descriptor is") as info:
        Case(first_predicate=by_warp).run()
    assert info.value.thread == 32


def test_part_of_a_warpgroup():
    skip = "setp.ge.u32 %p3, %x0, 96; @%p3 bra SKIP;"
    with pytest.raises(ptxemu.Divergence, match="96 of the 128 threads of warpgroup 0"):
        Case(groups=1, first_predicate=skip, late="SKIP:").run()


def test_shared_memory_that_nobody_wrote():
    with pytest.raises(ptxemu.UninitialisedRead):
        Case(groups=1, more=32768, first_predicate="add.u64 %w3, %w3, 1024;").run()


def test_operands_out_of_bounds():
    with pytest.raises(ptxemu.OutOfBounds):
        Case(groups=1, first_predicate="add.u64 %w3, %w3, 1024;").run()


def test_stores_without_a_proxy_fence():
    with pytest.raises(ptxemu.MissingProxyFence):
        Case(stored="bar.sync 0;").run()
    Case(stored="bar.sync 0;", options={"checks": ptxemu.Checks(proxy=False)}).check()


def test_stores_without_a_barrier():
    with pytest.raises(ptxemu.Race):
        Case(stored="fence.proxy.async;").run()


def test_an_operand_overwritten_while_it_is_read():
    store = "st.shared.b32 [tile], %x0;"
    with pytest.raises(ptxemu.Race):
        Case(groups=1, between=store).run()
    alone = f"setp.eq.u32 %p3, %x0, 0; @%p3 {store}"
    Case(groups=1, after=f"{WAIT} bar.sync 0; {alone}").check()


def test_setmaxnreg_wants_whole_warpgroups_and_counts_that_ptx_allows():
    Case(first_predicate="setmaxnreg.inc.sync.aligned.u32 240;").check()
    with pytest.raises(ptxemu.UnsupportedInstruction, match="multiple of 8"):
        Case(first_predicate="setmaxnreg.dec.sync.aligned.u32 20;").run()
    skip = "setp.ge.u32 %p3, %x0, 64; @%p3 bra SKIP; setmaxnreg.dec.sync.aligned.u32 24; SKIP:"
    with pytest.raises(ptxemu.Divergence):
        Case(groups=1, first_predicate=skip).run()


def test_setmaxnreg_of_more_registers_than_there_are():
    ask = "setmaxnreg.inc.sync.aligned.u32 {};"
    Case(first_predicate=ask.format(256)).check()  # 2 warpgroups: all there are
    with pytest.raises(ptxemu.Deadlock, match="98304 registers together, of the 65536"):
        Case(groups=3, first_predicate=ask.format(256)).run()
    Case(groups=3, first_predicate=ask.format(168)).check()


def test_warpgroups_may_go_apart_in_the_middle_of_a_chain():
    """Both issue the first product together; the second one each at a place of its own."""
    part = """setp.ge.u32 %p3, %x0, 128; @%p3 bra SECOND;
    add.u32 %x12, %x12, 1;"""
    join = """bra TOGETHER;
    SECOND: bar.sync 1, 128;
    PRODUCT
    TOGETHER:"""
    case = Case(between=part)
    second = [line for line in case.text().splitlines() if line.startswith("wgmma.mma_async")][1]
    Case(between=part, after=join.replace("PRODUCT", second) + WAIT).check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "m64n12k16"),
        ("m64n16k16", "m64n16k8"),
        ("f32.f16.f16", "f32.f16.bf16"),
        ("f32.f16.f16", "s32.f16.f16"),
        (", 1, 1, 0, 0;", ", 1, 1, 0;"),
        (", 1, 1, 0, 0;", ", 1, 2, 0, 0;"),
        ("mma_async.sync", "mma_async.sp.sync"),
    ],
)
def test_forms_that_are_lacking_are_refused_when_the_kernel_is_built(old, new):
    text = Case().text()
    assert old in text
    with pytest.raises(ptxemu.UnsupportedInstruction, match="the emulator has no"):
        ptxemu.launch(text.replace(old, new), 1, 256, [np.zeros(1, np.uint32)] * 5 + [0])
