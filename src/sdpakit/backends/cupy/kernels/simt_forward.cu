// ---- attention_forward, SIMT family: for every dtype, width and mask -----------------------------
//
// A block computes BLOCK_R query rows of one head of one batch entry (of a group of heads, where rows are
// packed), over tiles of BLOCK_C keys.

__device__ __forceinline__ void store_row(const Call& c, const Place& at, i64 q, const Row& row,
                                          const accum_t (&acc)[parts(DV) + 1]) {
  if constexpr (SPLIT) {
    const u64 to = part_sums(c, at, q);
    for_channels<DV>(acc, [&](int e, accum_t sum) { store<accum_t>(to + e * (i64)sizeof(accum_t), sum); });
    if (lane_of() == 0) store_part(c, at, q, row);
    return;
  }
  if constexpr (OUT) {
    const Mean mean = mean_of(c, at, row);
    const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
    for_channels<DV>(acc, [&](int e, accum_t sum) {
      out_t y;
      narrow(mean.of(sum), y);
      store<out_t>(to + e * c.out_channel, y);
    });
  }
  if (lane_of() == 0) store_statistics(c, at, q, row);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const Place at = place_of_block(c, BLOCK_R);
  if (at.q0 >= rows_of_heads(c, at)) return;

  Row rows[ROWS];
  accum_t acc[ROWS][parts(DV) + 1];
  for (int r = 0; r < ROWS; ++r) {
    rows[r] = Row{-INFINITE, 0, 0, 0};
    for (int n = 0; n < parts(DV); ++n) acc[r][n] = 0;
  }

  const Tiles tiles(c, at, rows_of_block(c, at, BLOCK_R));
  for (i64 k0 = tiles.first(BLOCK_C); k0 < tiles.end(); k0 += BLOCK_C) {
    const Tiles::Kind kind = tiles.kind(c, at, k0, BLOCK_C);
    if (kind == Tiles::EMPTY) continue;
    const i64 k_last = least_of(k0 + BLOCK_C, at.keys) - 1;
    accum_t s[ROWS][COLS], before[ROWS];
    multiply<D>(
        shared, [&](int row, int d) { return q_element(c, at, block_row(c, at, row), d); },
        [&](int key, int d) { return k_element(c, at, k0 + key, d); }, s);
    for (int r = 0; r < ROWS; ++r) {
      const BlockRow row = block_row(c, at, row_of(r));
      bool present[COLS];
      logits(c, with_head(at, row.h), row.q, k_last, kind == Tiles::FULL,
             [&](int n) { return k0 + col_of(n); }, s[r], present);
      before[r] = soften(rows[r], s[r], present);
      for (int n = 0; n < COLS; ++n) shared.tile[row_of(r)][col_of(n)] = s[r][n];
    }
    if constexpr (OUT || SPLIT)
      accumulate<DV>(shared, [&](int key, int e) { return v_element(c, at, k0 + key, e); }, before, acc);
  }

  for (int r = 0; r < ROWS; ++r) {
    const BlockRow row = block_row(c, at, row_of(r));
    if (row.there) store_row(c, with_head(at, row.h), row.q, rows[r], acc[r]);
  }
}
