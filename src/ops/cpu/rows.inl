// Norms, rotary embedding, activations, sums and the passes of sampling. Included by kernels_<isa>.cc inside its
// unnamed namespace. Sums over a row run in sixteen chains and one fixed tree, so that they depend on its width alone.

// f(sum, values) over the row, the last call with zeros past its end; four independent sums hide the latency.
template <typename Value>
[[gnu::always_inline]] inline float sum_row(std::int64_t width, const Value& value) {
  Accumulators<4> sums;
  unroll<4>([&](auto i) __attribute__((always_inline)) { sums.v[i.value] = zero(); });
  std::int64_t column = 0;
  for (; column + 64 <= width; column += 64) {
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      sums.v[i.value] = add(sums.v[i.value], value(column + i.value * 16, 16));
    });
  }
  for (; column < width; column += 16) {
    const std::int64_t count = width - column < 16 ? width - column : 16;
    sums.v[0] = add(sums.v[0], value(column, count));
  }
  return sum_of(add(add(sums.v[0], sums.v[1]), add(sums.v[2], sums.v[3])));
}

[[gnu::always_inline]] inline Vec load_some(const float* p, std::int64_t count) {
  return count == 16 ? load(p) : load_first(p, count);
}
[[gnu::always_inline]] inline void store_some(float* p, Vec v, std::int64_t count) {
  if (count == 16) {
    store(p, v);
  } else {
    store_first(p, v, count);
  }
}

// f(column, count) for each sixteen columns.
template <typename Body>
[[gnu::always_inline]] inline void for_columns(std::int64_t width, const Body& body) {
  std::int64_t column = 0;
  for (; column + 16 <= width; column += 16) body(column, 16);
  if (column < width) body(column, width - column);
}

void rms_norm(const float* x, const float* weight, float epsilon, std::int64_t width, float* out) {
  const float squares = sum_row(width, [&](std::int64_t column, std::int64_t count) __attribute__((always_inline)) {
    const Vec v = load_some(x + column, count);
    return mul(v, v);
  });
  const float inverse = 1.0F / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon);
  for_columns(width, [&](std::int64_t column, std::int64_t count) __attribute__((always_inline)) {
    const Vec v = mul(load_some(x + column, count), broadcast(inverse));
    store_some(out + column, mul(v, load_some(weight + column, count)), count);
  });
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, std::int64_t width, float* out) {
  const float total = sum_row(width, [&](std::int64_t column, std::int64_t count)
                                         __attribute__((always_inline)) { return load_some(x + column, count); });
  const Vec mean = broadcast(total / static_cast<float>(width));
  const float squares = sum_row(width, [&](std::int64_t column, std::int64_t count) __attribute__((always_inline)) {
    const Vec v = keep_lanes(sub(load_some(x + column, count), mean), 0, count, zero());
    return mul(v, v);
  });
  const Vec inverse = broadcast(1.0F / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon));
  for_columns(width, [&](std::int64_t column, std::int64_t count) __attribute__((always_inline)) {
    Vec v = mul(sub(load_some(x + column, count), mean), inverse);
    v = mul(v, load_some(weight + column, count));
    if (bias != nullptr) v = add(v, load_some(bias + column, count));
    store_some(out + column, v, count);
  });
}

void rotary(const RotaryRow& row) {
  const std::int64_t half = row.rotary_dim / 2;
  const float* cosine = row.cos_sin;
  const float* sine = row.cos_sin + half;
  for (std::int64_t head = 0; head < row.heads; ++head) {
    float* x = row.x + head * row.head_dim;
    if (row.neighbours) {
      for (std::int64_t i = 0; i < half; ++i) {
        const float x1 = x[2 * i];
        const float x2 = x[2 * i + 1];
        x[2 * i] = x1 * cosine[i] - x2 * sine[i];
        x[2 * i + 1] = x2 * cosine[i] + x1 * sine[i];
      }
      continue;
    }
    for_columns(half, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
      const Vec x1 = load_some(x + i, count);
      const Vec x2 = load_some(x + half + i, count);
      const Vec c = load_some(cosine + i, count);
      const Vec s = load_some(sine + i, count);
      store_some(x + i, sub(mul(x1, c), mul(x2, s)), count);
      store_some(x + half + i, add(mul(x2, c), mul(x1, s)), count);
    });
  }
}

[[gnu::always_inline]] inline Vec sigmoid(Vec x) {
  const Vec one = broadcast(1.0F);
  return div(one, add(one, exponential(sub(zero(), x))));
}

// Half of erfc(|z|): with t = 1 / (1 + 0.4 |z|), erfc(|z|) = exp(-z^2) t P(t), P a minimax fit to 3e-8 on |z| <= 9.
[[gnu::always_inline]] inline Vec half_erfc(Vec z) {
  const Vec one = broadcast(1.0F);
  const Vec t = div(one, fma(broadcast(0.4F), z, one));
  Vec p = broadcast(3.611713501e-2F);
  p = fma(p, t, broadcast(-1.154694095e-1F));
  p = fma(p, t, broadcast(3.290727502e-2F));
  p = fma(p, t, broadcast(1.460803133e-1F));
  p = fma(p, t, broadcast(3.982897606e-2F));
  p = fma(p, t, broadcast(2.103139352e-1F));
  p = fma(p, t, broadcast(1.975774511e-1F));
  p = fma(p, t, broadcast(2.270454467e-1F));
  p = fma(p, t, broadcast(2.255989088e-1F));
  return mul(mul(exponential(sub(zero(), mul(z, z))), t), mul(p, broadcast(0.5F)));
}

struct Silu {
  [[gnu::always_inline]] static Vec of(Vec x) { return mul(x, sigmoid(x)); }
};
// x times the share of the normal distribution below x, each tail from its own side so that none cancels.
struct GeluErf {
  [[gnu::always_inline]] static Vec of(Vec x) {
    const Vec tail = half_erfc(mul(absolute(x), broadcast(0.707106781F)));
    return mul(x, where_less(x, zero(), tail, sub(broadcast(1.0F), tail)));
  }
};
// 0.5 (1 + tanh(u)) is the sigmoid of 2 u.
struct GeluTanh {
  [[gnu::always_inline]] static Vec of(Vec x) {
    const Vec cubic = fma(mul(mul(x, x), x), broadcast(0.044715F), x);
    return mul(x, sigmoid(mul(cubic, broadcast(1.59576912F))));
  }
};
struct Relu {
  [[gnu::always_inline]] static Vec of(Vec x) { return max(zero(), x); }
};

template <typename Function>
void activation(const float* x, const float* up, std::int64_t count, float* out) {
  for_columns(count, [&](std::int64_t column, std::int64_t lanes) __attribute__((always_inline)) {
    Vec v = Function::of(load_some(x + column, lanes));
    if (up != nullptr) v = mul(v, load_some(up + column, lanes));
    store_some(out + column, v, lanes);
  });
}

void add_rows(const float* a, const float* b, std::int64_t count, float* out) {
  for_columns(count, [&](std::int64_t column, std::int64_t lanes) __attribute__((always_inline)) {
    store_some(out + column, add(load_some(a + column, lanes), load_some(b + column, lanes)), lanes);
  });
}

void mix_rows(const float* a, const float* b, float t, std::int64_t count, float* out) {
  const Vec from_a = broadcast(t);
  const Vec from_b = broadcast(1.0F - t);
  for_columns(count, [&](std::int64_t column, std::int64_t lanes) __attribute__((always_inline)) {
    const Vec v = mul(load_some(a + column, lanes), from_a);
    store_some(out + column, add(v, mul(load_some(b + column, lanes), from_b)), lanes);
  });
}

void scale_rows(const float* x, float factor, std::int64_t count, float* out) {
  for_columns(count, [&](std::int64_t column, std::int64_t lanes) __attribute__((always_inline)) {
    store_some(out + column, mul(load_some(x + column, lanes), broadcast(factor)), lanes);
  });
}

RowScan scan_row(const float* x, std::int64_t count) {
  const Vec infinity = broadcast(__builtin_inff());
  RowScan scan;
  scan.largest = -__builtin_inff();
  constexpr std::int64_t kSpan = 1024;
  for (std::int64_t begin = 0; begin < count; begin += kSpan) {
    const std::int64_t end = begin + kSpan < count ? begin + kSpan : count;
    Vec largest = broadcast(-__builtin_inff());
    for (std::int64_t i = begin; i < end; i += 16) {
      const std::int64_t lanes = end - i < 16 ? end - i : 16;
      const Vec v = lanes == 16 ? load(x + i) : keep_lanes(load_first(x + i, lanes), 0, lanes, largest);
      scan.unusable = scan.unusable || any_unordered_or_not_less(v, infinity);
      largest = max(largest, v);
    }
    const float span_largest = largest_of(largest);
    if (!(span_largest > scan.largest)) continue;
    scan.largest = span_largest;
    for (std::int64_t i = begin; i < end; ++i) {
      if (x[i] != span_largest) continue;
      scan.argmax = i;
      break;
    }
  }
  return scan;
}

void softmax_weights(const float* x, float shift, float temperature, std::int64_t count, float* weights) {
  for_columns(count, [&](std::int64_t column, std::int64_t lanes) __attribute__((always_inline)) {
    const Vec v = div(sub(load_some(x + column, lanes), broadcast(shift)), broadcast(temperature));
    store_some(weights + column, exponential(v), lanes);
  });
}

double sum_doubles(const float* x, std::int64_t count) {
  DoubleSum sum;
  for_columns(count, [&](std::int64_t column, std::int64_t lanes)
                         __attribute__((always_inline)) { add_to(sum, load_some(x + column, lanes)); });
  return total_of(sum);
}

void fill_rows(KernelTable& table) {
  table.rms_norm = rms_norm;
  table.layer_norm = layer_norm;
  table.rotary = rotary;
  table.activation[0] = activation<Silu>;
  table.activation[1] = activation<GeluErf>;
  table.activation[2] = activation<GeluTanh>;
  table.activation[3] = activation<Relu>;
  table.add = add_rows;
  table.mix = mix_rows;
  table.scale = scale_rows;
  table.scan_row = scan_row;
  table.softmax_weights = softmax_weights;
  table.sum = sum_doubles;
}
