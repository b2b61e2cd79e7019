// The small trained models under everything at once: a cache that is far too small, so that requests are preempted and
// prefixes evicted, prompts in chunks, room for a few adapters of many, tenants, priorities, cancels. Each answer must
// be the one that its request gets alone on a quiet, roomy engine without a prefix cache: tokens, texts and scores, bit
// for bit (docs/architecture.md, "Numbers").
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <ostream>
#include <random>
#include <tuple>

#include "equality/trained_model.h"
#include "equality/workload.h"
#include "ops/backends.h"
#include "scheduler/test_client.h"

namespace shoal {
namespace {

constexpr std::int64_t kBlocks = 28;  // a request needs up to 19
constexpr std::size_t kInFlight = 40;
constexpr int kMostRounds = 8;

struct Crowd {
  std::string family;
  DType dtype = DType::kFloat32;
  std::size_t num_of_each = 16;  // requests: for the base model and each adapter
  int rounds = 3;                // in which all of them are sent, at least
  std::int64_t enough = 50;      // more preemptions, hits and evictions than that
};

void PrintTo(const Crowd& crowd, std::ostream* out) { *out << crowd.family << " " << dtype_name(crowd.dtype); }

struct Answer {
  std::vector<TokenEvent> tokens;
  FinishEvent finish;
};

std::vector<std::int64_t> token_ids(const Answer& answer) {
  std::vector<std::int64_t> ids;
  ids.reserve(answer.tokens.size());
  for (const TokenEvent& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

bool same(const TokenEvent& a, const TokenEvent& b) {
  return std::tie(a.id, a.text, a.delta, a.logprob, a.special, a.last) ==
         std::tie(b.id, b.text, b.delta, b.logprob, b.special, b.last);
}

// "" where `events` are the first of `answer`.
std::string first_difference(const std::vector<TokenEvent>& events, const Answer& answer) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (i == answer.tokens.size()) return fmt::format("more than the {} tokens of the quiet run", i);
    const TokenEvent& got = events[i];
    const TokenEvent& expected = answer.tokens[i];
    if (same(got, expected)) continue;
    return fmt::format("token {}: {} '{}' delta '{}' score {}, expected {} '{}' delta '{}' score {}", i, got.id,
                       got.text, got.delta, got.logprob, expected.id, expected.text, expected.delta, expected.logprob);
  }
  return "";
}

void expect_answer(const TestClient& client, const Answer& answer, const std::string& what) {
  ASSERT_TRUE(client.finish.has_value()) << what << ": " << (client.error ? client.error->message : "no end");
  EXPECT_EQ(first_difference(client.events, answer), "") << what;
  EXPECT_EQ(client.events.size(), answer.tokens.size()) << what;
  const FinishEvent& got = *client.finish;
  EXPECT_EQ(got.reason, answer.finish.reason) << what;
  EXPECT_EQ(got.generated_text, answer.finish.generated_text) << what;
  EXPECT_EQ(client.deltas + got.tail, got.generated_text) << what << ": the stream is the whole";
  EXPECT_EQ(got.tail, answer.finish.tail) << what;
  EXPECT_EQ(got.prompt_tokens, answer.finish.prompt_tokens) << what;
  EXPECT_EQ(got.generated_tokens, answer.finish.generated_tokens) << what;
}

class Equality : public testing::TestWithParam<Crowd> {
 protected:
  void SetUp() override {
    requests_ = draw_requests(folder_, *tokenizer_, GetParam().num_of_each);
    ASSERT_EQ(requests_.size(), 4 * GetParam().num_of_each) << "for the base model and three adapters";
    answer_quietly();
  }

  EngineOptions engine_options() const {
    EngineOptions options;
    options.model_path = folder_;
    options.dtype = GetParam().dtype;
    options.vocab_limit = tokenizer_->vocab_size();
    options.kv_cache_bytes = std::int64_t{32} << 20;
    return options;
  }

  // Each alone. Those that are to stop in their text are asked twice: only then it is known where.
  void answer_quietly() {
    EngineOptions options = engine_options();
    options.adapters = {.device_bytes = std::int64_t{16} << 20, .host_bytes = std::int64_t{16} << 20};
    ThreadPool alone(1);
    const std::unique_ptr<Backend> backend = make_cpu_backend(default_isa(), alone);
    TrainedModel quiet(options, {}, *backend, *tokenizer_);
    const auto ask = [&quiet](const Request& request) {
      TestClient client(quiet.scheduler(), request);
      client.wait_for_end();
      return Answer{.tokens = client.events, .finish = client.finish.value()};
    };
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      answers_.push_back(ask(requests_[i]));
      if (is_followed(i)) {
        follow_ups_[i] = follow_up(requests_[i], token_ids(answers_[i]));
        follow_up_answers_[i] = ask(follow_ups_[i]);
      }
      if (!stops_in_text(i)) continue;
      requests_[i].stop = stop_strings_within(answers_[i].finish.generated_text);
      answers_[i] = ask(requests_[i]);
    }
    const SchedulerStats stats = quiet.scheduler().stats();
    EXPECT_EQ(stats.preemptions, 0);
    EXPECT_EQ(stats.prefix.lookups, 0);
    EXPECT_EQ(quiet.engine().adapter_stats().tiers.device_evictions, 0);
    block_bytes_ = quiet.engine().kv_cache_bytes() / quiet.engine().info().num_blocks;
  }

  std::unique_ptr<TrainedModel> crowded_model() const {
    EngineOptions options = engine_options();
    options.kv_cache_bytes = kBlocks * block_bytes_;
    options.max_sequences = 16;
    // Four of the twelve names on the device, about three on the host.
    const std::int64_t adapter_bytes = NamedFolders(folder_).largest_file_bytes();
    options.adapters = {.device_bytes = 4 * adapter_bytes, .host_bytes = 3 * adapter_bytes, .max_device_adapters = 4};
    const SchedulerOptions scheduler{.max_batch_prefill_tokens = 40,
                                     .adapter_cycle_time = std::chrono::milliseconds(1),
                                     .block_order = BlockOrder::kShuffled,  // with NaN in freed blocks
                                     .prefix_caching = true};
    return std::make_unique<TrainedModel>(options, scheduler, *backend_, *tokenizer_);
  }

  // All requests in a random order, kInFlight at a time, in rounds. Every ninth has a twin whose reader leaves.
  void ask_in_a_crowd(TrainedModel& crowded) {
    std::mt19937 draw(7);
    std::deque<std::pair<std::size_t, TestClient>> open;
    const auto read_oldest = [&] {
      auto& [index, client] = open.front();
      client.wait_for_end();
      expect_answer(client, answers_[index], fmt::format("request {}", index));
      if (is_followed(index)) {
        TestClient next(crowded.scheduler(), follow_ups_.at(index));
        next.wait_for_end();
        expect_answer(next, follow_up_answers_.at(index), fmt::format("the request that follows {}", index));
      }
      open.pop_front();
    };
    std::vector<std::size_t> order(requests_.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < GetParam().rounds || (round < kMostRounds && !saw_enough(crowded)); ++round) {
      std::shuffle(order.begin(), order.end(), draw);
      for (const std::size_t index : order) {
        while (open.size() >= kInFlight) read_oldest();
        open.emplace_back(index, TestClient(crowded.scheduler(), requests_[index]));
        ASSERT_TRUE(open.back().second.accepted()) << open.back().second.refusal().message;
        if (index % 9 == 4) leave_early(crowded.scheduler(), index);
      }
    }
    while (!open.empty()) read_oldest();
  }

  // Steps take their time and adapters theirs, so no two runs are preempted alike.
  bool saw_enough(TrainedModel& crowded) const {
    const SchedulerStats stats = crowded.scheduler().stats();
    const AdapterTierStats tiers = crowded.engine().adapter_stats().tiers;
    return std::min({stats.preemptions, stats.prefix.hits, stats.prefix.evicted_blocks, tiers.device_evictions,
                     tiers.host_evictions}) > GetParam().enough;
  }

  void leave_early(Scheduler& scheduler, std::size_t index) {
    TestClient twin(scheduler, requests_[index]);
    twin.wait_for_tokens(index % 7);
    twin.cancel();
    twin.poll();
    EXPECT_EQ(first_difference(twin.events, answers_[index]), "") << "cancelled twin of request " << index;
  }

  std::int64_t count(FinishReason reason) const {
    return std::count_if(answers_.begin(), answers_.end(),
                         [reason](const Answer& answer) { return answer.finish.reason == reason; });
  }

  const std::string folder_ = "models/" + GetParam().family;
  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(folder_);
  ThreadPool pool_{2};
  const std::unique_ptr<Backend> backend_ = make_cpu_backend(default_isa(), pool_);
  std::vector<Request> requests_;
  std::vector<Answer> answers_;                // of the quiet runs
  std::map<std::size_t, Request> follow_ups_;  // by the request that they follow
  std::map<std::size_t, Answer> follow_up_answers_;
  std::int64_t block_bytes_ = 0;
};

TEST_P(Equality, CrowdedAnswersAreThoseOfQuietSoloRuns) {
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kEndOfSequence, FinishReason::kStopSequence}) {
    EXPECT_GE(count(reason), std::ssize(answers_) / 16 + 1)
        << "answers that end by reason " << static_cast<int>(reason);
  }
  const std::unique_ptr<TrainedModel> crowded = crowded_model();
  ASSERT_EQ(crowded->engine().info().num_blocks, kBlocks);
  ask_in_a_crowd(*crowded);

  ASSERT_TRUE(crowded->scheduler().drain(std::chrono::seconds(10)));
  const SchedulerStats stats = crowded->scheduler().stats();
  const AdapterTierStats tiers = crowded->engine().adapter_stats().tiers;
  const std::int64_t enough = GetParam().enough;
  EXPECT_GT(stats.preemptions, enough);
  EXPECT_GT(stats.prefix.hits, enough);
  EXPECT_GT(stats.prefix.evicted_blocks, enough);
  EXPECT_GT(tiers.device_evictions, enough);
  EXPECT_GT(tiers.host_evictions, enough);
  EXPECT_GT(stats.cancelled, 0);
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(tiers.pinned_bytes, 0);
  fmt::print(
      "{} answers, {} steps, {} preemptions, {} prefix hits, {} blocks evicted, {} adapters evicted from the device, "
      "{} from the host\n",
      stats.finished, stats.steps, stats.preemptions, stats.prefix.hits, stats.prefix.evicted_blocks,
      tiers.device_evictions, tiers.host_evictions);
}

std::vector<Crowd> all_families() {
  std::vector<Crowd> crowds;
  for (const char* family : {"solar", "falcon", "santacoder", "cohere"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) crowds.push_back({.family = family, .dtype = dtype});
  }
  return crowds;
}

std::string crowd_name(const testing::TestParamInfo<Crowd>& crowd) {
  return crowd.param.family + "_" + std::string(dtype_name(crowd.param.dtype));
}

INSTANTIATE_TEST_SUITE_P(TrainedModels, Equality, testing::ValuesIn(all_families()), crowd_name);
// For sanitizers, which slow the kernels down a hundredfold.
INSTANTIATE_TEST_SUITE_P(Small, Equality,
                         testing::Values(Crowd{.family = "solar", .num_of_each = 3, .rounds = 1, .enough = 2}),
                         crowd_name);

}  // namespace
}  // namespace shoal
