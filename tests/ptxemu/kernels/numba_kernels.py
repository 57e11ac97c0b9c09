"""Kernels for Numba-CUDA: Python for the control flow, intrinsics that build inline PTX for tiles.

An intrinsic here is a function of a builder of LLVM's instructions and of its operands; it runs
while Numba compiles, so its loops are unrolled and its tiles are tuples of scalars, which stay in
registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# numba-cuda 0.30 calls a name that NumPy 2.5 no longer has.
if not hasattr(np, "row_stack"):
    setattr(np, "row_stack", np.vstack)  # noqa: B010 - checkers know that the name is gone

from llvmlite import ir
from numba import cuda, float32, int32, types, uint32, uint64
from numba.cuda.extending import intrinsic

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
NEGATIVE_INFINITY = np.float32(-np.inf)
HEAD_DIM, BLOCK_M, BLOCK_N, THREADS = 64, 64, 32, 128
TILE_BYTES = BLOCK_N * HEAD_DIM * 2


def tile(kind: Any, count: int) -> Any:
    """Return the Numba type of a tile in registers."""
    return types.UniTuple(kind, count)


def operation(result: Any, *operands: Any) -> Callable[[Any], Any]:
    """Return a decorator that makes an intrinsic of ``build(builder, *operands)``.

    Tiles come and go as lists.
    """

    def make(build: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = [
                [builder.extract_value(value, i) for i in range(kind.count)]
                if isinstance(kind, types.UniTuple)
                else value
                for value, kind in zip(values, signature.args, strict=True)
            ]
            made = build(builder, *given)
            if result is types.void:
                return context.get_dummy_value()
            return context.make_tuple(builder, result, made) if isinstance(made, list) else made

        # Numba asks for a typing function with as many parameters as there are operands.
        names = ", ".join(f"x{i}" for i in range(len(operands)))
        scope: dict[str, Any] = {"signature": result(*operands), "generate": generate}
        exec(f"def {build.__name__}(context, {names}):\n    return signature, generate", scope)
        return intrinsic(scope[build.__name__])

    return make


def constant(value: int, kind: Any = I32) -> Any:
    """Return a constant of LLVM."""
    return ir.Constant(kind, value)


def inline(builder: Any, result: Any, text: str, constraints: str, *operands: Any) -> Any:
    """Build inline PTX; it stays where it is."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def command(text: str) -> Any:
    """Return an intrinsic of an instruction without operands."""

    @operation(types.void)
    def instruction(builder):
        inline(builder, ir.VoidType(), text, "~{memory}")

    return instruction


def load_matrices(builder, address, *, transposed=False):
    """Build ldmatrix of four matrices."""
    form = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    four = inline(
        builder, ir.LiteralStructType([I32] * 4), text, "=r,=r,=r,=r,r,~{memory}", address
    )
    return [builder.extract_value(four, i) for i in range(4)]


def multiply(builder, c, a, b0, b1):
    """Build mma of 16 by 8 by 16."""
    text = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
    four = inline(builder, ir.LiteralStructType([F32] * 4), text, constraints, *a, b0, b1, *c)
    return [builder.extract_value(four, i) for i in range(4)]


def chunk_address(builder, base, row, chunk):
    """Build the address of 16 bytes of a tile: chunk c of row r lies at c ^ (r & 7)."""
    place = builder.xor(chunk, builder.and_(row, constant(7)))
    row_base = builder.add(base, builder.mul(row, constant(HEAD_DIM * 2)))
    return builder.add(row_base, builder.shl(place, constant(4)))


def approximate(builder, opcode, *operands):
    """Build an instruction of floats."""
    places = ", ".join(f"${i}" for i in range(len(operands) + 1))
    constraints = ",".join(["=f"] + ["f"] * len(operands))
    return inline(builder, F32, f"{opcode} {places};", constraints, *operands)


def exchange(builder, value, distance):
    """Build a butterfly shuffle."""
    return inline(builder, F32, f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;", "=f,f", value)


Q_TILE, S_TILE, P_TILE, O_TILE = (
    tile(uint32, 16),
    tile(float32, 16),
    tile(uint32, 8),
    tile(float32, 32),
)
PAIR = tile(float32, 2)


@operation(Q_TILE, uint32, int32, int32)
def load_q(builder, base, first_row, lane):
    row = builder.add(first_row, builder.and_(lane, constant(15)))
    half = builder.lshr(lane, constant(4))
    found = []
    for kk in range(HEAD_DIM // 16):
        chunk = builder.add(constant(kk * 2), half)
        found += load_matrices(builder, chunk_address(builder, base, row, chunk))
    return found


@operation(S_TILE, Q_TILE, uint32, int32)
def logits(builder, q, base, lane):
    s = [ir.Constant(F32, 0.0)] * 16
    upper = builder.shl(builder.lshr(lane, constant(4)), constant(3))
    row = builder.add(upper, builder.and_(lane, constant(7)))
    half = builder.and_(builder.lshr(lane, constant(3)), constant(1))
    for kk in range(HEAD_DIM // 16):
        for n in range(BLOCK_N // 16):
            place = builder.add(row, constant(n * 16)), builder.add(half, constant(kk * 2))
            b = load_matrices(builder, chunk_address(builder, base, *place))
            for i in range(2):
                at = slice(n * 8 + i * 4, n * 8 + i * 4 + 4)
                s[at] = multiply(builder, s[at], q[kk * 4 : kk * 4 + 4], b[2 * i], b[2 * i + 1])
    return s


@operation(S_TILE, S_TILE, int32, int32, int32)
def mask(builder, s, first_key, last_key, last_key_below):
    found = []
    for i, value in enumerate(s):
        key = builder.add(first_key, constant(i // 4 * 8 + i % 2))
        dead = builder.icmp_signed(">", key, last_key_below if i % 4 >= 2 else last_key)
        found.append(builder.select(dead, ir.Constant(F32, float("-inf")), value))
    return found


@operation(PAIR, S_TILE, float32, float32)
def row_max(builder, s, above, below):
    tops = [above, below]
    for i, value in enumerate(s):
        tops[i % 4 // 2] = approximate(builder, "max.f32", tops[i % 4 // 2], value)
    for distance in (1, 2):
        tops = [approximate(builder, "max.f32", x, exchange(builder, x, distance)) for x in tops]
    return tops


@operation(S_TILE, S_TILE, float32, float32, float32)
def powers(builder, s, scale, above, below):
    shifts = [above, below]
    return [
        approximate(
            builder, "ex2.approx.ftz.f32", builder.fsub(builder.fmul(x, scale), shifts[i % 4 // 2])
        )
        for i, x in enumerate(s)
    ]


@operation(PAIR, S_TILE, float32, float32)
def row_sum(builder, s, above, below):
    sums = [above, below]
    for i, value in enumerate(s):
        sums[i % 4 // 2] = builder.fadd(sums[i % 4 // 2], value)
    return sums


@operation(P_TILE, S_TILE)
def pack(builder, s):
    text = "cvt.rn.f16x2.f32 $0, $1, $2;"
    return [inline(builder, I32, text, "=r,f,f", s[2 * i + 1], s[2 * i]) for i in range(8)]


@operation(O_TILE)
def zeros(builder):
    return [ir.Constant(F32, 0.0)] * 32


@operation(O_TILE, O_TILE, float32, float32)
def scale_rows(builder, o, above, below):
    return [builder.fmul(x, below if i % 4 >= 2 else above) for i, x in enumerate(o)]


@operation(O_TILE, O_TILE, P_TILE, uint32, int32)
def add_output(builder, o, p, base, lane):
    row, half = builder.and_(lane, constant(15)), builder.lshr(lane, constant(4))
    for kk in range(BLOCK_N // 16):
        for d in range(HEAD_DIM // 16):
            place = builder.add(row, constant(kk * 16)), builder.add(half, constant(d * 2))
            b = load_matrices(builder, chunk_address(builder, base, *place), transposed=True)
            for i in range(2):
                at = slice(d * 8 + i * 4, d * 8 + i * 4 + 4)
                o[at] = multiply(builder, o[at], p[kk * 4 : kk * 4 + 4], b[2 * i], b[2 * i + 1])
    return o


@operation(types.void, uint64, O_TILE, int32)
def store_half(builder, pointer, o, half):
    """Store the row above (0) or below (1) of an output tile."""
    below = builder.icmp_signed("==", half, constant(1))
    for i in range(8):
        first, second = (builder.select(below, o[4 * i + 2 + j], o[4 * i + j]) for j in range(2))
        pair = inline(builder, I32, "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", second, first)
        address = builder.add(pointer, constant(i * 16, I64))
        builder.store(pair, builder.inttoptr(address, I32.as_pointer()))


@operation(types.void, uint64, float32)
def store_float(builder, pointer, value):
    builder.store(value, builder.inttoptr(pointer, F32.as_pointer()))


@operation(types.void, uint32, uint64, int32)
def copy_async(builder, to, source, count):
    text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
    inline(builder, ir.VoidType(), text, "r,l,r,~{memory}", to, source, count)


@operation(float32, float32)
def exp2(builder, x):
    return approximate(builder, "ex2.approx.ftz.f32", x)


@operation(float32, float32)
def log2(builder, x):
    return approximate(builder, "lg2.approx.ftz.f32", x)


@operation(float32, float32)
def quad_sum(builder, x):
    for distance in (1, 2):
        x = builder.fadd(x, exchange(builder, x, distance))
    return x


@intrinsic
def shared_address(context, array):
    """Return the address of an array within shared memory."""
    signature = uint32(array)

    def generate(context, builder, signature, values):
        made = context.make_array(signature.args[0])(context, builder, values[0])
        text = "cvta.to.shared.u64 $0, $1;"
        wide = inline(builder, I64, text, "=l,l", builder.ptrtoint(made.data, I64))
        return builder.trunc(wide, I32)

    return signature, generate


copy_commit, copy_wait_1 = command("cp.async.commit_group;"), command("cp.async.wait_group 1;")


@cuda.jit(device=True, inline="always")
def load_tile(to, source, rows, first, end, stride):
    """Start copying rows; those from `end` on become zeros."""
    i = int32(cuda.threadIdx.x)
    while i < int32(rows * 8):
        row, chunk = int32(i >> 3), int32(i & 7)
        inside = first + row < end
        place = uint32(row * int32(HEAD_DIM * 2) + ((chunk ^ (row & int32(7))) << int32(4)))
        line = uint64(first + row if inside else int32(0))
        copy_async(
            to + place, source + line * stride + uint64(chunk * 16), int32(16 if inside else 0)
        )
        i = int32(i + int32(THREADS))


def flash(q_all, k_all, v_all, out_all, lse_all, q_len, kv_len, q_heads, kv_heads, scale_log2):
    """Attention forward, causal, as flash_mma.cu does it."""
    q_tile = shared_address(cuda.shared.array(0, types.uint8))
    k_tiles = uint32(q_tile + uint32(BLOCK_M * HEAD_DIM * 2))
    v_tiles = uint32(k_tiles + uint32(2 * TILE_BYTES))
    thread = int32(cuda.threadIdx.x)
    warp, lane = thread >> int32(5), thread & int32(31)
    first_row, head, batch = (
        int32(cuda.blockIdx.x) * int32(BLOCK_M),
        int32(cuda.blockIdx.y),
        int32(cuda.blockIdx.z),
    )
    kv_head, diagonal = head // (q_heads // kv_heads), kv_len - q_len
    q_stride, kv_stride = (
        uint64(q_heads) * uint64(HEAD_DIM * 2),
        uint64(kv_heads) * uint64(HEAD_DIM * 2),
    )
    q = q_all + uint64(batch) * uint64(q_len) * q_stride + uint64(head) * uint64(HEAD_DIM * 2)
    k = k_all + uint64(batch) * uint64(kv_len) * kv_stride + uint64(kv_head) * uint64(HEAD_DIM * 2)
    v = v_all + uint64(batch) * uint64(kv_len) * kv_stride + uint64(kv_head) * uint64(HEAD_DIM * 2)
    tiles = (kv_len + int32(BLOCK_N - 1)) // int32(BLOCK_N)
    seen = (first_row + int32(BLOCK_M) + diagonal + int32(BLOCK_N - 1)) // int32(BLOCK_N)
    tiles = max(int32(0), min(tiles, seen))

    # Prologue: Q and the first K, then the first V.
    load_tile(q_tile, q, BLOCK_M, first_row, q_len, q_stride)
    load_tile(k_tiles, k, BLOCK_N, int32(0), kv_len, kv_stride)
    copy_commit()
    load_tile(v_tiles, v, BLOCK_N, int32(0), kv_len, kv_stride)
    copy_commit()
    copy_wait_1()
    cuda.syncthreads()
    q_fragments = load_q(q_tile, warp * int32(16), lane)

    o, m0, m1, l0, l1 = zeros(), NEGATIVE_INFINITY, NEGATIVE_INFINITY, float32(0), float32(0)
    row = first_row + warp * int32(16) + (lane >> int32(2))
    column = (lane & int32(3)) * int32(2)
    last0, last1 = (
        min(kv_len - int32(1), row + diagonal),
        min(kv_len - int32(1), row + int32(8) + diagonal),
    )
    number = int32(0)
    while number < tiles:
        now = uint32(number & int32(1)) * uint32(TILE_BYTES)
        then = uint32(TILE_BYTES) - now
        copy_wait_1()
        cuda.syncthreads()
        if number + int32(1) < tiles:
            load_tile(
                k_tiles + then, k, BLOCK_N, (number + int32(1)) * int32(BLOCK_N), kv_len, kv_stride
            )
        copy_commit()
        s = mask(
            logits(q_fragments, k_tiles + now, lane), number * int32(BLOCK_N) + column, last0, last1
        )
        top0, top1 = row_max(s, m0, m1)
        shift0 = float32(0) if top0 == NEGATIVE_INFINITY else top0 * scale_log2
        shift1 = float32(0) if top1 == NEGATIVE_INFINITY else top1 * scale_log2
        factor0, factor1 = exp2(m0 * scale_log2 - shift0), exp2(m1 * scale_log2 - shift1)
        m0, m1 = top0, top1
        s = powers(s, scale_log2, shift0, shift1)
        l0, l1 = row_sum(s, l0 * factor0, l1 * factor1)
        o = scale_rows(o, factor0, factor1)
        copy_wait_1()
        cuda.syncthreads()
        if number + int32(1) < tiles:
            load_tile(
                v_tiles + then, v, BLOCK_N, (number + int32(1)) * int32(BLOCK_N), kv_len, kv_stride
            )
        copy_commit()
        o = add_output(o, pack(s), v_tiles + now, lane)
        number = int32(number + int32(1))

    # Epilogue: the quotient and the log-sum-exp.
    l0, l1 = quad_sum(l0), quad_sum(l1)
    o = scale_rows(
        o,
        float32(1) / l0 if l0 > float32(0) else float32(0),
        float32(1) / l1 if l1 > float32(0) else float32(0),
    )
    out = out_all + uint64(batch) * uint64(q_len) * q_stride + uint64(head) * uint64(HEAD_DIM * 2)
    out += uint64(row) * q_stride + uint64(column * int32(2))
    lse = lse_all + (
        (uint64(batch) * uint64(q_heads) + uint64(head)) * uint64(q_len) + uint64(row)
    ) * uint64(4)
    ln_2 = float32(0.6931471805599453)
    if row < q_len:
        store_half(out, o, int32(0))
        if column == int32(0):
            store_float(
                lse, (m0 * scale_log2 + log2(l0)) * ln_2 if l0 > float32(0) else NEGATIVE_INFINITY
            )
    if row + int32(8) < q_len:
        store_half(out + uint64(8) * q_stride, o, int32(1))
        if column == int32(0):
            below = (m1 * scale_log2 + log2(l1)) * ln_2 if l1 > float32(0) else NEGATIVE_INFINITY
            store_float(lse + uint64(32), below)


def softmax(x, y):
    """Softmax of the rows of a matrix, one block of 64 threads a row, without intrinsics."""
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    found = cuda.shared.array(64, float32)
    top = NEGATIVE_INFINITY
    for i in range(thread, columns, 64):
        top = max(top, x[row, i])
    found[thread] = top
    cuda.syncthreads()
    half = 32
    while half > 0:
        if thread < half:
            found[thread] = max(found[thread], found[thread + half])
        cuda.syncthreads()
        half >>= 1
    top = found[0]
    cuda.syncthreads()
    found[thread] = float32(0)
    for i in range(thread, columns, 64):
        found[thread] += cuda.libdevice.expf(x[row, i] - top)
    cuda.syncthreads()
    half = 32
    while half > 0:
        if thread < half:
            found[thread] += found[thread + half]
        cuda.syncthreads()
        half >>= 1
    for i in range(thread, columns, 64):
        y[row, i] = cuda.libdevice.expf(x[row, i] - top) / found[0]


def count(x, counts, largest):
    """Count values by their remainder modulo 10, and find the largest, with atomics."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i] % 10, 1)
        cuda.atomic.max(largest, 0, x[i])


ACC_TILE = tile(float32, 32)


@operation(types.void, uint32, uint32)
def barrier_init(builder, barrier, arrivals):
    text = "mbarrier.init.shared::cta.b64 [$0], $1; fence.mbarrier_init.release.cluster;"
    inline(builder, ir.VoidType(), text, "r,r,~{memory}", barrier, arrivals)


@operation(types.void, uint32, uint32)
def barrier_expect(builder, barrier, count):
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    inline(builder, ir.VoidType(), text, "r,r,~{memory}", barrier, count)


@operation(types.void, uint32, uint32)
def barrier_wait(builder, barrier, parity):
    text = (
        "{ .reg .pred done;\nagain${:uid}:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;\n"
        "@!done bra again${:uid};\n}"
    )
    inline(builder, ir.VoidType(), text, "r,r,~{memory}", barrier, parity)


@operation(types.void, uint32)
def barrier_arrive(builder, barrier):
    text = "mbarrier.arrive.shared::cta.b64 _, [$0];"
    inline(builder, ir.VoidType(), text, "r,~{memory}", barrier)


@operation(types.void, uint32, uint64, uint32, int32, int32)
def tile_load(builder, to, tensor_map, barrier, x, y):
    text = (
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$3, $4}], [$2];"
    )
    inline(builder, ir.VoidType(), text, "r,l,r,r,r,~{memory}", to, tensor_map, barrier, x, y)


@operation(ACC_TILE, ACC_TILE, uint64, uint64)
def add_product(builder, acc, a, b):
    """Build four wgmma of 64 by 64 by 16: k innermost in both operands, each step 32 bytes on."""
    names = ", ".join(f"${i}" for i in range(32))
    text = (
        f"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{names}}}, $32, $33, 1, 1, 1, 0, 0;"
    )
    constraints = ",".join(["=f"] * 32 + ["l", "l"] + [str(i) for i in range(32)])
    for kk in range(4):
        step = constant(kk * 2, I64)
        operands = builder.add(a, step), builder.add(b, step), *acc
        made = inline(builder, ir.LiteralStructType([F32] * 32), text, constraints, *operands)
        acc = [builder.extract_value(made, i) for i in range(32)]
    return acc


@operation(types.void, uint64, ACC_TILE, uint64)
def store_accumulators(builder, pointer, acc, stride):
    below = builder.add(pointer, builder.mul(stride, constant(8, I64)))
    for i, value in enumerate(acc):
        base = below if i % 4 >= 2 else pointer
        address = builder.add(base, constant(4 * (i // 4 * 8 + i % 2), I64))
        builder.store(value, builder.inttoptr(address, F32.as_pointer()))


product_fence = command("wgmma.fence.sync.aligned;")
product_commit, product_wait = (
    command("wgmma.commit_group.sync.aligned;"),
    command("wgmma.wait_group.sync.aligned 0;"),
)


def wgmma(a_map, b_map, c, n, k):
    """C = A B^T in tiles of 64 by 64 (all sizes are multiples of 64).

    A thread of the last warp copies by TMA; a warpgroup multiplies.
    """
    a_tile = shared_address(cuda.shared.array(0, types.uint8))
    b_tile, full = uint32(a_tile + uint32(8192)), uint32(a_tile + uint32(16384))
    empty, thread = uint32(full + uint32(8)), int32(cuda.threadIdx.x)
    first_row, first_column = int32(cuda.blockIdx.y) * int32(64), int32(cuda.blockIdx.x) * int32(64)
    if thread == int32(0):
        barrier_init(full, uint32(1))
        barrier_init(empty, uint32(1))
    cuda.syncthreads()
    parity, first_k = uint32(0), int32(0)
    if thread >= int32(128):
        if thread == int32(128):
            while first_k < k:
                barrier_wait(empty, parity ^ uint32(1))
                barrier_expect(full, uint32(16384))
                tile_load(a_tile, a_map, full, first_k, first_row)
                tile_load(b_tile, b_map, full, first_k, first_column)
                parity ^= uint32(1)
                first_k = int32(first_k + int32(64))
    else:
        head = uint64(1) << uint64(62) | uint64(64) << uint64(32) | uint64(1) << uint64(16)
        acc = zeros()
        while first_k < k:
            barrier_wait(full, parity)
            product_fence()
            acc = add_product(
                acc, head | uint64(a_tile >> uint32(4)), head | uint64(b_tile >> uint32(4))
            )
            product_commit()
            product_wait()
            if thread == int32(0):
                barrier_arrive(empty)
            parity ^= uint32(1)
            first_k = int32(first_k + int32(64))
        row = first_row + (thread >> int32(5)) * int32(16) + ((thread & int32(31)) >> int32(2))
        column = first_column + (thread & int32(3)) * int32(2)
        store_accumulators(
            c + (uint64(row) * uint64(n) + uint64(column)) * uint64(4), acc, uint64(n) * uint64(4)
        )


# Kernel: types of its arguments, threads of a block.
KERNELS: dict[str, tuple[Any, Any, int]] = {
    "softmax": (softmax, (types.Array(float32, 2, "C"), types.Array(float32, 2, "C")), 64),
    "count": (count, (types.Array(int32, 1, "C"),) * 3, 64),
    "flash": (flash, (uint64,) * 5 + (int32,) * 4 + (float32,), THREADS),
    "wgmma": (wgmma, (uint64,) * 3 + (int32,) * 2, 160),
}


def compile_kernel(name: str, arch: str) -> str:
    """Return the PTX of a kernel."""
    function, signature, threads = KERNELS[name]
    number = arch.removeprefix("sm_")
    capability = (int(number[0]), int(number[1]), *number[2:])
    text, _ = cuda.compile_ptx(function, signature, cc=capability, launch_bounds=(threads, 1))
    return text
