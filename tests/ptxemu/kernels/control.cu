// Control flow and memory of a thread's own: loops whose lengths differ, switches, calls, arrays with computed indices.
#include "primitives.cuh"

// Steps until the Collatz sequence reaches 1.
extern "C" __global__ void collatz(const u32 *__restrict__ start, int *__restrict__ steps, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  u64 n = start[i];
  int taken = 0;
  while (n != 1) {
    n = n & 1 ? 3 * n + 1 : n >> 1;
    taken++;
  }
  steps[i] = taken;
}

// Sort 16 numbers of each thread in its local memory (the index of an insertion is known only when it runs).
extern "C" __global__ void sort_each(const int *__restrict__ from, int *__restrict__ to) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  int numbers[16];
#pragma unroll 1
  for (int i = 0; i < 16; i++) {
    const int number = from[thread * 16 + i];
    int place = i;
    while (place > 0 && numbers[place - 1] > number) {
      numbers[place] = numbers[place - 1];
      place--;
    }
    numbers[place] = number;
  }
#pragma unroll 1
  for (int i = 0; i < 16; i++) to[thread * 16 + i] = numbers[i];
}

// Functions that are really called, with structs by value and by reference.
struct Complex { double re, im; };
static __device__ __noinline__ Complex product(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
static __device__ __noinline__ void add_to(Complex *sum, const Complex *term) {
  sum->re += term->re;
  sum->im += term->im;
}
// z^2 + z of each number.
extern "C" __global__ void polynomial(const Complex *__restrict__ z, Complex *__restrict__ result, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Complex value = z[i], sum = product(value, value);
  add_to(&sum, &value);
  result[i] = sum;
}

// One of eight operations for each thread.
extern "C" __global__ void calculate(const int *__restrict__ operation, const int *__restrict__ a,
                                     const int *__restrict__ b, int *__restrict__ result) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int x = a[i], y = b[i];
  int z;
  switch (operation[i]) {
    case 0: z = x + y; break;
    case 1: z = x - y; break;
    case 2: z = x * y; break;
    case 3: z = y ? x / y : 0; break;
    case 4: z = y ? x % y : 0; break;
    case 5: z = __clz(x ^ y); break;
    case 6: z = __brev(x) + __popc(y); break;
    case 7: z = __mulhi(x, y); break;
    default: z = -1;
  }
  result[i] = z;
}
