// ---- products of the SIMT family: tiles of BLOCK_R rows and BLOCK_C columns ----------------------
// LANES threads share ROWS rows; each has COLS columns of a tile, and CHANNELS of CHUNK_V channels of
// what is summed. Operands are given as functions (row or column, channel) -> number, which return 0
// outside of what there is.

constexpr int GROUPS = THREADS / LANES;
constexpr int BLOCK_R = GROUPS * ROWS;
constexpr int BLOCK_C = LANES * COLS;
constexpr int CHUNK = 32;    // of a width that is multiplied, in shared memory at a time
constexpr int CHUNK_V = 64;  // of a width that is summed
constexpr int CHANNELS = CHUNK_V / LANES;
__device__ constexpr int parts(int width) { return (width + CHUNK_V - 1) / CHUNK_V * CHANNELS; }

// Rows are padded by one element, so that threads that read a column meet different banks.
struct Shared {
  accum_t rows[BLOCK_R][CHUNK + 1];
  accum_t cols[BLOCK_C][CHUNK_V + 1];
  accum_t tile[BLOCK_R][BLOCK_C + 1];
};

__device__ __forceinline__ int lane_of() { return threadIdx.x % LANES; }
__device__ __forceinline__ int group_of() { return threadIdx.x / LANES; }
__device__ __forceinline__ int row_of(int r) { return group_of() * ROWS + r; }
__device__ __forceinline__ int col_of(int n) { return lane_of() + n * LANES; }

// s = rows times columns, chunk of the width by chunk.
template <int WIDTH, class RowOf, class ColOf>
__device__ __forceinline__ void multiply(Shared& shared, RowOf row_value, ColOf col_value,
                                         accum_t (&s)[ROWS][COLS]) {
  for (int r = 0; r < ROWS; ++r)
    for (int n = 0; n < COLS; ++n) s[r][n] = 0;
  for (int d0 = 0; d0 < WIDTH; d0 += CHUNK) {
    __syncthreads();  // what was there has been read
    for (int i = threadIdx.x; i < BLOCK_R * CHUNK; i += THREADS)
      shared.rows[i / CHUNK][i % CHUNK] = row_value(i / CHUNK, d0 + i % CHUNK);
    for (int i = threadIdx.x; i < BLOCK_C * CHUNK; i += THREADS)
      shared.cols[i / CHUNK][i % CHUNK] = col_value(i / CHUNK, d0 + i % CHUNK);
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < (WIDTH < CHUNK ? WIDTH : CHUNK); ++d)
      for (int r = 0; r < ROWS; ++r)
        for (int n = 0; n < COLS; ++n)
          s[r][n] = fma_of(shared.rows[row_of(r)][d], shared.cols[col_of(n)][d], s[r][n]);
  }
}

// acc = acc * before + tile times columns, chunk of the channels by chunk. In the tile, -0.0 stands for
// an absent pair: nothing that is not finite may meet it, not even times 0 (MASK-3).
template <int WIDTH, class ColOf>
__device__ __forceinline__ void accumulate(Shared& shared, ColOf col_value, const accum_t (&before)[ROWS],
                                           accum_t (&acc)[ROWS][parts(WIDTH) + 1]) {
#pragma unroll
  for (int e0 = 0; e0 < WIDTH; e0 += CHUNK_V) {
    __syncthreads();  // columns have been read, the tile is written
    bool odd = false;
    for (int i = threadIdx.x; i < BLOCK_C * CHUNK_V; i += THREADS) {
      const accum_t x = col_value(i / CHUNK_V, e0 + i % CHUNK_V);
      odd |= !is_finite(x);
      shared.cols[i / CHUNK_V][i % CHUNK_V] = x;
    }
    const bool select = __syncthreads_or(odd);
    accum_t sums[ROWS][CHANNELS] = {};
#pragma unroll 4
    for (int n = 0; n < BLOCK_C; ++n)
      for (int r = 0; r < ROWS; ++r) {
        const accum_t p = shared.tile[row_of(r)][n];
        if (select && is_negative_zero(p)) continue;
        for (int e = 0; e < CHANNELS; ++e)
          sums[r][e] = fma_of(p, shared.cols[n][lane_of() + e * LANES], sums[r][e]);
      }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int e = 0; e < CHANNELS; ++e) {
        accum_t& o = acc[r][e0 / LANES + e];
        o = fma_of(o, before[r], sums[r][e]);
      }
  }
}

// Channels of this thread, one by one: take(channel, value).
template <int WIDTH, class Take>
__device__ __forceinline__ void for_channels(const accum_t (&acc)[parts(WIDTH) + 1], Take take) {
#pragma unroll
  for (int e0 = 0; e0 < WIDTH; e0 += CHUNK_V)
#pragma unroll
    for (int n = 0; n < CHANNELS; ++n) {
      const int e = e0 + lane_of() + n * LANES;
      if (e < WIDTH) take(e, acc[e0 / LANES + n]);
    }
}

// Elements of the operands, 0 outside of what there is.
__device__ __forceinline__ accum_t q_element(const Call& c, const Place& at, i64 q, int d) {
  if (q >= at.rows || d >= D) return 0;
  return widen(load<q_t>(at.q + q * c.q_row + d * c.q_channel));
}
__device__ __forceinline__ accum_t q_element(const Call& c, const Place& at, const BlockRow& row, int d) {
  if (!row.there || d >= D) return 0;
  return widen(load<q_t>(q_address(c, at, row) + d * c.q_channel));
}
__device__ __forceinline__ accum_t k_element(const Call& c, const Place& at, i64 key, int d) {
  if (key >= at.keys || d >= D) return 0;
  return widen(load<q_t>(key_address(c, at, key) + d * c.k_channel));
}
__device__ __forceinline__ accum_t v_element(const Call& c, const Place& at, i64 key, int e) {
  if (key >= at.keys || e >= DV) return 0;
  return widen(load<q_t>(value_address(c, at, key) + e * c.v_channel));
}
