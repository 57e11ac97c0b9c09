// ---- products of warps: tiles of 16-bit elements in shared memory, 16 rows of a product for each warp
//
// A thread holds two rows of each product, g and g + 8, and of each 8 columns two: this is the layout of
// mma.m16n8k16, in which a product S is also the left operand of the next, P V. The family defines THREADS
// before this text.

constexpr int D_PAD = (D + 15) / 16 * 16;     // zeros behind the width change no product; the scale
constexpr int DV_PAD = (DV + 15) / 16 * 16;   // is that of the spec (SCALE-1)
constexpr int PITCH = D_PAD + 8;              // elements; an odd number of 16-byte units, so that the
constexpr int PITCH_V = DV_PAD + 8;           // eight rows that ldmatrix reads meet different banks

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

// ---- S = A B^T: channels 16 by 16, of which `left` gives those of the 16 rows of a warp
template <int LINE>
__device__ __forceinline__ void load_left(const unsigned short (*rows)[LINE], int warp, int lane, int step,
                                          u32 (&a)[4]) {
  load_matrices(shared_address(&rows[warp * 16 + lane % 16][step * 16 + lane / 16 * 8]), a);
}
template <int STEPS, int TILES, int LINE, class Left>
__device__ __forceinline__ void products(const unsigned short (*columns)[LINE], int lane, Left left,
                                         float (&s)[TILES][4]) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    u32 a[4];
    left(step, a);
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
      u32 b[4];  // two times eight columns, two halves of 16 channels
      const int column = n * 8 + lane / 16 * 8 + lane % 8;
      load_matrices(shared_address(&columns[column][step * 16 + lane / 8 % 2 * 8]), b);
      multiply_add(s[n], a, b[0], b[1]);
      multiply_add(s[n + 1], a, b[2], b[3]);
    }
  }
}

// ---- O += P V: x[half][column] are numbers of rows g and g + 8, rounded to the dtype of q
template <int COLUMNS, int TILES, int LINE>
__device__ __forceinline__ void weighted_sum(const unsigned short (*values)[LINE], int lane,
                                             const float (&x)[2][COLUMNS], float (&o)[TILES][4]) {
  u32 p[COLUMNS / 4][4];
#pragma unroll
  for (int step = 0; step < COLUMNS / 4; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[step][i] = pack_pair(x[i % 2][4 * step + i / 2 * 2], x[i % 2][4 * step + i / 2 * 2 + 1]);
#pragma unroll
  for (int step = 0; step < COLUMNS / 4; ++step)
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
      u32 v[4];
      const int row = step * 16 + lane % 16;
      load_matrices_transposed(shared_address(&values[row][n * 8 + lane / 16 * 8]), v);
      multiply_add(o[n], p[step], v[0], v[1]);
      multiply_add(o[n + 1], p[step], v[2], v[3]);
    }
}

// The same where a value is not finite and a pair is absent (its x is -0.0): picked pair by pair, as
// nothing that is not finite may meet an absent pair, not even times 0 (MASK-3). Slow, and rare.
template <int COLUMNS, int TILES, int LINE>
__device__ __forceinline__ void selected_sum(const unsigned short (*values)[LINE], int lane,
                                             const float (&x)[2][COLUMNS], float (&o)[TILES][4]) {
#pragma unroll 1
  for (int row = 0; row < COLUMNS * 4; ++row)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The thread that holds the pair, and which of its columns it is.
      const int column = row / 8 * 2 + row % 2, owner = (lane & ~3) + row % 8 / 2;
      float p = 0;
#pragma unroll
      for (int n = 0; n < COLUMNS; ++n)
        if (n == column) p = x[half][n];
      p = __shfl_sync(0xffffffffu, p, owner);
      const bool present = !is_negative_zero(p);
      q_t rounded;
      narrow(p, rounded);
#pragma unroll
      for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const q_t value = {values[row][n * 8 + lane % 4 * 2 + i]};
          float& sum = o[n][2 * half + i];
          if (present) sum = fma_of(widen(rounded), widen(value), sum);
        }
    }
}

template <int WIDTH, int LINE>
__device__ __forceinline__ bool has_odd_values(const unsigned short (*values)[LINE], int rows) {
  bool odd = false;
  for (int i = threadIdx.x; i < rows * WIDTH; i += THREADS) {
    const q_t value = {values[i / WIDTH][i % WIDTH]};
    odd |= !is_finite(widen(value));
  }
  return odd;
}

// Channels of this thread in one of its rows, one by one: take(channel, value).
template <int WIDTH, int TILES, class Take>
__device__ __forceinline__ void for_row_channels(const float (&o)[TILES][4], int lane, int half, Take take) {
#pragma unroll
  for (int n = 0; n < TILES; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = n * 8 + lane % 4 * 2 + i;
      if (e < WIDTH) take(e, o[n][2 * half + i]);
    }
}
