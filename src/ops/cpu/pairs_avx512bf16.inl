// Products of bf16 pairs (vdpbf16ps). Included by kernels_avx512bf16.cc inside its unnamed namespace.

constexpr bool kBf16Pairs = true;

// One line of weights holds a pair of k's for each row of a panel; x holds the same pairs, rounded to bf16.
template <int Rows, int Panels>
[[gnu::always_inline]] inline void multiply_pairs(const std::uint32_t* x, const char* const (&weight)[Panels],
                                                  std::int64_t step, Accumulators<Rows * Panels>& sums) {
  Line w[Panels];
  unroll<Panels>([&](auto panel)
                     __attribute__((always_inline)) { w[panel.value] = load_line(weight[panel.value] + step * 64); });
  unroll<Rows>([&](auto row) __attribute__((always_inline)) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(x[step * Rows + row.value]));
    unroll<Panels>([&](auto panel) __attribute__((always_inline)) {
      constexpr int kSum = row.value * Panels + panel.value;
      sums.v[kSum].v = _mm512_dpbf16_ps(sums.v[kSum].v, reinterpret_cast<__m512bh>(pair),
                                        reinterpret_cast<__m512bh>(w[panel.value].v));
    });
  });
}

void pack_pairs(const PackX& pack) {
  auto* packed = static_cast<std::uint32_t*>(pack.packed);
  const std::int64_t rows = pack.rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x = pack.x + row * pack.row_stride;
    for (std::int64_t column = 0; column < pack.columns; column += kPanelRows) {
      const std::int64_t count = pack.columns - column;
      std::uint32_t pairs[8];
      store_bf16(reinterpret_cast<std::uint16_t*>(pairs),
                 count >= kPanelRows ? load(x + column) : load_first(x + column, count));
      const std::int64_t num_pairs = count >= kPanelRows ? 8 : (count + 1) / 2;
      for (std::int64_t i = 0; i < num_pairs; ++i) packed[(column / 2 + i) * rows + row] = pairs[i];
    }
  }
}
