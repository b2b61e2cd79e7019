// Matrix products: every output is one chain of fused multiply-adds over K in ascending order, whatever the tile.
// Included by kernels_<isa>.cc inside its unnamed namespace.

// sums += x[row] * weight_of(panel). Weights load once for all rows, except that one row takes each as it comes:
// four panels of two registers would not fit beside the sums.
template <int Rows, int Panels, typename WeightOf>
[[gnu::always_inline]] inline void multiply_weights(const float* x, const WeightOf& weight_of,
                                                    Accumulators<Rows * Panels>& sums) {
  if constexpr (Rows == 1) {
    const Vec value = broadcast(x[0]);
    unroll<Panels>([&](auto panel)
                       __attribute__((always_inline)) { fma_into(sums.v[panel.value], value, weight_of(panel)); });
  } else {
    Vec w[Panels];
    unroll<Panels>([&](auto panel) __attribute__((always_inline)) { w[panel.value] = weight_of(panel); });
    unroll<Rows>([&](auto row) __attribute__((always_inline)) {
      const Vec value = broadcast(x[row.value]);
      unroll<Panels>([&](auto panel) __attribute__((always_inline)) {
        fma_into(sums.v[row.value * Panels + panel.value], value, w[panel.value]);
      });
    });
  }
}

// Sums of one line of weights (one k, or a pair of k's for bf16) of each panel into `sums`.
template <int Rows, int Panels, Element E>
[[gnu::always_inline]] inline void multiply_step(const float* x, const char* const (&weight)[Panels], std::int64_t step,
                                                 Accumulators<Rows * Panels>& sums) {
  if constexpr (E == Element::kBFloat16) {
    multiply_weights<Rows, Panels>(
        x + step * 2 * Rows,
        [&](auto panel) __attribute__((always_inline)) { return even_of(load_line(weight[panel.value] + step * 64)); },
        sums);
    multiply_weights<Rows, Panels>(
        x + (step * 2 + 1) * Rows,
        [&](auto panel) __attribute__((always_inline)) { return odd_of(load_line(weight[panel.value] + step * 64)); },
        sums);
  } else {
    using Type = typename Stored<E>::Type;
    multiply_weights<Rows, Panels>(
        x + step * Rows,
        [&](auto panel) __attribute__((always_inline)) {
          return load_as<E>(reinterpret_cast<const Type*>(weight[panel.value]) + step * kPanelRows);
        },
        sums);
  }
}

template <int Rows, int Panels, Element E>
[[gnu::always_inline]] inline void multiply_steps(const MatmulTile& tile, Accumulators<Rows * Panels>& sums) {
  const char* weight[Panels];
  unroll<Panels>([&](auto panel) __attribute__((always_inline)) {
    weight[panel.value] = static_cast<const char*>(tile.weight) + panel.value * tile.panel_bytes;
  });
  constexpr std::int64_t kLineBytes = E == Element::kFloat16 ? 32 : 64;
  const std::int64_t ahead_bytes = tile.prefetch_bytes;
  const auto* x = static_cast<const float*>(tile.x);
  for (std::int64_t step = 0; step < tile.steps; ++step) {
    unroll<Panels>([&](auto panel) __attribute__((always_inline)) {
      _mm_prefetch(weight[panel.value] + step * kLineBytes + ahead_bytes, _MM_HINT_T0);
    });
    if constexpr (E == Element::kBFloat16 && kBf16Pairs) {
      multiply_pairs<Rows, Panels>(static_cast<const std::uint32_t*>(tile.x), weight, step, sums);
    } else {
      multiply_step<Rows, Panels, E>(x, weight, step, sums);
    }
  }
}

// The finished sums of one row and panel: + bias, then + what stood in `out`.
[[gnu::always_inline]] inline void finish(const MatmulTile& tile, Vec sum, std::int64_t row, std::int64_t column) {
  float* out = tile.out + row * tile.out_stride + column;
  const std::int64_t count = tile.columns - column;
  if (count >= kPanelRows) {
    if (tile.bias != nullptr) sum = add(sum, load(tile.bias + column));
    if (tile.accumulate) sum = add(load(out), sum);
    store(out, sum);
  } else if (count > 0) {
    if (tile.bias != nullptr) sum = add(sum, load_first(tile.bias + column, count));
    if (tile.accumulate) sum = add(load_first(out, count), sum);
    store_first(out, sum, count);
  }
}

template <int Rows, int Panels, Element E>
void matmul_tile(const MatmulTile& tile) {
  constexpr int kWidth = Panels * kPanelRows;
  Accumulators<Rows * Panels> sums;
  if (tile.first) {
    unroll<Rows * Panels>([&](auto i) __attribute__((always_inline)) { sums.v[i.value] = zero(); });
  } else {
    unroll<Rows * Panels>([&](auto i) __attribute__((always_inline)) {
      sums.v[i.value] = load(tile.partial + i.value / Panels * kWidth + i.value % Panels * kPanelRows);
    });
  }
  multiply_steps<Rows, Panels, E>(tile, sums);
  if (tile.last) {
    unroll<Rows * Panels>([&](auto i) __attribute__((always_inline)) {
      finish(tile, sums.v[i.value], i.value / Panels, i.value % Panels * kPanelRows);
    });
  } else {
    unroll<Rows * Panels>([&](auto i) __attribute__((always_inline)) {
      store(tile.partial + i.value / Panels * kWidth + i.value % Panels * kPanelRows, sums.v[i.value]);
    });
  }
}

template <int Rows, Element E>
void fill_tiles_of_rows(KernelTable& table) {
  constexpr int kWide = kWidePanels[Rows];
  table.matmul_tile[static_cast<int>(E)][Rows][0] = matmul_tile<Rows, 1, E>;
  table.matmul_tile[static_cast<int>(E)][Rows][1] = matmul_tile<Rows, kWide, E>;
}

template <Element E>
void fill_tiles(KernelTable& table) {
  unroll<kMaxRows>([&](auto row) { fill_tiles_of_rows<row.value + 1, E>(table); });
}

void pack_floats(const PackX& pack) {
  auto* packed = static_cast<float*>(pack.packed);
  const std::int64_t rows = pack.rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x = pack.x + row * pack.row_stride;
    for (std::int64_t column = 0; column < pack.columns; ++column) packed[column * rows + row] = x[column];
    if (pack.padded_columns > pack.columns) packed[pack.columns * rows + row] = 0.0F;
  }
}

void fill_matmul(KernelTable& table) {
  table.bf16_pairs = kBf16Pairs;
  table.max_tile_rows = kMaxRows;
  for (int rows = 0; rows <= kMaxTileRows; ++rows) table.wide_panels[rows] = kWidePanels[rows];
  fill_tiles<Element::kFloat32>(table);
  fill_tiles<Element::kBFloat16>(table);
  fill_tiles<Element::kFloat16>(table);
  table.pack_floats = pack_floats;
  table.pack_pairs = kBf16Pairs ? pack_pairs : nullptr;
}
