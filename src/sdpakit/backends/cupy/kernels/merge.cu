// ---- merge_parts: the parts of a row, in the order of their keys; a warp for each row (MERGE-1) --

extern "C" __global__ void __launch_bounds__(128) merge_parts(const __grid_constant__ Call c) {
  const i64 index = (i64)blockIdx.x * 4 + threadIdx.x / 32;
  if (index >= c.batch * c.q_heads * c.q_rows) return;
  const i64 head = index / c.q_rows, q = index % c.q_rows;
  const Place at = place(c, head / c.q_heads, head % c.q_heads, q);
  if (q >= at.rows) return;
  const u64 rows = c.part_rows + index * c.splits * (i64)sizeof(Row);
  const auto number = [&](i64 part, int n) {
    return load<accum_t>(rows + part * (i64)sizeof(Row) + n * (i64)sizeof(accum_t));
  };
  Row row = {-INFINITE, 0, 0, 0};
  for (i64 part = 0; part < c.splits; ++part) row.m = largest(row.m, number(part, 0));
  const accum_t shift = row.m == -INFINITE ? accum_t(0) : row.m;  // NUM-2
  const auto factor = [&](i64 part) { return weight(number(part, 0), shift) * (1 / ONE); };
  for (i64 part = 0; part < c.splits; ++part) {
    const accum_t f = factor(part);
    if constexpr (ENTROPY)
      if (f != 0) row.centred += f * (number(part, 2) + number(part, 1) * (number(part, 0) - shift));
    if constexpr (SUM_P2) row.squares = fma_of(number(part, 3), f * f, row.squares);
    row.l = fma_of(number(part, 1), f, row.l);
  }
  if constexpr (OUT) {
    const Mean mean = mean_of(c, at, row);
    const u64 to = row_address(c.out, at, q, c.out_batch, c.out_head, c.out_row);
    for (int e = threadIdx.x % 32; e < DV; e += 32) {
      accum_t sum = 0;
      for (i64 part = 0; part < c.splits; ++part) {
        const u64 from = c.part_sums + ((index * c.splits + part) * DV + e) * (i64)sizeof(accum_t);
        sum = fma_of(load<accum_t>(from), factor(part), sum);
      }
      out_t y;
      narrow(mean.of(sum), y);
      store<out_t>(to + e * c.out_channel, y);
    }
  }
  if (threadIdx.x % 32 == 0) store_statistics(c, at, q, row);
}
