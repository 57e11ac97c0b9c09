// Reductions over threads, warps and blocks: shuffles, votes, atomics on shared and on global memory.
#include "primitives.cuh"

// total += sum of x; extremes[0] = min, extremes[1] = max (of integers); positives += how many are above zero.
extern "C" __global__ void summarise(const int *__restrict__ x, u64 *total, int *extremes, u32 *positives, int count) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  i64 sum = 0;
  int low = 0x7fffffff, high = -0x80000000;
  u32 above = 0;
  const int rounds = (count + step - 1) / step;
  for (int round = 0; round < rounds; round++) {
    const int i = first + round * step;
    const int value = i < count ? x[i] : 0;
    if (i < count) {
      sum += value;
      low = min(low, value);
      high = max(high, value);
    }
    // All lanes of the warp are here: count by ballot.
    above += __popc(__ballot_sync(~0u, i < count && value > 0));
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  if ((threadIdx.x & 31) == 0) {
    atomicAdd(total, (u64)sum);
    atomicAdd(positives, above);
  }
  atomicMin(&extremes[0], low);
  atomicMax(&extremes[1], high);
}

// Histogram of bytes: each block counts in shared memory, then adds to `counts`.
extern "C" __global__ void histogram(const unsigned char *__restrict__ x, u32 *counts, int count) {
  __shared__ u32 mine[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (mine[i]) atomicAdd(&counts[i], mine[i]);
}

// Sum of floats: halves of the block meet in shared memory; the last block to finish adds the blocks' sums in order.
extern "C" __global__ void __launch_bounds__(256)
sum_in_order(const float *__restrict__ x, volatile float *of_blocks, float *total, u32 *finished, int count) {
  __shared__ float partial[256];
  __shared__ bool last;
  float sum = 0.f;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) sum += x[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half >>= 1) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    of_blocks[blockIdx.x] = partial[0];
    __threadfence();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0.f;
    for (int i = 0; i < gridDim.x; i++) all += of_blocks[i];
    *total = all;
  }
}
