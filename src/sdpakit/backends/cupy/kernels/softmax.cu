// ---- softmax: the state of a query row, moved on by tiles of keys, and what it comes to ----------
// LANES threads (neighbours, of one warp) share a row. The family defines before this text:
//   LANES, and ONE, by which all weights of a row are multiplied, and
//   weight(x, m): ONE * exp(x - m)

// All threads that share a row hold the same.
struct Row {
  accum_t m;        // largest logit so far; -inf until a key is seen (NUM-2)
  accum_t l;        // sum of weights
  accum_t centred;  // sum of weight * (x - m), for the entropy
  accum_t squares;  // sum of weight^2
};

template <class Join>
__device__ __forceinline__ accum_t over_lanes(accum_t x, Join join) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ __forceinline__ accum_t largest_over_lanes(accum_t x) {
  return over_lanes(x, [](accum_t a, accum_t b) { return largest(a, b); });
}
__device__ __forceinline__ accum_t sum_over_lanes(accum_t x) {
  return over_lanes(x, [](accum_t a, accum_t b) { return a + b; });
}

// Turns this thread's logits of a row and a tile into weights; absent pairs get -0.0, whose sign tells
// them from a weight that vanished. Returns exp(m before - m now), by which all sums so far are multiplied.
template <int N>
__device__ __forceinline__ accum_t soften(Row& row, accum_t (&x)[N], const bool (&present)[N]) {
  accum_t top = -INFINITE;
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (present[n]) top = largest(top, x[n]);
  accum_t m = largest(row.m, largest_over_lanes(top));
  if (m == INFINITE) m = NOT_A_NUMBER;                    // NUM-4
  const accum_t shift = m == -INFINITE ? accum_t(0) : m;  // NUM-2
  const accum_t before = weight(row.m, shift) * (1 / ONE);
  accum_t l = 0, centred = 0, squares = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const accum_t e = weight(x[n], shift);
    if constexpr (ENTROPY) centred += present[n] && e != 0 ? e * (x[n] - shift) : accum_t(0);
    x[n] = present[n] ? e : accum_t(-0.0);
    l += x[n];
    if constexpr (SUM_P2) squares = fma_of(x[n], x[n], squares);
  }
  if constexpr (ENTROPY) {
    const accum_t moved = before == 0 ? accum_t(0) : before * (row.centred + row.l * (row.m - shift));
    row.centred = moved + sum_over_lanes(centred);
  }
  if constexpr (SUM_P2) row.squares = fma_of(row.squares, before * before, sum_over_lanes(squares));
  row.l = fma_of(row.l, before, sum_over_lanes(l));
  row.m = m;
  return before;
}

// out = sum of weight * v, times `scale`, divided by `total` (SOFT-1, SINK-1); EMPTY_ROW if empty.
struct Mean {
  accum_t scale, total;
  bool empty;
  __device__ __forceinline__ accum_t of(accum_t sum) const {
    return empty ? EMPTY_ROW : sum * scale / total;
  }
};
__device__ __forceinline__ Mean mean_of(const Call& c, const Place& at, const Row& row) {
  Mean mean = {1, row.l, row.m == -INFINITE};
  if constexpr (SINK) {
    const accum_t sink = sink_of(c, at);
    const accum_t common = largest(row.m, sink);  // neither part overflows, whichever is larger
    mean.scale = weight(row.m, common) * (1 / ONE);
    mean.total = fma_of(row.l, mean.scale, weight(sink, common));
  }
  return mean;
}

// STAT-1, SINK-2; by one thread of those that share the row.
__device__ __forceinline__ void store_statistics(const Call& c, const Place& at, i64 q, const Row& row) {
  const bool empty = row.m == -INFINITE;
  if constexpr (SAVE) {  // for the gradients, by row
    const i64 index = (at.b * c.q_heads + at.h) * c.q_rows + q;
    store<accum_t>(c.saved_m + index * (i64)sizeof(accum_t), row.m);
    store<accum_t>(c.saved_l + index * (i64)sizeof(accum_t), row.l * (1 / ONE));
  }
  const accum_t log_sum = empty ? accum_t(0) : log_of(row.l * (1 / ONE));
  if constexpr (LSE)
    store<accum_t>(row_address(c.lse, at, q, c.lse_batch, c.lse_head, c.lse_row), row.m + log_sum);
  if constexpr (MAX_LOGIT)
    store<accum_t>(row_address(c.max_logit, at, q, c.max_logit_batch, c.max_logit_head, c.max_logit_row),
                   row.m);
  if constexpr (ENTROPY)
    store<accum_t>(row_address(c.entropy, at, q, c.entropy_batch, c.entropy_head, c.entropy_row),
                   empty ? accum_t(0) : log_sum - row.centred / row.l);
  if constexpr (SUM_P2)
    store<accum_t>(row_address(c.sum_p2, at, q, c.sum_p2_batch, c.sum_p2_head, c.sum_p2_row),
                   empty ? accum_t(0) : row.squares / row.l / row.l);
}
