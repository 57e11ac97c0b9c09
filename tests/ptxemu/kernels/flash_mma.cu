// Attention forward for sm_80: mma.sync, ldmatrix, and cp.async into two buffers of K and of V.
//
// One block computes BLOCK_M rows of one head, each of its warps 16 of them, over tiles of BLOCK_N keys. Operands are
// [batch, length, heads, HEAD_DIM]; the log-sum-exp of each row is [batch, q_heads, q_len]. Causal: the last query
// sees the last key. Shared memory: Q, two tiles of K, two of V; rows of HEAD_DIM elements in chunks of 16 bytes,
// chunk c of row r stored at c ^ (r & 7) so that the eight rows of ldmatrix lie in different banks.
#include "primitives.cuh"
#define HEAD_DIM 64
#define BLOCK_M 64
#define BLOCK_N 32
#define THREADS (BLOCK_M / 16 * 32)
#define CHUNKS (HEAD_DIM / 8)
#define TILE_BYTES (BLOCK_N * HEAD_DIM * 2)

INLINE u32 chunk_offset(int row, int chunk) { return row * HEAD_DIM * 2 + ((chunk ^ (row & 7)) << 4); }

// Start copying ROWS rows from `first` on; rows from `end` on become zeros.
template <int ROWS> INLINE void load_tile(u32 to, const u16 *from, int first, int end, i64 stride) {
#pragma unroll
  for (int i = 0; i < ROWS * CHUNKS; i += THREADS) {
    int row = (i + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
    bool inside = first + row < end;
    copy_async(to + chunk_offset(row, chunk), from + (inside ? first + row : 0) * stride + chunk * 8, inside);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash_mma(const u16 *__restrict__ q_all, const u16 *__restrict__ k_all, const u16 *__restrict__ v_all,
          u16 *__restrict__ out_all, float *__restrict__ lse_all, int q_len, int kv_len, int q_heads, int kv_heads,
          float scale_log2, int causal) {
  extern __shared__ __align__(128) char shared[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, quad = lane >> 2, in_quad = lane & 3;
  const int first_row = blockIdx.x * BLOCK_M, head = blockIdx.y, batch = blockIdx.z;
  const int kv_head = head / (q_heads / kv_heads), diagonal = kv_len - q_len;
  const i64 q_stride = (i64)q_heads * HEAD_DIM, kv_stride = (i64)kv_heads * HEAD_DIM;
  const u16 *q = q_all + batch * q_len * q_stride + head * HEAD_DIM;
  const u16 *k = k_all + batch * kv_len * kv_stride + kv_head * HEAD_DIM;
  const u16 *v = v_all + batch * kv_len * kv_stride + kv_head * HEAD_DIM;
  const u32 q_tile = shared_address(shared), k_tiles = q_tile + BLOCK_M * HEAD_DIM * 2, v_tiles = k_tiles + 2 * TILE_BYTES;

  int tiles = (kv_len + BLOCK_N - 1) / BLOCK_N;
  if (causal) tiles = max(0, min(tiles, (first_row + BLOCK_M + diagonal + BLOCK_N - 1) / BLOCK_N));

  // Prologue: Q and the first K in one group, the first V in the next.
  load_tile<BLOCK_M>(q_tile, q, first_row, q_len, q_stride);
  if (tiles > 0) load_tile<BLOCK_N>(k_tiles, k, 0, kv_len, kv_stride);
  copy_commit();
  if (tiles > 0) load_tile<BLOCK_N>(v_tiles, v, 0, kv_len, kv_stride);
  copy_commit();

  float acc[HEAD_DIM / 8][4] = {}, m[2] = {MINUS_INFINITY, MINUS_INFINITY}, l[2] = {0.f, 0.f};
  u32 q_fragments[HEAD_DIM / 16][4];
  const int rows[2] = {first_row + warp * 16 + quad, first_row + warp * 16 + quad + 8};

#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    const u32 k_tile = k_tiles + (tile & 1) * TILE_BYTES, v_tile = v_tiles + (tile & 1) * TILE_BYTES;

    // K of this tile is there; the other buffer of K is free: fill it.
    copy_wait<1>();
    __syncthreads();
    if (tile == 0) {
#pragma unroll
      for (int kk = 0; kk < HEAD_DIM / 16; kk++)
        load_matrices(q_tile + chunk_offset(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)), q_fragments[kk]);
    }
    if (tile + 1 < tiles)
      load_tile<BLOCK_N>(k_tiles + (~tile & 1) * TILE_BYTES, k, (tile + 1) * BLOCK_N, kv_len, kv_stride);
    copy_commit();

    // S = Q K^T
    float s[BLOCK_N / 8][4] = {};
#pragma unroll
    for (int kk = 0; kk < HEAD_DIM / 16; kk++)
#pragma unroll
      for (int n = 0; n < BLOCK_N / 16; n++) {
        u32 b[4];
        load_matrices(k_tile + chunk_offset(n * 16 + ((lane >> 4) << 3) + (lane & 7), kk * 2 + ((lane >> 3) & 1)), b);
        multiply(s[2 * n], q_fragments[kk], b[0], b[1]);
        multiply(s[2 * n + 1], q_fragments[kk], b[2], b[3]);
      }

    // Mask: keys beyond the end, keys after the query.
#pragma unroll
    for (int i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int key = tile * BLOCK_N + i * 8 + in_quad * 2 + (j & 1);
        if (key >= kv_len || (causal && key > rows[j / 2] + diagonal)) s[i][j] = MINUS_INFINITY;
      }

    // Running maximum of each row (four lanes share it), and what it makes of earlier sums.
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = m[h];
#pragma unroll
      for (int i = 0; i < BLOCK_N / 8; i++) top = fmaxf(top, fmaxf(s[i][2 * h], s[i][2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      float shift = top == MINUS_INFINITY ? 0.f : top * scale_log2;
      float factor = exp2_approximate(m[h] * scale_log2 - shift);
      m[h] = top;
      l[h] *= factor;
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 8; i++) acc[i][2 * h] *= factor, acc[i][2 * h + 1] *= factor;
#pragma unroll
      for (int i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
        for (int j = 2 * h; j < 2 * h + 2; j++) l[h] += s[i][j] = exp2_approximate(s[i][j] * scale_log2 - shift);
    }

    // P in the layout of an A operand: that of two accumulators side by side.
    u32 p[BLOCK_N / 16][4];
#pragma unroll
    for (int i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) p[i / 2][(i & 1) * 2 + h] = pack(s[i][2 * h], s[i][2 * h + 1]);

    // V of this tile is there; the other buffer of V is free: fill it.
    copy_wait<1>();
    __syncthreads();
    if (tile + 1 < tiles)
      load_tile<BLOCK_N>(v_tiles + (~tile & 1) * TILE_BYTES, v, (tile + 1) * BLOCK_N, kv_len, kv_stride);
    copy_commit();

    // acc += P V
#pragma unroll
    for (int kk = 0; kk < BLOCK_N / 16; kk++)
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++) {
        u32 b[4];
        load_matrices_transposed(v_tile + chunk_offset(kk * 16 + (lane & 15), d * 2 + (lane >> 4)), b);
        multiply(acc[2 * d], p[kk], b[0], b[1]);
        multiply(acc[2 * d + 1], p[kk], b[2], b[3]);
      }
  }

  // Epilogue: sums over the four lanes of a row, the quotient, and the log-sum-exp.
  u16 *out = out_all + batch * q_len * q_stride + head * HEAD_DIM;
  float *lse = lse_all + ((i64)batch * q_heads + head) * q_len;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    l[h] += __shfl_xor_sync(~0u, l[h], 1);
    l[h] += __shfl_xor_sync(~0u, l[h], 2);
    float inverse = l[h] > 0.f ? 1.f / l[h] : 0.f;
    if (rows[h] >= q_len) continue;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
      *(u32 *)(out + rows[h] * q_stride + i * 8 + in_quad * 2) = pack(acc[i][2 * h] * inverse, acc[i][2 * h + 1] * inverse);
    if (in_quad == 0) lse[rows[h]] = l[h] > 0.f ? (m[h] * scale_log2 + log2_approximate(l[h])) * LN_2 : MINUS_INFINITY;
  }
}
