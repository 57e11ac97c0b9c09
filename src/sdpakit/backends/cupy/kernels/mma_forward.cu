// ---- attention_forward, mma.sync family: float16 and bfloat16 on sm_80 and later -----------------
//
// A warp has 16 query rows and a block WARPS times as many, over tiles of BLOCK_K keys, two of which
// are in shared memory: the next keys come while this tile is computed, the next values while its
// values are multiplied. A thread holds two rows of each product, g and g + 8, and of each 8 columns
// two: this is the layout of mma.m16n8k16, in which S is also the left operand of P V.

constexpr int THREADS = 32 * WARPS;
constexpr int BLOCK_Q = 16 * WARPS;
constexpr int D_PAD = (D + 15) / 16 * 16;     // zeros behind the width change no product; the scale
constexpr int DV_PAD = (DV + 15) / 16 * 16;   // is that of the spec (SCALE-1)
constexpr int PITCH = D_PAD + 8;              // elements; an odd number of 16-byte units, so that the
constexpr int PITCH_V = DV_PAD + 8;           // eight rows that ldmatrix reads meet different banks
constexpr int K_STEPS = D_PAD / 16;
constexpr int S_TILES = BLOCK_K / 8;
constexpr int O_TILES = DV_PAD / 8;
constexpr bool KEEP_Q = D_PAD <= 128;         // else q is read from shared memory for each tile

struct Shared {
  unsigned short q[BLOCK_Q][PITCH];
  unsigned short k[2][BLOCK_K][PITCH];
  unsigned short v[2][BLOCK_K][PITCH_V];
};

// ---- rows to shared memory: 16 bytes at a time in the background, or one by one where they lie otherwise
template <int WIDTH, int PADDED, int LINE, bool WHOLE, class AddressOf>
__device__ __forceinline__ void fetch_rows(unsigned short (*to)[LINE], int rows, i64 first, i64 end,
                                           i64 channel, AddressOf address_of) {
  if constexpr (WHOLE) {
    constexpr int UNITS = PADDED / 8;
    for (int i = threadIdx.x; i < rows * UNITS; i += THREADS) {
      const int row = i / UNITS, unit = i % UNITS;
      const bool there = first + row < end && unit * 8 < WIDTH;
      const u64 from = address_of(least_of(first + row, end - 1)) + (there ? unit * 16 : 0);
      copy_16_bytes(shared_address(&to[row][unit * 8]), from, there);
    }
  } else {
    for (int i = threadIdx.x; i < rows * PADDED; i += THREADS) {
      const int row = i / PADDED, d = i % PADDED;
      const bool there = first + row < end && d < WIDTH;
      to[row][d] = there ? load<q_t>(address_of(first + row) + d * channel).bits : (unsigned short)0;
    }
  }
}

__device__ __forceinline__ void fetch_keys(const Call& c, const Place& at, i64 k0, Shared& shared, int stage) {
  fetch_rows<D, D_PAD, PITCH, WHOLE_K>(shared.k[stage], BLOCK_K, k0, at.keys, c.k_channel,
                                       [&](i64 key) { return key_address(c, at, key); });
}
__device__ __forceinline__ void fetch_values(const Call& c, const Place& at, i64 k0, Shared& shared, int stage) {
  fetch_rows<DV, DV_PAD, PITCH_V, WHOLE_V>(shared.v[stage], BLOCK_K, k0, at.keys, c.v_channel,
                                           [&](i64 key) { return value_address(c, at, key); });
}

// ---- S = Q K^T for the 16 rows of a warp
__device__ __forceinline__ void load_q(Shared& shared, int warp, int lane, int step, u32 (&q)[4]) {
  load_matrices(shared_address(&shared.q[warp * 16 + lane % 16][step * 16 + lane / 16 * 8]), q);
}
__device__ __forceinline__ void products(Shared& shared, int stage, int warp, int lane,
                                         const u32 (&q_kept)[K_STEPS][4], float (&s)[S_TILES][4]) {
#pragma unroll
  for (int n = 0; n < S_TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
  for (int step = 0; step < K_STEPS; ++step) {
    u32 q[4];
    if constexpr (KEEP_Q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] = q_kept[step][i];
    } else {
      load_q(shared, warp, lane, step, q);
    }
#pragma unroll
    for (int n = 0; n < S_TILES; n += 2) {
      u32 k[4];  // two columns of eight keys, two halves of 16 channels
      const int key = n * 8 + lane / 16 * 8 + lane % 8;
      load_matrices(shared_address(&shared.k[stage][key][step * 16 + lane / 8 % 2 * 8]), k);
      multiply_add(s[n], q, k[0], k[1]);
      multiply_add(s[n + 1], q, k[2], k[3]);
    }
  }
}

// ---- O += P V
__device__ __forceinline__ void weighted_sum(Shared& shared, int stage, int lane,
                                             const u32 (&p)[S_TILES / 2][4], float (&o)[O_TILES][4]) {
#pragma unroll
  for (int step = 0; step < S_TILES / 2; ++step)
#pragma unroll
    for (int n = 0; n < O_TILES; n += 2) {
      u32 v[4];
      const int key = step * 16 + lane % 16;
      load_matrices_transposed(shared_address(&shared.v[stage][key][n * 8 + lane / 16 * 8]), v);
      multiply_add(o[n], p[step], v[0], v[1]);
      multiply_add(o[n + 1], p[step], v[2], v[3]);
    }
}

// The same where a value is not finite and a pair is absent: picked pair by pair, as nothing that is not
// finite may meet an absent pair, not even times 0 (MASK-3). Slow, and rare.
__device__ __forceinline__ void selected_sum(const Shared& shared, int stage, int lane,
                                             const float (&x)[2][2 * S_TILES], float (&o)[O_TILES][4]) {
#pragma unroll 1
  for (int key = 0; key < BLOCK_K; ++key)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The thread of this row that holds the key, and which of its columns it is.
      const int column = key / 8 * 2 + key % 2, owner = (lane & ~3) + key % 8 / 2;
      float p = 0;
#pragma unroll
      for (int n = 0; n < 2 * S_TILES; ++n)
        if (n == column) p = x[half][n];
      p = __shfl_sync(0xffffffffu, p, owner);
      const bool present = !is_negative_zero(p);
      q_t rounded;
      narrow(p, rounded);
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const q_t value = {shared.v[stage][key][n * 8 + lane % 4 * 2 + i]};
          float& sum = o[n][2 * half + i];
          if (present) sum = fma_of(widen(rounded), widen(value), sum);
        }
    }
}

__device__ __forceinline__ bool has_odd_values(const Shared& shared, int stage) {
  bool odd = false;
  for (int i = threadIdx.x; i < BLOCK_K * DV; i += THREADS) {
    const q_t value = {shared.v[stage][i / DV][i % DV]};
    odd |= !is_finite(widen(value));
  }
  return odd;
}

// Channels of this thread in one of its rows, one by one: take(channel, value).
template <class Take>
__device__ __forceinline__ void for_channels(const float (&o)[O_TILES][4], int lane, int half, Take take) {
#pragma unroll
  for (int n = 0; n < O_TILES; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = n * 8 + lane % 4 * 2 + i;
      if (e < DV) take(e, o[n][2 * half + i]);
    }
}

__device__ __forceinline__ void store_row(const Call& c, const Place& at, i64 q, int lane, int half,
                                          const Row& row, const float (&o)[O_TILES][4]) {
  if constexpr (SPLIT) {
    const u64 to = part_sums(c, at, q);
    for_channels(o, lane, half, [&](int e, float sum) { store<float>(to + e * (i64)sizeof(float), sum); });
    if (lane % 4 == 0) store_part(c, at, q, row);
    return;
  }
  if constexpr (OUT) {
    const Mean mean = mean_of(c, at, row);
    const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
    for_channels(o, lane, half, [&](int e, float sum) {
      out_t y;
      narrow(mean.of(sum), y);
      store<out_t>(to + e * c.out_channel, y);
    });
  }
  if (lane % 4 == 0) store_statistics(c, at, q, row);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const __grid_constant__ Call c) {
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
        for (int step = 0; step < K_STEPS; ++step) load_q(shared, warp, lane, step, q_kept[step]);
      }
      first = false;
    }
    if (kind_next != Tiles::EMPTY) fetch_keys(c, at, k_next, shared, stage ^ 1);
    commit_copies();
    float s[S_TILES][4];
    products(shared, stage, warp, lane, q_kept, s);

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
    const bool select = __syncthreads_or(absent) && __syncthreads_or(has_odd_values(shared, stage));
    if (kind_next != Tiles::EMPTY) fetch_values(c, at, k_next, shared, stage ^ 1);
    commit_copies();
    if constexpr (OUT || SPLIT) {
#pragma unroll
      for (int n = 0; n < O_TILES; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= before[i / 2];
      if (select) {
        selected_sum(shared, stage, lane, x, o);
      } else {
        u32 p[S_TILES / 2][4];
#pragma unroll
        for (int step = 0; step < S_TILES / 2; ++step)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            p[step][i] = pack_pair(x[i % 2][4 * step + i / 2 * 2], x[i % 2][4 * step + i / 2 * 2 + 1]);
        weighted_sum(shared, stage, lane, p, o);
      }
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
