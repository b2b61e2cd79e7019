// Sampling on the GPU: tokens and logprobs against the reference on rows that mix every parameter.
#include "ops/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cuda/cuda_test_util.h"
#include "ops/random.h"
#include "ops/sampling_test_util.h"

namespace shoal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kNear = 1e-6;  // distance to a cut or a draw at which another token is no fault
constexpr double kDropped = -std::numeric_limits<double>::infinity();

// How near a row's outcome is to another: the smallest distance, as a probability, of what the steps compare.
class Margin {
 public:
  // A row that is not greedy and can be sampled.
  explicit Margin(const SamplingRow& row) : logits_(row.logits.begin(), row.logits.end()) {
    penalise(row);
    const double largest = *std::max_element(logits_.begin(), logits_.end());
    for (double& logit : logits_) logit = (logit - largest) / double{row.temperature};
    keep_top_k(row.top_k);
    if (row.top_p < 1.0F) cut(double{row.top_p}, [&](std::size_t id) { return -logits_[id]; });
    if (row.typical_p < 1.0F) {
      const std::vector<double> p = probabilities();
      double entropy = 0.0;
      for (const double each : p) entropy -= each > 0.0 ? each * std::log(each) : 0.0;
      cut(double{row.typical_p}, [&](std::size_t id) { return std::abs(-std::log(p[id]) - entropy); });
    }
    const double most = *std::max_element(logits_.begin(), logits_.end());
    for (double& logit : logits_) {
      note(std::exp(logit - most) - double{row.min_p});
      if (std::exp(logit - most) < double{row.min_p}) logit = kDropped;
    }
    double cumulative = 0.0;
    for (const double each : probabilities()) {
      cumulative += each;
      note(cumulative - double{uniform_random(row.seed, row.position)});
    }
  }

  double smallest() const { return smallest_; }

 private:
  void note(double distance) { smallest_ = std::min(smallest_, std::abs(distance)); }

  void penalise(const SamplingRow& row) {
    for (std::size_t id = 0; id < row.counts.size(); ++id) {
      if (row.counts[id] == 0) continue;
      const std::int32_t in_output = row.counts[id] & (kSeenInPrompt - 1);
      float logit = row.logits[id];
      logit = logit < 0.0F ? logit * row.repetition_penalty : logit / row.repetition_penalty;
      if (in_output > 0) logit -= row.frequency_penalty * static_cast<float>(in_output) + row.presence_penalty;
      logits_[id] = double{logit};
    }
    if (!row.allowed.empty() && row.allowed[0] < 0) return;
    std::vector<double> allowed(logits_.size(), kDropped);
    for (const std::int64_t id : row.allowed)
      allowed[static_cast<std::size_t>(id)] = logits_[static_cast<std::size_t>(id)];
    logits_ = std::move(allowed);
  }

  void keep_top_k(std::int64_t k) {
    if (k <= 0 || k >= std::ssize(logits_)) return;
    std::vector<double> sorted = logits_;
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
    for (double& logit : logits_) logit = logit < sorted[static_cast<std::size_t>(k - 1)] ? kDropped : logit;
  }

  std::vector<double> probabilities() const {
    const double largest = *std::max_element(logits_.begin(), logits_.end());
    std::vector<double> p;
    for (const double logit : logits_) p.push_back(std::exp(logit - largest));
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& each : p) each /= total;
    return p;
  }

  template <typename Key>
  void cut(double mass, const Key& key_of) {
    const std::vector<double> p = probabilities();
    std::vector<std::pair<double, std::size_t>> ids;
    for (std::size_t id = 0; id < p.size(); ++id) {
      if (p[id] > 0.0) ids.emplace_back(key_of(id), id);
    }
    std::sort(ids.begin(), ids.end());
    double before = 0.0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      note(before - mass);
      const bool dropped = i > 0 && before >= mass;
      // Distances that tie but for rounding may swap at the border.
      if (dropped && logits_[ids[i - 1].second] != kDropped && ids[i].first != ids[i - 1].first) {
        note(ids[i].first - ids[i - 1].first);
      }
      before += p[ids[i].second];
      if (dropped) logits_[ids[i].second] = kDropped;
    }
  }

  std::vector<double> logits_;
  double smallest_ = 1.0;
};

class CudaSampling : public CudaTest {
 protected:
  template <typename T, typename Get>
  DeviceTensor column(const std::vector<SamplingRow>& rows, DType dtype, const Get& get) {
    std::vector<T> values;
    for (const SamplingRow& row : rows) values.push_back(static_cast<T>(get(row)));
    return {backend(), host_values(values, dtype)};
  }

  // As sample_rows() on the host: logits wider than the vocabulary, with large values there, and rows apart.
  std::vector<Sampled> sample(const std::vector<SamplingRow>& rows) {
    constexpr std::int64_t kPadding = 3;
    const auto num_rows = std::ssize(rows);
    const std::int64_t vocab = std::ssize(rows[0].logits);
    const std::int64_t num_words = (vocab + 31) / 32;
    HostTensor logits(DType::kFloat32, {num_rows, vocab + kPadding});
    std::vector<std::int32_t> count_slots, mask_slots, counts, mask;
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const SamplingRow& row = rows[static_cast<std::size_t>(r)];
      std::fill_n(logits.view().row<float>(r), vocab + kPadding, 1e9F);
      std::copy(row.logits.begin(), row.logits.end(), logits.view().row<float>(r));
      count_slots.push_back(row.counts.empty() ? -1 : static_cast<std::int32_t>(std::ssize(counts) / vocab));
      counts.insert(counts.end(), row.counts.begin(), row.counts.end());
      const bool masked = row.allowed.empty() || row.allowed[0] >= 0;
      mask_slots.push_back(masked ? static_cast<std::int32_t>(std::ssize(mask) / num_words) : -1);
      if (!masked) continue;
      std::vector<std::uint32_t> words(static_cast<std::size_t>(num_words), 0U);
      for (const std::int64_t id : row.allowed) words[static_cast<std::size_t>(id / 32)] |= 1U << (id % 32);
      for (const std::uint32_t word : words) mask.push_back(static_cast<std::int32_t>(word));
    }
    const DeviceTensor device_logits(backend(), logits, kOddGuards);
    const auto floats = [&](float SamplingRow::* member) {
      return column<float>(rows, DType::kFloat32, [&](const SamplingRow& row) { return row.*member; });
    };
    const DeviceTensor temperature = floats(&SamplingRow::temperature), top_p = floats(&SamplingRow::top_p);
    const DeviceTensor typical_p = floats(&SamplingRow::typical_p), min_p = floats(&SamplingRow::min_p);
    const DeviceTensor repetition = floats(&SamplingRow::repetition_penalty);
    const DeviceTensor frequency = floats(&SamplingRow::frequency_penalty);
    const DeviceTensor presence = floats(&SamplingRow::presence_penalty);
    const DeviceTensor greedy = column<std::uint8_t>(rows, DType::kUInt8, [](const auto& row) { return row.greedy; });
    const DeviceTensor top_k = column<std::int32_t>(rows, DType::kInt32, [](const auto& row) { return row.top_k; });
    const DeviceTensor seed = column<std::int64_t>(rows, DType::kInt64, [](const auto& row) { return row.seed; });
    const DeviceTensor position =
        column<std::int32_t>(rows, DType::kInt32, [](const auto& row) { return row.position; });
    const DeviceTensor count_slot(backend(), host_values(count_slots, DType::kInt32));
    const DeviceTensor mask_slot(backend(), host_values(mask_slots, DType::kInt32));
    const DeviceTensor device_counts(backend(), host_values(counts, DType::kInt32));
    const DeviceTensor device_mask(backend(), host_values(mask, DType::kInt32));
    const DeviceTensor token(backend(), DType::kInt64, {num_rows});
    const DeviceTensor logprob(backend(), DType::kFloat32, {num_rows});
    const auto slots_of = [](const DeviceTensor& values, std::int64_t width) {
      const std::int64_t slots = values.view().num_elements() / width;
      return slots > 0 ? values.view().reshape({slots, width}) : Tensor();
    };
    ops::sample(ctx(),
                {.logits = device_logits,
                 .vocab = vocab,
                 .greedy = greedy,
                 .temperature = temperature,
                 .top_k = top_k,
                 .top_p = top_p,
                 .typical_p = typical_p,
                 .min_p = min_p,
                 .repetition_penalty = repetition,
                 .frequency_penalty = frequency,
                 .presence_penalty = presence,
                 .seed = seed,
                 .position = position,
                 .count_slot = count_slot,
                 .token_counts = slots_of(device_counts, vocab),
                 .mask_slot = mask_slot,
                 .mask = slots_of(device_mask, num_words)},
                {.token = token, .logprob = logprob});
    const HostTensor tokens = token.download();
    const HostTensor logprobs = logprob.download();
    std::vector<Sampled> sampled;
    for (std::int64_t r = 0; r < num_rows; ++r) {
      sampled.push_back({.token = tokens.view().data<std::int64_t>()[r], .logprob = logprobs.view().data<float>()[r]});
    }
    return sampled;
  }

  Sampled one(const SamplingRow& row) { return sample({row})[0]; }
};

// Every parameter drawn on its own, each off in about half of the rows.
std::vector<SamplingRow> mixed_rows(std::int64_t vocab, int num_rows, std::uint64_t seed) {
  RandomFill random(seed);
  const auto on = [&](std::int64_t of) { return random.integer(0, of) == 0; };
  std::vector<SamplingRow> rows;
  for (int i = 0; i < num_rows; ++i) {
    SamplingRow row{.logits = {}, .greedy = on(6), .temperature = on(2) ? 1.0F : random.uniform(0.2F, 2.0F)};
    row.seed = random.integer(-(std::int64_t{1} << 62), std::int64_t{1} << 62);
    row.position = static_cast<std::int32_t>(random.integer(0, 100000));
    const float spread = on(2) ? 3.0F : 14.0F;
    for (std::int64_t id = 0; id < vocab; ++id) row.logits.push_back(random.uniform(-spread, spread));
    // Whole numbers tie all the time.
    if (on(4))
      std::transform(row.logits.begin(), row.logits.end(), row.logits.begin(), [](float x) { return std::round(x); });
    if (on(2))
      row.top_k = static_cast<std::int32_t>(random.integer(1, on(2) ? vocab + 2 : std::min<std::int64_t>(vocab, 50)));
    if (on(2)) row.top_p = random.uniform(0.05F, 0.99F);
    if (on(3)) row.typical_p = random.uniform(0.05F, 0.99F);
    if (on(3)) row.min_p = random.uniform(0.001F, 0.5F);
    if (on(2)) {
      row.repetition_penalty = random.uniform(0.8F, 1.5F);
      row.frequency_penalty = random.uniform(-1.0F, 1.0F);
      row.presence_penalty = random.uniform(-1.0F, 1.0F);
      for (std::int64_t id = 0; id < vocab; ++id) {
        const auto count = static_cast<std::int32_t>(std::max<std::int64_t>(0, random.integer(-4, 4)));
        row.counts.push_back(count + (on(4) ? kSeenInPrompt : 0));
      }
    }
    if (on(3)) {
      row.allowed.clear();
      const std::int64_t step = random.integer(2, 5);
      for (std::int64_t id = random.integer(0, 3); id < vocab; id += random.integer(1, step)) row.allowed.push_back(id);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST_F(CudaSampling, MatchesReferenceOnMixedRows) {
  struct Part {
    std::int64_t vocab;
    int num_rows;
  };
  std::int64_t num_rows = 0;
  std::int64_t differ = 0;
  for (const Part& part : {Part{7, 600}, Part{1000, 200}, Part{32000, 24}, Part{65024, 16}, Part{256000, 8}}) {
    const std::vector<SamplingRow> rows = mixed_rows(part.vocab, part.num_rows, static_cast<std::uint64_t>(part.vocab));
    const std::vector<Sampled> got = sample(rows);
    const std::vector<Sampled> want = sample_rows(reference_ctx(), rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string where = fmt::format("vocab {}, row {}", part.vocab, i);
      ++num_rows;
      ASSERT_GE(want[i].token, 0) << where;
      if (got[i].token != want[i].token) {
        ++differ;
        ASSERT_FALSE(rows[i].greedy) << where << ": " << got[i].token << " instead of " << want[i].token;
        EXPECT_LT(Margin(rows[i]).smallest(), kNear)
            << where << ": " << got[i].token << " instead of " << want[i].token << ", which is no close call";
        continue;
      }
      const float bound = static_cast<float>(tolerance(OpFamily::kLogprob)) * std::max(1.0F, std::abs(want[i].logprob));
      EXPECT_TRUE(std::abs(got[i].logprob - want[i].logprob) <= bound)  // no NaN passes
          << where << ": logprob " << got[i].logprob << " instead of " << want[i].logprob;
    }
  }
  EXPECT_LT(differ * 100, num_rows) << differ << " tokens of " << num_rows << " differ";
}

TEST_F(CudaSampling, RowAloneEqualsRowInBatch) {
  for (const std::int64_t vocab : {7, 1000, 65024}) {
    const std::vector<SamplingRow> rows = mixed_rows(vocab, 24, 9);
    const std::vector<Sampled> batch = sample(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Sampled alone = one(rows[i]);
      EXPECT_EQ(alone.token, batch[i].token) << "vocab " << vocab << ", row " << i;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(alone.logprob), std::bit_cast<std::uint32_t>(batch[i].logprob))
          << "vocab " << vocab << ", row " << i;
    }
  }
}

TEST_F(CudaSampling, RowsThatCannotBeSampledHarmNoOther) {
  for (const std::int64_t vocab : {7, 1000, 65024}) {
    const std::vector<SamplingRow> fine = mixed_rows(vocab, 4, 11);
    std::vector<SamplingRow> broken;
    for (const bool greedy : {false, true}) {
      for (const std::int64_t at : {std::int64_t{0}, vocab / 2, vocab - 1}) {
        for (const float value : {kNan, kInfinity}) {
          broken.push_back({.logits = std::vector<float>(static_cast<std::size_t>(vocab), 0.5F), .greedy = greedy});
          broken.back().logits[static_cast<std::size_t>(at)] = value;
        }
      }
      broken.push_back(broken.front());
      broken.back().greedy = greedy;
      broken.back().allowed = {vocab / 3};  // the NaN itself is not allowed
      broken.push_back({.logits = std::vector<float>(static_cast<std::size_t>(vocab), -kInfinity), .greedy = greedy});
      broken.push_back({.logits = fine[0].logits, .greedy = greedy, .allowed = {}});
    }
    const std::vector<Sampled> alone = sample(fine);
    std::vector<SamplingRow> rows;
    for (std::size_t i = 0; i < broken.size(); ++i) rows.insert(rows.end(), {broken[i], fine[i % fine.size()]});
    const std::vector<Sampled> sampled = sample(rows);
    for (std::size_t i = 0; i < broken.size(); ++i) {
      const std::string where = fmt::format("vocab {}, broken row {}", vocab, i);
      EXPECT_EQ(sampled[2 * i].token, -1) << where;
      EXPECT_TRUE(std::isnan(sampled[2 * i].logprob)) << where;
      EXPECT_GE(alone[i % fine.size()].token, 0) << where;
      EXPECT_EQ(sampled[2 * i + 1].token, alone[i % fine.size()].token) << where;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(sampled[2 * i + 1].logprob),
                std::bit_cast<std::uint32_t>(alone[i % fine.size()].logprob))
          << where;
    }
  }
}

TEST_F(CudaSampling, GreedyTakesTheFirstOfTheLargest) {
  for (const std::int64_t vocab : {7, 1000, 8193, 65024, 256000}) {
    const auto width = static_cast<std::size_t>(vocab);
    SamplingRow row{.logits = std::vector<float>(width, -1.0F), .greedy = true};
    EXPECT_EQ(one(row).token, 0) << vocab;
    row.logits[width - 1] = 2.0F;
    EXPECT_EQ(one(row).token, vocab - 1) << vocab;
    row.logits[width * 2 / 3] = 2.0F;
    EXPECT_EQ(one(row).token, vocab * 2 / 3) << vocab;
    row.logits[width / 3] = 2.0F;
    EXPECT_EQ(one(row).token, vocab / 3) << vocab;
    row.allowed = {0, vocab / 2, vocab - 1};
    EXPECT_EQ(one(row).token, vocab - 1) << vocab;
    row.counts.assign(width, 0);
    row.counts[width - 1] = 1;
    row.presence_penalty = 4.0F;
    EXPECT_EQ(one(row).token, 0) << vocab;
  }
}

TEST_F(CudaSampling, CountsMatchTheHosts) {
  constexpr std::int64_t kVocab = 1000;
  RandomFill random(5);
  HostTensor history(DType::kInt64, {3000});
  for (std::int64_t& id : history.view().span<std::int64_t>()) id = random.integer(0, kVocab + 20);
  HostTensor table(DType::kInt32, {4, kVocab});
  for (std::int32_t& count : table.view().span<std::int32_t>()) count = static_cast<std::int32_t>(random.integer(0, 9));
  const Twin ids = twin(history);
  for (const std::int64_t length : {0, 1, 700, 3000}) {
    for (const std::int64_t prompt_length : {std::int64_t{0}, length / 3, length}) {
      const Twin counts = twin(table);
      for (const Side side : {Side::kDevice, Side::kReference}) {
        ops::count_history(ctx(side), ids.on(side).rows(0, length), prompt_length,
                           counts.on(side).rows(2, 1).reshape({kVocab}));
      }
      expect_equal_bits(counts.device.download(), counts.reference,
                        fmt::format("history of {}, prompt of {}", length, prompt_length));
    }
  }
  const Twin counts = twin(table);
  const Twin tokens = twin(values_i64({999, 0, -1, 0, 5, 0}));  // slot 3 counts token 0 twice in one step
  const Twin slots = twin(values_i32({0, 3, 1, 3, -1, 2}));
  for (const Side side : {Side::kDevice, Side::kReference}) {
    ops::count_sampled(ctx(side), tokens.on(side), slots.on(side), counts.on(side));
  }
  expect_equal_bits(counts.device.download(), counts.reference, "count_sampled");
}

TEST_F(CudaSampling, RowsTakeTheSamplesOfTheStepBefore) {
  const Twin sampled = twin(values_i64({7, -1, 999, 0}));
  const Twin sources = twin(values_i32({2, -1, 1, 0, 0, 3}));
  const Twin ids = twin(values_i64({50, 51, 52, 53, 54, 55, 56}));  // the last has no source: of a longer step
  for (const Side side : {Side::kDevice, Side::kReference}) {
    ops::take_sampled(ctx(side), sampled.on(side), sources.on(side), ids.on(side));
  }
  expect_equal_bits(ids.device.download(), ids.reference, "take_sampled");
  EXPECT_EQ(ids.reference.view().span<std::int64_t>()[2], 0) << "a row without a token";
  EXPECT_EQ(ids.reference.view().span<std::int64_t>()[1], 51);
}

}  // namespace
}  // namespace shoal
