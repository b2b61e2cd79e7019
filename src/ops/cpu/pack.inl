// Weights between plain rows and panels. Included by kernels_<isa>.cc inside its unnamed namespace.
// A panel holds sixteen rows: [k][16] float32 or float16, [k / 2][16][2] bfloat16.

// Rows and columns of 8 x 8 words change places.
[[gnu::always_inline]] inline void transpose_8x8(__m256i (&v)[8]) {
  __m256i pairs[8];
  for (std::int64_t i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  __m256i quads[8];
  for (std::int64_t i = 0; i < 2; ++i) {
    quads[4 * i] = _mm256_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 1] = _mm256_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
    quads[4 * i + 2] = _mm256_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
    quads[4 * i + 3] = _mm256_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

[[gnu::always_inline]] inline void store_8_words(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

// Words (floats, or pairs of bf16) [16][words] with rows `stride_bytes` apart, to [words][16].
void transpose_words(const char* rows, std::int64_t stride_bytes, std::int64_t words, char* panel) {
  std::int64_t word = 0;
  for (; word + 8 <= words; word += 8) {
    for (std::int64_t half = 0; half < 2; ++half) {
      __m256i v[8];
      const char* source = rows + half * 8 * stride_bytes + word * 4;
      for (int i = 0; i < 8; ++i) {
        v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i * stride_bytes));
      }
      transpose_8x8(v);
      for (int i = 0; i < 8; ++i) store_8_words(panel + (word + i) * 64 + half * 32, v[i]);
    }
  }
  for (; word < words; ++word) {
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      __builtin_memcpy(panel + word * 64 + row * 4, rows + row * stride_bytes + word * 4, 4);
    }
  }
}

// Halves [16][halves] to [halves][16].
void transpose_halves(const char* rows, std::int64_t stride_bytes, std::int64_t halves, char* panel) {
  const __m256i low_mask = _mm256_set1_epi32(0xffff);
  std::int64_t column = 0;
  for (; column + 16 <= halves; column += 16) {
    __m256i v[2][8];
    for (std::int64_t half = 0; half < 2; ++half) {
      const char* source = rows + half * 8 * stride_bytes + column * 2;
      for (int i = 0; i < 8; ++i) {
        v[half][i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i * stride_bytes));
      }
      transpose_8x8(v[half]);
    }
    for (std::int64_t i = 0; i < 8; ++i) {
      const __m256i even =
          _mm256_packus_epi32(_mm256_and_si256(v[0][i], low_mask), _mm256_and_si256(v[1][i], low_mask));
      const __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(v[0][i], 16), _mm256_srli_epi32(v[1][i], 16));
      store_8_words(panel + (column + 2 * i) * 32, _mm256_permute4x64_epi64(even, 0xd8));
      store_8_words(panel + (column + 2 * i + 1) * 32, _mm256_permute4x64_epi64(odd, 0xd8));
    }
  }
  for (; column < halves; ++column) {
    for (std::int64_t row = 0; row < kPanelRows; ++row) {
      __builtin_memcpy(panel + column * 32 + row * 2, rows + row * stride_bytes + column * 2, 2);
    }
  }
}

constexpr std::int64_t kPackColumns = 256;  // converted at a time, even

// `count` numbers of any type to numbers of type E.
template <Element E>
void convert_to(const void* source, Element source_element, std::int64_t count, void* out) {
  float wide[kPackColumns];
  if (source_element == Element::kFloat32) {
    store_floats<E>(static_cast<const float*>(source), count, out);
    return;
  }
  if (source_element == Element::kBFloat16) {
    load_floats<Element::kBFloat16>(source, count, wide);
  } else {
    load_floats<Element::kFloat16>(source, count, wide);
  }
  store_floats<E>(wide, count, out);
}

// Columns [0, count) of the rows of `pack` at `source`, already of type E, to step `column` of the panel on.
template <Element E>
void place_rows(const PackPanel& pack, const char* source, std::int64_t stride_bytes, std::int64_t column,
                std::int64_t count) {
  auto* panel = static_cast<char*>(pack.panel);
  constexpr std::int64_t kBytes = sizeof(typename Stored<E>::Type);
  constexpr std::int64_t kGroup = E == Element::kBFloat16 ? 2 : 1;  // neighbours in K that stay together
  std::int64_t begin = 0;
  if (pack.count == kPanelRows) {
    begin = count / kGroup * kGroup;
    if constexpr (E == Element::kFloat16) {
      transpose_halves(source, stride_bytes, begin, panel + column * 32);
    } else {
      transpose_words(source, stride_bytes, begin / kGroup, panel + column * kPanelRows * kBytes);
    }
  }
  for (std::int64_t row = 0; row < pack.count; ++row) {
    for (std::int64_t i = begin; i < count; ++i) {
      const std::int64_t k = column + i;
      const std::int64_t at = (k / kGroup * kPanelRows + pack.lane + row) * kGroup + k % kGroup;
      __builtin_memcpy(panel + at * kBytes, source + row * stride_bytes + i * kBytes, kBytes);
    }
  }
}

template <Element E>
void pack_panel_as(const PackPanel& pack) {
  const auto* source = static_cast<const char*>(pack.source);
  using Type = typename Stored<E>::Type;
  if (pack.source_element == E) {
    place_rows<E>(pack, source, pack.source_stride_bytes, 0, pack.columns);
  } else {
    const std::int64_t source_bytes = pack.source_element == Element::kFloat32 ? 4 : 2;
    alignas(64) Type converted[kPanelRows][kPackColumns];
    for (std::int64_t column = 0; column < pack.columns; column += kPackColumns) {
      const std::int64_t count = pack.columns - column < kPackColumns ? pack.columns - column : kPackColumns;
      for (std::int64_t row = 0; row < pack.count; ++row) {
        convert_to<E>(source + row * pack.source_stride_bytes + column * source_bytes, pack.source_element, count,
                      converted[row]);
      }
      place_rows<E>(pack, reinterpret_cast<const char*>(converted), sizeof(converted[0]), column, count);
    }
  }
  if (E == Element::kBFloat16 && pack.columns % 2 != 0) {
    auto* last = static_cast<std::uint16_t*>(pack.panel) + pack.columns / 2 * kPanelRows * 2;
    for (std::int64_t row = 0; row < pack.count; ++row) last[(pack.lane + row) * 2 + 1] = 0;
  }
}

void pack_panel(const PackPanel& pack) {
  if (pack.element == Element::kFloat32) {
    pack_panel_as<Element::kFloat32>(pack);
  } else if (pack.element == Element::kBFloat16) {
    pack_panel_as<Element::kBFloat16>(pack);
  } else {
    pack_panel_as<Element::kFloat16>(pack);
  }
}

template <Element E>
void unpack_row_as(const UnpackRow& unpack) {
  using Type = typename Stored<E>::Type;
  constexpr std::int64_t kGroup = E == Element::kBFloat16 ? 2 : 1;
  constexpr std::int64_t kChunk = 64;
  const auto* panel = static_cast<const Type*>(unpack.panel) + unpack.lane * kGroup;
  for (std::int64_t column = 0; column < unpack.columns; column += kChunk) {
    const std::int64_t count = unpack.columns - column < kChunk ? unpack.columns - column : kChunk;
    Type gathered[kChunk];
    for (std::int64_t i = 0; i < count; ++i) {
      gathered[i] = panel[(column + i) / kGroup * kPanelRows * kGroup + (column + i) % kGroup];
    }
    float wide[kChunk];
    load_floats<E>(gathered, count, wide);
    float* out = unpack.out + column;
    if (unpack.accumulate) {
      for (std::int64_t i = 0; i < count; ++i) out[i] += wide[i];
    } else {
      __builtin_memcpy(out, wide, static_cast<unsigned long>(count) * sizeof(float));
    }
  }
}

void unpack_row(const UnpackRow& unpack) {
  if (unpack.element == Element::kFloat32) {
    unpack_row_as<Element::kFloat32>(unpack);
  } else if (unpack.element == Element::kBFloat16) {
    unpack_row_as<Element::kBFloat16>(unpack);
  } else {
    unpack_row_as<Element::kFloat16>(unpack);
  }
}

void fill_pack(KernelTable& table) {
  table.pack_panel = pack_panel;
  table.unpack_row = unpack_row;
  table.store_floats[0] = store_floats<Element::kFloat32>;
  table.store_floats[1] = store_floats<Element::kBFloat16>;
  table.store_floats[2] = store_floats<Element::kFloat16>;
}
