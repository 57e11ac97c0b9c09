// ---- gradients of tables that the logit reads: each pair adds to the element that it read (GRAD-2)
// Of every family: products are those of the SIMT family.

struct Owned {  // what a block goes through: b, h and q tile, each one of them or all
  i64 b, b_end, h, h_end, tile, tile_end;
};
__device__ __forceinline__ Owned owned_by_block(const Call& c, bool by_b, bool by_h, bool by_q) {
  i64 item = blockIdx.x;
  const i64 all_tiles = (c.q_rows + BLOCK_R - 1) / BLOCK_R;
  const i64 tiles = by_q ? all_tiles : 1, heads = by_h ? c.q_heads : 1;
  const i64 tile = item % tiles;
  item /= tiles;
  const i64 h = item % heads, b = item / heads;
  return {b, by_b ? b + 1 : c.batch, h, by_h ? h + 1 : c.q_heads, tile, by_q ? tile + 1 : all_tiles};
}

struct Scattered {
  accum_t value[BLOCK_R * BLOCK_C];
  i64 element[BLOCK_R * BLOCK_C];  // -1 where a pair is absent
};
// Adds a tile of values to their elements. Where pairs may share an element, each thread looks at all pairs,
// in order, and adds to the elements that are its own.
__device__ __forceinline__ void scatter(const Scattered& part, u64 sums, bool distinct) {
  __syncthreads();
  for (int i = distinct ? threadIdx.x : 0; i < BLOCK_R * BLOCK_C; i += distinct ? THREADS : 1) {
    const i64 element = part.element[i];
    if (element < 0 || (!distinct && element % THREADS != threadIdx.x)) continue;
    store_number(sums, element, stored_number(sums, element) + part.value[i]);
  }
  __syncthreads();
}

template <class SlopeOf, class ElementOf>
__device__ __forceinline__ void gradient_of_table(const Call& c, Shared& shared, Scattered& part,
                                                  const Owned& owned, u64 sums, bool distinct,
                                                  SlopeOf slope, ElementOf element) {
  for (i64 b = owned.b; b < owned.b_end; ++b)
    for (i64 h = owned.h; h < owned.h_end; ++h)
      for (i64 tile = owned.tile; tile < owned.tile_end; ++tile) {
        const Place at = place(c, b, h, tile * BLOCK_R);
        const i64 q_last = least_of(at.q0 + BLOCK_R, at.rows) - 1;
        const Tiles tiles(c, at, {at.q0, q_last});
        for (i64 k0 = tiles.first(BLOCK_C); k0 < tiles.end(); k0 += BLOCK_C) {
          const Tiles::Kind kind = tiles.kind(c, at, k0, BLOCK_C);
          if (kind == Tiles::EMPTY) continue;
          const i64 k_last = least_of(k0 + BLOCK_C, at.keys) - 1;
          accum_t dot[ROWS][COLS], dp[ROWS][COLS];
          multiply<D>(
              shared, [&](int row, int d) { return q_element(c, at, at.q0 + row, d); },
              [&](int key, int d) { return k_element(c, at, k0 + key, d); }, dot);
          multiply<DV>(
              shared, [&](int row, int e) { return dout_element(c, at, at.q0 + row, e); },
              [&](int key, int e) { return v_element(c, at, k0 + key, e); }, dp);
          for (int r = 0; r < ROWS; ++r)
            for (int n = 0; n < COLS; ++n) {
              const RowFacts facts = facts_of(c, at, least_of(at.q0 + row_of(r), q_last));
              const Pair pair = pair_of(c, at, at.q0 + row_of(r), q_last, k0 + col_of(n), k_last,
                                        kind == Tiles::FULL, dot[r][n], dp[r][n], facts);
              const int i = row_of(r) * BLOCK_C + col_of(n);
              part.value[i] = pair.dlogit * slope(at, pair.q, pair.k, dot[r][n]);
              part.element[i] = pair.present ? element(at, pair.q, pair.k) : -1;
            }
          scatter(part, sums, distinct);
        }
      }
}
