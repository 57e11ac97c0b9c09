// ---- gradients: what each row and each pair gives, whatever family sums it -----------------------
//
//   p = exp(x - shift) / whole      dp = <dout, v>      dx = p (dp - delta)      ddot = dx dx/d<q, k>
//   dv = sum_q p dout               dk = sum_q ddot q   dq = sum_k ddot k
//
// Logits are computed anew; shift, whole and delta = <dout, out> are prepared once for each row
// (NUM-3: the maximum stays apart from the sum). Every sum has one fixed order, so results have the
// same bits in every run (DET-1): no block adds to what another block adds to.

struct RowFacts {
  accum_t shift, whole, delta;
};
__device__ __forceinline__ i64 row_index(const Call& c, const Place& at, i64 q) {
  return (at.b * c.q_heads + at.h) * c.q_rows + q;
}
__device__ __forceinline__ accum_t stored_number(u64 array, i64 index) {
  return load<accum_t>(array + index * (i64)sizeof(accum_t));
}
__device__ __forceinline__ void store_number(u64 array, i64 index, accum_t x) {
  store<accum_t>(array + index * (i64)sizeof(accum_t), x);
}
__device__ __forceinline__ RowFacts facts_of(const Call& c, const Place& at, i64 q) {
  const i64 row = row_index(c, at, q);
  return {stored_number(c.row_shift, row), stored_number(c.row_whole, row), stored_number(c.row_delta, row)};
}
__device__ __forceinline__ accum_t dout_element(const Call& c, const Place& at, i64 q, int e) {
  if (q >= at.rows || e >= DV) return 0;
  return widen(load<out_t>(c.dout + at.b * c.dout_batch + at.h * c.dout_head + q * c.dout_row +
                           e * c.dout_channel));
}

// ---- prepare_rows: a warp for each row
extern "C" __global__ void __launch_bounds__(THREADS) prepare_rows(const __grid_constant__ Call c) {
  const i64 row = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
  if (row >= c.batch * c.q_heads * c.q_rows) return;
  const i64 head = row / c.q_rows, q = row % c.q_rows;
  const Place at = place(c, head / c.q_heads, head % c.q_heads, q);
  const accum_t m = stored_number(c.saved_m, row), l = stored_number(c.saved_l, row);
  const bool empty = l == 0;  // EMPTY-1: its dout is not read
  accum_t delta = 0;
  for (int e = threadIdx.x % 32; e < DV && !empty; e += 32)
    delta = fma_of(dout_element(c, at, q, e), stored_number(c.saved_out, row * DV + e), delta);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, step);
  if (threadIdx.x % 32 != 0) return;
  accum_t shift = empty ? accum_t(0) : m, whole = l;  // NUM-2
  if constexpr (SINK) {
    const accum_t sink = sink_of(c, at), common = largest(shift, sink);
    const accum_t share = exp_of(sink - common);
    whole = fma_of(l, exp_of(shift - common), share);
    shift = common;
    store_number(c.row_sink, row, empty ? accum_t(0) : -share / whole * delta);
  }
  store_number(c.row_shift, row, shift);
  store_number(c.row_whole, row, whole);
  store_number(c.row_delta, row, delta);
}

// ---- one pair; rows and keys that are not there stand for the last ones, and are absent
struct Pair {
  accum_t weight, dlogit;  // ONE times p; dx
  i64 q, k;
  bool present;
};
__device__ __forceinline__ Pair pair_of(const Call& c, const Place& at, i64 q, i64 q_last, i64 key,
                                        i64 k_last, bool full, accum_t dot, accum_t dp,
                                        const RowFacts& row) {
  Pair pair;
  pair.q = least_of(q, q_last), pair.k = least_of(key, k_last);
  const accum_t x = logit_of(c, at, pair.q, pair.k, dot);
  pair.present = x != -INFINITE && pair.q == q && pair.k == key;  // MASK-6
  if (!full) pair.present = pair.present && mask_of(c, at, pair.q, pair.k);
  pair.weight = weight(x, row.shift) / row.whole;
  pair.dlogit = pair.weight * (1 / ONE) * (dp - row.delta);
  return pair;
}
// What stands in a tile: + 0 makes a zero of a present pair positive, as -0.0 means an absent one.
__device__ __forceinline__ accum_t marked(const Pair& pair, accum_t value) {
  return pair.present ? value + accum_t(0) : accum_t(-0.0);
}
__device__ __forceinline__ accum_t ddot_of(const Call& c, const Place& at, const Pair& pair, accum_t dot) {
  return marked(pair, pair.dlogit * slope_of(c, at, pair.q, pair.k, dot));
}

// ---- gradient_of_sinks: a block for each head; thread by thread, then halves (SINK-1)
extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_sinks(const __grid_constant__ Call c) {
  __shared__ accum_t sums[THREADS];
  accum_t sum = 0;
  for (i64 i = threadIdx.x; i < c.batch * c.q_rows; i += THREADS)
    sum += stored_number(c.row_sink, (i / c.q_rows * c.q_heads + blockIdx.x) * c.q_rows + i % c.q_rows);
  sums[threadIdx.x] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) store_number(c.sums_sinks, blockIdx.x, sums[0]);
}
