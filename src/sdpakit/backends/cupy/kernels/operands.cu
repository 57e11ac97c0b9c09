// ---- operands: where rows and keys of a batch entry lie (RAGGED-1, PAGED-1) ----------------------

struct Place {
  i64 b, h;                          // batch entry and query head
  i64 q0;                            // first query row of the block
  i64 rows, keys;                    // of the entry: rows that q has, keys that there are
  i64 q_len, kv_len, q_offset;       // numbers that masks know (MASK-2, MASK-4)
  u64 q, k, v;                       // row 0, key 0 of the entry and head; with pages, of page 0
  u64 pages;                         // its row of the block table
  i64 row0;                          // where row 0 stands in arrays of rows
  i64 q_batch;                       // batch entry in arrays of rows
};

__device__ __forceinline__ i64 number_of_entry(u64 array, i64 b) { return ((const i64*)array)[b]; }

__device__ __forceinline__ Place place(const Call& c, i64 b, i64 h, i64 q0) {
  Place at;
  at.b = b, at.h = h, at.q0 = q0;
  at.q_len = number_of_entry(c.q_len, b);
  at.kv_len = number_of_entry(c.kv_len, b);
  at.q_offset = number_of_entry(c.q_offset, b);
  at.rows = RAGGED_Q ? at.q_len : c.q_rows;
  at.keys = at.kv_len;
  at.row0 = RAGGED_Q ? number_of_entry(c.q_start, b) : 0;
  at.q_batch = RAGGED_Q ? 0 : b;
  const i64 kv_head = h / (c.q_heads / c.kv_heads);  // SHAPE-2
  const i64 kv_batch = RAGGED_KV || PAGED ? 0 : b;
  const i64 key0 = RAGGED_KV ? number_of_entry(c.kv_start, b) : 0;
  at.q = c.q + at.q_batch * c.q_batch + h * c.q_head + at.row0 * c.q_row;
  at.k = c.k + kv_batch * c.k_batch + kv_head * c.k_head + key0 * c.k_row;
  at.v = c.v + kv_batch * c.v_batch + kv_head * c.v_head + key0 * c.v_row;
  at.pages = PAGED ? c.pages + b * c.pages_of_entry * (i64)sizeof(i64) : 0;
  return at;
}

__device__ __forceinline__ u64 address_of_key(u64 base, const Call& c, const Place& at, i64 key,
                                              i64 batch_stride, i64 row_stride) {
  if constexpr (!PAGED) return base + key * row_stride;
  const i64 page = number_of_entry(at.pages, key / c.page_size);
  return base + page * batch_stride + key % c.page_size * row_stride;
}
__device__ __forceinline__ u64 key_address(const Call& c, const Place& at, i64 key) {
  return address_of_key(at.k, c, at, key, c.k_batch, c.k_row);
}
__device__ __forceinline__ u64 value_address(const Call& c, const Place& at, i64 key) {
  return address_of_key(at.v, c, at, key, c.v_batch, c.v_row);
}

// Address of a row in an output; all outputs are (B, Hq, Lq, ...), or (1, Hq, Tq, ...) if ragged.
__device__ __forceinline__ u64 row_address(u64 base, const Place& at, i64 row, i64 batch_stride,
                                           i64 head_stride, i64 row_stride) {
  return base + at.q_batch * batch_stride + at.h * head_stride + (at.row0 + row) * row_stride;
}
