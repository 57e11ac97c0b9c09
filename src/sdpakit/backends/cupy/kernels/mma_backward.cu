// ---- gradients by queries and by keys, mma.sync family: float16, bfloat16, sm_80 and later ------
//
// A block has BLOCK_M rows, 16 for each warp: of q and dout, or of keys and values. It goes through tiles
// of BLOCK_N rows of the others, two of which are in shared memory: the next comes while this one is
// computed. Of a pair of tiles, <q, k> and <dout, v> are products of its rows; weights and gradients of
// logits are their numbers, with rows g and g + 8 of a warp in each thread, and sums are over the tile.
// Two blocks of an SM, and not three as the assembler would have it: with fewer registers, it spills.

constexpr int BLOCK_M = 16 * WARPS;
constexpr int N_TILES = BLOCK_N / 8;
constexpr int D_TILES = D_PAD / 8;
constexpr int DV_TILES = DV_PAD / 8;
constexpr int PAIRS = 2 * N_TILES;  // of a row in a thread

struct Rows {
  unsigned short d[BLOCK_M][PITCH];     // rows of q, or keys
  unsigned short dv[BLOCK_M][PITCH_V];  // rows of dout, or values
};
struct Stage {
  unsigned short d[BLOCK_N][PITCH];
  unsigned short dv[BLOCK_N][PITCH_V];
};
struct Staged {
  Rows rows;
  Stage stage[2];
};

template <class Tile>
__device__ __forceinline__ void fetch_queries(const Call& c, const Place& at, i64 q0, int rows, Tile& to) {
  const u64 dout = c.dout + at.b * c.dout_batch + at.h * c.dout_head;
  fetch_rows<D, D_PAD, PITCH, WHOLE_Q>(to.d, rows, q0, at.rows, c.q_channel,
                                       [&](i64 q) { return at.q + q * c.q_row; });
  fetch_rows<DV, DV_PAD, PITCH_V, WHOLE_DOUT>(to.dv, rows, q0, at.rows, c.dout_channel,
                                              [&](i64 q) { return dout + q * c.dout_row; });
}
template <class Tile>
__device__ __forceinline__ void fetch_keys(const Call& c, const Place& at, i64 k0, int rows, Tile& to) {
  fetch_rows<D, D_PAD, PITCH, WHOLE_K>(to.d, rows, k0, at.keys, c.k_channel,
                                       [&](i64 key) { return key_address(c, at, key); });
  fetch_rows<DV, DV_PAD, PITCH_V, WHOLE_V>(to.dv, rows, k0, at.keys, c.v_channel,
                                           [&](i64 key) { return value_address(c, at, key); });
}

__device__ __forceinline__ int warp_of() { return threadIdx.x / 32; }
__device__ __forceinline__ int warp_lane() { return threadIdx.x % 32; }
// Row of a block and column of a tile of a thread's pairs.
__device__ __forceinline__ int m_of(int half) { return warp_of() * 16 + half * 8 + warp_lane() / 4; }
__device__ __forceinline__ int n_of(int pair) { return pair / 2 * 8 + warp_lane() % 4 * 2 + pair % 2; }

// <q, k> and <dout, v> of the pairs of a tile: [half][pair].
__device__ __forceinline__ void tile_products(const Rows& rows, const Stage& stage, float (&dot)[2][PAIRS],
                                              float (&dp)[2][PAIRS]) {
  const int warp = warp_of(), lane = warp_lane();
  float s[N_TILES][4];
  products<D_PAD / 16>(
      stage.d, lane, [&](int step, u32(&a)[4]) { load_left(rows.d, warp, lane, step, a); }, s);
#pragma unroll
  for (int i = 0; i < 2 * PAIRS; ++i) dot[i / PAIRS][i % PAIRS] = s[i % PAIRS / 2][i / PAIRS * 2 + i % 2];
  products<DV_PAD / 16>(
      stage.dv, lane, [&](int step, u32(&a)[4]) { load_left(rows.dv, warp, lane, step, a); }, s);
#pragma unroll
  for (int i = 0; i < 2 * PAIRS; ++i) dp[i / PAIRS][i % PAIRS] = s[i % PAIRS / 2][i / PAIRS * 2 + i % 2];
}

// ---- range: float16 holds nothing above 65504 and little below 2**-14. So gradients of logits of a row are
// multiplied by a power of two, with which the largest so far is near 2**15, and sums so far by what the
// power has changed. bfloat16 has the range of float32, and its power stays 1.
struct Powers {
  float now[2];
};
__device__ __forceinline__ Powers first_powers() {
  const float power = NARROW ? 8.507059173023462e37f : 1.0f;  // 2**126, for rows of zeros
  return {{power, power}};
}
__device__ __forceinline__ float inverse_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}
template <int TILES>
__device__ __forceinline__ void scale(Powers& powers, float (&x)[2][PAIRS], float (&sums)[TILES][4]) {
  if constexpr (!NARROW) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = 0;
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) top = fmaxf(top, fabsf(x[half][n]));  // not NaN, for which no power helps
#pragma unroll
    for (int step = 1; step < 4; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    const unsigned exponent = __float_as_uint(top) >> 23;
    const float fits = __uint_as_float((exponent < 15 ? 253u : 268u - exponent) << 23);
    const float power = fminf(powers.now[half], fits), change = power * inverse_power(powers.now[half]);
    powers.now[half] = power;
#pragma unroll
    for (int n = 0; n < PAIRS; ++n)  // of an absent pair it stays -0.0
      x[half][n] = is_negative_zero(x[half][n]) ? x[half][n] : x[half][n] * power + 0.0f;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[n][2 * half + i] *= change;
  }
}

template <int TILES>
__device__ __forceinline__ void clear(float (&sums)[TILES][4]) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
}
// Sums of one row, divided by the power that they were multiplied by; GRAD-3: the one rounding.
template <int WIDTH, int TILES>
__device__ __forceinline__ void store_sums(u64 to, i64 channel, int half, float inverse,
                                           const float (&sums)[TILES][4]) {
  for_row_channels<WIDTH>(sums, warp_lane(), half, [&](int d, float sum) {
    q_t y;
    narrow(sum * inverse, y);
    store<q_t>(to + d * channel, y);
  });
}

// ---- gradient_of_queries: a block has BLOCK_M query rows of one head
extern "C" __global__ void __launch_bounds__(THREADS, 2) gradient_of_queries(const __grid_constant__ Call c) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staged& shared = *(Staged*)memory;
  const Place at = place_of_block(c, BLOCK_M);
  if (at.q0 >= at.rows) return;
  const i64 q_last = least_of(at.q0 + BLOCK_M, at.rows) - 1;
  const Tiles tiles(c, at, {at.q0, q_last});
  i64 k0 = tiles.first(BLOCK_N);
  Tiles::Kind kind = Tiles::EMPTY;
  const auto advance = [&](i64& k, Tiles::Kind& found) {
    for (found = Tiles::EMPTY; k < tiles.end(); k += BLOCK_N)
      if ((found = tiles.kind(c, at, k, BLOCK_N)) != Tiles::EMPTY) break;
  };
  advance(k0, kind);
  fetch_queries(c, at, at.q0, BLOCK_M, shared.rows);
  if (kind != Tiles::EMPTY) fetch_keys(c, at, k0, BLOCK_N, shared.stage[0]);
  commit_copies();

  RowFacts facts[2];
  float dq[D_TILES][4];
  Powers powers = first_powers();
  clear(dq);
#pragma unroll
  for (int half = 0; half < 2; ++half) facts[half] = facts_of(c, at, least_of(at.q0 + m_of(half), q_last));
  for (int now = 0; kind != Tiles::EMPTY; now ^= 1) {
    i64 k_next = k0 + BLOCK_N;
    Tiles::Kind kind_next;
    advance(k_next, kind_next);
    const Stage& stage = shared.stage[now];
    wait_for_copies<0>();
    __syncthreads();  // for everybody; and the stage that is filled next has been read by all
    if (kind_next != Tiles::EMPTY) fetch_keys(c, at, k_next, BLOCK_N, shared.stage[now ^ 1]);
    commit_copies();
    float dot[2][PAIRS], x[2][PAIRS];
    tile_products(shared.rows, stage, dot, x);
    const i64 k_last = least_of(k0 + BLOCK_N, at.keys) - 1;
    bool absent = false;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; ++i) {
      const int half = i / PAIRS, n = i % PAIRS;
      const Pair pair = pair_of(c, at, at.q0 + m_of(half), q_last, k0 + n_of(n), k_last,
                                kind == Tiles::FULL, dot[half][n], x[half][n], facts[half]);
      x[half][n] = ddot_of(c, at, pair, dot[half][n]);
      absent |= !pair.present;
    }
    scale(powers, x, dq);
    if (__syncthreads_or(absent) && __syncthreads_or(has_odd_values<D>(stage.d, BLOCK_N)))
      selected_sum(stage.d, warp_lane(), x, dq);
    else
      weighted_sum(stage.d, warp_lane(), x, dq);
    k0 = k_next, kind = kind_next;
  }
  wait_for_copies<0>();  // nothing may land in memory that another block has by then
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 q = at.q0 + m_of(half);
    const u64 to = c.dq + at.b * c.dq_batch + at.h * c.dq_head + q * c.dq_row;
    if (q <= q_last) store_sums<D>(to, c.dq_channel, half, inverse_power(powers.now[half]), dq);
  }
}

// ---- gradient_of_keys: a block has BLOCK_M keys of one kv head, and goes through all heads of its group

// A tile of query rows of one of the heads; the first from (h, q0) on that has a pair, if h < end.
struct RowTile {
  i64 h, q0;
  bool full;
};
__device__ __forceinline__ RowTile row_tile(const Call& c, i64 b, i64 h, i64 end, i64 q0, i64 k0) {
  for (; h < end; ++h, q0 = 0) {
    const Place at = place(c, b, h, 0);
    const i64 k_last = least_of(k0 + BLOCK_M, at.keys) - 1;
    for (; k0 < at.keys && q0 < at.rows; q0 += BLOCK_N) {
      const i64 q_last = least_of(q0 + BLOCK_N, at.rows) - 1;
      const TileClass found = tile_class(c, at, q0, q_last, k0, k_last);
      if (found.can_be_true) return {h, q0, !found.can_be_false};
    }
  }
  return {end, 0, false};
}
// Weights and gradients of logits of the pairs of keys and a tile of rows, in place of <q, k> and <dout, v>.
// Returns whether a pair of this thread is absent.
__device__ __forceinline__ bool weights_of_keys(const Call& c, const Place& at, i64 k0, const RowTile& tile,
                                                float (&p)[2][PAIRS], float (&x)[2][PAIRS]) {
  const i64 k_last = least_of(k0 + BLOCK_M, at.keys) - 1, q_last = least_of(tile.q0 + BLOCK_N, at.rows) - 1;
  bool absent = false;
#pragma unroll
  for (int n = 0; n < PAIRS; ++n) {
    const i64 q = tile.q0 + n_of(n);
    const RowFacts facts = facts_of(c, at, least_of(q, q_last));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Pair pair = pair_of(c, at, q, q_last, k0 + m_of(half), k_last, tile.full, p[half][n], x[half][n],
                                facts);
      x[half][n] = ddot_of(c, at, pair, p[half][n]);
      p[half][n] = marked(pair, pair.weight);
      absent |= !pair.present;
    }
  }
  return absent;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gradient_of_keys(const __grid_constant__ Call c) {
  extern __shared__ __align__(16) unsigned char memory[];
  Staged& shared = *(Staged*)memory;
  const i64 k_tiles = (c.kv_rows + BLOCK_M - 1) / BLOCK_M, group = c.q_heads / c.kv_heads;
  const i64 k0 = (i64)blockIdx.x % k_tiles * BLOCK_M, head = (i64)blockIdx.x / k_tiles;
  const i64 b = head / c.kv_heads, kv_head = head % c.kv_heads, end = (kv_head + 1) * group;
  RowTile tile = row_tile(c, b, kv_head * group, end, 0, k0);
  if (tile.h < end) {
    const Place at = place(c, b, tile.h, 0);
    fetch_keys(c, at, k0, BLOCK_M, shared.rows);
    fetch_queries(c, at, tile.q0, BLOCK_N, shared.stage[0]);
  }
  commit_copies();

  float dk[D_TILES][4], dv[DV_TILES][4];
  Powers powers = first_powers();
  clear(dk);
  clear(dv);
  for (int now = 0; tile.h < end; now ^= 1) {
    const RowTile next = row_tile(c, b, tile.h, end, tile.q0 + BLOCK_N, k0);
    const Stage& stage = shared.stage[now];
    wait_for_copies<0>();
    __syncthreads();  // for everybody; and the stage that is filled next has been read by all
    if (next.h < end) fetch_queries(c, place(c, b, next.h, 0), next.q0, BLOCK_N, shared.stage[now ^ 1]);
    commit_copies();
    float p[2][PAIRS], x[2][PAIRS];
    tile_products(shared.rows, stage, p, x);
    const bool absent = __syncthreads_or(weights_of_keys(c, place(c, b, tile.h, 0), k0, tile, p, x));
    if (absent && __syncthreads_or(has_odd_values<DV>(stage.dv, BLOCK_N)))
      selected_sum(stage.dv, warp_lane(), p, dv);
    else
      weighted_sum(stage.dv, warp_lane(), p, dv);
    if constexpr (HAS_SLOPE) {
      scale(powers, x, dk);
      if (absent && __syncthreads_or(has_odd_values<D>(stage.d, BLOCK_N)))
        selected_sum(stage.d, warp_lane(), x, dk);
      else
        weighted_sum(stage.d, warp_lane(), x, dk);
    }
    tile = next;
  }
  wait_for_copies<0>();  // nothing may land in memory that another block has by then
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 key = k0 + m_of(half);
    const u64 k_to = c.dk + b * c.dk_batch + kv_head * c.dk_head + key * c.dk_row;
    const u64 v_to = c.dv + b * c.dv_batch + kv_head * c.dv_head + key * c.dv_row;
    if (key >= c.kv_rows) continue;
    store_sums<D>(k_to, c.dk_channel, half, inverse_power(powers.now[half]), dk);
    store_sums<DV>(v_to, c.dv_channel, half, 1 / ONE, dv);
  }
}
