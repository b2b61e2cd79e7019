// Properties of every family, on drawn models, adapters and batches: a sequence alone, in a batch, in chunks and token
// by token gives the same bits, whatever adapters its neighbours use; an adapter does what its merged weights do; every
// kernel set agrees with the reference. The seed and the draw are printed with a failure.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/thread_pool.h"
#include "ops/backends.h"
#include "parity/drawn_case.h"
#include "parity/golden_case.h"

namespace shoal {
namespace {

constexpr std::uint64_t kCasesPerFamily = 50;
constexpr std::int64_t kMostComparedTokens = 50;
constexpr std::int64_t kWidestComparedLong = 900;  // layers x heads x head_dim
// A reference that is further off in bfloat16 would bound nothing.
constexpr double kLargestReferenceError = 0.1;

using Logits = std::vector<std::vector<float>>;  // by sequence: [tokens, vocab]

struct LogitError {
  double largest = 0.0;  // over the largest |expected| of the sequence
  double rms = 0.0;
};

LogitError error_of(const std::vector<float>& ours, const std::vector<float>& expected) {
  CHECK_EQ(ours.size(), expected.size());
  double scale = 0.0;
  for (const float value : expected) scale = std::max(scale, std::abs(static_cast<double>(value)));
  LogitError error;
  double sum_of_squares = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double off = std::abs(static_cast<double>(ours[i]) - static_cast<double>(expected[i])) / scale;
    // max() would drop a NaN.
    error.largest = off <= error.largest ? error.largest : off;
    sum_of_squares += off * off;
  }
  error.rms = std::sqrt(sum_of_squares / static_cast<double>(ours.size()));
  return error;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What the cases of a family have covered.
struct Coverage {
  std::set<std::int64_t> ranks, groups, batches, head_dims;
  std::int64_t longest = 0;
  std::string notes;

  void add(const DrawnCase& drawn) {
    for (const DrawnSequence& sequence : drawn.batch) {
      longest = std::max(longest, static_cast<std::int64_t>(sequence.input_ids.size()));
      if (sequence.adapter >= 0) ranks.insert(drawn.adapters[static_cast<std::size_t>(sequence.adapter)].rank);
    }
    groups.insert(drawn.model.group());
    batches.insert(std::ssize(drawn.batch));
    head_dims.insert(drawn.model.head_dim);
    notes += drawn.model.note + '\n';
  }
};

// What a family must have drawn beside sizes.
std::vector<std::string> features_of(DrawnFamily family) {
  switch (family) {
    case DrawnFamily::kSolar:
      return {"bskcn", "window", "attention_bias", "mlp_bias", "tied", "linear", "dynamic", "yarn", "llama3"};
    case DrawnFamily::kRw:
      return {"with 1 norms", "with 2 norms", "alibi", "sequential", "biases", "legacy", "tied", "yarn"};
    case DrawnFamily::kSantaCoder:
      return {"conv1d fused", "conv1d split", "600 positions", "37 positions", "tied"};
    case DrawnFamily::kCohere:
      return {"qk norm", "attention_bias", "tied", "linear", "yarn"};
  }
  return {};
}

class Property : public testing::TestWithParam<DrawnFamily> {
 protected:
  void SetUp() override {
    for (const CpuIsa isa : available_isas()) backends_.push_back(make_cpu_backend(isa, pool_));
  }

  // Kernel sets take turns; the reference is too slow for all that follows.
  const Backend& backend_of(const DrawnCase& drawn) const {
    const std::size_t fast = backends_.size() - 1;
    return fast == 0 ? *backends_[0] : *backends_[1 + drawn.seed / 3 % fast];
  }

  // Whether a case decodes its long sequence; the other cases that have one compare it with the reference.
  static bool decodes_long(const DrawnCase& drawn) { return drawn.has_long() && drawn.seed % 20 < 10; }

  // What the slow reference can be asked for: short sequences up to a number of tokens, and the long one of a small
  // model.
  static std::vector<std::size_t> compared_with_reference(const DrawnCase& drawn) {
    std::vector<std::size_t> chosen;
    std::int64_t tokens = 0;
    for (const std::size_t index : drawn.up_to_tokens(kShortDrawnSequence)) {
      tokens += std::ssize(drawn.batch[index].input_ids);
      if (chosen.empty() || tokens <= kMostComparedTokens) chosen.push_back(index);
    }
    const DrawnModel& model = drawn.model;
    const bool too_wide = model.layers * model.heads * model.head_dim > kWidestComparedLong;
    if (!drawn.has_long() || decodes_long(drawn) || too_wide) return chosen;
    for (std::size_t i = 0; i < drawn.batch.size(); ++i) {
      if (std::ssize(drawn.batch[i].input_ids) > kShortDrawnSequence) chosen.push_back(i);
    }
    return chosen;
  }

  void expect_same(const Logits& logits, const Logits& whole, const std::vector<std::size_t>& chosen,
                   const std::string& what) {
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      EXPECT_TRUE(same_bits(logits[i], whole[chosen[i]])) << what << ": sequence " << chosen[i] << " differs";
    }
  }

  // Alone, in chunks and token by token against the batch as one prefill, which is returned.
  Logits check_bits(DrawnCase& drawn, DType dtype) {
    LoadedCase loaded(drawn, drawn.folder, backend_of(drawn), dtype);
    const std::vector<std::size_t> all = drawn.up_to_tokens(kLongestDrawnSequence);
    const std::vector<std::size_t> shorts = drawn.up_to_tokens(kShortDrawnSequence);
    Logits whole = loaded.run(all);
    for (const std::size_t chosen : all) expect_same(loaded.run({chosen}), whole, {chosen}, "alone");
    const std::int64_t chunk = drawn.draw.between(1, 20);
    expect_same(loaded.run(all, {.chunk = chunk}), whole, all, fmt::format("in chunks of {}", chunk));
    const std::int64_t decode_from = drawn.draw.between(0, 5);
    // A long sequence takes as many steps as it has tokens.
    const std::vector<std::size_t>& decoded = decodes_long(drawn) ? all : shorts;
    expect_same(loaded.run(decoded, {.decode_from = decode_from}), whole, decoded,
                fmt::format("token by token from {}", decode_from));
    return whole;
  }

  void expect_within(const LogitError& error, const LogitBound& bound, double& worst_share, const std::string& what) {
    const double share = std::max(error.largest / bound.largest, error.rms / bound.rms);
    EXPECT_LE(share, 1.0) << what << " is off by " << error.largest << " of the largest logit, rms " << error.rms;
    worst_share = share <= worst_share ? worst_share : share;
  }

  void check_merged(DrawnCase& drawn, const Logits& whole) {
    LoadedCase merged(drawn, drawn.merged_folder(), backend_of(drawn), DType::kFloat32);
    std::vector<std::size_t> adapted;
    for (std::size_t i = 0; i < drawn.batch.size(); ++i) {
      if (drawn.batch[i].adapter == 0) adapted.push_back(i);
    }
    const Logits logits = merged.run(adapted);
    for (std::size_t i = 0; i < adapted.size(); ++i) {
      expect_within(error_of(whole[adapted[i]], logits[i]), logit_bound(DType::kFloat32, {}), worst_merged_share_,
                    fmt::format("sequence {} against merged weights", adapted[i]));
    }
  }

  // The reference in float32 stands for the truth; in bfloat16 each kernel set may be as far from it as the reference
  // in bfloat16 is, with the margin that goldens have.
  void check_isas(const DrawnCase& drawn, const std::vector<std::size_t>& chosen) {
    const Logits truth = LoadedCase(drawn, drawn.folder, *backends_[0], DType::kFloat32).run(chosen);
    const Logits rounded = LoadedCase(drawn, drawn.folder, *backends_[0], DType::kBFloat16).run(chosen);
    GoldenSequence golden;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const LogitError error = error_of(rounded[i], truth[i]);
      golden.bf16_error_max = std::max(golden.bf16_error_max, static_cast<float>(error.largest));
      golden.bf16_error_rms = std::max(golden.bf16_error_rms, static_cast<float>(error.rms));
    }
    worst_bf16_error_ = std::max(worst_bf16_error_, static_cast<double>(golden.bf16_error_max));
    for (const std::size_t index : chosen) {
      longest_compared_ = std::max(longest_compared_, std::ssize(drawn.batch[index].input_ids));
    }
    for (std::size_t isa = 1; isa < backends_.size(); ++isa) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const Logits logits = LoadedCase(drawn, drawn.folder, *backends_[isa], dtype).run(chosen);
        double& share = dtype == DType::kFloat32 ? worst_float_share_ : worst_bf16_share_;
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          expect_within(error_of(logits[i], truth[i]), logit_bound(dtype, golden), share,
                        fmt::format("sequence {} on {} in {}", chosen[i], backends_[isa]->name(), dtype_name(dtype)));
        }
      }
    }
  }

  void check_case(DrawnCase& drawn) {
    SCOPED_TRACE(drawn.describe());
    const Logits whole = check_bits(drawn, DType::kFloat32);
    check_bits(drawn, DType::kBFloat16);
    check_merged(drawn, whole);
    check_isas(drawn, compared_with_reference(drawn));
  }

  ThreadPool pool_{2};
  std::vector<std::unique_ptr<Backend>> backends_;  // the reference first
  double worst_merged_share_ = 0.0, worst_float_share_ = 0.0, worst_bf16_share_ = 0.0;
  double worst_bf16_error_ = 0.0;
  std::ptrdiff_t longest_compared_ = 0;  // with the reference
};

TEST_P(Property, DrawnModelsAdaptersAndBatches) {
  Coverage coverage;
  for (std::uint64_t seed = 0; seed < kCasesPerFamily; ++seed) {
    DrawnCase drawn(GetParam(), seed);
    check_case(drawn);
    coverage.add(drawn);
  }
  fmt::print(
      "{}: {} cases on {} kernel sets; worst shares of bounds: merged {:.2f}, float32 {:.2f}, bfloat16 {:.2f}; the "
      "reference in bfloat16 is off by up to {:.3f}\n",
      family_name(GetParam()), kCasesPerFamily, backends_.size(), worst_merged_share_, worst_float_share_,
      worst_bf16_share_, worst_bf16_error_);
  EXPECT_LT(worst_bf16_error_, kLargestReferenceError);
  EXPECT_EQ(coverage.ranks, (std::set<std::int64_t>{1, 3, 8, 64, 256}));
  EXPECT_TRUE(coverage.groups.contains(1));
  EXPECT_GE(*coverage.groups.rbegin(), 12);
  EXPECT_TRUE(std::any_of(coverage.groups.begin(), coverage.groups.end(), [](auto n) { return n > 1 && n % 2 == 1; }));
  EXPECT_TRUE(coverage.batches.contains(1));
  EXPECT_TRUE(coverage.batches.contains(9));
  EXPECT_GE(coverage.head_dims.size(), 4U);
  EXPECT_GT(coverage.longest, 500);
  EXPECT_GT(longest_compared_, 400);
  for (const std::string& feature : features_of(GetParam())) {
    EXPECT_NE(coverage.notes.find(feature), std::string::npos) << "no case with " << feature;
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, Property,
                         testing::Values(DrawnFamily::kSolar, DrawnFamily::kRw, DrawnFamily::kSantaCoder,
                                         DrawnFamily::kCohere),
                         [](const auto& param) { return std::string(family_name(param.param)); });

}  // namespace
}  // namespace shoal
