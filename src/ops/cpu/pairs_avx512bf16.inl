// Products of bf16 pairs (vdpbf16ps). Included by kernels_avx512bf16.cc inside its unnamed namespace.

constexpr bool kBf16Pairs = true;

// One line of weights holds a pair of k's for each row of a panel. x holds the same pairs twice: rounded to bf16, and
// what the rounding left, so that the product keeps 16 bits of x. One rounding alone misses the goldens' bounds where a
// large adapter cancels.
template <int Rows, int Panels>
[[gnu::always_inline]] inline void multiply_pairs(const std::uint32_t* x, const char* const (&weight)[Panels],
                                                  std::int64_t step, Accumulators<Rows * Panels>& sums) {
  Line w[Panels];
  unroll<Panels>([&](auto panel)
                     __attribute__((always_inline)) { w[panel.value] = load_line(weight[panel.value] + step * 64); });
  unroll<Rows>([&](auto row) __attribute__((always_inline)) {
    const std::uint32_t* halves = x + (step * Rows + row.value) * 2;
    const __m512i high = _mm512_set1_epi32(static_cast<int>(halves[0]));
    const __m512i low = _mm512_set1_epi32(static_cast<int>(halves[1]));
    unroll<Panels>([&](auto panel) __attribute__((always_inline)) {
      constexpr int kSum = row.value * Panels + panel.value;
      const auto weights = reinterpret_cast<__m512bh>(w[panel.value].v);
      sums.v[kSum].v = _mm512_dpbf16_ps(sums.v[kSum].v, reinterpret_cast<__m512bh>(high), weights);
      sums.v[kSum].v = _mm512_dpbf16_ps(sums.v[kSum].v, reinterpret_cast<__m512bh>(low), weights);
    });
  });
}

// 16 floats as bf16 and what is left of each, as bf16 too.
inline void split_bf16(Vec values, std::uint32_t (&high)[8], std::uint32_t (&low)[8]) {
  float rest[kPanelRows];
  store(rest, values);
  store_bf16(reinterpret_cast<std::uint16_t*>(high), values);
  for (int i = 0; i < kPanelRows; ++i) {
    const std::uint32_t bits = i % 2 == 0 ? high[i / 2] << 16 : high[i / 2] & 0xffff0000U;
    rest[i] -= __builtin_bit_cast(float, bits);
  }
  store_bf16(reinterpret_cast<std::uint16_t*>(low), load(rest));
}

void pack_pairs(const PackX& pack) {
  auto* packed = static_cast<std::uint32_t*>(pack.packed);
  const std::int64_t rows = pack.rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x = pack.x + row * pack.row_stride;
    for (std::int64_t column = 0; column < pack.columns; column += kPanelRows) {
      const std::int64_t count = pack.columns - column;
      std::uint32_t high[8];
      std::uint32_t low[8];
      split_bf16(count >= kPanelRows ? load(x + column) : load_first(x + column, count), high, low);
      const std::int64_t num_pairs = count >= kPanelRows ? 8 : (count + 1) / 2;
      for (std::int64_t i = 0; i < num_pairs; ++i) {
        std::uint32_t* halves = packed + ((column / 2 + i) * rows + row) * 2;
        halves[0] = high[i];
        halves[1] = low[i];
      }
    }
  }
}
