// ---- tiles: which rows a block has, and which tiles of keys it visits ----------------------------

// The block's first row; the last rows come first, as a causal mask gives them the most work.
__device__ __forceinline__ Place place_of_block(const Call& c, int block_q) {
  const i64 tile = c.q_tiles - 1 - (i64)blockIdx.x % c.q_tiles;
  const i64 head = (i64)blockIdx.x / c.q_tiles;
  return place(c, head / c.q_heads, head % c.q_heads, tile * block_q);
}

// Tiles lie on an absolute grid, so the bits of a row do not depend on the rows beside it (DET-2).
struct Tiles {
  Ranges keys;
  __device__ __forceinline__ Tiles(const Call& c, const Place& at, i64 q_last)
      : keys(key_ranges(c, at, at.q0, q_last)) {}
  __device__ __forceinline__ i64 first(int block_k) const { return keys.maybe_lo / block_k * block_k; }
  __device__ __forceinline__ i64 end() const { return keys.maybe_hi; }

  // EMPTY tiles are proven to have no pair, FULL ones to have all (MASK-1).
  enum Kind { EMPTY, PARTIAL, FULL };
  __device__ __forceinline__ Kind kind(const Call& c, const Place& at, i64 q_last, i64 k0,
                                       int block_k) const {
    if (keys.must_lo <= k0 && k0 + block_k <= keys.must_hi) return FULL;
    const i64 k_last = least_of(k0 + block_k, at.keys) - 1;
    const TileClass found = tile_class(c, at, at.q0, q_last, k0, k_last);
    if (!found.can_be_true) return EMPTY;
    return !found.can_be_false && k0 + block_k <= at.keys ? FULL : PARTIAL;
  }
};

// Logits of N pairs of one row for their products, and which of them are present. Rows and keys that are
// not there stand for the last ones, so that no table is read past its end.
template <int N, class KeyOf>
__device__ __forceinline__ void logits(const Call& c, const Place& at, i64 q, i64 k_last, bool full,
                                       KeyOf key_of, accum_t (&x)[N], bool (&present)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const i64 key = key_of(n), k = least_of(key, k_last);
    x[n] = logit_of(c, at, q, k, x[n]);
    present[n] = x[n] != -INFINITE;  // MASK-6
    if (!full) present[n] = present[n] && key == k && mask_of(c, at, q, k);
  }
}
