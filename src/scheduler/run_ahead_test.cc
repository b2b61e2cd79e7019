// Where steps run beside the host, the next one is planned and started before its samples are known: answers are the
// same, and what ends meanwhile gives back nothing that a step still uses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/turn_fixture.h"

namespace shoal {
namespace {

using test::request_of;
using test::small_engine;
using test::TurnFixture;
using test::TurnRequest;
using test::with_adapter;

EngineInfo beside_host(std::int64_t num_blocks = 64) {
  EngineInfo info = small_engine();
  info.runs_beside_host = true;
  info.num_blocks = num_blocks;
  return info;
}

std::vector<std::int64_t> tokens_of(EventStream& stream, bool* finished) {
  std::vector<std::int64_t> tokens;
  while (const auto event = stream.pop()) {
    if (const auto* token = std::get_if<TokenEvent>(&*event)) tokens.push_back(token->id);
    if (std::holds_alternative<FinishEvent>(*event)) *finished = true;
  }
  return tokens;
}

// A fixture whose streams the tests read themselves.
struct Ahead {
  explicit Ahead(EngineInfo info = beside_host(), SchedulerOptions options = {})
      : engine(std::move(info), wakeup), loop(engine, wakeup, nullptr, std::move(options)) {}

  std::shared_ptr<EventStream> submit(Request request) { return loop.submit(std::move(request), nullptr).value(); }
  void run_to_end() {
    while (loop.turn(Scheduler::Loop::News::kRung)) {
    }
  }

  Wakeup wakeup;
  FakeEngine engine;
  Scheduler::Loop loop;
};

TEST(RunAhead, AnswersAreThoseOfEachAlone) {
  Ahead ahead;
  std::vector<Request> requests;
  std::vector<std::shared_ptr<EventStream>> streams;
  for (std::int64_t i = 0; i < 8; ++i) {
    Request request = request_of(1 + 3 * i, 5 + 7 * i, 1 + 10 * i);
    request.sampling.seed = static_cast<std::uint64_t>(i);
    if (i % 2 == 1) request.sampling.frequency_penalty = 0.5F;
    if (i % 3 == 0) request = with_adapter(request, std::string(1, static_cast<char>('a' + i)));
    requests.push_back(request);
    streams.push_back(ahead.submit(request));
  }
  ahead.run_to_end();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool finished = false;
    EXPECT_EQ(tokens_of(*streams[i], &finished), ahead.engine.solo_tokens(requests[i]));
    EXPECT_TRUE(finished);
  }
  const SchedulerStats stats = ahead.loop.stats();
  EXPECT_GT(stats.steps_ahead, stats.steps / 2);
  EXPECT_EQ(stats.finished, 8);
  EXPECT_EQ(stats.used_blocks, 0);
}

// The step after its last token was under way already.
TEST(RunAhead, AnEndThatNobodyForesawCutsTheAnswerThere) {
  Ahead ahead;
  Request request = request_of(4, 50);
  Request other = request_of(4, 50, 7);
  const std::vector<std::int64_t> solo = ahead.engine.solo_tokens(request);
  request.stop_token_ids = {solo[5]};
  const auto stream = ahead.submit(request);
  const auto beside = ahead.submit(other);
  ahead.run_to_end();
  bool finished = false;
  EXPECT_EQ(tokens_of(*stream, &finished), std::vector(solo.begin(), solo.begin() + 6));
  EXPECT_TRUE(finished);
  EXPECT_EQ(tokens_of(*beside, &finished), ahead.engine.solo_tokens(other));
  EXPECT_EQ(ahead.loop.stats().used_blocks, 0);
  EXPECT_EQ(ahead.loop.stats().generated_tokens, 6 + 50) << "a token of no use is counted";
}

TEST(RunAhead, ARowWithoutATokenFailsAlone) {
  Ahead ahead;
  Request broken = request_of(4, 50);
  broken.sampling.seed = FakeEngine::kNanSeed;
  broken.sampling.presence_penalty = 1.0F;
  const Request other = request_of(4, 30, 7);
  const auto stream = ahead.submit(broken);
  const auto beside = ahead.submit(other);
  ahead.run_to_end();
  bool finished = false;
  EXPECT_EQ(std::ssize(tokens_of(*stream, &finished)), FakeEngine::kNanLength - 4);
  EXPECT_FALSE(finished);
  EXPECT_EQ(tokens_of(*beside, &finished), ahead.engine.solo_tokens(other));
  EXPECT_EQ(ahead.loop.stats().failed, 1);
  EXPECT_EQ(ahead.loop.stats().used_blocks, 0);
}

// The fake engine fails the test if the adapter is released before.
TEST(RunAhead, ACancelledOneGivesBackWhenItsLastStepEnded) {
  TurnFixture fixture(beside_host());
  TurnRequest* cancelled = fixture.submit(with_adapter(request_of(4, 50), "a"));
  TurnRequest* other = fixture.submit(request_of(4, 20));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(fixture.turn());
  cancelled->stream->cancel();
  EXPECT_TRUE(fixture.turn());
  EXPECT_EQ(fixture.loop.stats().cancelled, 1) << "the one step that was under way has ended";
  EXPECT_EQ(fixture.loop.stats().running, 1);
  EXPECT_EQ(fixture.engine.num_pins(), 0);
  fixture.run_to_end();
  EXPECT_TRUE(other->finished);
  EXPECT_EQ(other->num_tokens, 20);
  fixture.expect_all_given_back();
}

class RunAheadFailure : public testing::TestWithParam<FakeEngine::FailAt> {};

TEST_P(RunAheadFailure, AStepThatFailsFailsItsRowsOnceAndNoOthers) {
  TurnFixture fixture(beside_host());
  TurnRequest* longer = fixture.submit(with_adapter(request_of(4, 50), "a"));
  TurnRequest* shorter = fixture.submit(request_of(4, 4));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(fixture.turn());
  EXPECT_EQ(shorter->num_tokens, 2);
  EXPECT_EQ(fixture.loop.stats().steps_ahead, 2);
  fixture.engine.fail_next_step("broken", GetParam());  // the fourth step, behind the third
  fixture.run_to_end();
  EXPECT_TRUE(longer->error.has_value());
  EXPECT_TRUE(shorter->error.has_value());
  EXPECT_EQ(fixture.loop.stats().failed, 2);
  fixture.expect_all_given_back();
  TurnRequest* next = fixture.submit(request_of(4, 4));
  fixture.run_to_end();
  EXPECT_TRUE(next->finished);
}

INSTANTIATE_TEST_SUITE_P(Moments, RunAheadFailure,
                         testing::Values(FakeEngine::FailAt::kLaunch, FakeEngine::FailAt::kCollect));

TEST(RunAhead, WhoComesStartsBehindTheStepThatIsUnderWay) {
  TurnFixture fixture(beside_host());
  fixture.submit(request_of(4, 100));
  for (int i = 0; i < 5; ++i) fixture.turn();
  TurnRequest* late = fixture.submit(request_of(4, 10));
  for (int i = 0; i < 2; ++i) fixture.turn();
  EXPECT_EQ(late->first_token, late->submitted + 2) << "one turn for the step under way, one for its own";
}

// All places are taken and one more waits: it gets the place of the one that ends by its length without a step between.
TEST(RunAhead, NoStepGoesBeforeOneThatWaitsForTheRoomThatComesFree) {
  EngineInfo info = beside_host();
  info.max_sequences = 2;
  TurnFixture fixture(info);
  TurnRequest* ends = fixture.submit(request_of(4, 6));
  fixture.submit(request_of(4, 40));
  TurnRequest* waits = fixture.submit(request_of(4, 6));
  while (!ends->finished) fixture.turn();
  const std::int64_t end = fixture.num_turns;
  EXPECT_GT(fixture.loop.stats().steps_ahead, 3) << "while nobody could start anyway";
  fixture.run_to_end();
  EXPECT_EQ(waits->first_token, end + 1);
}

// More prompts than one step holds: those of the first have all their samples to come, and the others a step to start
// in.
TEST(RunAhead, PromptsBeyondOneStepStartInTheNextOnes) {
  EngineInfo info = beside_host();
  info.max_step_tokens = 16;
  TurnFixture fixture(info);
  std::vector<TurnRequest*> requests;
  for (std::int64_t i = 0; i < 6; ++i) requests.push_back(fixture.submit(request_of(8, 100, 1 + 10 * i)));
  for (int i = 0; i < 6; ++i) fixture.turn();
  for (const TurnRequest* request : requests) EXPECT_GT(request->num_tokens, 0);
}

TEST(RunAhead, WithoutBlocksForTheNextTokenAStepWaitsAndOneIsPreempted) {
  Ahead ahead(beside_host(8));
  std::vector<Request> requests;
  std::vector<std::shared_ptr<EventStream>> streams;
  for (std::int64_t i = 0; i < 4; ++i) {
    requests.push_back(request_of(10, 60, 1 + 10 * i));
    streams.push_back(ahead.submit(requests.back()));
  }
  ahead.run_to_end();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool finished = false;
    EXPECT_EQ(tokens_of(*streams[i], &finished), ahead.engine.solo_tokens(requests[i]));
  }
  EXPECT_GT(ahead.loop.stats().preemptions, 0);
  EXPECT_GT(ahead.loop.stats().steps_ahead, 0);
  EXPECT_EQ(ahead.loop.stats().used_blocks, 0);
}

// Which tokens are banned depends on how many there are, and whether there is a hidden state to wait for is known
// first.
TEST(RunAhead, RowsThatNeedMoreThanASampleAreNotRunAhead) {
  Ahead ahead;
  Request least = request_of(4, 20);
  least.min_new_tokens = 20;
  least.stop_token_ids = {1};
  ahead.submit(least);
  ahead.run_to_end();
  EXPECT_LE(ahead.loop.stats().steps_ahead, 1);
  Request scored = request_of(4, 2);
  scored.scores.prompt = true;
  ahead.submit(scored);
  ahead.run_to_end();
  EXPECT_LE(ahead.loop.stats().steps_ahead, 1);
}

TEST(RunAhead, AStopWhileAStepIsUnderWayEndsEveryStream) {
  TurnFixture fixture(beside_host());
  TurnRequest* request = fixture.submit(with_adapter(request_of(4, 50), "a"));
  for (int i = 0; i < 3; ++i) fixture.turn();
  fixture.loop.end_all();
  std::optional<Error> error;
  while (const auto event = request->stream->pop()) {
    if (const auto* last = std::get_if<Error>(&*event)) error = *last;
  }
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, ErrorCode::kIncomplete);
  fixture.expect_all_given_back();
}

}  // namespace
}  // namespace shoal
