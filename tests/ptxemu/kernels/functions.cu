// Functions of CUDA's mathematical library, whose code uses most instructions for floats: each thread computes all of
// them for its numbers, and writes function k of thread i to out[k * count + i].
template <typename T> struct Results {
  T *out;
  int count, i;
  __device__ void operator()(T value) { out[i] = value, out += count; }
};

#ifdef OF_F32
extern "C" __global__ void of_f32(const float *__restrict__ x, const float *__restrict__ y, float *__restrict__ out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float a = x[i], b = y[i], size = fabsf(a);
  Results<float> put{out, count, i};
  put(expf(a)), put(logf(size)), put(sinf(a)), put(cosf(1e6f * a)), put(tanhf(a)), put(erff(a)), put(powf(size, b));
  put(expm1f(a)), put(log1pf(size)), put(atan2f(a, b)), put(cbrtf(a)), put(hypotf(a, b)), put(fmodf(a, b));
  put(a / b), put(sqrtf(size)), put(rsqrtf(size)), put(roundf(a)), put(nextafterf(a, b)), put(ldexpf(a, -140));
  put(__expf(a)), put(__fdividef(a, b)), put(__fadd_rd(a, b)), put(__fmul_ru(a, b)), put(__frcp_rz(a));
}

#else
extern "C" __global__ void of_f64(const double *__restrict__ x, const double *__restrict__ y, double *__restrict__ out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const double a = x[i], b = y[i], size = fabs(a);
  Results<double> put{out, count, i};
  put(exp(a)), put(log(size)), put(sin(a)), put(cos(1e6 * a)), put(tanh(a)), put(erf(a)), put(pow(size, b));
  put(atan2(a, b)), put(cbrt(a)), put(fmod(a, b)), put(a / b), put(sqrt(size)), put(rsqrt(size)), put(rint(a));
  put(__dadd_rd(a, b)), put(__ddiv_ru(a, b)), put(double(__double2ll_rd(a))), put(double(__double2float_rz(a)));
}

extern "C" __global__ void of_s64(const long long *__restrict__ x, const long long *__restrict__ y, long long *__restrict__ out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const long long a = x[i], b = y[i];
  const unsigned long long c = a, d = b;
  Results<long long> put{out, count, i};
  put(a / b), put(a % b), put(c / d), put(c % d), put(__mul64hi(a, b)), put(__umul64hi(c, d)), put(__popcll(a));
  put(__clzll(a >> (b & 63))), put(__ffsll(a)), put(__brevll(a)), put(a >> (b & 63)), put(llabs(a)), put(max(a, b));
  put((long long)(__int128(a) * b >> 37)), put((long long)((__int128(a) << 20 | c >> 3) % d));
}
#endif
