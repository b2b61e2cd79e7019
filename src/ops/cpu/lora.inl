// LoRA's two products. Included by kernels_<isa>.cc inside its unnamed namespace.

// Dot products of Tokens rows of x with Ranks rows of a: sixteen chains over every sixteenth column, then one fixed
// tree over the lanes.
template <int Ranks, int Tokens, Element E>
void shrink_tile(const LoraShrink& task, std::int64_t rank, std::int64_t token) {
  using Type = typename Stored<E>::Type;
  const Type* a = static_cast<const Type*>(task.a) + rank * task.a_stride;
  const float* x[Tokens];
  unroll<Tokens>([&](auto t) __attribute__((always_inline)) {
    x[t.value] = task.x + task.token_rows[token + t.value] * task.x_stride;
  });
  Accumulators<Ranks * Tokens> sums;
  unroll<Ranks * Tokens>([&](auto i) __attribute__((always_inline)) { sums.v[i.value] = zero(); });
  std::int64_t column = 0;
  for (; column + 16 <= task.columns; column += 16) {
    unroll<Ranks>([&](auto r) __attribute__((always_inline)) {
      const Vec weight = load_as<E>(a + r.value * task.a_stride + column);
      unroll<Tokens>([&](auto t) __attribute__((always_inline)) {
        constexpr int kSum = r.value * Tokens + t.value;
        sums.v[kSum] = fma(weight, load(x[t.value] + column), sums.v[kSum]);
      });
    });
  }
  const std::int64_t rest = task.columns - column;
  if (rest > 0) {
    unroll<Ranks>([&](auto r) __attribute__((always_inline)) {
      const Vec weight = load_first_as<E>(a + r.value * task.a_stride + column, rest);
      unroll<Tokens>([&](auto t) __attribute__((always_inline)) {
        constexpr int kSum = r.value * Tokens + t.value;
        sums.v[kSum] = fma(weight, load_first(x[t.value] + column, rest), sums.v[kSum]);
      });
    });
  }
  unroll<Ranks * Tokens>([&](auto i) __attribute__((always_inline)) {
    task.shrunk[(token + i.value % Tokens) * task.shrunk_stride + rank + i.value / Tokens] =
        sum_of(sums.v[i.value]) * task.scale;
  });
}

template <int Tokens, Element E>
void shrink_tokens(const LoraShrink& task, std::int64_t token) {
  constexpr int kRanks = 4 / Tokens;
  std::int64_t rank = task.rank_begin;
  for (; rank + kRanks <= task.rank_end; rank += kRanks) shrink_tile<kRanks, Tokens, E>(task, rank, token);
  for (; rank < task.rank_end; ++rank) shrink_tile<1, Tokens, E>(task, rank, token);
}

template <Element E>
void lora_shrink(const LoraShrink& task) {
  std::int64_t token = 0;
  for (; token + 2 <= task.tokens; token += 2) shrink_tokens<2, E>(task, token);
  if (token < task.tokens) shrink_tokens<1, E>(task, token);
}

constexpr std::int64_t kExpandAheadBytes =
    256;  // of each rank's row: so many short streams lose the hardware prefetcher

// Tokens x Vecs * 16 columns of the delta, ranks in ascending order, then added to `out`.
template <int Tokens, int Vecs, Element E>
[[gnu::always_inline]] inline void expand_tile(const LoraExpand& task, std::int64_t token, std::int64_t column) {
  using Type = typename Stored<E>::Type;
  const Type* b = static_cast<const Type*>(task.b) + column;
  const float* shrunk = task.shrunk + token * task.shrunk_stride;
  Accumulators<Tokens * Vecs> sums;
  unroll<Tokens * Vecs>([&](auto i) __attribute__((always_inline)) { sums.v[i.value] = zero(); });
  for (std::int64_t rank = 0; rank < task.rank; ++rank) {
    Vec weight[Vecs];
    unroll<Vecs>([&](auto v) __attribute__((always_inline)) {
      weight[v.value] = load_as<E>(b + rank * task.b_stride + v.value * 16);
      _mm_prefetch(reinterpret_cast<const char*>(b + rank * task.b_stride + v.value * 16) + kExpandAheadBytes,
                   _MM_HINT_T0);
    });
    unroll<Tokens>([&](auto t) __attribute__((always_inline)) {
      const Vec factor = broadcast(shrunk[t.value * task.shrunk_stride + rank]);
      unroll<Vecs>([&](auto v) __attribute__((always_inline)) {
        constexpr int kSum = t.value * Vecs + v.value;
        sums.v[kSum] = fma(factor, weight[v.value], sums.v[kSum]);
      });
    });
  }
  unroll<Tokens>([&](auto t) __attribute__((always_inline)) {
    float* out = task.out + task.token_rows[token + t.value] * task.out_stride + column;
    unroll<Vecs>([&](auto v) __attribute__((always_inline)) {
      store(out + v.value * 16, add(load(out + v.value * 16), sums.v[t.value * Vecs + v.value]));
    });
  });
}

// Fewer than sixteen columns.
template <Element E>
void expand_rest(const LoraExpand& task, std::int64_t token, std::int64_t column) {
  using Type = typename Stored<E>::Type;
  const Type* b = static_cast<const Type*>(task.b) + column;
  const std::int64_t rest = task.columns - column;
  Vec sum = zero();
  for (std::int64_t rank = 0; rank < task.rank; ++rank) {
    const Vec factor = broadcast(task.shrunk[token * task.shrunk_stride + rank]);
    sum = fma(factor, load_first_as<E>(b + rank * task.b_stride, rest), sum);
  }
  float* out = task.out + task.token_rows[token] * task.out_stride + column;
  store_first(out, add(load_first(out, rest), sum), rest);
}

template <int Tokens, Element E>
void expand_tokens(const LoraExpand& task, std::int64_t token) {
  constexpr int kVecs = 4 / Tokens;
  std::int64_t column = 0;
  constexpr std::int64_t kColumns = std::int64_t{kVecs} * 16;
  for (; column + kColumns <= task.columns; column += kColumns) expand_tile<Tokens, kVecs, E>(task, token, column);
  for (; column + 16 <= task.columns; column += 16) expand_tile<Tokens, 1, E>(task, token, column);
  if (column == task.columns) return;
  for (int t = 0; t < Tokens; ++t) expand_rest<E>(task, token + t, column);
}

template <Element E>
void lora_expand(const LoraExpand& task) {
  std::int64_t token = 0;
  for (; token + 4 <= task.tokens; token += 4) expand_tokens<4, E>(task, token);
  for (; token < task.tokens; ++token) expand_tokens<1, E>(task, token);
}

template <Element E>
void fill_lora_of(KernelTable& table) {
  table.lora_shrink[static_cast<int>(E)] = lora_shrink<E>;
  table.lora_expand[static_cast<int>(E)] = lora_expand<E>;
}

void fill_lora(KernelTable& table) {
  fill_lora_of<Element::kFloat32>(table);
  fill_lora_of<Element::kBFloat16>(table);
  fill_lora_of<Element::kFloat16>(table);
}
