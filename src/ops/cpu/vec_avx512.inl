// Vec for AVX-512: sixteen floats in one register, the same values as the AVX2 one lane for lane.
// Included by kernels_avx512.cc and kernels_avx512bf16.cc inside their unnamed namespaces.

struct Vec {
  __m512 v;
};

// 64 bytes of a weight panel.
struct Line {
  __m512i v;
};

constexpr int kMaxRows = 12;  // 24 accumulators of 32 registers
constexpr int kWidePanels[kMaxTileRows + 1] = {0, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2};

[[gnu::always_inline]] inline Vec zero() { return {_mm512_setzero_ps()}; }
[[gnu::always_inline]] inline Vec broadcast(float value) { return {_mm512_set1_ps(value)}; }
[[gnu::always_inline]] inline Vec iota() {
  return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
[[gnu::always_inline]] inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
[[gnu::always_inline]] inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v.v); }

// Bits of the lanes below `count`, which may lie outside [0, 16].
[[gnu::always_inline]] inline __mmask16 lanes_below(std::int64_t count) {
  if (count <= 0) return 0;
  if (count >= 16) return static_cast<__mmask16>(0xffff);
  return static_cast<__mmask16>((1U << count) - 1U);
}
// The first `count` lanes; the others read nothing and are zero.
[[gnu::always_inline]] inline Vec load_first(const float* p, std::int64_t count) {
  return {_mm512_maskz_loadu_ps(lanes_below(count), p)};
}
[[gnu::always_inline]] inline void store_first(float* p, Vec v, std::int64_t count) {
  _mm512_mask_storeu_ps(p, lanes_below(count), v.v);
}

[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
[[gnu::always_inline]] inline void fma_into(Vec& sum, Vec a, Vec b) { sum.v = _mm512_fmadd_ps(a.v, b.v, sum.v); }
[[gnu::always_inline]] inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// Where either is NaN, `b`.
[[gnu::always_inline]] inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
[[gnu::always_inline]] inline Vec round_nearest(Vec v) {
  return {_mm512_roundscale_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for whole n in [-126, 127].
[[gnu::always_inline]] inline Vec power_of_two(Vec n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
[[gnu::always_inline]] inline Vec absolute(Vec v) { return {_mm512_abs_ps(v.v)}; }
// x < limit ? a : b, a NaN x takes b.
[[gnu::always_inline]] inline Vec where_less(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), b.v, a.v)};
}
[[gnu::always_inline]] inline bool any_unordered_or_not_less(Vec x, Vec limit) {
  return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ) != 0;
}
// Lanes in [begin, end) of v, the others of `other`.
[[gnu::always_inline]] inline Vec keep_lanes(Vec v, std::int64_t begin, std::int64_t end, Vec other) {
  const auto keep = static_cast<__mmask16>(lanes_below(end) & ~static_cast<unsigned>(lanes_below(begin)));
  return {_mm512_mask_blend_ps(keep, other.v, v.v)};
}

[[gnu::always_inline]] inline __m256 low_half(Vec v) { return _mm512_castps512_ps256(v.v); }
[[gnu::always_inline]] inline __m256 high_half(Vec v) { return _mm512_extractf32x8_ps(v.v, 1); }
[[gnu::always_inline]] inline float sum_of_8(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
[[gnu::always_inline]] inline float sum_of(Vec v) { return sum_of_8(_mm256_add_ps(low_half(v), high_half(v))); }
[[gnu::always_inline]] inline float largest_of(Vec v) {
  const __m256 eight = _mm256_max_ps(low_half(v), high_half(v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

[[gnu::always_inline]] inline Vec load_bf16(const std::uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
[[gnu::always_inline]] inline Vec load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// To nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline void store_bf16(std::uint16_t* p, Vec v) {
  const __m512i bits = _mm512_castps_si512(v.v);
  const __m512i top = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v.v, v.v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(chosen));
}
[[gnu::always_inline]] inline void store_f16(std::uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
}

[[gnu::always_inline]] inline Line load_line(const void* p) { return {_mm512_load_si512(p)}; }
// The two bf16 numbers of each 32-bit lane.
[[gnu::always_inline]] inline Vec even_of(Line line) { return {_mm512_castsi512_ps(_mm512_slli_epi32(line.v, 16))}; }
[[gnu::always_inline]] inline Vec odd_of(Line line) {
  return {_mm512_castsi512_ps(_mm512_and_si512(line.v, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}

// Double sums of sixteen floats a call, in a fixed order.
struct DoubleSum {
  __m512d a = _mm512_setzero_pd();
  __m512d b = _mm512_setzero_pd();
};
[[gnu::always_inline]] inline void add_to(DoubleSum& sum, Vec v) {
  sum.a = _mm512_add_pd(sum.a, _mm512_cvtps_pd(low_half(v)));
  sum.b = _mm512_add_pd(sum.b, _mm512_cvtps_pd(high_half(v)));
}
[[gnu::always_inline]] inline double total_of(const DoubleSum& sum) {
  const __m512d eight = _mm512_add_pd(sum.a, sum.b);
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
