// Clusters of sm_90: blocks read each other's shared memory, and one TMA copy fills that of all.
#include "primitives.cuh"
#include "hopper.cuh"

INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
INLINE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
INLINE u32 map_shared(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
INLINE float load_remote(u32 address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Each block of a cluster sums 128 numbers; each then has the sum over the cluster, read from all its blocks.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128)
cluster_sum(const float *__restrict__ x, float *__restrict__ sums) {
  __shared__ float of_warps[4];
  float sum = x[blockIdx.x * 128 + threadIdx.x];
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = sum;
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (u32 rank = 0; rank < 4; rank++)
#pragma unroll
      for (int i = 0; i < 4; i++) total += load_remote(map_shared(shared_address(of_warps + i), rank));
    sums[blockIdx.x] = total;
  }
  cluster_arrive();  // nobody leaves while its memory is read
  cluster_wait();
}

// Two blocks, each of which loads half of a 32 by 64 tile of floats into both; then each scales it by its rank + 1.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
multicast(const __grid_constant__ TensorMap map, float *__restrict__ out) {
  __shared__ __align__(1024) float tile[32 * 64];
  __shared__ __align__(8) u64 arrived;
  const u32 rank = cluster_rank(), barrier = shared_address(&arrived);
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_fence_init();
    barrier_expect(barrier, sizeof(tile));
  }
  cluster_arrive();  // the mbarriers of both are ready before anything lands
  cluster_wait();
  if (threadIdx.x == 0) tile_multicast_2d(shared_address(tile) + rank * 4096, &map, barrier, 0, rank * 16, 3);
  barrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < 32 * 64; i += 128) out[rank * 32 * 64 + i] = tile[i] * (rank + 1);
  cluster_arrive();
  cluster_wait();
}
