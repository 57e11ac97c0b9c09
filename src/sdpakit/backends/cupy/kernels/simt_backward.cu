// ---- gradients, SIMT family: for every dtype, width and mask -------------------------------------
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
  accum_t weight, dlogit;
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
  pair.weight = exp_of(x - row.shift) / row.whole;
  pair.dlogit = pair.weight * (dp - row.delta);
  return pair;
}
// What stands in a tile: + 0 makes a zero of a present pair positive, as -0.0 means an absent one.
__device__ __forceinline__ accum_t marked(const Pair& pair, accum_t value) {
  return pair.present ? value + accum_t(0) : accum_t(-0.0);
}
__device__ __forceinline__ accum_t ddot_of(const Call& c, const Place& at, const Pair& pair, accum_t dot) {
  return marked(pair, pair.dlogit * slope_of(c, at, pair.q, pair.k, dot));
}

// ---- gradient_of_queries: a block has BLOCK_R query rows of one head
extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_queries(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const Place at = place_of_block(c, BLOCK_R);
  if (at.q0 >= at.rows) return;
  const i64 q_last = least_of(at.q0 + BLOCK_R, at.rows) - 1;
  RowFacts facts[ROWS];
  accum_t dq[ROWS][parts(D) + 1], one[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    facts[r] = facts_of(c, at, least_of(at.q0 + row_of(r), q_last));
    one[r] = 1;
    for (int n = 0; n < parts(D); ++n) dq[r][n] = 0;
  }
  const Tiles tiles(c, at, {at.q0, q_last});
  for (i64 k0 = tiles.first(BLOCK_C); k0 < tiles.end(); k0 += BLOCK_C) {
    const Tiles::Kind kind = tiles.kind(c, at, k0, BLOCK_C);
    if (kind == Tiles::EMPTY) continue;
    const i64 k_last = least_of(k0 + BLOCK_C, at.keys) - 1;
    accum_t dot[ROWS][COLS], dp[ROWS][COLS];
    multiply<D>(
        shared, [&](int row, int d) { return q_element(c, at, at.q0 + row, d); },
        [&](int key, int d) { return k_element(c, at, k0 + key, d); }, dot);
    multiply<DV>(
        shared, [&](int row, int e) { return dout_element(c, at, at.q0 + row, e); },
        [&](int key, int e) { return v_element(c, at, k0 + key, e); }, dp);
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < COLS; ++n) {
        const Pair pair = pair_of(c, at, at.q0 + row_of(r), q_last, k0 + col_of(n), k_last,
                                  kind == Tiles::FULL, dot[r][n], dp[r][n], facts[r]);
        shared.tile[row_of(r)][col_of(n)] = ddot_of(c, at, pair, dot[r][n]);
      }
    accumulate<D>(shared, [&](int key, int d) { return k_element(c, at, k0 + key, d); }, one, dq);
  }
  for (int r = 0; r < ROWS; ++r) {
    const i64 q = at.q0 + row_of(r);
    if (q > q_last) continue;
    for_channels<D>(dq[r], [&](int d, accum_t sum) {
      q_t y;
      narrow(sum, y);  // GRAD-3: the one rounding
      store<q_t>(c.dq + at.b * c.dq_batch + at.h * c.dq_head + q * c.dq_row + d * c.dq_channel, y);
    });
  }
}

// ---- gradient_of_keys: a block has BLOCK_R keys of one kv head, and goes through all heads of its group
extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_keys(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const i64 k_tiles = (c.kv_rows + BLOCK_R - 1) / BLOCK_R, group = c.q_heads / c.kv_heads;
  const i64 k0 = (i64)blockIdx.x % k_tiles * BLOCK_R, head = (i64)blockIdx.x / k_tiles;
  const i64 b = head / c.kv_heads, kv_head = head % c.kv_heads;
  accum_t dk[ROWS][parts(D) + 1], dv[ROWS][parts(DV) + 1], one[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    one[r] = 1;
    for (int n = 0; n < parts(D); ++n) dk[r][n] = 0;
    for (int n = 0; n < parts(DV); ++n) dv[r][n] = 0;
  }
  for (i64 h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const Place at = place(c, b, h, 0);
    if (k0 >= at.keys) break;
    const i64 k_last = least_of(k0 + BLOCK_R, at.keys) - 1;
    for (i64 q0 = 0; q0 < at.rows; q0 += BLOCK_C) {
      const i64 q_last = least_of(q0 + BLOCK_C, at.rows) - 1;
      const TileClass found = tile_class(c, at, q0, q_last, k0, k_last);
      if (!found.can_be_true) continue;
      accum_t dot[ROWS][COLS], dp[ROWS][COLS];
      multiply<D>(
          shared, [&](int key, int d) { return k_element(c, at, k0 + key, d); },
          [&](int row, int d) { return q_element(c, at, q0 + row, d); }, dot);
      multiply<DV>(
          shared, [&](int key, int e) { return v_element(c, at, k0 + key, e); },
          [&](int row, int e) { return dout_element(c, at, q0 + row, e); }, dp);
      for (int n = 0; n < COLS; ++n) {
        const i64 q = q0 + col_of(n);
        const RowFacts facts = facts_of(c, at, least_of(q, q_last));
        for (int r = 0; r < ROWS; ++r) {
          const Pair pair = pair_of(c, at, q, q_last, k0 + row_of(r), k_last, !found.can_be_false,
                                    dot[r][n], dp[r][n], facts);
          shared.tile[row_of(r)][col_of(n)] = marked(pair, pair.weight);
          dot[r][n] = HAS_SLOPE ? ddot_of(c, at, pair, dot[r][n]) : accum_t(-0.0);
        }
      }
      accumulate<DV>(shared, [&](int row, int e) { return dout_element(c, at, q0 + row, e); }, one, dv);
      if constexpr (HAS_SLOPE) {
        __syncwarp();  // rows of a tile belong to one warp, which has read the weights
        for (int r = 0; r < ROWS; ++r)
          for (int n = 0; n < COLS; ++n) shared.tile[row_of(r)][col_of(n)] = dot[r][n];
        accumulate<D>(shared, [&](int row, int d) { return q_element(c, at, q0 + row, d); }, one, dk);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    const i64 key = k0 + row_of(r);
    if (key >= c.kv_rows) continue;
    const i64 k_at = b * c.dk_batch + kv_head * c.dk_head + key * c.dk_row;
    const i64 v_at = b * c.dv_batch + kv_head * c.dv_head + key * c.dv_row;
    for_channels<D>(dk[r], [&](int d, accum_t sum) {
      q_t y;
      narrow(sum, y);
      store<q_t>(c.dk + k_at + d * c.dk_channel, y);
    });
    for_channels<DV>(dv[r], [&](int e, accum_t sum) {
      q_t y;
      narrow(sum, y);
      store<q_t>(c.dv + v_at + e * c.dv_channel, y);
    });
  }
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

// ---- gradients of tables that the logit reads: each pair adds to the element that it read (GRAD-2)
struct Owned {  // what a block goes through: b, h and q tile, each one of them or all
  i64 b, b_end, h, h_end, tile, tile_end;
};
__device__ __forceinline__ Owned owned_by_block(const Call& c, bool by_b, bool by_h, bool by_q) {
  i64 item = blockIdx.x;
  const i64 tiles = by_q ? c.q_tiles : 1, heads = by_h ? c.q_heads : 1;
  const i64 tile = item % tiles;
  item /= tiles;
  const i64 h = item % heads, b = item / heads;
  return {b, by_b ? b + 1 : c.batch, h, by_h ? h + 1 : c.q_heads, tile, by_q ? tile + 1 : c.q_tiles};
}

struct Scattered {
  accum_t value[BLOCK_R * BLOCK_C];
  i64 element[BLOCK_R * BLOCK_C];  // -1 where a pair is absent
};
// Adds a tile of values to their elements. Where pairs may share an element, each thread looks at all pairs,
// in order, and adds to the elements that are its own.
__device__ __forceinline__ void scatter(const Scattered& part, u64 sums, bool distinct) {
  __syncthreads();
  for (int i = distinct ? threadIdx.x : 0; i < BLOCK_R * BLOCK_C; i += distinct ? THREADS : 1) {
    const i64 element = part.element[i];
    if (element < 0 || (!distinct && element % THREADS != threadIdx.x)) continue;
    store_number(sums, element, stored_number(sums, element) + part.value[i]);
  }
  __syncthreads();
}

template <class SlopeOf, class ElementOf>
__device__ __forceinline__ void gradient_of_table(const Call& c, Shared& shared, Scattered& part,
                                                  const Owned& owned, u64 sums, bool distinct,
                                                  SlopeOf slope, ElementOf element) {
  for (i64 b = owned.b; b < owned.b_end; ++b)
    for (i64 h = owned.h; h < owned.h_end; ++h)
      for (i64 tile = owned.tile; tile < owned.tile_end; ++tile) {
        const Place at = place(c, b, h, tile * BLOCK_R);
        const i64 q_last = least_of(at.q0 + BLOCK_R, at.rows) - 1;
        const Tiles tiles(c, at, {at.q0, q_last});
        for (i64 k0 = tiles.first(BLOCK_C); k0 < tiles.end(); k0 += BLOCK_C) {
          const Tiles::Kind kind = tiles.kind(c, at, k0, BLOCK_C);
          if (kind == Tiles::EMPTY) continue;
          const i64 k_last = least_of(k0 + BLOCK_C, at.keys) - 1;
          accum_t dot[ROWS][COLS], dp[ROWS][COLS];
          multiply<D>(
              shared, [&](int row, int d) { return q_element(c, at, at.q0 + row, d); },
              [&](int key, int d) { return k_element(c, at, k0 + key, d); }, dot);
          multiply<DV>(
              shared, [&](int row, int e) { return dout_element(c, at, at.q0 + row, e); },
              [&](int key, int e) { return v_element(c, at, k0 + key, e); }, dp);
          for (int r = 0; r < ROWS; ++r)
            for (int n = 0; n < COLS; ++n) {
              const RowFacts facts = facts_of(c, at, least_of(at.q0 + row_of(r), q_last));
              const Pair pair = pair_of(c, at, at.q0 + row_of(r), q_last, k0 + col_of(n), k_last,
                                        kind == Tiles::FULL, dot[r][n], dp[r][n], facts);
              const int i = row_of(r) * BLOCK_C + col_of(n);
              part.value[i] = pair.dlogit * slope(at, pair.q, pair.k, dot[r][n]);
              part.element[i] = pair.present ? element(at, pair.q, pair.k) : -1;
            }
          scatter(part, sums, distinct);
        }
      }
}
