// Attention by sdpakit, mma.sync family.
// attention for every (b, h, q) over k
//   q, k, v    bfloat16[80], v [64]
//   computed   in float32, out in bfloat16
//   outputs    out
//   empty row  zero
//   scalar     scale: float
//   scalar     softcap: float
//   scalar     window0_left: int
//   scalar     window0_right: int
//   logit
//     = softcap.float * tanh((scale.float * dot()) / softcap.float)
//   mask
//     t0 = q + (kv_len - q_len)
//     = (k <= t0) & (((t0 - window0_left.int) <= k) & (k <= (t0 + window0_right.int)))
//   schedule   needs_mask=True plain_logits=False

typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef float accum_t;
typedef i64 index_t;
#define q_t bf16
#define out_t bf16
#define EMPTY_ROW accum_t(0)  // EMPTY-1
constexpr int D = 80;
constexpr int DV = 64;
constexpr bool ALIGNED = false;
constexpr bool WHOLE_Q = true;
constexpr bool WHOLE_K = true;
constexpr bool WHOLE_V = true;
constexpr bool WHOLE_DOUT = true;
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
constexpr int WARPS = 4;
constexpr int BLOCK_K = 64;
constexpr int LANES = 4;

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
  f64 scalar_softcap;
  i64 scalar_window0_left;
  i64 scalar_window0_right;
};


// kernels/numbers.cu

// kernels/operands.cu

// kernels/ranges.cu

// ---- what the spec says about a pair -----------------------------------------------------------

// logit_of = softcap.float * tanh((scale.float * dot()) / softcap.float)
__device__ __forceinline__ accum_t logit_of(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const accum_t t0 = (accum_t)c.scalar_softcap;
  const accum_t t1 = (accum_t)c.scalar_scale;
  const accum_t t2 = t1 * dot;
  const accum_t t3 = t2 / t0;
  const accum_t t4 = tanh_of(t3);
  const accum_t t5 = t0 * t4;
  return t5;
}

// mask_of = t0 = q + (kv_len - q_len); (k <= t0) & (((t0 - window0_left.int) <= k) & (k <= (t0 + window0_right.int)))
__device__ __forceinline__ bool mask_of(const Call& c, const Place& at, i64 q, i64 k) {
  const index_t t6 = (index_t)k;
  const index_t t7 = (index_t)q;
  const index_t t8 = (index_t)at.kv_len;
  const index_t t9 = (index_t)at.q_len;
  const index_t t10 = t8 - t9;
  const index_t t11 = t7 + t10;
  const bool t12 = t6 <= t11;
  const index_t t13 = (index_t)c.scalar_window0_left;
  const index_t t14 = t11 - t13;
  const bool t15 = t14 <= t6;
  const index_t t16 = (index_t)c.scalar_window0_right;
  const index_t t17 = t11 + t16;
  const bool t18 = t6 <= t17;
  const bool t19 = t15 && t18;
  const bool t20 = t12 && t19;
  return t20;
}

// sink_of = -inf
__device__ __forceinline__ accum_t sink_of(const Call& c, const Place& at) {
  return (-INFINITE);
}

// keys that some row of a tile may see (MASK-1), and keys that every row sees
__device__ __forceinline__ Ranges key_ranges(const Call& c, const Place& at, i64 q_lo, i64 q_hi) {
  const i64 t21 = at.keys - 1;
  const i64 t22 = t21 + i64(1ll);
  const i64 t23 = most_of(i64(0), t22);
  const i64 t24 = i64(0ll) - q_hi;
  const i64 t25 = i64(0ll) - q_lo;
  const i64 t26 = t24 - at.kv_len;
  const i64 t27 = t25 - at.kv_len;
  const i64 t28 = t26 + at.q_len;
  const i64 t29 = t27 + at.q_len;
  const i64 t30 = i64(0ll) - t29;
  const i64 t31 = i64(0ll) - t28;
  const i64 t32 = t31 + i64(1ll);
  const i64 t33 = most_of(i64(0), i64(0));
  const i64 t34 = least_of(t33, t23);
  const i64 t35 = most_of(t32, t34);
  const i64 t36 = least_of(t35, t23);
  const i64 t37 = t30 + i64(1ll);
  const i64 t38 = most_of(i64(0), i64(0));
  const i64 t39 = least_of(t38, t23);
  const i64 t40 = most_of(t37, t39);
  const i64 t41 = least_of(t40, t23);
  const i64 t42 = q_lo + at.kv_len;
  const i64 t43 = q_hi + at.kv_len;
  const i64 t44 = t42 - at.q_len;
  const i64 t45 = t43 - at.q_len;
  const i64 t46 = t44 - c.scalar_window0_left;
  const i64 t47 = t45 - c.scalar_window0_left;
  const i64 t48 = most_of(t46, i64(0));
  const i64 t49 = least_of(t48, t23);
  const i64 t50 = most_of(t23, t49);
  const i64 t51 = least_of(t50, t23);
  const i64 t52 = most_of(t47, i64(0));
  const i64 t53 = least_of(t52, t23);
  const i64 t54 = most_of(t23, t53);
  const i64 t55 = least_of(t54, t23);
  const i64 t56 = i64(0ll) - q_hi;
  const i64 t57 = i64(0ll) - q_lo;
  const i64 t58 = t56 - at.kv_len;
  const i64 t59 = t57 - at.kv_len;
  const i64 t60 = t58 + at.q_len;
  const i64 t61 = t59 + at.q_len;
  const i64 t62 = t60 - c.scalar_window0_right;
  const i64 t63 = t61 - c.scalar_window0_right;
  const i64 t64 = i64(0ll) - t63;
  const i64 t65 = i64(0ll) - t62;
  const i64 t66 = t65 + i64(1ll);
  const i64 t67 = most_of(i64(0), i64(0));
  const i64 t68 = least_of(t67, t23);
  const i64 t69 = most_of(t66, t68);
  const i64 t70 = least_of(t69, t23);
  const i64 t71 = t64 + i64(1ll);
  const i64 t72 = most_of(i64(0), i64(0));
  const i64 t73 = least_of(t72, t23);
  const i64 t74 = most_of(t71, t73);
  const i64 t75 = least_of(t74, t23);
  const i64 t76 = most_of(t49, t68);
  const i64 t77 = least_of(t51, t70);
  const i64 t78 = most_of(t76, i64(0));
  const i64 t79 = least_of(t78, t23);
  const i64 t80 = most_of(t77, t79);
  const i64 t81 = least_of(t80, t23);
  const i64 t82 = most_of(t53, t73);
  const i64 t83 = least_of(t55, t75);
  const i64 t84 = most_of(t82, i64(0));
  const i64 t85 = least_of(t84, t23);
  const i64 t86 = most_of(t83, t85);
  const i64 t87 = least_of(t86, t23);
  const i64 t88 = most_of(t34, t79);
  const i64 t89 = least_of(t36, t81);
  const i64 t90 = most_of(t88, i64(0));
  const i64 t91 = least_of(t90, t23);
  const i64 t92 = most_of(t89, t91);
  const i64 t93 = least_of(t92, t23);
  const i64 t94 = most_of(t39, t85);
  const i64 t95 = least_of(t41, t87);
  const i64 t96 = most_of(t94, i64(0));
  const i64 t97 = least_of(t96, t23);
  const i64 t98 = most_of(t95, t97);
  const i64 t99 = least_of(t98, t23);
  const i64 t100 = most_of(t97, t91);
  const i64 t101 = least_of(t100, t93);
  const i64 t102 = most_of(t99, t101);
  const i64 t103 = least_of(t102, t93);
  return Ranges{t91, t93, t101, t103};
}

__device__ __forceinline__ TileClass tile_class(const Call& c, const Place& at, i64 q_lo, i64 q_hi, i64 k_lo, i64 k_hi) {
  const i64 t104 = k_lo - q_hi;
  const i64 t105 = k_hi - q_lo;
  const i64 t106 = t104 - at.kv_len;
  const i64 t107 = t105 - at.kv_len;
  const i64 t108 = t106 + at.q_len;
  const i64 t109 = t107 + at.q_len;
  const bool t110 = t108 <= i64(0ll);
  const bool t111 = i64(0ll) < t109;
  const i64 t112 = q_lo + at.kv_len;
  const i64 t113 = q_hi + at.kv_len;
  const i64 t114 = t112 - at.q_len;
  const i64 t115 = t113 - at.q_len;
  const i64 t116 = t114 - c.scalar_window0_left;
  const i64 t117 = t115 - c.scalar_window0_left;
  const i64 t118 = t116 - k_hi;
  const i64 t119 = t117 - k_lo;
  const bool t120 = t118 <= i64(0ll);
  const bool t121 = i64(0ll) < t119;
  const i64 t122 = k_lo - q_hi;
  const i64 t123 = k_hi - q_lo;
  const i64 t124 = t122 - at.kv_len;
  const i64 t125 = t123 - at.kv_len;
  const i64 t126 = t124 + at.q_len;
  const i64 t127 = t125 + at.q_len;
  const i64 t128 = t126 - c.scalar_window0_right;
  const i64 t129 = t127 - c.scalar_window0_right;
  const bool t130 = t128 <= i64(0ll);
  const bool t131 = i64(0ll) < t129;
  const bool t132 = t120 && t130;
  const bool t133 = t121 || t131;
  const bool t134 = t110 && t132;
  const bool t135 = t111 || t133;
  return TileClass{t134, t135};
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

// kernels/mma.cu

// kernels/mma_products.cu

// kernels/mma_forward.cu

// kernels/merge.cu
