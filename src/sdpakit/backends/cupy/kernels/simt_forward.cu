// ---- attention_forward, SIMT family: for every dtype, width and mask -----------------------------
//
// A block computes BLOCK_R query rows of one head of one batch entry, over tiles of BLOCK_C keys.

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const Place at = place_of_block(c, BLOCK_R);
  if (at.q0 >= at.rows) return;
  const i64 q_last = least_of(at.q0 + BLOCK_R, at.rows) - 1;

  Row rows[ROWS];
  accum_t acc[ROWS][parts(DV) + 1];
  for (int r = 0; r < ROWS; ++r) {
    rows[r] = Row{-INFINITE, 0, 0, 0};
    for (int n = 0; n < parts(DV); ++n) acc[r][n] = 0;
  }

  const Tiles tiles(c, at, q_last);
  for (i64 k0 = tiles.first(BLOCK_C); k0 < tiles.end(); k0 += BLOCK_C) {
    const Tiles::Kind kind = tiles.kind(c, at, q_last, k0, BLOCK_C);
    if (kind == Tiles::EMPTY) continue;
    const i64 k_last = least_of(k0 + BLOCK_C, at.keys) - 1;
    accum_t s[ROWS][COLS], before[ROWS];
    multiply<D>(
        shared, [&](int row, int d) { return q_element(c, at, at.q0 + row, d); },
        [&](int key, int d) { return k_element(c, at, k0 + key, d); }, s);
    for (int r = 0; r < ROWS; ++r) {
      bool present[COLS];
      logits(c, at, least_of(at.q0 + row_of(r), q_last), k_last, kind == Tiles::FULL,
             [&](int n) { return k0 + col_of(n); }, s[r], present);
      before[r] = soften(rows[r], s[r], present);
      for (int n = 0; n < COLS; ++n) shared.tile[row_of(r)][col_of(n)] = s[r][n];
    }
    if constexpr (OUT)
      accumulate<DV>(shared, [&](int key, int e) { return v_element(c, at, k0 + key, e); }, before, acc);
  }

  for (int r = 0; r < ROWS; ++r) {
    const i64 q = at.q0 + row_of(r);
    if (q > q_last) continue;
    if constexpr (OUT) {
      const Mean mean = mean_of(c, at, rows[r]);
      const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
      for_channels<DV>(acc[r], [&](int e, accum_t sum) {
        out_t y;
        narrow(mean.of(sum), y);
        store<out_t>(to + e * c.out_channel, y);
      });
    }
    if (lane_of() == 0) store_statistics(c, at, q, rows[r]);
  }
}
