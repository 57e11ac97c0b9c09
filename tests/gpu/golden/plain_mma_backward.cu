// Gradients of attention by sdpakit, mma.sync family.
// attention for every (b, h, q) over k
//   q, k, v    bfloat16[64], v [64]
//   computed   in float32, out in bfloat16
//   outputs    out
//   empty row  zero
//   scalar     scale: float
//   logit
//     = scale.float * dot()
//   mask
//     = True
//   schedule   needs_mask=False plain_logits=True

typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef float accum_t;
typedef int index_t;
#define q_t bf16
#define out_t bf16
#define EMPTY_ROW accum_t(0)  // EMPTY-1
constexpr int D = 64;
constexpr int DV = 64;
constexpr bool ALIGNED = true;
constexpr bool WHOLE_Q = true;
constexpr bool WHOLE_K = true;
constexpr bool WHOLE_V = true;
constexpr bool WHOLE_DOUT = false;
constexpr bool RAGGED_Q = false;
constexpr bool RAGGED_KV = false;
constexpr bool PAGED = false;
constexpr bool SAVE = false;
constexpr bool PACKED = false;
constexpr bool SPLIT = false;
constexpr bool SINK = false;
constexpr bool OUT = true;
constexpr bool LSE = false;
constexpr bool MAX_LOGIT = false;
constexpr bool ENTROPY = false;
constexpr bool SUM_P2 = false;
constexpr int THREADS = 128;
constexpr int LANES = 16;
constexpr int ROWS = 4;
constexpr int COLS = 2;
constexpr int WARPS = 4;
constexpr int BLOCK_N = 32;
constexpr int NARROW = 0;

// ---- the call: addresses, strides in bytes, numbers --------------------------------------------

struct Call {
  u64 q;
  i64 q_batch;
  i64 q_head;
  i64 q_row;
  i64 q_channel;
  u64 k;
  i64 k_batch;
  i64 k_head;
  i64 k_row;
  i64 k_channel;
  u64 v;
  i64 v_batch;
  i64 v_head;
  i64 v_row;
  i64 v_channel;
  u64 out;
  i64 out_batch;
  i64 out_head;
  i64 out_row;
  i64 out_channel;
  u64 lse;
  i64 lse_batch;
  i64 lse_head;
  i64 lse_row;
  u64 max_logit;
  i64 max_logit_batch;
  i64 max_logit_head;
  i64 max_logit_row;
  u64 entropy;
  i64 entropy_batch;
  i64 entropy_head;
  i64 entropy_row;
  u64 sum_p2;
  i64 sum_p2_batch;
  i64 sum_p2_head;
  i64 sum_p2_row;
  u64 q_len;
  u64 kv_len;
  u64 q_offset;
  u64 q_start;
  u64 kv_start;
  u64 pages;
  i64 batch;
  i64 q_heads;
  i64 kv_heads;
  i64 q_rows;
  i64 q_tiles;
  i64 splits;
  i64 keys_of_split;
  i64 kv_rows;
  i64 pages_of_entry;
  i64 page_size;
  u64 saved_m;
  u64 saved_l;
  u64 part_rows;
  u64 part_sums;
  f64 scalar_scale;
  u64 saved_out;
  u64 row_shift;
  u64 row_whole;
  u64 row_delta;
  u64 row_sink;
  u64 sums_sinks;
  u64 dout;
  i64 dout_batch;
  i64 dout_head;
  i64 dout_row;
  i64 dout_channel;
  u64 dq;
  i64 dq_batch;
  i64 dq_head;
  i64 dq_row;
  i64 dq_channel;
  u64 dk;
  i64 dk_batch;
  i64 dk_head;
  i64 dk_row;
  i64 dk_channel;
  u64 dv;
  i64 dv_batch;
  i64 dv_head;
  i64 dv_row;
  i64 dv_channel;
};


// kernels/numbers.cu

// kernels/operands.cu

// kernels/ranges.cu

// ---- what the spec says about a pair -----------------------------------------------------------

// logit_of = scale.float * dot()
__device__ __forceinline__ accum_t logit_of(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const accum_t t0 = (accum_t)c.scalar_scale;
  const accum_t t1 = t0 * dot;
  return t1;
}

// mask_of = True
__device__ __forceinline__ bool mask_of(const Call& c, const Place& at, i64 q, i64 k) {
  return true;
}

// sink_of = -inf
__device__ __forceinline__ accum_t sink_of(const Call& c, const Place& at) {
  return (-INFINITE);
}

// keys that some row of a tile may see (MASK-1), and keys that every row sees
__device__ __forceinline__ Ranges key_ranges(const Call& c, const Place& at, i64 q_lo, i64 q_hi) {
  const i64 t2 = at.keys - 1;
  const i64 t3 = t2 + i64(1ll);
  const i64 t4 = most_of(i64(0), t3);
  const i64 t5 = true ? t4 : i64(0);
  const i64 t6 = false ? i64(0) : t4;
  const i64 t7 = most_of(i64(0), i64(0));
  const i64 t8 = least_of(t7, t5);
  const i64 t9 = most_of(t6, t8);
  const i64 t10 = least_of(t9, t5);
  return Ranges{i64(0), t5, t8, t10};
}

__device__ __forceinline__ TileClass tile_class(const Call& c, const Place& at, i64 q_lo, i64 q_hi, i64 k_lo, i64 k_hi) {
  return TileClass{true, false};
}

constexpr bool HAS_SLOPE = true;
// slope_of = scale.float
__device__ __forceinline__ accum_t slope_of(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const accum_t t11 = (accum_t)c.scalar_scale;
  return t11;
}


// ---- the family --------------------------------------------------------------------------------
#define MMA_TYPE "bf16"
constexpr accum_t ONE = 1;
__device__ __forceinline__ float exp2_of(float x);
__device__ __forceinline__ accum_t weight(accum_t x, accum_t m) {
  return exp2_of(fma_of(x - m, 1.4426950408889634f, 0.0f));
}

// kernels/softmax.cu

// kernels/tiles.cu

// kernels/backward.cu

// kernels/simt_products.cu

// kernels/mma.cu

// kernels/mma_products.cu

// kernels/mma_backward.cu

// kernels/simt_tables.cu


