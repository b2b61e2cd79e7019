#include "scheduler/answer_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler/fake_engine.h"
#include "scheduler/scheduler.h"
#include "scheduler/test_client.h"
#include "text/test_model_dir.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;

// Ids 0..255 are bytes; these two are special, and the first ends a text.
constexpr std::int64_t kEnd = 259;
constexpr std::int64_t kTurn = 260;

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& eos_token = "<|end|>") {
  const test::ModelDir dir;
  dir.write_json("tokenizer.json", test::byte_level_tokenizer());
  dir.write_json("tokenizer_config.json", {{"eos_token", eos_token}});
  return Tokenizer::load(dir.path());
}

Request request_of(std::int64_t max_new_tokens, std::vector<std::string> stop = {},
                   StopText stop_text = StopText::kKeep) {
  return {.prompt_ids = {'h', 'i'},
          .max_new_tokens = max_new_tokens,
          .sampling = {},
          .adapter = std::nullopt,
          .stop = std::move(stop),
          .stop_text = stop_text};
}

struct Answer {
  std::vector<std::string> texts;
  std::vector<std::string> deltas;
  std::vector<bool> special;
  std::optional<FinishReason> reason;
  FinishEvent finish;
};

// Feeds tokens until one is the last.
Answer answer(const Tokenizer& tokenizer, const Request& request, const Ids& ids) {
  AnswerText text(request, &tokenizer);
  Answer result;
  std::string joined;
  for (const std::int64_t id : ids) {
    if (result.reason.has_value()) break;
    AnswerText::Step step = text.push(id, -0.5F);
    EXPECT_EQ(step.event.id, id);
    EXPECT_EQ(step.event.logprob, -0.5F);
    joined += step.event.delta;
    result.texts.push_back(step.event.text);
    result.deltas.push_back(step.event.delta);
    result.special.push_back(step.event.special);
    result.reason = step.reason;
  }
  text.finish(result.finish);
  EXPECT_EQ(result.finish.generated_text, joined + result.finish.tail) << "the deltas joined are the answer";
  EXPECT_EQ(result.finish.generated_tokens, static_cast<std::int64_t>(result.texts.size()));
  return result;
}

TEST(AnswerText, TokenTextKeepsSpecialTokensTheAnswerDropsThem) {
  const auto tokenizer = make_tokenizer();
  const Answer dropped = answer(*tokenizer, request_of(9), {'a', kTurn, 'b', kEnd, 'c'});
  EXPECT_EQ(dropped.texts, (std::vector<std::string>{"a", "<|turn|>", "b", "<|end|>"}));
  EXPECT_EQ(dropped.deltas, (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(dropped.special, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(dropped.reason, FinishReason::kEndOfSequence);
  EXPECT_EQ(dropped.finish.generated_text, "ab");
  EXPECT_EQ(dropped.finish.generated_tokens, 4) << "the end token counts";
  Request keeps = request_of(9);
  keeps.skip_special_tokens = false;
  EXPECT_EQ(answer(*tokenizer, keeps, {'a', kTurn, 'b', kEnd}).finish.generated_text, "a<|turn|>b<|end|>");
}

TEST(AnswerText, IgnoredEndTokenIsStillNoText) {
  const auto tokenizer = make_tokenizer();
  Request request = request_of(3);
  request.ignore_eos = true;
  const Answer result = answer(*tokenizer, request, {'a', kEnd, 'b'});
  EXPECT_EQ(result.finish.generated_text, "ab");
  EXPECT_EQ(result.reason, FinishReason::kLength);
}

TEST(AnswerText, EndTokenThatIsAnOrdinaryPieceIsNoTextEither) {
  const auto tokenizer = make_tokenizer("<|half|>");
  constexpr std::int64_t kHalf = 261;
  ASSERT_FALSE(tokenizer->is_special(kHalf));
  const Answer result = answer(*tokenizer, request_of(9), {'a', kHalf});
  EXPECT_EQ(result.reason, FinishReason::kEndOfSequence);
  EXPECT_EQ(result.finish.generated_text, "a");
  EXPECT_EQ(answer(*tokenizer, request_of(2), {'a', kHalf}).finish.generated_text, "a") << "by length too";
}

TEST(AnswerText, HalfCharacterAtTheEndCostsOnlyItself) {
  const auto tokenizer = make_tokenizer();
  for (const bool skip : {true, false}) {
    Request request = request_of(4);
    request.skip_special_tokens = skip;
    const Answer result = answer(*tokenizer, request, {'o', 'k', 0xE4, 0xBD});
    EXPECT_EQ(result.texts, (std::vector<std::string>{"o", "k", "", ""}));
    EXPECT_EQ(result.finish.generated_text, "ok\uFFFD");
    EXPECT_EQ(result.finish.tail, "\uFFFD");
  }
  const Answer nothing_else = answer(*tokenizer, request_of(1), {0xE4});
  EXPECT_EQ(nothing_else.finish.generated_text, "\uFFFD");
}

TEST(AnswerText, StopStringAcrossTokensIsCutOrKept) {
  const auto tokenizer = make_tokenizer();
  const Ids ids{'a', 'E', 'N', 'x', 'E', 'N', 'D', 'z'};
  const Answer cut = answer(*tokenizer, request_of(20, {"END"}, StopText::kCut), ids);
  EXPECT_EQ(cut.deltas, (std::vector<std::string>{"a", "", "", "ENx", "", "", ""}));
  EXPECT_EQ(cut.texts.back(), "D") << "a token's own text is shown whatever the answer holds back";
  EXPECT_EQ(cut.reason, FinishReason::kStopSequence);
  EXPECT_EQ(cut.finish.generated_text, "aENx");
  const Answer kept = answer(*tokenizer, request_of(20, {"END"}), ids);
  EXPECT_EQ(kept.finish.generated_text, "aENxEND");
  EXPECT_EQ(kept.reason, FinishReason::kStopSequence);
}

TEST(AnswerText, StopStringInsideATokenEndsTheTextThere) {
  const auto tokenizer = make_tokenizer();
  constexpr std::int64_t kHe = 256;
  const Answer kept = answer(*tokenizer, request_of(20, {"h"}), {kHe, 'x'});
  EXPECT_EQ(kept.texts, (std::vector<std::string>{"he"}));
  EXPECT_EQ(kept.finish.generated_text, "h");
  const Answer cut = answer(*tokenizer, request_of(20, {"h"}, StopText::kCut), {kHe, 'x'});
  EXPECT_EQ(cut.finish.generated_text, "");
  EXPECT_EQ(cut.reason, FinishReason::kStopSequence);
}

TEST(AnswerText, StopTokenThatIsCutLeavesNoByteOfItself) {
  const auto tokenizer = make_tokenizer();
  for (const bool skip : {true, false}) {
    Request request = request_of(9, {}, StopText::kCut);
    request.stop_token_ids = {0xA9, 0xE4};
    request.skip_special_tokens = skip;
    EXPECT_EQ(answer(*tokenizer, request, {'a', 0xE4}).finish.generated_text, "a") << "it begins a character";
    EXPECT_EQ(answer(*tokenizer, request, {'a', 0xC3, 0xA9}).finish.generated_text, "a\uFFFD") << "it ends one";
  }
}

TEST(AnswerText, StopStringOfThePromptDoesNotCount) {
  const auto tokenizer = make_tokenizer();
  const Answer result = answer(*tokenizer, request_of(2, {"hi", "ix"}), {'x', 'y'});
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.finish.generated_text, "xy");
}

TEST(AnswerText, HeldTextIsTheTailWhenTheAnswerEndsOtherwise) {
  const auto tokenizer = make_tokenizer();
  const Answer by_length = answer(*tokenizer, request_of(3, {"STOP"}, StopText::kCut), {'a', 'S', 'T'});
  EXPECT_EQ(by_length.finish.tail, "ST");
  EXPECT_EQ(by_length.finish.generated_text, "aST");
  const Answer by_end = answer(*tokenizer, request_of(9, {"STOP"}, StopText::kCut), {'S', 'T', kEnd});
  EXPECT_EQ(by_end.finish.generated_text, "ST");
}

TEST(AnswerText, WithoutATokenizerThereIsNoText) {
  AnswerText text(request_of(2), nullptr);
  EXPECT_FALSE(text.push(5, 0.0F).reason.has_value());
  const AnswerText::Step last = text.push(6, 0.0F);
  EXPECT_EQ(last.reason, FinishReason::kLength);
  EXPECT_EQ(last.event.text + last.event.delta, "");
  FinishEvent finish;
  text.finish(finish);
  EXPECT_EQ(finish.generated_tokens, 2);
}

// The answer that the same tokens give without any scheduler.
Answer solo_answer(const Tokenizer& tokenizer, const FakeEngine& engine, const Request& request) {
  return answer(tokenizer, request, engine.solo_tokens(request));
}

TEST(SchedulerText, PreemptionChangesNoTextAndStopStateGoesOn) {
  const auto tokenizer = make_tokenizer();
  Wakeup wakeup;
  FakeEngine engine({.model_family = "fake",
                     .dtype = "float32",
                     .device = "cpu/fake",
                     .vocab_size = tokenizer->vocab_size(),
                     .max_positions = 400,
                     .num_blocks = 14,
                     .max_step_tokens = 64,
                     .max_sequences = 8},
                    wakeup);
  Scheduler scheduler(engine, wakeup, tokenizer.get(), {.block_order = BlockOrder::kShuffled});
  std::mt19937_64 random(5);
  std::vector<Request> requests;
  std::vector<TestClient> clients;
  for (int i = 0; i < 60; ++i) {
    Request request = request_of(120, {}, i % 2 == 0 ? StopText::kCut : StopText::kKeep);
    for (int n = 0; n < 10; ++n) request.prompt_ids.push_back(static_cast<std::int64_t>(random() % 262));
    request.ignore_eos = i % 5 == 0;
    request.skip_special_tokens = i % 3 != 0;
    // A stop string that this very text holds, two characters long where it is two bytes.
    const Ids ids = engine.solo_tokens(request);
    for (std::size_t at = 60; at + 1 < ids.size() && i % 4 != 0; ++at) {
      if (ids[at] < 128 && ids[at + 1] < 128) {
        request.stop = {std::string{static_cast<char>(ids[at]), static_cast<char>(ids[at + 1])}, "never"};
        break;
      }
    }
    clients.emplace_back(scheduler, request);
    ASSERT_TRUE(clients.back().accepted()) << clients.back().refusal().message;
    requests.push_back(std::move(request));
  }
  int by_reason[3] = {};
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].wait_for_end();
    const Answer want = solo_answer(*tokenizer, engine, requests[i]);
    ASSERT_TRUE(clients[i].finish.has_value()) << i;
    EXPECT_EQ(clients[i].texts, want.texts) << i;
    EXPECT_EQ(clients[i].finish->reason, want.reason) << i;
    EXPECT_EQ(clients[i].finish->generated_text, want.finish.generated_text) << i;
    EXPECT_EQ(clients[i].deltas + clients[i].finish->tail, want.finish.generated_text) << i;
    ++by_reason[static_cast<int>(*want.reason)];
  }
  for (const int count : by_reason) EXPECT_GT(count, 0) << "each reason must occur";
  EXPECT_GT(scheduler.stats().preemptions, 5);
  EXPECT_EQ(scheduler.stats().used_blocks, 0);
}

}  // namespace
}  // namespace shoal
