"""CUDA C++ of the tests: kernels that are as they should be, and some with one known defect."""

PLAIN = """
extern "C" __global__ void __launch_bounds__(256) plain(float* out, const float* in, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  tile[threadIdx.x] = i < n ? in[i] : 0.0f;
  __syncthreads();
  if (i < n) out[i] = tile[255 - threadIdx.x];
}
"""

# 128 values for each of 1024 threads, of which an SM has registers for 64.
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) spilling(float* data, int rounds) {
  float value[128];
  #pragma unroll
  for (int i = 0; i < 128; i++) value[i] = data[i * 1024 + threadIdx.x];
  for (int round = 0; round < rounds; round++) {
    #pragma unroll
    for (int i = 0; i < 128; i++) value[i] = value[i] * value[(i + 1) % 128] + value[(i + 7) % 128];
  }
  #pragma unroll
  for (int i = 0; i < 128; i++) data[i * 1024 + threadIdx.x] = value[i];
}
"""

# The spills are those of a function that was not inlined.
SPILLING_CALL = (
    SPILLING.replace(
        'extern "C" __global__ void __launch_bounds__(1024) spilling',
        "__device__ __noinline__ void work",
    )
    + """
extern "C" __global__ void __launch_bounds__(1024) calling(float* data, int rounds) {
  work(data, rounds);
}
"""
)

LOCAL_ARRAY = """
extern "C" __global__ void local_array(float* data, int step) {
  float value[64];
  for (int i = 0; i < 64; i++) value[i] = data[i];
  for (int i = 0; i < 64; i++) value[(i * step) % 64] += 1.0f;
  data[threadIdx.x] = value[step];
}
"""

# One 16 x 8 x 16 product of a warp: operands copied by cp.async, fragments loaded by ldmatrix.
PRODUCT = """
__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(32) product(float* out, const void* a, const void* b) {
  __shared__ __align__(16) char tile_a[512], tile_b[256];
  int lane = threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(shared_address(tile_a + 16 * lane)), "l"((const char*)a + 16 * lane));
  if (lane < 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address(tile_b + 16 * lane)), "l"((const char*)b + 16 * lane));
  asm volatile("cp.async.wait_all;");
  __syncwarp();
  unsigned fa[4], fb[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
               : "r"(shared_address(tile_a + 16 * lane)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(fb[0]), "=r"(fb[1]) : "r"(shared_address(tile_b + 16 * (lane % 16))));
  float c[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int i = 0; i < 4; i++) out[4 * lane + i] = c[i];
}
"""

_WGMMA_HEAD = """
__device__ void products(float (&c)[32], unsigned long long a, unsigned long long b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
    : REGISTERS : "l"(a), "l"(b));
}
""".replace("REGISTERS", ", ".join(f'"+f"(c[{i}])' for i in range(32)))

_WGMMA = """
extern "C" __global__ void __launch_bounds__(128) NAME(
    float* out, unsigned long long a, unsigned long long b, int rounds) {
  float c[32];
  for (int i = 0; i < 32; i++) c[i] = 0.0f;
  for (int round = 0; round < rounds; round++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    products(c, a + 2 * round, b + 2 * round);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    TOUCH
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(c[i]) :: "memory");
  }
  for (int i = 0; i < 32; i++) out[32 * threadIdx.x + i] = c[i];
}
"""

WARPGROUP = _WGMMA_HEAD + _WGMMA.replace("NAME", "warpgroup").replace("TOUCH", "")

# Accumulators are changed before they are waited for.
TOUCHED_IN_FLIGHT = _WGMMA_HEAD + _WGMMA.replace("NAME", "touched").replace(
    "TOUCH", "for (int i = 0; i < 32; i++) c[i] *= 0.5f;"
)

# Without __launch_bounds__ nobody knows how many registers a thread starts with.
UNBOUNDED_SETMAXNREG = """
extern "C" __global__ void unbounded(float* data) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  data[threadIdx.x] += 1.0f;
}
"""

# A tile of two dimensions copied by one thread, waited for by all.
TILE_COPY = """
struct __align__(64) TileMap { unsigned long long words[16]; };

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(128) tile_copy(
    float* out, const __grid_constant__ TileMap map) {
  __shared__ __align__(128) float tile[512];
  __shared__ unsigned long long full;
  unsigned barrier = shared_address(&full);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;"
                 :: "r"(barrier) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(shared_address(tile)), "l"(&map), "r"(0), "r"(0), "r"(barrier) : "memory");
  }
  asm volatile("{.reg .pred done;\\n"
               "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n"
               "@!done bra wait_%=;\\n}" :: "r"(barrier) : "memory");
  for (int i = threadIdx.x; i < 512; i += 128) out[i] = tile[i];
}
"""

# The same to the shared memory of any block of a cluster. sm_120 checks at run time that it is the
# own one, and calls a function if not.
TILE_COPY_TO_CLUSTER = TILE_COPY.replace("2d.shared::cta", "2d.shared::cluster")

_AROUND = """
extern "C" __global__ void __launch_bounds__(128) feature(void* global) {{
  __shared__ __align__(128) char tile[1024];
  unsigned shared = (unsigned)__cvta_generic_to_shared(tile);
  asm volatile("{{.reg .b32 r<8>; .reg .f32 f<8>;\\n"
               "mov.b32 r0, 0; mov.b32 r1, 0; mov.b32 r2, 0; mov.b32 r3, 0;\\n"
               "mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0;\\n"
               "{asm}\\n}}" :: "r"(shared), "l"(global) : "memory");
}}
"""
_MMA = (
    "mma.sync.aligned.{shape}.row.col.f32.{kind}.{kind}.f32 "
    "{{f0,f1,f2,f3}}, {{r0,r1,r2,r3}}, {{r0,r1}}, {{f0,f1,f2,f3}};"
)

FEATURES = {
    name: _AROUND.format(asm=asm)
    for name, asm in {
        "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0}, [%0];",
        "cp_async": "cp.async.ca.shared.global [%0], [%1], 16;",
        "bf16_mma": _MMA.format(shape="m16n8k16", kind="bf16"),
        "fp8_mma": _MMA.format(shape="m16n8k32", kind="e4m3"),
        "tma": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], 16, [%0];",
        "wgmma": "wgmma.fence.sync.aligned;",
        "setmaxnreg": "setmaxnreg.dec.sync.aligned.u32 40;",
        "tcgen05": "tcgen05.fence::before_thread_sync;",
    }.items()
}
"""One instruction of each feature that architectures may have."""
