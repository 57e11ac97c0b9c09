// C = A B for sm_80: A [m, k] and B [k, n] of 16-bit floats, C [m, n] of float32, all with rows one after another; k
// and n are multiples of 8, tails are cut. Four warps make a tile of 64 by 64, each 32 by 32; steps of 32 in k come
// through cp.async into two buffers.
//
// Shared memory: rows in chunks of 16 bytes. A: 64 rows of 4 chunks, chunk c of row r at c ^ (r / 2 & 3), as two rows
// fill the banks; B: 32 rows of 8 chunks, chunk c of row r at c ^ (r & 7).
#include "primitives.cuh"
#define TILE 64
#define STEP 32
#define THREADS 128
#define BUFFER_BYTES (TILE * STEP * 2)

INLINE u32 a_offset(int row, int chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }
INLINE u32 b_offset(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

INLINE void load_step(u32 a_tile, u32 b_tile, const u16 *a, const u16 *b, int m, int n, int k, int first_k) {
#pragma unroll
  for (int j = 0; j < TILE * 4; j += THREADS) {
    const int i = j + threadIdx.x, row = blockIdx.y * TILE + i / 4, column = first_k + i % 4 * 8;
    const bool inside = row < m && column < k;
    copy_async(a_tile + a_offset(i / 4, i % 4), a + (inside ? (i64)row * k + column : 0), inside);
  }
#pragma unroll
  for (int j = 0; j < STEP * 8; j += THREADS) {
    const int i = j + threadIdx.x, row = first_k + i / 8, column = blockIdx.x * TILE + i % 8 * 8;
    const bool inside = row < k && column < n;
    copy_async(b_tile + b_offset(i / 8, i % 8), b + (inside ? (i64)row * n + column : 0), inside);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
matmul_mma(const u16 *__restrict__ a, const u16 *__restrict__ b, float *__restrict__ c, int m, int n, int k) {
  __shared__ __align__(128) char a_tiles[2 * BUFFER_BYTES];
  __shared__ __align__(128) char b_tiles[2 * BUFFER_BYTES];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int warp_row = (warp >> 1) * 32, warp_column = (warp & 1) * 32;
  float acc[2][4][4] = {};

  load_step(shared_address(a_tiles), shared_address(b_tiles), a, b, m, n, k, 0);
  copy_commit();
#pragma unroll 1
  for (int first_k = 0, buffer = 0; first_k < k; first_k += STEP, buffer ^= 1) {
    // This step's tiles are there for all; the other buffer has been read by all.
    copy_wait<0>();
    __syncthreads();
    const int other = (buffer ^ 1) * BUFFER_BYTES;
    if (first_k + STEP < k)
      load_step(shared_address(a_tiles) + other, shared_address(b_tiles) + other, a, b, m, n, k, first_k + STEP);
    copy_commit();

    const u32 a_tile = shared_address(a_tiles) + buffer * BUFFER_BYTES;
    const u32 b_tile = shared_address(b_tiles) + buffer * BUFFER_BYTES;
#pragma unroll
    for (int kk = 0; kk < STEP / 16; kk++) {
      u32 a_fragments[2][4], b_fragments[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        load_matrices(a_tile + a_offset(warp_row + i * 16 + (lane & 15), kk * 2 + (lane >> 4)), a_fragments[i]);
#pragma unroll
      for (int j = 0; j < 2; j++)
        load_matrices_transposed(b_tile + b_offset(kk * 16 + (lane & 15), warp_column / 8 + j * 2 + (lane >> 4)),
                                 b_fragments[j]);
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          multiply(acc[i][j], a_fragments[i], b_fragments[j / 2][j % 2 * 2], b_fragments[j / 2][j % 2 * 2 + 1]);
    }
  }

  const int row = blockIdx.y * TILE + warp_row + (lane >> 2), column = blockIdx.x * TILE + warp_column + (lane & 3) * 2;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int r = row + i * 16 + h * 8, x = column + j * 8;
        if (r < m && x < n) *(float2 *)(c + (i64)r * n + x) = make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
      }
}
