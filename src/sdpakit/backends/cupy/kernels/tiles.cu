// ---- tiles: which rows a block has, and which tiles of keys it visits ----------------------------

// The block's first row; the last rows come first, as a causal mask gives them the most work. Where rows
// are packed, the rows of a block are those of all heads of a group, one head behind the other, so that few
// query rows read their keys once; `h` is then the first head of the group. Where keys are split, a block
// has a part of the tiles (`Part`), and the parts of a row are merged afterwards.
__device__ __forceinline__ i64 rows_of_heads(const Call& c, const Place& at) {
  return PACKED ? at.rows * (c.q_heads / c.kv_heads) : at.rows;
}
__device__ __forceinline__ Place place_of_block(const Call& c, int block_q) {
  const i64 item = (i64)blockIdx.x / c.splits;
  const i64 tile = c.q_tiles - 1 - item % c.q_tiles;
  const i64 heads = PACKED ? c.kv_heads : c.q_heads, group = PACKED ? c.q_heads / c.kv_heads : 1;
  const i64 head = item / c.q_tiles;
  return place(c, head / heads, head % heads * group, tile * block_q);
}

// One row of a block: its head and query row; of the last row, where there is none.
struct BlockRow {
  i64 h, q;
  bool there;
};
__device__ __forceinline__ BlockRow block_row(const Call& c, const Place& at, int row) {
  const i64 rows = rows_of_heads(c, at), index = least_of(at.q0 + row, rows - 1);
  if constexpr (PACKED) return {at.h + index / at.rows, index % at.rows, at.q0 + row < rows};
  return {at.h, index, at.q0 + row < rows};
}
__device__ __forceinline__ Place with_head(const Place& at, i64 h) {
  Place other = at;
  other.h = h;
  return other;
}
__device__ __forceinline__ u64 q_address(const Call& c, const Place& at, const BlockRow& row) {
  return at.q + (row.h - at.h) * c.q_head + row.q * c.q_row;
}

// Rows that proofs about a block's tiles speak of, bounds included.
struct QRange {
  i64 lo, hi;
};
__device__ __forceinline__ QRange rows_of_block(const Call& c, const Place& at, int block_q) {
  if constexpr (PACKED) return {0, at.rows - 1};
  return {at.q0, least_of(at.q0 + block_q, at.rows) - 1};
}

// Tiles lie on an absolute grid, so the bits of a row do not depend on the rows beside it (DET-2).
struct Tiles {
  QRange q;
  Ranges keys;
  __device__ __forceinline__ Tiles(const Call& c, const Place& at, QRange rows)
      : q(rows), keys(key_ranges(c, at, rows.lo, rows.hi)) {
    if constexpr (SPLIT) {
      const i64 part = (i64)blockIdx.x % c.splits;
      keys.maybe_lo = most_of(keys.maybe_lo, part * c.keys_of_split);
      keys.maybe_hi = least_of(keys.maybe_hi, (part + 1) * c.keys_of_split);
    }
  }
  __device__ __forceinline__ i64 first(int block_k) const { return keys.maybe_lo / block_k * block_k; }
  __device__ __forceinline__ i64 end() const { return keys.maybe_hi; }

  // EMPTY tiles are proven to have no pair, FULL ones to have all (MASK-1).
  enum Kind { EMPTY, PARTIAL, FULL };
  __device__ __forceinline__ Kind kind(const Call& c, const Place& at, i64 k0, int block_k) const {
    if (keys.must_lo <= k0 && k0 + block_k <= keys.must_hi) return FULL;
    const i64 k_last = least_of(k0 + block_k, at.keys) - 1;
    const TileClass found = tile_class(c, at, q.lo, q.hi, k0, k_last);
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
    x[n] = logit_of(c, at, q, least_of(key_of(n), k_last), x[n]);
    present[n] = x[n] != -INFINITE;  // MASK-6
  }
  if (full) return;  // one question for all pairs: a FULL tile costs nothing of the mask
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const i64 key = key_of(n), k = least_of(key, k_last);
    present[n] = present[n] && key == k && mask_of(c, at, q, k);
  }
}

// ---- parts of rows, where keys are split: sums in memory, by row, part and channel
__device__ __forceinline__ i64 part_index(const Call& c, const Place& at, i64 q, i64 part) {
  return ((at.b * c.q_heads + at.h) * c.q_rows + q) * c.splits + part;
}
__device__ __forceinline__ void store_part(const Call& c, const Place& at, i64 q, const Row& row) {
  const u64 to = c.part_rows + part_index(c, at, q, (i64)blockIdx.x % c.splits) * (i64)sizeof(Row);
  store<accum_t>(to, row.m);
  store<accum_t>(to + sizeof(accum_t), row.l);
  store<accum_t>(to + 2 * sizeof(accum_t), row.centred);
  store<accum_t>(to + 3 * sizeof(accum_t), row.squares);
}
__device__ __forceinline__ u64 part_sums(const Call& c, const Place& at, i64 q) {
  return c.part_sums + part_index(c, at, q, (i64)blockIdx.x % c.splits) * DV * (i64)sizeof(accum_t);
}
