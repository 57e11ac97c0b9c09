// ---- proofs about tiles (passes.classify): which keys a tile of rows can see, which it must ------

struct Span { i64 lo, hi; };
struct Ranges { i64 maybe_lo, maybe_hi, must_lo, must_hi; };  // half open, each inside the one before
struct TileClass { bool can_be_true, can_be_false; };         // neither: EMPTY, or FULL, is proven

// A box of more elements than this is not read; the bounds of the whole table answer for it. Every
// thread of a block reads it, and a tile is worth some thousand products.
constexpr i64 LARGEST_SCAN = 64;

__device__ __forceinline__ i64 least_of(i64 a, i64 b) { return a < b ? a : b; }
__device__ __forceinline__ i64 most_of(i64 a, i64 b) { return a > b ? a : b; }

// How many elements of an ascending row are < value.
template <class T>
__device__ __forceinline__ i64 lower_bound(u64 row, i64 stride, i64 size, i64 value) {
  i64 lo = 0, hi = size;
  while (lo < hi) {
    const i64 middle = (lo + hi) >> 1;
    if ((i64)load<T>(row + middle * stride) < value) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

// One axis of a box of indices, cut to the table; what broadcasts has one index.
struct Axis {
  i64 first, count;
  __device__ __forceinline__ Axis(i64 lo, i64 hi, i64 stride, i64 size) {
    lo = least_of(most_of(lo, 0), size - 1);
    hi = least_of(most_of(hi, 0), size - 1);
    first = stride == 0 ? 0 : lo;
    count = stride == 0 ? 1 : most_of(hi - lo + 1, 0);
  }
};
