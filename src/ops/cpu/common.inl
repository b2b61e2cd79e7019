// What the kernel families share: unrolling, typed loads and the exponential. Included by kernels_<isa>.cc after its
// Vec, inside the unnamed namespace of that file.

template <int N>
struct Index {
  static constexpr int value = N;
};

// f(Index<0>{}) ... f(Index<N - 1>{}), expanded by the front end: arrays indexed so stay in registers, where an
// array indexed by a loop variable would be spilled.
template <int N, typename F>
[[gnu::always_inline]] constexpr void unroll(const F& f) {
  if constexpr (N > 0) {
    unroll<N - 1>(f);
    f(Index<N - 1>{});
  }
}

// Sums of a tile, [row][panel], one register (pair) each.
template <int N>
struct Accumulators {
  Vec v[N];
};

template <Element E>
struct Stored {
  using Type = std::uint16_t;
};
template <>
struct Stored<Element::kFloat32> {
  using Type = float;
};

// Sixteen numbers as floats.
template <Element E>
[[gnu::always_inline]] inline Vec load_as(const typename Stored<E>::Type* p) {
  if constexpr (E == Element::kFloat32) {
    return load(p);
  } else if constexpr (E == Element::kBFloat16) {
    return load_bf16(p);
  } else {
    return load_f16(p);
  }
}

// The first `count` of them, below sixteen; the others read nothing and are zero.
template <Element E>
[[gnu::always_inline]] inline Vec load_first_as(const typename Stored<E>::Type* p, std::int64_t count) {
  if constexpr (E == Element::kFloat32) {
    return load_first(p, count);
  } else {
    std::uint16_t padded[16] = {};
    for (std::int64_t i = 0; i < count; ++i) padded[i] = p[i];
    return load_as<E>(padded);
  }
}

template <Element E>
[[gnu::always_inline]] inline void store_as(typename Stored<E>::Type* p, Vec v) {
  if constexpr (E == Element::kFloat32) {
    store(p, v);
  } else if constexpr (E == Element::kBFloat16) {
    store_bf16(p, v);
  } else {
    store_f16(p, v);
  }
}

template <Element E>
void store_floats(const float* x, std::int64_t count, void* out) {
  auto* p = static_cast<typename Stored<E>::Type*>(out);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) store_as<E>(p + i, load(x + i));
  if (i == count) return;
  typename Stored<E>::Type padded[16];
  store_as<E>(padded, load_first(x + i, count - i));
  for (std::int64_t j = 0; i + j < count; ++j) p[i + j] = padded[j];
}

template <Element E>
void load_floats(const void* in, std::int64_t count, float* out) {
  const auto* p = static_cast<const typename Stored<E>::Type*>(in);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(out + i, load_as<E>(p + i));
  if (i < count) store_first(out + i, load_first_as<E>(p + i, count - i), count - i);
}

// exp(x) to about one ulp: x = n ln 2 + r, exp(r) by a minimax polynomial of (exp(r) - 1 - r) / r^2 on
// |r| <= ln 2 / 2. Below the smallest normal number the result is zero; above 88 it is infinite.
[[gnu::always_inline]] inline Vec exponential(Vec x) {
  const Vec limited = max(broadcast(-87.3F), min(broadcast(88.0F), x));
  const Vec n = round_nearest(mul(limited, broadcast(1.44269504F)));
  const Vec r = fma(n, broadcast(-1.42860677e-6F), fma(n, broadcast(-0.693145752F), limited));
  Vec q = broadcast(1.392621347e-3F);
  q = fma(q, r, broadcast(8.363202972e-3F));
  q = fma(q, r, broadcast(4.166655444e-2F));
  q = fma(q, r, broadcast(1.666657685e-1F));
  q = fma(q, r, broadcast(5.0e-1F));
  const Vec value = mul(add(fma(q, mul(r, r), r), broadcast(1.0F)), power_of_two(n));
  const Vec bounded = where_less(broadcast(88.0F), x, broadcast(__builtin_inff()), value);
  return where_less(x, broadcast(-87.3F), zero(), bounded);
}
