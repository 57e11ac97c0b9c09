// Bulk copies of sm_90 without tensor maps: global to shared, work on it, shared to global.
#include "primitives.cuh"
#include "hopper.cuh"
#define COUNT 1024

// y = factor x, for a multiple of COUNT numbers; one block of 128 threads each.
extern "C" __global__ void __launch_bounds__(128)
bulk_scale(const float *__restrict__ x, float *__restrict__ y, float factor) {
  __shared__ __align__(128) float numbers[COUNT];
  __shared__ __align__(8) u64 arrived;
  const u32 barrier = shared_address(&arrived);
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_fence_init();
    barrier_expect(barrier, COUNT * 4);
    bulk_load(shared_address(numbers), x + blockIdx.x * COUNT, COUNT * 4, barrier);
  }
  __syncthreads();
  barrier_wait(barrier, 0);
#pragma unroll
  for (int i = 0; i < COUNT / 128; i++) numbers[i * 128 + threadIdx.x] *= factor;
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(y + blockIdx.x * COUNT, shared_address(numbers), COUNT * 4);
    bulk_commit();
    bulk_wait_read();
  }
}
