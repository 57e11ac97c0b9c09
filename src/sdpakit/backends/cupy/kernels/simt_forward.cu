// ---- attention_forward, SIMT family: for every dtype, width and mask -----------------------------
//
// A block computes BLOCK_Q query rows of one head of one batch entry, over tiles of BLOCK_K keys.
// LANES threads share ROWS rows: each has KEYS keys of a tile, and later CHANNELS of CHUNK_V
// channels of v.

constexpr int GROUPS = THREADS / LANES;
constexpr int BLOCK_Q = GROUPS * ROWS;
constexpr int BLOCK_K = LANES * KEYS;
constexpr int CHUNK = 32;    // of the width of q and k that is in shared memory at a time
constexpr int CHUNK_V = 64;  // of the width of v
constexpr int CHUNKS_V = (DV + CHUNK_V - 1) / CHUNK_V;
constexpr int CHANNELS = CHUNK_V / LANES;

// Rows are padded by one element, so that threads that read a column meet different banks.
struct Shared {
  accum_t q[BLOCK_Q][CHUNK + 1];
  accum_t kv[BLOCK_K][CHUNK_V + 1];
  accum_t weights[BLOCK_Q][BLOCK_K + 1];
};

// ---- S = Q K^T, chunk of the width by chunk
__device__ __forceinline__ void products(const Call& c, const Place& at, i64 k0, int lane, int group,
                                         Shared& shared, accum_t (&s)[ROWS][KEYS]) {
  for (int r = 0; r < ROWS; ++r)
    for (int n = 0; n < KEYS; ++n) s[r][n] = 0;
  for (int d0 = 0; d0 < D; d0 += CHUNK) {
    __syncthreads();  // the chunk before has been read
    for (int i = threadIdx.x; i < BLOCK_Q * CHUNK; i += THREADS) {
      const int row = i / CHUNK, d = i % CHUNK;
      const bool there = at.q0 + row < at.rows && d0 + d < D;
      const u64 from = at.q + (at.q0 + row) * c.q_row + (d0 + d) * c.q_channel;
      shared.q[row][d] = there ? widen(load<q_t>(from)) : accum_t(0);
    }
    for (int i = threadIdx.x; i < BLOCK_K * CHUNK; i += THREADS) {
      const int key = i / CHUNK, d = i % CHUNK;
      const bool there = k0 + key < at.keys && d0 + d < D;
      shared.kv[key][d] =
          there ? widen(load<q_t>(key_address(c, at, k0 + key) + (d0 + d) * c.k_channel)) : accum_t(0);
    }
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < (D < CHUNK ? D : CHUNK); ++d)
      for (int r = 0; r < ROWS; ++r)
        for (int n = 0; n < KEYS; ++n)
          s[r][n] = fma_of(shared.q[group * ROWS + r][d], shared.kv[lane + n * LANES][d], s[r][n]);
  }
}

// ---- O = O * before + P V, chunk of the channels by chunk
__device__ __forceinline__ void weighted_sum(const Call& c, const Place& at, i64 k0, int lane, int group,
                                             const accum_t (&before)[ROWS], Shared& shared,
                                             accum_t (&acc)[ROWS][CHUNKS_V * CHANNELS + 1]) {
#pragma unroll
  for (int e0 = 0; e0 < DV; e0 += CHUNK_V) {
    __syncthreads();  // keys, or the chunk before, have been read; weights are written
    bool odd = false;
    for (int i = threadIdx.x; i < BLOCK_K * CHUNK_V; i += THREADS) {
      const int key = i / CHUNK_V, e = i % CHUNK_V;
      const bool there = k0 + key < at.keys && e0 + e < DV;
      const accum_t x =
          there ? widen(load<q_t>(value_address(c, at, k0 + key) + (e0 + e) * c.v_channel)) : accum_t(0);
      odd |= !is_finite(x);
      shared.kv[key][e] = x;
    }
    // MASK-3: what is not finite must not meet an absent pair, not even times 0.
    const bool select = __syncthreads_or(odd);
    accum_t sums[ROWS][CHANNELS] = {};
#pragma unroll 4
    for (int key = 0; key < BLOCK_K; ++key)
      for (int r = 0; r < ROWS; ++r) {
        const accum_t p = shared.weights[group * ROWS + r][key];
        if (select && is_negative(p)) continue;
        for (int n = 0; n < CHANNELS; ++n)
          sums[r][n] = fma_of(p, shared.kv[key][lane + n * LANES], sums[r][n]);
      }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int n = 0; n < CHANNELS; ++n) {
        accum_t& o = acc[r][e0 / LANES + n];
        o = fma_of(o, before[r], sums[r][n]);
      }
  }
}

__device__ __forceinline__ void store_out(const Call& c, const Place& at, i64 q, int lane, const Mean& mean,
                                          const accum_t* acc) {
  const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
#pragma unroll
  for (int e0 = 0; e0 < DV; e0 += CHUNK_V)
#pragma unroll
    for (int n = 0; n < CHANNELS; ++n) {
      const int e = e0 + lane + n * LANES;
      if (e >= DV) continue;
      out_t y;
      narrow(mean.of(acc[e0 / LANES + n]), y);
      store<out_t>(to + e * c.out_channel, y);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const Place at = place_of_block(c, BLOCK_Q);
  if (at.q0 >= at.rows) return;
  const i64 q_last = least_of(at.q0 + BLOCK_Q, at.rows) - 1;

  Row rows[ROWS];
  accum_t acc[ROWS][CHUNKS_V * CHANNELS + 1];
  for (int r = 0; r < ROWS; ++r) {
    rows[r] = Row{-INFINITE, 0, 0, 0};
    for (int n = 0; n < CHUNKS_V * CHANNELS; ++n) acc[r][n] = 0;
  }

  const Tiles tiles(c, at, q_last);
  for (i64 k0 = tiles.first(BLOCK_K); k0 < tiles.end(); k0 += BLOCK_K) {
    const Tiles::Kind kind = tiles.kind(c, at, q_last, k0, BLOCK_K);
    if (kind == Tiles::EMPTY) continue;
    const i64 k_last = least_of(k0 + BLOCK_K, at.keys) - 1;
    accum_t s[ROWS][KEYS], before[ROWS];
    products(c, at, k0, lane, group, shared, s);
    for (int r = 0; r < ROWS; ++r) {
      const int row = group * ROWS + r;
      bool present[KEYS];
      logits(c, at, least_of(at.q0 + row, q_last), k_last, kind == Tiles::FULL,
             [&](int n) { return k0 + lane + n * LANES; }, s[r], present);
      before[r] = soften(rows[r], s[r], present);
      for (int n = 0; n < KEYS; ++n) shared.weights[row][lane + n * LANES] = s[r][n];
    }
    if constexpr (OUT) weighted_sum(c, at, k0, lane, group, before, shared, acc);
  }

  for (int r = 0; r < ROWS; ++r) {
    const i64 q = at.q0 + group * ROWS + r;
    if (q > q_last) continue;
    if constexpr (OUT) store_out(c, at, q, lane, mean_of(c, at, rows[r]), acc[r]);
    if (lane == 0) store_statistics(c, at, q, rows[r]);
  }
}
