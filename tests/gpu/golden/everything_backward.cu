// Gradients of attention by sdpakit, SIMT family.
// attention for every (b, h, q) over k
//   q, k, v    float32[16], v [16]
//   computed   in float32, out in float32
//   outputs    out, lse, entropy
//   empty row  zero
//   table      bias: float32, 4 axes
//   table      doc: int32, 2 axes
//   table      sinks: float32, 1 axes
//   table      slopes: float32, 1 axes
//   scalar     prefix0_length: int
//   scalar     scale: float
//   logit
//     = (scale.float * dot()) + bias.float32[b, h, q, k] + (slopes.float32[h] * to_float(k - q))
//   mask
//     = ((doc.int32[b, q] == doc.int32[b, k]) | (k < prefix0_length.int)) & (q < q_len) & (k < kv_len)
//   sink
//     = sinks.float32[h]
//   schedule   needs_mask=True plain_logits=False

typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef float accum_t;
typedef int index_t;
#define q_t f32
#define out_t f32
#define EMPTY_ROW accum_t(0)  // EMPTY-1
constexpr int D = 16;
constexpr int DV = 16;
constexpr bool ALIGNED = true;
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
constexpr bool SINK = true;
constexpr bool OUT = true;
constexpr bool LSE = true;
constexpr bool MAX_LOGIT = false;
constexpr bool ENTROPY = true;
constexpr bool SUM_P2 = false;
constexpr int THREADS = 128;
constexpr int LANES = 16;
constexpr int ROWS = 4;
constexpr int COLS = 2;

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
  i64 scalar_prefix0_length;
  f64 scalar_scale;
  u64 table_bias;
  i64 table_bias_stride0;
  i64 table_bias_size0;
  i64 table_bias_stride1;
  i64 table_bias_size1;
  i64 table_bias_stride2;
  i64 table_bias_size2;
  i64 table_bias_stride3;
  i64 table_bias_size3;
  i64 table_bias_least;
  i64 table_bias_largest;
  i64 table_bias_ascends;
  u64 table_doc;
  i64 table_doc_stride0;
  i64 table_doc_size0;
  i64 table_doc_stride1;
  i64 table_doc_size1;
  i64 table_doc_least;
  i64 table_doc_largest;
  i64 table_doc_ascends;
  u64 table_sinks;
  i64 table_sinks_stride0;
  i64 table_sinks_size0;
  i64 table_sinks_least;
  i64 table_sinks_largest;
  i64 table_sinks_ascends;
  u64 table_slopes;
  i64 table_slopes_stride0;
  i64 table_slopes_size0;
  i64 table_slopes_least;
  i64 table_slopes_largest;
  i64 table_slopes_ascends;
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
  u64 sums_bias;
  i64 sums_bias_stride0;
  i64 sums_bias_stride1;
  i64 sums_bias_stride2;
  i64 sums_bias_stride3;
  i64 sums_bias_by_b;
  i64 sums_bias_by_h;
  i64 sums_bias_by_q;
  i64 sums_bias_distinct0;
  u64 sums_slopes;
  i64 sums_slopes_stride0;
  i64 sums_slopes_by_b;
  i64 sums_slopes_by_h;
  i64 sums_slopes_by_q;
  i64 sums_slopes_distinct0;
};


// kernels/numbers.cu

// kernels/operands.cu

// kernels/ranges.cu

// ---- what the spec says about a pair -----------------------------------------------------------

// logit_of = (scale.float * dot()) + bias.float32[b, h, q, k] + (slopes.float32[h] * to_float(k - q))
__device__ __forceinline__ accum_t logit_of(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const accum_t t0 = (accum_t)c.scalar_scale;
  const accum_t t1 = t0 * dot;
  const index_t t2 = (index_t)at.b;
  const index_t t3 = (index_t)at.h;
  const index_t t4 = (index_t)q;
  const index_t t5 = (index_t)k;
  const accum_t t6 = (accum_t)widen(load<f32>(c.table_bias + (i64)t2 * c.table_bias_stride0 + (i64)t3 * c.table_bias_stride1 + (i64)t4 * c.table_bias_stride2 + (i64)t5 * c.table_bias_stride3));
  const accum_t t7 = t1 + t6;
  const accum_t t8 = (accum_t)widen(load<f32>(c.table_slopes + (i64)t3 * c.table_slopes_stride0));
  const index_t t9 = t5 - t4;
  const accum_t t10 = (accum_t)t9;
  const accum_t t11 = t8 * t10;
  const accum_t t12 = t7 + t11;
  return t12;
}

// mask_of = ((doc.int32[b, q] == doc.int32[b, k]) | (k < prefix0_length.int)) & (q < q_len) & (k < kv_len)
__device__ __forceinline__ bool mask_of(const Call& c, const Place& at, i64 q, i64 k) {
  const index_t t13 = (index_t)at.b;
  const index_t t14 = (index_t)q;
  const index_t t15 = (index_t)load<int>(c.table_doc + (i64)t13 * c.table_doc_stride0 + (i64)t14 * c.table_doc_stride1);
  const index_t t16 = (index_t)k;
  const index_t t17 = (index_t)load<int>(c.table_doc + (i64)t13 * c.table_doc_stride0 + (i64)t16 * c.table_doc_stride1);
  const bool t18 = t15 == t17;
  const index_t t19 = (index_t)c.scalar_prefix0_length;
  const bool t20 = t16 < t19;
  const bool t21 = t18 || t20;
  const index_t t22 = (index_t)at.q_len;
  const bool t23 = t14 < t22;
  const bool t24 = t21 && t23;
  const index_t t25 = (index_t)at.kv_len;
  const bool t26 = t16 < t25;
  const bool t27 = t24 && t26;
  return t27;
}

// sink_of = sinks.float32[h]
__device__ __forceinline__ accum_t sink_of(const Call& c, const Place& at) {
  const index_t t28 = (index_t)at.h;
  const accum_t t29 = (accum_t)widen(load<f32>(c.table_sinks + (i64)t28 * c.table_sinks_stride0));
  return t29;
}

// least and largest element of doc over a box of indices
__device__ __forceinline__ Span range_of_doc(const Call& c, i64 lo0, i64 hi0, i64 lo1, i64 hi1) {
  const Axis a0(lo0, hi0, c.table_doc_stride0, c.table_doc_size0);
  const Axis a1(lo1, hi1, c.table_doc_stride1, c.table_doc_size1);
  i64 total = 1;
  total = least_of(total * a0.count, LARGEST_SCAN + 1);
  total = least_of(total * a1.count, LARGEST_SCAN + 1);
  if (total == 0 || total > LARGEST_SCAN) return Span{c.table_doc_least, c.table_doc_largest};
  Span found = Span{c.table_doc_largest, c.table_doc_least};
  for (i64 n = 0; n < total; ++n) {
    i64 rest = n;
    u64 from = c.table_doc;
    from += (a1.first + rest % a1.count) * c.table_doc_stride1;
    rest /= a1.count;
    from += (a0.first + rest % a0.count) * c.table_doc_stride0;
    rest /= a0.count;
    const i64 x = (i64)load<int>(from);
    found = Span{least_of(found.lo, x), most_of(found.hi, x)};
  }
  return found;
}

// keys that some row of a tile may see (MASK-1), and keys that every row sees
__device__ __forceinline__ Ranges key_ranges(const Call& c, const Place& at, i64 q_lo, i64 q_hi) {
  const i64 t30 = at.keys - 1;
  const i64 t31 = t30 + i64(1ll);
  const i64 t32 = most_of(i64(0), t31);
  const Span t33 = range_of_doc(c, at.b, at.b, q_lo, q_hi);
  const i64 t34 = lower_bound<int>(c.table_doc + at.b * c.table_doc_stride0, c.table_doc_stride1, c.table_doc_size1, t33.lo);
  const i64 t35 = most_of(t34, i64(0));
  const i64 t36 = least_of(t35, t32);
  const i64 t37 = most_of(t32, t36);
  const i64 t38 = least_of(t37, t32);
  const i64 t39 = lower_bound<int>(c.table_doc + at.b * c.table_doc_stride0, c.table_doc_stride1, c.table_doc_size1, t33.hi);
  const i64 t40 = most_of(t39, i64(0));
  const i64 t41 = least_of(t40, t32);
  const i64 t42 = most_of(t32, t41);
  const i64 t43 = least_of(t42, t32);
  const Span t44 = range_of_doc(c, at.b, at.b, i64(0), t30);
  const i64 t45 = i64(0ll) - t44.hi;
  const i64 t46 = i64(0ll) - t44.lo;
  const i64 t47 = t45 + t33.lo;
  const i64 t48 = t46 + t33.hi;
  const bool t49 = t47 <= i64(0ll);
  const bool t50 = i64(0ll) < t48;
  const i64 t51 = t49 ? t32 : i64(0);
  const i64 t52 = t50 ? i64(0) : t32;
  const i64 t53 = (c.table_doc_ascends != 0) ? t36 : i64(0);
  const i64 t54 = (c.table_doc_ascends != 0) ? t38 : t51;
  const i64 t55 = (c.table_doc_ascends != 0) ? t41 : i64(0);
  const i64 t56 = (c.table_doc_ascends != 0) ? t43 : t52;
  const i64 t57 = i64(0ll) - t33.hi;
  const i64 t58 = i64(0ll) - t33.lo;
  const i64 t59 = i64(0ll) - t58;
  const i64 t60 = i64(0ll) - t57;
  const i64 t61 = t60 + i64(1ll);
  const i64 t62 = lower_bound<int>(c.table_doc + at.b * c.table_doc_stride0, c.table_doc_stride1, c.table_doc_size1, t61);
  const i64 t63 = most_of(i64(0), i64(0));
  const i64 t64 = least_of(t63, t32);
  const i64 t65 = most_of(t62, t64);
  const i64 t66 = least_of(t65, t32);
  const i64 t67 = t59 + i64(1ll);
  const i64 t68 = lower_bound<int>(c.table_doc + at.b * c.table_doc_stride0, c.table_doc_stride1, c.table_doc_size1, t67);
  const i64 t69 = most_of(i64(0), i64(0));
  const i64 t70 = least_of(t69, t32);
  const i64 t71 = most_of(t68, t70);
  const i64 t72 = least_of(t71, t32);
  const i64 t73 = t44.lo + t57;
  const i64 t74 = t44.hi + t58;
  const bool t75 = t73 <= i64(0ll);
  const bool t76 = i64(0ll) < t74;
  const i64 t77 = t75 ? t32 : i64(0);
  const i64 t78 = t76 ? i64(0) : t32;
  const i64 t79 = (c.table_doc_ascends != 0) ? t64 : i64(0);
  const i64 t80 = (c.table_doc_ascends != 0) ? t66 : t77;
  const i64 t81 = (c.table_doc_ascends != 0) ? t70 : i64(0);
  const i64 t82 = (c.table_doc_ascends != 0) ? t72 : t78;
  const i64 t83 = most_of(t53, t79);
  const i64 t84 = least_of(t54, t80);
  const i64 t85 = most_of(t83, i64(0));
  const i64 t86 = least_of(t85, t32);
  const i64 t87 = most_of(t84, t86);
  const i64 t88 = least_of(t87, t32);
  const i64 t89 = most_of(t55, t81);
  const i64 t90 = least_of(t56, t82);
  const i64 t91 = most_of(t89, i64(0));
  const i64 t92 = least_of(t91, t32);
  const i64 t93 = most_of(t90, t92);
  const i64 t94 = least_of(t93, t32);
  const i64 t95 = i64(1ll) - c.scalar_prefix0_length;
  const i64 t96 = i64(1ll) - c.scalar_prefix0_length;
  const i64 t97 = i64(0ll) - t96;
  const i64 t98 = i64(0ll) - t95;
  const i64 t99 = t98 + i64(1ll);
  const i64 t100 = most_of(i64(0), i64(0));
  const i64 t101 = least_of(t100, t32);
  const i64 t102 = most_of(t99, t101);
  const i64 t103 = least_of(t102, t32);
  const i64 t104 = t97 + i64(1ll);
  const i64 t105 = most_of(i64(0), i64(0));
  const i64 t106 = least_of(t105, t32);
  const i64 t107 = most_of(t104, t106);
  const i64 t108 = least_of(t107, t32);
  const i64 t109 = least_of(t86, t101);
  const i64 t110 = most_of(t88, t103);
  const bool t111 = t86 == t88;
  const i64 t112 = t111 ? t101 : t109;
  const i64 t113 = t111 ? t103 : t110;
  const bool t114 = t101 == t103;
  const i64 t115 = t114 ? t86 : t112;
  const i64 t116 = t114 ? t88 : t113;
  const bool t117 = t92 <= t108;
  const bool t118 = t106 <= t94;
  const bool t119 = t117 && t118;
  const i64 t120 = least_of(t92, t106);
  const i64 t121 = most_of(t94, t108);
  const i64 t122 = t94 - t92;
  const i64 t123 = t108 - t106;
  const bool t124 = t122 < t123;
  const i64 t125 = t124 ? t106 : t92;
  const i64 t126 = t124 ? t108 : t94;
  const i64 t127 = t119 ? t120 : t125;
  const i64 t128 = t119 ? t121 : t126;
  const i64 t129 = q_lo - at.q_len;
  const i64 t130 = q_hi - at.q_len;
  const bool t131 = t129 < i64(0ll);
  const bool t132 = i64(0ll) <= t130;
  const i64 t133 = t131 ? t32 : i64(0);
  const i64 t134 = t132 ? i64(0) : t32;
  const i64 t135 = most_of(t115, i64(0));
  const i64 t136 = least_of(t116, t133);
  const i64 t137 = most_of(t135, i64(0));
  const i64 t138 = least_of(t137, t32);
  const i64 t139 = most_of(t136, t138);
  const i64 t140 = least_of(t139, t32);
  const i64 t141 = most_of(t127, i64(0));
  const i64 t142 = least_of(t128, t134);
  const i64 t143 = most_of(t141, i64(0));
  const i64 t144 = least_of(t143, t32);
  const i64 t145 = most_of(t142, t144);
  const i64 t146 = least_of(t145, t32);
  const i64 t147 = i64(1ll) - at.kv_len;
  const i64 t148 = i64(1ll) - at.kv_len;
  const i64 t149 = i64(0ll) - t148;
  const i64 t150 = i64(0ll) - t147;
  const i64 t151 = t150 + i64(1ll);
  const i64 t152 = most_of(i64(0), i64(0));
  const i64 t153 = least_of(t152, t32);
  const i64 t154 = most_of(t151, t153);
  const i64 t155 = least_of(t154, t32);
  const i64 t156 = t149 + i64(1ll);
  const i64 t157 = most_of(i64(0), i64(0));
  const i64 t158 = least_of(t157, t32);
  const i64 t159 = most_of(t156, t158);
  const i64 t160 = least_of(t159, t32);
  const i64 t161 = most_of(t138, t153);
  const i64 t162 = least_of(t140, t155);
  const i64 t163 = most_of(t161, i64(0));
  const i64 t164 = least_of(t163, t32);
  const i64 t165 = most_of(t162, t164);
  const i64 t166 = least_of(t165, t32);
  const i64 t167 = most_of(t144, t158);
  const i64 t168 = least_of(t146, t160);
  const i64 t169 = most_of(t167, i64(0));
  const i64 t170 = least_of(t169, t32);
  const i64 t171 = most_of(t168, t170);
  const i64 t172 = least_of(t171, t32);
  const i64 t173 = most_of(t170, t164);
  const i64 t174 = least_of(t173, t166);
  const i64 t175 = most_of(t172, t174);
  const i64 t176 = least_of(t175, t166);
  return Ranges{t164, t166, t174, t176};
}

__device__ __forceinline__ TileClass tile_class(const Call& c, const Place& at, i64 q_lo, i64 q_hi, i64 k_lo, i64 k_hi) {
  const Span t177 = range_of_doc(c, at.b, at.b, q_lo, q_hi);
  const Span t178 = range_of_doc(c, at.b, at.b, k_lo, k_hi);
  const i64 t179 = t177.lo - t178.hi;
  const i64 t180 = t177.hi - t178.lo;
  const bool t181 = t179 <= i64(0ll);
  const bool t182 = i64(0ll) <= t180;
  const bool t183 = t181 && t182;
  const bool t184 = t179 < i64(0ll);
  const bool t185 = i64(0ll) < t180;
  const bool t186 = t184 || t185;
  const i64 t187 = k_lo - c.scalar_prefix0_length;
  const i64 t188 = k_hi - c.scalar_prefix0_length;
  const bool t189 = t187 < i64(0ll);
  const bool t190 = i64(0ll) <= t188;
  const bool t191 = t183 || t189;
  const bool t192 = t186 && t190;
  const i64 t193 = q_lo - at.q_len;
  const i64 t194 = q_hi - at.q_len;
  const bool t195 = t193 < i64(0ll);
  const bool t196 = i64(0ll) <= t194;
  const bool t197 = t191 && t195;
  const bool t198 = t192 || t196;
  const i64 t199 = k_lo - at.kv_len;
  const i64 t200 = k_hi - at.kv_len;
  const bool t201 = t199 < i64(0ll);
  const bool t202 = i64(0ll) <= t200;
  const bool t203 = t197 && t201;
  const bool t204 = t198 || t202;
  return TileClass{t203, t204};
}

constexpr bool HAS_SLOPE = true;
// slope_of = scale.float
__device__ __forceinline__ accum_t slope_of(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const accum_t t205 = (accum_t)c.scalar_scale;
  return t205;
}

// slope_by_bias_0 = 1.0
__device__ __forceinline__ accum_t slope_by_bias_0(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  return accum_t(0x1.0000000000000p+0);
}

__device__ __forceinline__ i64 element_of_bias_0(const Call& c, const Place& at, i64 q, i64 k) {
  const index_t t206 = (index_t)at.b;
  const index_t t207 = (index_t)at.h;
  const index_t t208 = (index_t)q;
  const index_t t209 = (index_t)k;
  return (i64)t206 * c.sums_bias_stride0 + (i64)t207 * c.sums_bias_stride1 + (i64)t208 * c.sums_bias_stride2 + (i64)t209 * c.sums_bias_stride3;
}

// slope_by_slopes_0 = to_float(k - q)
__device__ __forceinline__ accum_t slope_by_slopes_0(const Call& c, const Place& at, i64 q, i64 k, accum_t dot) {
  const index_t t210 = (index_t)k;
  const index_t t211 = (index_t)q;
  const index_t t212 = t210 - t211;
  const accum_t t213 = (accum_t)t212;
  return t213;
}

__device__ __forceinline__ i64 element_of_slopes_0(const Call& c, const Place& at, i64 q, i64 k) {
  const index_t t214 = (index_t)at.h;
  return (i64)t214 * c.sums_slopes_stride0;
}


// ---- the family --------------------------------------------------------------------------------
constexpr accum_t ONE = 1;
__device__ __forceinline__ accum_t weight(accum_t x, accum_t m) {
  return exp_of(x - m);
}

// kernels/softmax.cu

// kernels/tiles.cu

// kernels/backward.cu

// kernels/simt_products.cu

// kernels/simt_backward.cu

// kernels/simt_tables.cu

extern "C" __global__ void __launch_bounds__(THREADS, 2) gradient_of_bias(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  __shared__ Scattered part;
  const Owned owned = owned_by_block(c, c.sums_bias_by_b, c.sums_bias_by_h, c.sums_bias_by_q);
  gradient_of_table(
      c, shared, part, owned, c.sums_bias, c.sums_bias_distinct0,
      [&](const Place& at, i64 q, i64 k, accum_t dot) { return slope_by_bias_0(c, at, q, k, dot); },
      [&](const Place& at, i64 q, i64 k) { return element_of_bias_0(c, at, q, k); });
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) gradient_of_slopes(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  __shared__ Scattered part;
  const Owned owned = owned_by_block(c, c.sums_slopes_by_b, c.sums_slopes_by_h, c.sums_slopes_by_q);
  gradient_of_table(
      c, shared, part, owned, c.sums_slopes, c.sums_slopes_distinct0,
      [&](const Place& at, i64 q, i64 k, accum_t dot) { return slope_by_slopes_0(c, at, q, k, dot); },
      [&](const Place& at, i64 q, i64 k) { return element_of_slopes_0(c, at, q, k); });
}

