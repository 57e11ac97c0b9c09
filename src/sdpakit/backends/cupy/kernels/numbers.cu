// ---- numbers: how stored elements become numbers of arithmetic, and back -------------------------
// accum_t, index_t and ALIGNED come from the head. No headers are needed.

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

__device__ __forceinline__ float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }

// NUM-5: the one rounding to the dtype of an output.
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(double x, double& y) { y = x; }
__device__ __forceinline__ void narrow(double x, float& y) { y = (float)x; }
__device__ __forceinline__ void narrow(float x, double& y) { y = x; }
__device__ __forceinline__ void narrow(float x, f16& y) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
__device__ __forceinline__ void narrow(double x, f16& y) {
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
}
__device__ __forceinline__ void narrow(float x, bf16& y) {
  const unsigned bits = __float_as_uint(x);
  // To nearest, ties to even, by a carry into the upper half; a NaN stays one.
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  y.bits = x != x ? 0x7fff : (unsigned short)rounded;
}
__device__ __forceinline__ void narrow(double x, bf16& y) {
  // Rounded towards zero with a sticky last bit, so that the second rounding is the only one.
  float part = __double2float_rz(x);
  if ((double)part != x && part == part) part = __uint_as_float(__float_as_uint(part) | 1u);
  narrow(part, y);
}

// An element at any address (SHAPE-5): byte by byte where a call has one that is not aligned.
template <class T>
__device__ __forceinline__ T load(u64 address) {
  if constexpr (ALIGNED) return *(const T*)address;
  T x;
  for (int n = 0; n < (int)sizeof(T); ++n) ((unsigned char*)&x)[n] = ((const unsigned char*)address)[n];
  return x;
}
template <class T>
__device__ __forceinline__ void store(u64 address, T x) {
  if constexpr (ALIGNED) {
    *(T*)address = x;
  } else {
    for (int n = 0; n < (int)sizeof(T); ++n) ((unsigned char*)address)[n] = ((unsigned char*)&x)[n];
  }
}

__device__ __forceinline__ float infinity_of(float) { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ double infinity_of(double) {
  return __longlong_as_double(0x7ff0000000000000ll);
}
#define INFINITE infinity_of(accum_t(0))
#define NOT_A_NUMBER (INFINITE - INFINITE)

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ float sqrt_of(float x) { return sqrtf(x); }
__device__ __forceinline__ double sqrt_of(double x) { return sqrt(x); }
__device__ __forceinline__ float floor_of(float x) { return floorf(x); }
__device__ __forceinline__ double floor_of(double x) { return floor(x); }
__device__ __forceinline__ float abs_of(float x) { return fabsf(x); }
__device__ __forceinline__ double abs_of(double x) { return fabs(x); }
__device__ __forceinline__ float fma_of(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fma_of(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ bool is_finite(accum_t x) { return abs_of(x) < INFINITE; }
__device__ __forceinline__ bool is_negative(float x) { return (int)__float_as_uint(x) < 0; }
__device__ __forceinline__ bool is_negative(double x) { return __double_as_longlong(x) < 0; }

__device__ __forceinline__ bool is_negative_zero(accum_t x) { return x == 0 && is_negative(x); }

// NaN if either is NaN (NUM-4).
template <class T>
__device__ __forceinline__ T largest(T a, T b) { return a > b || a != a ? a : b; }
template <class T>
__device__ __forceinline__ T smallest(T a, T b) { return a < b || a != a ? a : b; }

// Integers as in Python (EXPR-1); the divisor is positive.
template <class T>
__device__ __forceinline__ T floor_division(T a, T b) {
  const T q = a / b;
  return q - (T)(a - q * b < 0);
}
template <class T>
__device__ __forceinline__ T floor_remainder(T a, T b) {
  const T r = a % b;
  return r < 0 ? r + b : r;
}
