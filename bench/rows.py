"""The rows of the table, as plain data: what is measured, by which command, and for which goal.

`WANTED` has the lines of the design's table for the CPU in their own words. The numbers that rows
are judged by stand with the workloads and figures; a test holds them against these words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one child process measures.

    Attributes
    ----------
    name : str
        What `--only` takes.
    title : str
        Heading of its rows.
    module : str
        What the child runs, `python -m ...`.
    arguments : tuple of str
        Its arguments, but for rounds, rows and where to write.
    sampled : bool
        Whether it takes `--rounds`.
    by_case : bool
        Whether it takes `--case`, so that a single row can be measured.
    """

    name: str
    title: str
    module: str
    arguments: tuple[str, ...] = ()
    sampled: bool = False
    by_case: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    part : str
        Name of its part.
    name : str
        The workload or the figure.
    case : str
        Key of `WANTED`: the line that asks for it; "" where none does.
    """

    part: str
    name: str
    case: str = ""

    @property
    def key(self) -> str:
        """Name of the row in the table, which `--only` takes, too."""
        return f"{self.part}/{self.name}"


def _workloads(name: str, title: str, *arguments: str, threads: int = 1) -> Part:
    """Return a part that `python -m bench` measures."""
    return Part(
        name,
        title,
        "bench",
        ("--threads", str(threads), "--patience", "20", *arguments),
        sampled=True,
        by_case=True,
    )


# Beside ours with one thread nobody slow: samples of wall time are long.
_QUICK_PEERS = tuple(
    word
    for name in ("ours", "ours_one_thread", "torch", "ort_attention", "ort_mha", "ort_gqa")
    for word in ("--target", name)
)

PARTS: tuple[Part, ...] = (
    _workloads("prefill", "prefill, float32, one thread"),
    _workloads("types", "prefill, other types, one thread"),
    _workloads("masks", "bias, masks, windows, statistics, one thread"),
    _workloads("backward", "backward, float32, one thread"),
    _workloads("threads", "two threads", *_QUICK_PEERS, threads=2),
    _workloads("decode", "decode, float32, one thread"),
    _workloads("decode_half", "decode, half types, one thread"),
    _workloads("decode_threads", "decode, two threads", *_QUICK_PEERS, threads=2),
    Part(
        "beside",
        "two threads beside a busy process: times the quiet time",
        "bench.competition",
        sampled=True,
        by_case=True,
    ),
    Part("import", "import", "bench.latency", ("--part", "import")),
    Part(
        "compile",
        "compilation",
        "bench.latency",
        ("--part", "compile", "--part", "gradients"),
    ),
    Part("call", "calls", "bench.latency", ("--part", "call")),
    Part("memory", "scratch memory: nothing of Lq x Lk", "bench.latency", ("--part", "memory")),
    Part("analysis", "mask analysis, 1,000,000 x 1,000,000", "bench.masks"),
)

# The lines of the design, and the goals they state.
WANTED: dict[str, str] = {
    "f32 full, D 64 / 128, L >= 2048": "88 % / 92 %, 1.18x / 1.14x (ORT MHA / torch)",
    "f32 causal, D 64 / 128, L 2048": "85 % / 89 %, 1.5x / 1.4x (torch)",
    "f32 (1,8,512,64) full / causal": "82 % / 76 %, 1.2x / 2.2x",
    "f32 (1,8,128,64) full / causal": "74 % / 60 %, 1.1x / 1.8x",
    "GQA prefill 32/8, L 1024, D 128, causal": "87 %, 1.65x",
    "bf16, D 64 / 128": "87 % / 91 %, 1.3x / 1.2x",
    "f16, D 64 / 128": "87 % / 90 %, 1.75x / 1.5x",
    "f64, D 64 / 128": "82 % / 86 %, 1.6x / 1.4x",
    "f32 with additive bias, L 2048, D 64": "80 %, 1.8x",
    "f32 with a boolean mask shared by heads": "78 % of useful flops, 1.6x",
    "causal written as a predicate (traced)": "within 5 % of `Causal`",
    "sliding window 256 of L 8192": ">= 75 % of useful flops, >= 5x torch with a mask",
    "backward f32 full / causal, D 64 and 128": "88 % / 85 %, 1.3x, 1.15x / 1.55x, 1.4x",
    "2 threads, >= 8 heads": ">= 1.9x one thread (quiet machine)",
    "decode, GQA 32/8, D 128, f32, Lk >= 4096": ">= 85 % of read bandwidth, 2.8x",
    "decode, MHA f32": ">= 88 % of read bandwidth, >= 1x (ORT)",
    "decode, GQA, bf16 / f16": ">= 75 % (1 thread), >= 85 % (2), 4x",
    "the same call beside a competing busy process": "within 2.2x of its quiet time",
    "call overhead of a compiled kernel at (1,1,16,16,64)": "<= 4 us",
    "cold compile of a new spec with the driver cached": "<= 0.4 s",
    "warm from disk": "<= 15 ms",
    "first use in a fresh install, everything cold": "<= 4 s",
    "a sweep over 50 lengths": "0 new compilations",
    "import sdpakit": "<= 30 ms over bare Python",
    "scratch memory": "a constant per thread (<= 32 MiB), nothing of size Lq x Lk",
    "row statistics (max_logit, entropy, sum_p2)": "<= 8 % on the forward",
    "mask analysis at Lq = Lk = 1,000,000": "<= 10 ms, <= 1 MB, sound always, and exact for "
    "causal, window, prefix, documents",
}


def _rows(part: str, case: str, *names: str) -> tuple[Row, ...]:
    return tuple(Row(part, name, case) for name in names)


_ANALYSED = (
    "causal, top_left",
    "window",
    "prefix",
    "documents, ascending",
    "sink + window",
    "dilated",
)

_PREFILL_ROWS = (
    *_rows("prefill", "f32 full, D 64 / 128, L >= 2048", "f32_l2048_d64", "f32_l2048_d128"),
    *_rows(
        "prefill",
        "f32 causal, D 64 / 128, L 2048",
        "f32_l2048_d64_causal",
        "f32_l2048_d128_causal",
    ),
    *_rows("prefill", "f32 (1,8,512,64) full / causal", "f32_l512_d64", "f32_l512_d64_causal"),
    *_rows("prefill", "f32 (1,8,128,64) full / causal", "f32_l128_d64", "f32_l128_d64_causal"),
    *_rows("prefill", "GQA prefill 32/8, L 1024, D 128, causal", "f32_l1024_d128_gqa_causal"),
    *_rows("types", "bf16, D 64 / 128", "bf16_l2048_d64", "bf16_l2048_d128"),
    *_rows("types", "f16, D 64 / 128", "f16_l2048_d64", "f16_l2048_d128"),
    *_rows("types", "f64, D 64 / 128", "f64_l2048_d64", "f64_l2048_d128"),
)

_MASK_ROWS = (
    *_rows(
        "masks",
        "f32 with additive bias, L 2048, D 64",
        "f32_l2048_d64_bias",
        "f32_l2048_d64_bias_shared",
    ),
    *_rows(
        "masks",
        "f32 with a boolean mask shared by heads",
        "f32_l2048_d64_mask",
        "f32_l2048_d64_mask_documents",
    ),
    *_rows("masks", "causal written as a predicate (traced)", "f32_l2048_d64_predicate"),
    *_rows("masks", "sliding window 256 of L 8192", "f32_l8192_d64_window256"),
    *_rows("masks", "row statistics (max_logit, entropy, sum_p2)", "f32_l2048_d64_statistics"),
)

_BACKWARD_ROWS = (
    *_rows(
        "backward",
        "backward f32 full / causal, D 64 and 128",
        "grad_f32_l2048_d64",
        "grad_f32_l2048_d128",
        "grad_f32_l2048_d64_causal",
        "grad_f32_l2048_d128_causal",
    ),
    *_rows("backward", "", "grad_f32_l512_d64", "grad_f32_l512_d64_causal"),
)

_THREAD_ROWS = _rows(
    "threads",
    "2 threads, >= 8 heads",
    "f32_l2048_d64",
    "f32_l2048_d64_causal",
    "f32_l2048_d128",
    "f32_l2048_d128_causal",
    "f32_l512_d64",
    "f32_l512_d64_causal",
    "f32_l1024_d128_gqa_causal",
    "bf16_l2048_d64",
    "f16_l2048_d64",
    "grad_f32_l512_d64",
    "grad_f32_l512_d64_causal",
)

_GQA_F32 = "decode, GQA 32/8, D 128, f32, Lk >= 4096"
_GQA_HALF = "decode, GQA, bf16 / f16"
_HALF_NAMES = tuple(
    f"decode_gqa_l{length}_{dtype}" for length in (4096, 32768) for dtype in ("bf16", "f16")
)

_DECODE_ROWS = (
    *_rows("decode", _GQA_F32, "decode_gqa_l4096_f32", "decode_gqa_l32768_f32"),
    *_rows("decode", "decode, MHA f32", "decode_mha_l4096_f32", "decode_mha_l32768_f32"),
    *_rows("decode", "", "decode_gqa_ragged_f32", "decode_gqa_paged_f32"),
    *_rows("decode_half", _GQA_HALF, *_HALF_NAMES),
    *_rows("decode_half", "", *(name.replace("gqa", "mha") for name in _HALF_NAMES)),
    *_rows("decode_threads", "", "decode_gqa_l4096_f32", "decode_gqa_l32768_f32"),
    *_rows("decode_threads", "", "decode_mha_l4096_f32"),
    *_rows("decode_threads", _GQA_HALF, *_HALF_NAMES),
)

_FIGURE_ROWS = (
    *_rows(
        "beside",
        "the same call beside a competing busy process",
        "f32_l2048_d64",
        "f32_l2048_d64_causal",
        "decode_gqa_l4096_f32",
    ),
    *_rows(
        "call",
        "call overhead of a compiled kernel at (1,1,16,16,64)",
        "call (1,1,16,16,64)",
        "the same with out=",
    ),
    *_rows(
        "compile",
        "cold compile of a new spec with the driver cached",
        "compile and call a new spec",
    ),
    *_rows("compile", "warm from disk", "the same, code on disk"),
    *_rows(
        "compile", "first use in a fresh install, everything cold", "fresh install to first answer"
    ),
    *_rows(
        "compile",
        "",
        "fresh process to first answer",
        "compile gradients",
        "the same, another mask",
    ),
    *_rows("call", "a sweep over 50 lengths", "modules compiled for 50 lengths"),
    *_rows("import", "import sdpakit", "import sdpakit", "heavy modules that it loads"),
    *_rows(
        "memory",
        "scratch memory",
        *(
            f"scratch, {shape}{threads}"
            for shape in (
                "decode, 16 heads of 1 x 1,000,000",
                "32,768 squared",
                "backward, 16,384 squared",
            )
            for threads in ("", ", each of 2 threads")
        ),
    ),
    *_rows(
        "analysis",
        "mask analysis at Lq = Lk = 1,000,000",
        *(
            name + suffix
            for name in _ANALYSED
            for suffix in (
                "",
                ": memory",
                ": tiles decided wrongly",
                ": tiles left partial for nothing",
            )
        ),
    ),
)

ROWS: tuple[Row, ...] = tuple(
    row
    for part in PARTS
    for row in (
        *_PREFILL_ROWS,
        *_MASK_ROWS,
        *_BACKWARD_ROWS,
        *_THREAD_ROWS,
        *_DECODE_ROWS,
        *_FIGURE_ROWS,
    )
    if row.part == part.name
)


def select(only: tuple[str, ...]) -> tuple[Row, ...]:
    """Return the rows of parts or single rows, in the order of the table; all of them for ().

    Parameters
    ----------
    only : tuple of str
        Names of parts, or "part/row".

    Returns
    -------
    tuple of Row
        At least one.

    Raises
    ------
    ValueError
        For a name that does not exist; the message lists the parts.
    """
    parts = [part.name for part in PARTS]
    known = {*parts, *(row.key for row in ROWS)}
    if unknown := [name for name in only if name not in known]:
        raise ValueError(
            f"only: got {', '.join(unknown)}\n  allowed: {', '.join(parts)}, or PART/ROW"
        )
    return tuple(row for row in ROWS if not only or {row.part, row.key} & set(only))
