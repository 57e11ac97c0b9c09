// ---- gradients by queries and by keys, SIMT family: for every dtype, width and mask --------------

// ---- gradient_of_queries: a block has BLOCK_R query rows of one head
extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_queries(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const Place at = place_of_block(c, BLOCK_R);
  if (at.q0 >= at.rows) return;
  const i64 q_last = least_of(at.q0 + BLOCK_R, at.rows) - 1;
  RowFacts facts[ROWS];
  accum_t dq[ROWS][parts(D) + 1], one[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    facts[r] = facts_of(c, at, least_of(at.q0 + row_of(r), q_last));
    one[r] = 1;
    for (int n = 0; n < parts(D); ++n) dq[r][n] = 0;
  }
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
        const Pair pair = pair_of(c, at, at.q0 + row_of(r), q_last, k0 + col_of(n), k_last,
                                  kind == Tiles::FULL, dot[r][n], dp[r][n], facts[r]);
        shared.tile[row_of(r)][col_of(n)] = ddot_of(c, at, pair, dot[r][n]);
      }
    accumulate<D>(shared, [&](int key, int d) { return k_element(c, at, k0 + key, d); }, one, dq);
  }
  for (int r = 0; r < ROWS; ++r) {
    const i64 q = at.q0 + row_of(r);
    if (q > q_last) continue;
    for_channels<D>(dq[r], [&](int d, accum_t sum) {
      q_t y;
      narrow(sum, y);  // GRAD-3: the one rounding
      store<q_t>(c.dq + at.b * c.dq_batch + at.h * c.dq_head + q * c.dq_row + d * c.dq_channel, y);
    });
  }
}

// ---- gradient_of_keys: a block has BLOCK_R keys of one kv head, and goes through all heads of its group
extern "C" __global__ void __launch_bounds__(THREADS) gradient_of_keys(const __grid_constant__ Call c) {
  __shared__ Shared shared;
  const i64 k_tiles = (c.kv_rows + BLOCK_R - 1) / BLOCK_R, group = c.q_heads / c.kv_heads;
  const i64 k0 = (i64)blockIdx.x % k_tiles * BLOCK_R, head = (i64)blockIdx.x / k_tiles;
  const i64 b = head / c.kv_heads, kv_head = head % c.kv_heads;
  accum_t dk[ROWS][parts(D) + 1], dv[ROWS][parts(DV) + 1], one[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    one[r] = 1;
    for (int n = 0; n < parts(D); ++n) dk[r][n] = 0;
    for (int n = 0; n < parts(DV); ++n) dv[r][n] = 0;
  }
  for (i64 h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const Place at = place(c, b, h, 0);
    if (k0 >= at.keys) break;
    const i64 k_last = least_of(k0 + BLOCK_R, at.keys) - 1;
    for (i64 q0 = 0; q0 < at.rows; q0 += BLOCK_C) {
      const i64 q_last = least_of(q0 + BLOCK_C, at.rows) - 1;
      const TileClass found = tile_class(c, at, q0, q_last, k0, k_last);
      if (!found.can_be_true) continue;
      accum_t dot[ROWS][COLS], dp[ROWS][COLS];
      multiply<D>(
          shared, [&](int key, int d) { return k_element(c, at, k0 + key, d); },
          [&](int row, int d) { return q_element(c, at, q0 + row, d); }, dot);
      multiply<DV>(
          shared, [&](int key, int e) { return v_element(c, at, k0 + key, e); },
          [&](int row, int e) { return dout_element(c, at, q0 + row, e); }, dp);
      for (int n = 0; n < COLS; ++n) {
        const i64 q = q0 + col_of(n);
        const RowFacts facts = facts_of(c, at, least_of(q, q_last));
        for (int r = 0; r < ROWS; ++r) {
          const Pair pair = pair_of(c, at, q, q_last, k0 + row_of(r), k_last, !found.can_be_false,
                                    dot[r][n], dp[r][n], facts);
          shared.tile[row_of(r)][col_of(n)] = marked(pair, pair.weight);
          dot[r][n] = HAS_SLOPE ? ddot_of(c, at, pair, dot[r][n]) : accum_t(-0.0);
        }
      }
      accumulate<DV>(shared, [&](int row, int e) { return dout_element(c, at, q0 + row, e); }, one, dv);
      if constexpr (HAS_SLOPE) {
        __syncwarp();  // rows of a tile belong to one warp, which has read the weights
        for (int r = 0; r < ROWS; ++r)
          for (int n = 0; n < COLS; ++n) shared.tile[row_of(r)][col_of(n)] = dot[r][n];
        accumulate<D>(shared, [&](int row, int d) { return q_element(c, at, q0 + row, d); }, one, dk);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    const i64 key = k0 + row_of(r);
    if (key >= c.kv_rows) continue;
    const i64 k_at = b * c.dk_batch + kv_head * c.dk_head + key * c.dk_row;
    const i64 v_at = b * c.dv_batch + kv_head * c.dv_head + key * c.dv_row;
    for_channels<D>(dk[r], [&](int d, accum_t sum) {
      q_t y;
      narrow(sum, y);
      store<q_t>(c.dk + k_at + d * c.dk_channel, y);
    });
    for_channels<DV>(dv[r], [&](int e, accum_t sum) {
      q_t y;
      narrow(sum, y);
      store<q_t>(c.dv + v_at + e * c.dv_channel, y);
    });
  }
}
