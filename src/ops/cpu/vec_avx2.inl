// Vec for AVX2: sixteen floats in two registers. Included by kernels_avx2.cc inside its unnamed namespace.

struct Vec {
  __m256 lo;
  __m256 hi;
};

// 64 bytes of a weight panel.
struct Line {
  __m256i lo;
  __m256i hi;
};

constexpr int kMaxRows = 6;  // 12 accumulators of 16 registers
constexpr int kWidePanels[kMaxTileRows + 1] = {0, 4, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0};

[[gnu::always_inline]] inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
[[gnu::always_inline]] inline Vec broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
[[gnu::always_inline]] inline Vec iota() {
  return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
[[gnu::always_inline]] inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
[[gnu::always_inline]] inline void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}

[[gnu::always_inline]] inline __m256i lanes_below(std::int64_t count, int first_lane) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count) - first_lane), lane);
}
// The first `count` lanes; the others read nothing and are zero.
[[gnu::always_inline]] inline Vec load_first(const float* p, std::int64_t count) {
  return {_mm256_maskload_ps(p, lanes_below(count, 0)), _mm256_maskload_ps(p + 8, lanes_below(count, 8))};
}
[[gnu::always_inline]] inline void store_first(float* p, Vec v, std::int64_t count) {
  _mm256_maskstore_ps(p, lanes_below(count, 0), v.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(count, 8), v.hi);
}

[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// sum += a * b. Written out because g++ 12 otherwise lets the product's register take the sum's place, runs out of
// registers in the widest tiles and spills.
[[gnu::always_inline]] inline void fma_into(Vec& sum, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.lo) : "x"(a.lo), "x"(b.lo));
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.hi) : "x"(a.hi), "x"(b.hi));
}
[[gnu::always_inline]] inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
[[gnu::always_inline]] inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
[[gnu::always_inline]] inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
[[gnu::always_inline]] inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// Where either is NaN, `b`.
[[gnu::always_inline]] inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
[[gnu::always_inline]] inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
[[gnu::always_inline]] inline Vec round_nearest(Vec v) {
  return {_mm256_round_ps(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
[[gnu::always_inline]] inline __m256 power_of_two_half(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
// 2^n for whole n in [-126, 127].
[[gnu::always_inline]] inline Vec power_of_two(Vec n) { return {power_of_two_half(n.lo), power_of_two_half(n.hi)}; }
[[gnu::always_inline]] inline Vec absolute(Vec v) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, v.lo), _mm256_andnot_ps(sign, v.hi)};
}
// x < limit ? a : b, a NaN x takes b.
[[gnu::always_inline]] inline Vec where_less(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ))};
}
[[gnu::always_inline]] inline bool any_unordered_or_not_less(Vec x, Vec limit) {
  const __m256 bad =
      _mm256_or_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ), _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ));
  return _mm256_movemask_ps(bad) != 0;
}
// Lanes in [begin, end) of v, the others of `other`.
[[gnu::always_inline]] inline Vec keep_lanes(Vec v, std::int64_t begin, std::int64_t end, Vec other) {
  const __m256i lo = _mm256_andnot_si256(lanes_below(begin, 0), lanes_below(end, 0));
  const __m256i hi = _mm256_andnot_si256(lanes_below(begin, 8), lanes_below(end, 8));
  return {_mm256_blendv_ps(other.lo, v.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(other.hi, v.hi, _mm256_castsi256_ps(hi))};
}

[[gnu::always_inline]] inline float sum_of_8(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
[[gnu::always_inline]] inline float sum_of(Vec v) { return sum_of_8(_mm256_add_ps(v.lo, v.hi)); }
[[gnu::always_inline]] inline float largest_of(Vec v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

[[gnu::always_inline]] inline __m256 widen_8_bf16(const void* p) {
  const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline Vec load_bf16(const std::uint16_t* p) { return {widen_8_bf16(p), widen_8_bf16(p + 8)}; }
[[gnu::always_inline]] inline Vec load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// To nearest, ties to even; NaN stays NaN. The result stands in the low half of each lane.
[[gnu::always_inline]] inline __m256i round_to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}
[[gnu::always_inline]] inline void store_bf16(std::uint16_t* p, Vec v) {
  const __m256i packed = _mm256_packus_epi32(round_to_bf16(v.lo), round_to_bf16(v.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
[[gnu::always_inline]] inline void store_f16(std::uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}

[[gnu::always_inline]] inline Line load_line(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_load_si256(q), _mm256_load_si256(q + 1)};
}
// The two bf16 numbers of each 32-bit lane.
[[gnu::always_inline]] inline Vec even_of(Line line) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(line.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(line.hi, 16))};
}
[[gnu::always_inline]] inline Vec odd_of(Line line) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
  return {_mm256_castsi256_ps(_mm256_and_si256(line.lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(line.hi, mask))};
}

// Double sums of sixteen floats a call, in a fixed order.
struct DoubleSum {
  __m256d a = _mm256_setzero_pd();
  __m256d b = _mm256_setzero_pd();
};
[[gnu::always_inline]] inline void add_to(DoubleSum& sum, Vec v) {
  sum.a = _mm256_add_pd(sum.a, _mm256_cvtps_pd(_mm256_castps256_ps128(v.lo)));
  sum.b = _mm256_add_pd(sum.b, _mm256_cvtps_pd(_mm256_extractf128_ps(v.lo, 1)));
  sum.a = _mm256_add_pd(sum.a, _mm256_cvtps_pd(_mm256_castps256_ps128(v.hi)));
  sum.b = _mm256_add_pd(sum.b, _mm256_cvtps_pd(_mm256_extractf128_ps(v.hi, 1)));
}
[[gnu::always_inline]] inline double total_of(const DoubleSum& sum) {
  const __m256d four = _mm256_add_pd(sum.a, sum.b);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
