"""The cost model: which tiles it chooses, what it counts, how it moves, what `explain` shows."""

import re
from dataclasses import replace

import numpy as np
import pytest

import sdpakit as sk
from sdpakit.backends.numba_cpu import machine
from sdpakit.backends.numba_cpu.costs import choice
from sdpakit.backends.numba_cpu.costs.choice import USUAL_KEYS, Widths
from sdpakit.backends.numba_cpu.costs.counts import loop_work
from sdpakit.backends.numba_cpu.isa import Isa, available_isas, select_isa
from sdpakit.backends.numba_cpu.lower import lower
from sdpakit.backends.numba_cpu.machine import Caches, caches, core

ISAS = {
    "avx512": Isa("avx512", 64, 32, True, True, True, True, "skylake-avx512", ""),
    "avx2": Isa("avx2", 32, 16, True, True, True, False, "x86-64-v3", ""),
    "neon": Isa("neon", 16, 32, True, True, True, False, "neoverse-n1", ""),
    "baseline": Isa("baseline", 16, 16, False, False, False, False, "x86-64", ""),
}
KIB = 1 << 10
MACHINES = {
    "small": Caches(16 * KIB, 128 * KIB, 1024 * KIB, "test"),
    "client": Caches(32 * KIB, 256 * KIB, 8192 * KIB, "test"),
    "server": Caches(32 * KIB, 1024 * KIB, 32768 * KIB, "test"),
    "large": Caches(128 * KIB, 16384 * KIB, 16384 * KIB, "test"),
}
LENGTHS = (64, 128, 512, 2048)


def widths(isa, head_dim, esz=4, v_head_dim=None):
    return Widths(ISAS[isa], esz, head_dim, head_dim if v_head_dim is None else v_head_dim)


def expected(q_len=512, kv_len=None, batch=1, **fields):
    spec = sk.AttentionSpec(**({"q_heads": 4, "head_dim": 64} | fields))
    kernel = sk.compile(spec, backend="numba_cpu")
    return kernel.explain(batch=batch, q_len=q_len, kv_len=kv_len, threads=1)["expected"]


# ------------------------------------------------------------------ the machine


def describe(folder, *levels):
    for n, (level, kind, size) in enumerate(levels):
        index = folder / f"index{n}"
        index.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{text}\n", encoding="ascii")


def test_cache_sizes_are_those_of_the_system(tmp_path, monkeypatch):
    describe(
        tmp_path,
        (1, "Data", "48K"),
        (1, "Instruction", "64K"),
        (2, "Unified", "2M"),
        (3, "Unified", "30720K"),
    )
    monkeypatch.setattr(machine, "_SYSFS", tmp_path)
    found = machine.caches.__wrapped__()
    assert found == Caches(48 * KIB, 2048 * KIB, 30720 * KIB, str(tmp_path))


@pytest.mark.parametrize(
    "levels", [(), ((1, "Data", "32K"),), ((1, "Data", "none"), (2, "Unified", "0K"))]
)
def test_a_system_that_does_not_say_is_taken_for_a_small_one(tmp_path, monkeypatch, levels):
    describe(tmp_path, *levels)
    monkeypatch.setattr(machine, "_SYSFS", tmp_path)
    monkeypatch.setattr(machine, "_sysctl_sizes", lambda: iter(()))
    assert machine.caches.__wrapped__() == machine.FALLBACK


@pytest.mark.parametrize("name", ["level", "type", "size"])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path, monkeypatch, name):
    describe(tmp_path, (1, "Data", "32K"), (2, "Unified", "1M"))
    broken = tmp_path / "index1" / name
    broken.unlink()
    broken.symlink_to(broken.name)  # whoever reads it gets an OSError
    monkeypatch.setattr(machine, "_SYSFS", tmp_path)
    assert machine.caches.__wrapped__() == machine.FALLBACK


def test_a_system_that_is_not_posix_is_asked_for_nothing_that_it_lacks(monkeypatch):
    """There `ctypes.CDLL(None)` raises TypeError."""
    monkeypatch.setattr(machine.os, "name", "nt")
    monkeypatch.setattr(machine.ctypes, "CDLL", None)
    assert list(machine._sysctl_sizes()) == []


def test_every_isa_has_a_core():
    for name in available_isas():
        assert core(select_isa(name)).arithmetic >= 1
    assert core(replace(ISAS["avx2"], cpu="znver3")).adds_apart


# ------------------------------------------------------------------ the choice


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("head_dim", [1, 64, 80, 128, 256, 1024])
@pytest.mark.parametrize("esz", [4, 8])
def test_a_chosen_tile_fits_the_caches_or_is_the_shortest(isa, sizes, head_dim, esz):
    shape = widths(isa, head_dim, esz)
    rows = ISAS[isa].tile()[0]
    tile = choice.chosen(shape, core(ISAS[isa]), sizes)
    assert tile.keys % rows == 0
    weights, pair = tile.keys * shape.row_bytes, tile.keys * shape.key_bytes
    fits = weights <= 3 * sizes.l1 // 4 and pair <= sizes.l2 // 2
    assert fits == (not tile.obstacle)
    if not fits:
        assert tile.keys == rows
        assert all(t.obstacle for t in choice.candidates(shape, core(ISAS[isa]), sizes))


def test_the_choice_is_a_function_of_the_machine():
    shape = widths("avx512", 256, 8)
    first = {name: choice.chosen(shape, core(ISAS["avx512"]), m) for name, m in MACHINES.items()}
    choice.chosen.cache_clear()
    again = {name: choice.chosen(shape, core(ISAS["avx512"]), m) for name, m in MACHINES.items()}
    assert first == again
    keys = [first[name].keys for name in MACHINES]
    assert keys == sorted(keys)  # larger caches, longer tiles
    assert keys[0] < keys[-1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_the_usual_tile_stays_where_it_fits(isa, head_dim):
    """Bits depend on the tile: machines differ only where it is worth it."""
    for sizes in (MACHINES["server"], MACHINES["large"]):
        assert choice.chosen(widths(isa, head_dim), core(ISAS[isa]), sizes).keys == USUAL_KEYS


@pytest.mark.parametrize("isa", ISAS)
def test_the_register_tile_is_nearly_the_best_there_is(isa):
    shares = choice.register_tiles(ISAS[isa], core(ISAS[isa]))
    assert shares[ISAS[isa].tile()] >= max(shares.values()) - 0.005
    assert all(rows * v + v < ISAS[isa].registers for rows, v in shares)


def test_the_chosen_tile_is_named_in_the_layout_that_code_is_kept_by():
    kernel = sk.compile(sk.AttentionSpec(q_heads=1, head_dim=64), backend="numba_cpu")
    layout = kernel._artifact.meta["plan"].layout
    assert layout.block_kv_wish == layout.block_kv == choice.block_kv(layout.widths)


def test_other_caches_give_other_code(monkeypatch):
    """The layout, by which code is kept, says what was chosen."""
    spec = sk.AttentionSpec(q_heads=1, head_dim=64)
    program = sk.compile(spec, backend="interp")._artifact.program
    found = {}
    for name in ("small", "server"):
        monkeypatch.setattr(choice, "caches", lambda name=name: MACHINES[name])
        found[name] = lower(program, {})
    plans = {name: artifact.meta["plan"] for name, artifact in found.items()}
    assert plans["small"].layout.block_kv < plans["server"].layout.block_kv
    assert plans["small"].layout != plans["server"].layout
    assert found["small"].key != found["server"].key


# ------------------------------------------------------------------ what is counted

LOOP = """
define void @"f"(i64 %"p", i64 %"n")
{
entry:
  %"base" = fptrunc double 0x3ff0000000000000 to float
  br label %"rows"
rows:
  %"i" = phi  i64 [0, %"entry"], [%"step", %"rows"]
  %"top" = phi  <16 x float> [splat (float 0x0), %"entry"], [%"most", %"rows"]
  %"at" = getelementptr inbounds i8, ptr null, i64 %"i"
  %"x" = load <16 x float>, ptr %"at", align 4
  %"one" = load float, ptr %"at", align 4
  %"in" = insertelement <16 x float> <float undef, float undef>, float %"one", i32 0
  %"all" = shufflevector <16 x float> %"in", <16 x float> %"in", <16 x i32> <i32 0, i32 0>
  %"fixed" = fmul <16 x float> splat (float 0x0), splat (float 0x0)
  %"y" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"x", <16 x float> %"all")
  %"wide" = sitofp <16 x i64> %"y" to <16 x double>
  %"quotient" = fdiv <16 x float> %"y", %"x"
  %"more" = fcmp ogt <16 x float> %"quotient", %"top"
  %"most" = select  <16 x i1> %"more", <16 x float> %"quotient", <16 x float> %"top"
  call void @"llvm.prefetch.p0"(ptr %"at", i32 0, i32 3, i32 1)
  store <16 x float> %"y", ptr %"at", align 4
  %"step" = add nuw nsw i64 %"i", 1
  %"again" = icmp slt i64 %"step", %"n"
  br i1 %"again", label %"rows", label %"end"
end:
  ret void
}
"""


def test_what_a_round_needs_is_counted_and_nothing_else():
    work = loop_work(LOOP, 64)["f:rows"]
    assert work.loads == 3  # the vector, the broadcast, the prefetch
    assert work.stores == 1
    assert work.shuffles == 0
    assert work.divisions == 1
    assert work.adds == 1  # a maximum is one instruction
    assert work.arithmetic == 1 + 2  # a product; a conversion of two registers
    assert work.logic == 0
    assert work.scalars == 2
    assert work.depth >= 4
    assert loop_work(LOOP, 32)["f:rows"].loads == 4


def test_the_busiest_part_of_a_core_decides():
    work, skylake = loop_work(LOOP, 64)["f:rows"], core(ISAS["avx512"])
    assert work.cycles(skylake, double=False) >= skylake.division[0]
    assert work.cycles(skylake, double=True) >= skylake.division[1]
    assert work.cycles(replace(skylake, stores=1, division=(1, 1), window=10**6), double=False) == (
        pytest.approx(2.75)  # eleven instructions, four a cycle
    )


# Loops of a step that the model counts, and those that tiles of ordinary numbers do not enter.
COUNTED = {
    "phase.exp",
    "phase.logits",
    "phase.max",
    "phase.fused",
    "fused.rest",
    "qk.d",
    "stage.blocks",
    "stage.vectors",
}
RARE = {"clear.rows", "exponents.ahead", "stage.elements", "stage.lanes"}


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mask": sk.Causal("top_left"), "outputs": ("out", "entropy")},
        {"softcap": 30.0, "bias": "float32", "dtype": "float16"},
        {"mask": sk.Dense(), "logits": sk.Alibi("slopes", align="top_left"), "dtype": "float64"},
    ],
    ids=["plain", "causal", "softcap and bias", "dense and alibi"],
)
def test_the_model_knows_every_loop_of_a_step(isa, fields):
    """A new loop has to be told to `costs/prefill.py`, or to be listed here as rare."""
    spec = sk.AttentionSpec(q_heads=1, head_dim=20, **fields)
    program = sk.compile(spec, backend="interp")._artifact.program
    text = lower(program, {"isa": isa}).stages["llvm"]
    works = loop_work(text, select_isa(isa).vector_bytes)
    loops = {name.partition(":")[2] for name in works if name.startswith("step:")}
    known = tuple(COUNTED | RARE)
    assert loops
    assert {name for name in loops if not name.startswith(known)} == set()


# ------------------------------------------------------------------ what follows


@pytest.mark.parametrize("mask", [None, sk.Causal("top_left")], ids=["full", "causal"])
def test_longer_calls_cost_more_and_use_the_core_better(mask):
    found = [expected(n, mask=mask) for n in LENGTHS]
    cycles = [facts["cycles"] for facts in found]
    assert cycles == sorted(cycles)
    per_pair = [cycles / n**2 for cycles, n in zip(cycles, LENGTHS, strict=True)]
    assert per_pair == sorted(per_pair, reverse=True)


@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [("float16", 64), ("bfloat16", 16), ("float32", 80), ("float32", 256), ("float64", 64)],
)
def test_shares_are_shares(dtype, head_dim):
    facts = expected(2048, dtype=dtype, head_dim=head_dim)
    share = float(facts["share"].partition(" %")[0])
    assert 20 < share < 100
    assert facts["cycles"] == pytest.approx(sum(facts["parts"].values()), abs=10)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("fields", [{}, {"dtype": "float64"}, {"bias": "float16"}], ids=str)
def test_products_cost_a_little_more_than_their_multiply_adds(isa, fields):
    spec = sk.AttentionSpec(q_heads=1, head_dim=64, **fields)
    kernel = sk.compile(spec, backend="numba_cpu", options={"isa": isa})
    facts = kernel.explain(q_len=1024, threads=1)["expected"]
    ideal = 4 * 1024 * 1024 * 64 / facts["peak_a_cycle"]
    assert ideal < facts["parts"]["products"] < 1.15 * ideal


def test_what_is_more_work_costs_more():
    plain, causal = expected(), expected(mask=sk.Causal("top_left"))
    assert causal["cycles"] < plain["cycles"]
    assert causal["cycles"] > 0.5 * plain["cycles"]
    for fields in (
        {"softcap": 30.0},
        {"bias": "float32"},
        {"mask": sk.Dense()},
        {"outputs": ("out", "entropy")},
    ):
        assert expected(**fields)["cycles"] > plain["cycles"], fields
    assert expected(batch=2)["cycles"] > 1.9 * plain["cycles"]
    assert expected(dtype="float64")["cycles"] > 1.8 * plain["cycles"]
    window = sk.Window(63, 0, align="top_left")
    assert expected(2048, mask=window)["cycles"] < 0.3 * expected(2048)["cycles"]


@pytest.mark.parametrize("isa", available_isas())
def test_every_product_of_capped_logits_is_one_that_somebody_reads(isa):
    """LLVM drops any other, which the model would count."""
    spec = sk.AttentionSpec(q_heads=1, head_dim=64, softcap=30.0)
    text = sk.compile(spec, backend="numba_cpu", options={"isa": isa}).inspect("llvm")
    loop = re.search(r"^phase.logits.full:(.*?)^phase.logits.full.end:", text, re.M | re.S)[1]
    products = re.findall(r"(%\S+) = fmul", loop)
    assert len(products) >= 10
    assert all(loop.count(name) > 1 for name in products)


def test_a_call_that_decodes_is_expected_to_read():
    heads = {"q_heads": 8, "kv_heads": 2, "head_dim": 128}
    facts = expected(1, 65_536, **heads)
    assert facts["share"].endswith("of the read peak")
    assert facts["parts"]["reading"] > 0.9 * facts["cycles"]
    assert expected(1, 4096, **heads)["cycles"] < facts["cycles"]
    wide = {"q_heads": 32, "kv_heads": 2, "head_dim": 128}  # four passes over every tile
    assert (
        expected(1, 65_536, **wide)["products_beside_reading"]
        > 3 * (facts["products_beside_reading"])
    )
    assert expected(1, 65_536, mask=sk.Window(255, 0, align="bottom_right"), **heads)["cycles"] < (
        facts["cycles"] / 10
    )


def test_heads_that_stand_in_as_rows_share_panels():
    fields = {"q_heads": 64, "kv_heads": 1, "batch_invariant": True}
    together, apart = expected(1, 512, **fields), expected(1, 512, q_heads=64, batch_invariant=True)
    assert together["cycles"] < apart["cycles"] / 4


def dense(mask=None, q_len=512, threads=1, options=None, **fields):
    """The facts of a call with a dense mask."""
    spec = sk.AttentionSpec(q_heads=4, head_dim=64, mask=sk.Dense(), **fields)
    kernel = sk.compile(spec, backend="numba_cpu", options=options or {})
    given = {} if mask is None else {"mask": mask}
    return kernel.explain(q_len=q_len, kv_len=1024, threads=threads, **given)


def test_a_dense_mask_is_expected_to_cost_what_its_tiles_do():
    rng = np.random.default_rng(0)
    blocks = np.arange(512)[:, None] // 64 == np.arange(1024)[None, :] // 64
    masks = {
        "all": np.ones((1, 1, 512, 1024), bool),
        "some": rng.random((1, 1, 512, 1024)) < 0.5,
        "few": blocks[None, None],
        "none": np.zeros((1, 1, 512, 1024), bool),
    }
    facts = {name: dense(mask) for name, mask in masks.items()}
    cycles = {name: found["expected"]["cycles"] for name, found in facts.items()}
    assert cycles["none"] < cycles["few"] < min(cycles["all"], cycles["some"]) / 2
    assert facts["all"]["tiles"]["full"] == sum(facts["all"]["tiles"].values())
    assert facts["none"]["tiles"]["empty"] == sum(facts["none"]["tiles"].values())
    for name in ("all", "few", "none"):  # what has no tile that is mixed is read to its end
        assert (
            facts[name]["expected"]["parts"]["classes"]
            > facts["some"]["expected"]["parts"]["classes"]
        )


def test_what_is_expected_of_a_mask_that_is_not_given_says_what_it_assumes():
    found, mixed = dense(), dense(np.arange(1024)[None, None, None] % 2 == 0)
    assert "every tile" in found["assumed"]
    assert "assumed" not in mixed
    assert found["tiles"]["partial"] == sum(found["tiles"].values())
    assert found["tiles"] == mixed["tiles"]


def test_tiles_that_are_too_large_to_be_read_count_as_partial():
    nothing = np.zeros((1, 1, 512, 1024), bool)
    block = 8192 // dense()["block_q"] + 192
    large = dense(nothing, options={"block_kv": block})["expected"]["cycles"]
    assert large > 2 * dense(nothing)["expected"]["cycles"]


# ------------------------------------------------------------------ what is shown


def test_explain_shows_the_machine_the_tiles_and_why():
    kernel = sk.compile(sk.AttentionSpec(q_heads=1, head_dim=64), backend="numba_cpu")
    facts = kernel.explain()
    sizes = caches()
    assert f"L1 {sizes.l1 >> 10} KiB" in facts["machine"]["caches"]
    assert "assumed" in facts["machine"]["a_cycle"]
    assert facts["why_these_tiles"]["block_kv"].startswith("chosen: weights ")
    assert "96 +" in facts["why_these_tiles"]["other_block_kv"]
    assert f"{facts['block_kv']} " not in facts["why_these_tiles"]["other_block_kv"]
    rows, vectors = select_isa().tile()
    assert facts["why_these_tiles"]["register_tiles"].startswith(f"{rows} x {vectors} ")
    assert "expected" not in facts
    text = str(kernel.explain(q_len=128))
    assert "% of the multiply-add peak" in text
    assert "products" in text


def test_explain_says_that_a_tile_was_asked_for():
    spec = sk.AttentionSpec(q_heads=1, head_dim=64)
    kernel = sk.compile(spec, backend="numba_cpu", options={"block_kv": 96})
    why = kernel.explain()["why_these_tiles"]["block_kv"]
    assert why.startswith("asked for (chosen: ")


def test_ragged_and_paged_calls_are_expected_too():
    heads = {"q_heads": 2, "head_dim": 16, "layout": "thd", "mask": sk.Causal("bottom_right")}
    ragged = sk.compile(sk.AttentionSpec(**heads), backend="numba_cpu")
    ends = np.array([0, 40, 40, 41])
    facts = ragged.explain(cu_q_lens=ends, cu_kv_lens=ends, threads=1)
    assert facts["expected"]["cycles"] > 0
    paged = sk.compile(sk.AttentionSpec(paged=True, kv_lens=True, **heads), backend="numba_cpu")
    assert paged.explain(batch=3, q_len=1, kv_len=40)["expected"]["cycles"] > 0
