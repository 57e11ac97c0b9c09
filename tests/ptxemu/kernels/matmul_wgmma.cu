// C = A B for sm_90a: A [m, k], B [k, n] and C [m, n] of 16-bit floats, moved by TMA, which fills and cuts the tails.
// A warp produces, a warpgroup multiplies tiles of 64 by 64 in steps of 64 through a ring of STAGES buffers.
//
// All tiles are 64 rows of 128 bytes in the 128-byte swizzle: A has k innermost, B has n innermost, C leaves through
// stmatrix and a TMA store. Shared memory, 1024-aligned: STAGES tiles of A, STAGES of B, one of C, the mbarriers.
#include "primitives.cuh"
#include "hopper.cuh"
#define TILE 64
#define STAGES 3
#define TILE_BYTES (TILE * TILE * 2)
#define THREADS 160

extern "C" __global__ void __launch_bounds__(THREADS)
matmul_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
             const __grid_constant__ TensorMap c_map, int k) {
  extern __shared__ __align__(1024) char shared[];
  const u32 a_tiles = shared_address(shared), b_tiles = a_tiles + STAGES * TILE_BYTES;
  const u32 c_tile = b_tiles + STAGES * TILE_BYTES, full = c_tile + TILE_BYTES, empty = full + 8 * STAGES;
  const int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE, steps = (k + TILE - 1) / TILE;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, 1);
    }
    barrier_fence_init();
  }
  __syncthreads();

  if (warp == 4) {
    // Producer
    if (lane != 0) return;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      const u32 stage = step % STAGES, parity = step / STAGES & 1;
      barrier_wait(empty + 8 * stage, parity ^ 1);
      barrier_expect(full + 8 * stage, 2 * TILE_BYTES);
      tile_load_2d(a_tiles + stage * TILE_BYTES, &a_map, full + 8 * stage, step * TILE, first_row);
      tile_load_2d(b_tiles + stage * TILE_BYTES, &b_map, full + 8 * stage, first_column, step * TILE);
    }
    return;
  }

  // Consumer: a product may still run while the next is started; its buffer is released one step later.
  float acc[32];
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    const u32 stage = step % STAGES, parity = step / STAGES & 1;
    barrier_wait(full + 8 * stage, parity);
    pin(acc);
    product_fence();
#pragma unroll
    for (int kk = 0; kk < TILE / 16; kk++)
      product_transposed(acc, describe(a_tiles + stage * TILE_BYTES + kk * 32, 16),
                         describe(b_tiles + stage * TILE_BYTES + kk * 16 * 128, TILE_BYTES), step + kk > 0);
    product_commit();
    product_wait<1>();
    if (step > 0 && threadIdx.x == 0) barrier_arrive(empty + 8 * ((step - 1) % STAGES));
  }
  product_wait<0>();
  pin(acc);

  // Epilogue: round, lay the tile out as TMA wants it, let the asynchronous proxy see it, and send it off.
#pragma unroll
  for (int j = 0; j < 4; j++) {
    u32 r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = pack(acc[8 * j + 2 * i], acc[8 * j + 2 * i + 1]);
    const int row = warp * 16 + (lane & 15), chunk = 2 * j + (lane >> 4);
    store_matrices(c_tile + row * 128 + ((chunk ^ (row & 7)) << 4), r);
  }
  fence_async_proxy();
  named_sync<1, 128>();
  if (threadIdx.x == 0) {
    tile_store_2d(&c_map, c_tile, first_column, first_row);
    bulk_commit();
    bulk_wait();
  }
}
