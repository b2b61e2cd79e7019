// Answers under grammars, over a fake engine that obeys masks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "scheduler/scheduler_fixture.h"
#include "text/test_model_dir.h"

namespace shoal {
namespace {

using test::request_of;

constexpr std::chrono::milliseconds kLimit{20'000};
constexpr std::int64_t kEnd = 259;

std::unique_ptr<Tokenizer> tokenizer_with_end() {
  const test::ModelDir dir;
  dir.write_json("tokenizer.json", test::byte_level_tokenizer());
  dir.write_json("tokenizer_config.json", {{"eos_token", "<|end|>"}});
  return Tokenizer::load(dir.path());
}

// The engine samples from 1000 ids, of which the tokenizer knows 262.
class GrammarRows : public testing::Test {
 protected:
  GrammarRows() : tokenizer_(tokenizer_with_end()), factory_(*tokenizer_) {}

  Request request(const std::string& regex, std::int64_t max_new_tokens, std::int64_t first_id) const {
    Request request = request_of(5, max_new_tokens, first_id);
    auto grammar = factory_.compile({.kind = GrammarKind::kRegex, .text = regex}, kLimit);
    EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
    request.grammar = grammar.value();
    return request;
  }
  void start(std::int64_t num_blocks) {
    EngineInfo info = test::small_engine();
    info.num_blocks = num_blocks;
    scheduler_.reset();  // it uses the engine to its end
    engine_ = std::make_unique<FakeEngine>(info, wakeup_);
    scheduler_ = std::make_unique<Scheduler>(*engine_, wakeup_, tokenizer_.get(), SchedulerOptions());
  }
  TestClient alone(const Request& request) {
    start(64);
    TestClient client(*scheduler_, request);
    client.wait_for_end();
    return client;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  GrammarFactory factory_;
  Wakeup wakeup_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(GrammarRows, FollowTheirGrammarToItsEnd) {
  const TestClient client = alone(request("[0-9]{3}-(he|ll)+!", 200, 1));
  ASSERT_TRUE(client.finish);
  EXPECT_EQ(client.finish->reason, FinishReason::kEndOfSequence);
  EXPECT_EQ(client.tokens.back(), kEnd);
  const std::string& text = client.finish->generated_text;
  EXPECT_EQ(text, client.deltas + client.finish->tail);
  ASSERT_GE(text.size(), 7U);
  EXPECT_EQ(text.find_first_not_of("0123456789"), 3U);
  EXPECT_EQ(text[3], '-');
  EXPECT_EQ(text.find_first_not_of("hel", 4), text.size() - 1);
  EXPECT_EQ(text.back(), '!');
}

TEST_F(GrammarRows, MayBeCutByTheirLength) {
  const TestClient client = alone(request("[a-z]{50}", 7, 1));
  ASSERT_TRUE(client.finish);
  EXPECT_EQ(client.finish->reason, FinishReason::kLength);
  EXPECT_EQ(client.tokens.size(), 7U);
}

TEST_F(GrammarRows, EndAtTheEndTokenEvenIfItIsIgnoredElsewhere) {
  Request asked = request("[a-z]{3}", 50, 1);
  asked.ignore_eos = true;
  const TestClient client = alone(asked);
  ASSERT_TRUE(client.finish);
  EXPECT_EQ(client.finish->reason, FinishReason::kEndOfSequence);
  EXPECT_EQ(client.finish->generated_text.size(), 3U);
}

TEST_F(GrammarRows, GoOnExactlyAfterAPreemptionAndLeaveOthersAsTheyWere) {
  constexpr std::int64_t kRequests = 8;
  std::vector<Request> requests;
  std::vector<std::vector<std::int64_t>> expected;
  for (std::int64_t i = 0; i < kRequests; ++i) {
    requests.push_back(request("([a-z ]{30},)*[a-z ]{30}", 90, 1 + 20 * i));
    requests.back().sampling = {.greedy = false, .seed = static_cast<std::uint64_t>(i)};
    if (i % 4 == 3) requests.back().grammar = nullptr;
    expected.push_back(alone(requests.back()).tokens);
    EXPECT_GT(expected.back().size(), 20U);
  }
  start(20);  // of 16 tokens: three whole answers
  std::vector<TestClient> clients;
  clients.reserve(requests.size());
  engine_->hold();  // until all are there
  for (const Request& each : requests) clients.emplace_back(*scheduler_, each);
  engine_->resume();
  for (TestClient& client : clients) client.wait_for_end();
  EXPECT_GT(scheduler_->stats().preemptions, 0);
  for (std::size_t i = 0; i < clients.size(); ++i) {
    ASSERT_TRUE(clients[i].finish) << i;
    EXPECT_EQ(clients[i].tokens, expected[i]) << i;
  }
  EXPECT_EQ(scheduler_->stats().used_blocks, 0);
  EXPECT_GT(scheduler_->stats().masks, 0);
}

TEST_F(GrammarRows, GiveAllBackWhenTheReaderGoes) {
  start(64);
  TestClient client(*scheduler_, request("[a-z]*!", 1000, 1));
  client.wait_for_tokens(5);
  client.cancel();
  TestClient next(*scheduler_, request("[0-9]{4}", 20, 7));
  next.wait_for_end();
  ASSERT_TRUE(next.finish);
  EXPECT_EQ(next.finish->generated_text.find_first_not_of("0123456789"), std::string::npos);
  EXPECT_TRUE(scheduler_->drain(std::chrono::seconds(10)));
  EXPECT_EQ(scheduler_->stats().used_blocks, 0);
}

}  // namespace
}  // namespace shoal
