// ---- attention_forward, mma.sync family: float16 and bfloat16 on sm_80 and later -----------------
//
// A warp has 16 query rows and a block WARPS times as many, over tiles of BLOCK_K keys, two of which
// are in shared memory: the next keys come while this tile is computed, the next values while its
// values are multiplied.

constexpr int BLOCK_Q = 16 * WARPS;
constexpr int K_STEPS = D_PAD / 16;
constexpr int S_TILES = BLOCK_K / 8;
constexpr int O_TILES = DV_PAD / 8;
constexpr bool KEEP_Q = D_PAD <= 128;  // else q is read from shared memory for each tile

struct Shared {
  unsigned short q[BLOCK_Q][PITCH];
  unsigned short k[2][BLOCK_K][PITCH];
  unsigned short v[2][BLOCK_K][PITCH_V];
};

__device__ __forceinline__ void fetch_keys(const Call& c, const Place& at, i64 k0, Shared& shared, int stage) {
  fetch_rows<D, D_PAD, PITCH, WHOLE_K>(shared.k[stage], BLOCK_K, k0, at.keys, c.k_channel,
                                       [&](i64 key) { return key_address(c, at, key); });
}
__device__ __forceinline__ void fetch_values(const Call& c, const Place& at, i64 k0, Shared& shared, int stage) {
  fetch_rows<DV, DV_PAD, PITCH_V, WHOLE_V>(shared.v[stage], BLOCK_K, k0, at.keys, c.v_channel,
                                           [&](i64 key) { return value_address(c, at, key); });
}

__device__ __forceinline__ void store_row(const Call& c, const Place& at, i64 q, int lane, int half,
                                          const Row& row, const float (&o)[O_TILES][4]) {
  if constexpr (SPLIT) {
    const u64 to = part_sums(c, at, q);
    for_row_channels<DV>(o, lane, half,
                         [&](int e, float sum) { store<float>(to + e * (i64)sizeof(float), sum); });
    if (lane % 4 == 0) store_part(c, at, q, row);
    return;
  }
  if constexpr (OUT) {
    const Mean mean = mean_of(c, at, row);
    const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
    for_row_channels<DV>(o, lane, half, [&](int e, float sum) {
      out_t y;
      narrow(mean.of(sum), y);
      store<out_t>(to + e * c.out_channel, y);
    });
  }
  if (lane % 4 == 0) store_statistics(c, at, q, row);
}

// Two blocks of a multiprocessor: without the number, the assembler makes room for three, and spills.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward(const __grid_constant__ Call c) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *(Shared*)memory;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place at = place_of_block(c, BLOCK_Q);
  if (at.q0 >= rows_of_heads(c, at)) return;

  // ---- which tiles: the first that is not EMPTY, and after each the next such
  const Tiles tiles(c, at, rows_of_block(c, at, BLOCK_Q));
  i64 k0 = tiles.first(BLOCK_K);
  Tiles::Kind kind = Tiles::EMPTY;
  const auto advance = [&](i64& k, Tiles::Kind& found) {
    for (found = Tiles::EMPTY; k < tiles.end(); k += BLOCK_K)
      if ((found = tiles.kind(c, at, k, BLOCK_K)) != Tiles::EMPTY) break;
  };
  advance(k0, kind);

  // ---- first copies: q and the first keys; the first values
  fetch_rows<D, D_PAD, PITCH, WHOLE_Q>(
      shared.q, BLOCK_Q, at.q0, rows_of_heads(c, at), c.q_channel,
      [&](i64 row) { return q_address(c, at, block_row(c, at, (int)(row - at.q0))); });
  if (kind != Tiles::EMPTY) fetch_keys(c, at, k0, shared, 0);
  commit_copies();
  if (kind != Tiles::EMPTY) fetch_values(c, at, k0, shared, 0);
  commit_copies();

  Row rows[2];
  float o[O_TILES][4];
  rows[0] = rows[1] = Row{-INFINITE, 0, 0, 0};
#pragma unroll
  for (int n = 0; n < O_TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] = 0;
  u32 q_kept[K_STEPS][4];
  bool first = true;

  for (int stage = 0; kind != Tiles::EMPTY; stage ^= 1) {
    i64 k_next = k0 + BLOCK_K;
    Tiles::Kind kind_next;
    advance(k_next, kind_next);

    // ---- S = Q K^T, while the next keys come
    wait_for_copies<1>();  // all but the values of this tile
    __syncthreads();       // for everybody; and the stage that is filled next has been read by all
    if constexpr (KEEP_Q) {
      if (first) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) load_left(shared.q, warp, lane, step, q_kept[step]);
      }
      first = false;
    }
    if (kind_next != Tiles::EMPTY) fetch_keys(c, at, k_next, shared, stage ^ 1);
    commit_copies();
    float s[S_TILES][4];
    const auto left = [&](int step, u32(&q)[4]) {
      if constexpr (KEEP_Q) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = q_kept[step][i];
      } else {
        load_left(shared.q, warp, lane, step, q);
      }
    };
    products<K_STEPS>(shared.k[stage], lane, left, s);

    // ---- logits, mask and softmax of rows g and g + 8
    const i64 k_last = least_of(k0 + BLOCK_K, at.keys) - 1;
    float x[2][2 * S_TILES], before[2];
    bool absent = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bool present[2 * S_TILES];
#pragma unroll
      for (int n = 0; n < 2 * S_TILES; ++n) x[half][n] = s[n / 2][2 * half + n % 2];
      const BlockRow row = block_row(c, at, warp * 16 + half * 8 + lane / 4);
      logits(c, with_head(at, row.h), row.q, k_last, kind == Tiles::FULL,
             [&](int n) { return k0 + n / 2 * 8 + lane % 4 * 2 + n % 2; }, x[half], present);
      before[half] = soften(rows[half], x[half], present);
#pragma unroll
      for (int n = 0; n < 2 * S_TILES; ++n) absent |= !present[n];
    }

    // ---- O = O * before + P V, while the next values come
    wait_for_copies<1>();  // all but the next keys
    const bool select =
        __syncthreads_or(absent) && __syncthreads_or(has_odd_values<DV>(shared.v[stage], BLOCK_K));
    if (kind_next != Tiles::EMPTY) fetch_values(c, at, k_next, shared, stage ^ 1);
    commit_copies();
    if constexpr (OUT || SPLIT) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= before[i / 2];
      if (select) selected_sum(shared.v[stage], lane, x, o);
      else weighted_sum(shared.v[stage], lane, x, o);
    }
    k0 = k_next, kind = kind_next;
  }
  wait_for_copies<0>();  // nothing may land in memory that another block has by then

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const BlockRow row = block_row(c, at, warp * 16 + half * 8 + lane / 4);
    if (row.there) store_row(c, with_head(at, row.h), row.q, lane, half, rows[half], o);
  }
}
