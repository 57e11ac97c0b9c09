// What the CUDA C++ library makes of barriers, pipelines and copies: mbarriers by state and by parity.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init

// y[32] = sums of the rows of x[n, 32]; one block of 64 threads: one warp loads, the other one adds.
extern "C" __global__ void hand_over(const float *x, float *y, int n) {
  __shared__ float buffer[2][32];
  __shared__ Barrier full[2], empty[2];
  if (threadIdx.x < 2) {
    init(&full[threadIdx.x], 64);
    init(&empty[threadIdx.x], 64);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int i = 0; i < n; i++) {
      if (i >= 2) empty[i % 2].arrive_and_wait();
      buffer[i % 2][threadIdx.x] = x[i * 32 + threadIdx.x];
      (void)full[i % 2].arrive();
    }
    return;
  }
  float sum = 0;
  for (int i = 0; i < n; i++) {
    full[i % 2].arrive_and_wait();
    sum += buffer[i % 2][threadIdx.x - 32];
    if (i + 2 < n) (void)empty[i % 2].arrive();
  }
  y[threadIdx.x - 32] = sum;
}

// y = x[n, 64], its columns moved by 17; two copies are under way at a time.
extern "C" __global__ void piped(const float4 *x, float4 *y, int n) {
  __shared__ float4 stages[2][64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  const cg::thread_block block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  for (int i = 0, next = 0; i < n; i++) {
    for (; next < n && next < i + 2; next++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, stages[next % 2], x + next * 64, cuda::aligned_size_t<16>(1024), pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    y[i * 64 + threadIdx.x] = stages[i % 2][(threadIdx.x + 17) % 64];
    pipe.consumer_release();
  }
}

// y[64] = x[64] of each block, in reverse; a bulk copy where there are such.
extern "C" __global__ void reversed(const float4 *x, float4 *y) {
  __shared__ alignas(16) float4 tile[64];
  __shared__ Barrier arrived;
  const cg::thread_block block = cg::this_thread_block();
  if (threadIdx.x == 0) init(&arrived, blockDim.x);
  block.sync();
  const cuda::aligned_size_t<16> size(sizeof(tile));
  cuda::memcpy_async(block, tile, x + blockIdx.x * 64, size, arrived);
  arrived.arrive_and_wait();
  y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}
