// Attention forward for sm_90a: a producer warpgroup feeds K and V through TMA and mbarriers to two consumer
// warpgroups, which take turns (named barriers: one multiplies while the other exponentiates) and overlap the product
// with V of one tile with the softmax of the next.
//
// Operands are [batch, length, heads, 64]; the tensor maps list them as (dim, head, row, batch), swizzled by 128
// bytes. Shared memory, 1024-aligned: Q (128 rows), STAGES tiles of K, STAGES of V, then the mbarriers.
#include "primitives.cuh"
#include "hopper.cuh"
#define HEAD_DIM 64
#define CONSUMERS 2
#define BLOCK_M (CONSUMERS * 64)
#define BLOCK_N 64
#define STAGES 2
#define THREADS ((CONSUMERS + 1) * 128)
#define Q_BYTES (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES (BLOCK_N * HEAD_DIM * 2)

// Start S = Q K^T of a warpgroup's 64 rows.
INLINE void start_logits(float (&s)[32], u32 q_rows, u32 k_tile) {
  pin(s);
  product_fence();
#pragma unroll
  for (int kk = 0; kk < HEAD_DIM / 16; kk++)
    product_shared(s, describe(q_rows + kk * 32, 16), describe(k_tile + kk * 32, 16), kk > 0);
  product_commit();
}

// Start acc += P V.
INLINE void start_output(float (&acc)[32], const u32 (&p)[4][4], u32 v_tile) {
  pin(acc);
  product_fence();
#pragma unroll
  for (int kk = 0; kk < BLOCK_N / 16; kk++)
    product_registers(acc, p[kk], describe(v_tile + kk * 16 * 128, BLOCK_N * 128));
  product_commit();
}

// Make exponentials of logits in place; `factor` is what earlier sums of the two rows shrink by.
INLINE void softmax_tile(float (&s)[32], float (&m)[2], float (&l)[2], float (&factor)[2], const int (&last_key)[2],
                         int first_key, float scale_log2) {
#pragma unroll
  for (int i = 0; i < 32; i++)
    if (first_key + i / 4 * 8 + (i & 1) > last_key[i / 2 % 2]) s[i] = MINUS_INFINITY;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float top = m[h];
#pragma unroll
    for (int i = 0; i < 8; i++) top = fmaxf(top, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float shift = top == MINUS_INFINITY ? 0.f : top * scale_log2;
    factor[h] = exp2_approximate(m[h] * scale_log2 - shift);
    m[h] = top;
    l[h] *= factor[h];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 4 * i + 2 * h; j < 4 * i + 2 * h + 2; j++) l[h] += s[j] = exp2_approximate(s[j] * scale_log2 - shift);
  }
}

// An accumulator, rounded, has the layout of an A operand.
INLINE void pack_tile(u32 (&p)[4][4], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 16; i++) p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_wgmma(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
            const __grid_constant__ TensorMap v_map, u16 *__restrict__ out_all, float *__restrict__ lse_all, int q_len,
            int kv_len, int q_heads, int kv_heads, float scale_log2, int causal) {
  extern __shared__ __align__(1024) char shared[];
  const u32 q_tile = shared_address(shared), k_tiles = q_tile + Q_BYTES, v_tiles = k_tiles + STAGES * TILE_BYTES;
  const u32 q_full = v_tiles + STAGES * TILE_BYTES, k_full = q_full + 8, k_empty = k_full + 8 * STAGES;
  const u32 v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
  const int group = threadIdx.x >> 7, first_row = blockIdx.x * BLOCK_M, head = blockIdx.y, batch = blockIdx.z;
  const int diagonal = kv_len - q_len;
  int tiles = (kv_len + BLOCK_N - 1) / BLOCK_N;
  if (causal) tiles = max(0, min(tiles, (first_row + BLOCK_M + diagonal + BLOCK_N - 1) / BLOCK_N));

  // One thread makes the mbarriers ready for all, and for the asynchronous proxy.
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(k_full + 8 * stage, 1);
      barrier_init(v_full + 8 * stage, 1);
      barrier_init(k_empty + 8 * stage, CONSUMERS);
      barrier_init(v_empty + 8 * stage, CONSUMERS);
    }
    barrier_fence_init();
  }
  __syncthreads();

  if (group == 0) {
    // Producer: one thread waits for buffers to be free and starts the copies into them.
    registers_decrease<24>();
    if (threadIdx.x != 0) return;
    const int kv_head = head / (q_heads / kv_heads);
    barrier_expect(q_full, Q_BYTES);
    tile_load_4d(q_tile, &q_map, q_full, 0, head, first_row, batch);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
      const u32 stage = tile % STAGES, parity = tile / STAGES & 1;
      barrier_wait(k_empty + 8 * stage, parity ^ 1);
      barrier_expect(k_full + 8 * stage, TILE_BYTES);
      tile_load_4d(k_tiles + stage * TILE_BYTES, &k_map, k_full + 8 * stage, 0, kv_head, tile * BLOCK_N, batch);
      barrier_wait(v_empty + 8 * stage, parity ^ 1);
      barrier_expect(v_full + 8 * stage, TILE_BYTES);
      tile_load_4d(v_tiles + stage * TILE_BYTES, &v_map, v_full + 8 * stage, 0, kv_head, tile * BLOCK_N, batch);
    }
    return;
  }

  // Consumer: 64 rows for each warpgroup.
  registers_increase<240>();
  const int consumer = group - 1, lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  const int row = first_row + consumer * 64 + warp * 16 + (lane >> 2), column = (lane & 3) * 2;
  const bool elected = (threadIdx.x & 127) == 0;
  const u32 q_rows = q_tile + consumer * 64 * 128;
  const int end = kv_len - 1;
  const int last_key[2] = {causal ? min(end, row + diagonal) : end, causal ? min(end, row + 8 + diagonal) : end};
  float acc[32] = {}, s[32], m[2] = {MINUS_INFINITY, MINUS_INFINITY}, l[2] = {}, factor[2];
  u32 p[4][4];
  barrier_wait(q_full, 0);

  if (tiles > 0) {
    // First tile: there is no output product to overlap with. The second warpgroup lets the first begin.
    if (consumer == 1) named_arrive<1, 256>();
    barrier_wait(k_full, 0);
    start_logits(s, q_rows, k_tiles);
    product_wait<0>();
    pin(s);
    if (elected) barrier_arrive(k_empty);
    softmax_tile(s, m, l, factor, last_key, column, scale_log2);
    pack_tile(p, s);

#pragma unroll 1
    for (int tile = 1; tile < tiles; tile++) {
      const u32 stage = tile % STAGES, parity = tile / STAGES & 1;
      const u32 before = (tile - 1) % STAGES, before_parity = (tile - 1) / STAGES & 1;
      barrier_wait(k_full + 8 * stage, parity);
      if (consumer == 0) named_sync<1, 256>();
      else named_sync<2, 256>();

      // Both products start; the softmax needs only the first.
      start_logits(s, q_rows, k_tiles + stage * TILE_BYTES);
      barrier_wait(v_full + 8 * before, before_parity);
      start_output(acc, p, v_tiles + before * TILE_BYTES);
      if (consumer == 0) named_arrive<2, 256>();
      else named_arrive<1, 256>();
      product_wait<1>();
      pin(s);
      if (elected) barrier_arrive(k_empty + 8 * stage);
      softmax_tile(s, m, l, factor, last_key, tile * BLOCK_N + column, scale_log2);
      product_wait<0>();
      pin(acc);
      if (elected) barrier_arrive(v_empty + 8 * before);
#pragma unroll
      for (int i = 0; i < 32; i++) acc[i] *= factor[i / 2 % 2];
      pack_tile(p, s);
    }
    // Take the turn that the other warpgroup left, so that the barrier ends even.
    if (consumer == 0) named_sync<1, 256>();
    const u32 stage = (tiles - 1) % STAGES;
    barrier_wait(v_full + 8 * stage, (tiles - 1) / STAGES & 1);
    start_output(acc, p, v_tiles + stage * TILE_BYTES);
    product_wait<0>();
    pin(acc);
  }

  // Epilogue
  const i64 stride = (i64)q_heads * HEAD_DIM;
  u16 *out = out_all + batch * q_len * stride + head * HEAD_DIM;
  float *lse = lse_all + ((i64)batch * q_heads + head) * q_len;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    l[h] += __shfl_xor_sync(~0u, l[h], 1);
    l[h] += __shfl_xor_sync(~0u, l[h], 2);
    const float inverse = l[h] > 0.f ? 1.f / l[h] : 0.f;
    if (row + 8 * h >= q_len) continue;
#pragma unroll
    for (int i = 0; i < 8; i++)
      *(u32 *)(out + (row + 8 * h) * stride + i * 8 + column) =
          pack(acc[4 * i + 2 * h] * inverse, acc[4 * i + 2 * h + 1] * inverse);
    if (column == 0) lse[row + 8 * h] = l[h] > 0.f ? (m[h] * scale_log2 + log2_approximate(l[h])) * LN_2 : MINUS_INFINITY;
  }
}
