// Softmax of rows: one block a row; shuffles inside warps, shared memory between them.
#include "primitives.cuh"
#define THREADS 128
#define WARPS (THREADS / 32)

INLINE float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
INLINE float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_down_sync(~0u, x, step);
  return __shfl_sync(~0u, x, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax(const float *__restrict__ x, float *__restrict__ y, int columns) {
  __shared__ float of_warps[WARPS];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const float *row = x + (i64)blockIdx.x * columns;

  // Maximum of the row.
  float top = MINUS_INFINITY;
  for (int i = threadIdx.x; i < columns; i += THREADS) top = fmaxf(top, row[i]);
  top = warp_max(top);
  if (lane == 0) of_warps[warp] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++) top = fmaxf(top, of_warps[i]);
  __syncthreads();  // all have read: the sums may take the place of the maxima

  // Sum of the exponentials.
  float sum = 0.f;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += exp2_approximate((row[i] - top) * LOG2_E);
  sum = warp_sum(sum);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  sum = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) sum += of_warps[i];

  for (int i = threadIdx.x; i < columns; i += THREADS)
    y[(i64)blockIdx.x * columns + i] = exp2_approximate((row[i] - top) * LOG2_E) / sum;
}
