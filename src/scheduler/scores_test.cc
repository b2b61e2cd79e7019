// Scores of prompts and answers under the scheduler: every token is scored once, however its prompt was cut.
#include <gtest/gtest.h>

#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using test::request_of;
using test::small_engine;
using Fixture = test::SchedulerFixture;

Request scored(Request request, std::int32_t prompt_top = 2) {
  request.scores = {.answer = ScoreKind::kModel, .answer_top = 3, .prompt = true, .prompt_top = prompt_top};
  return request;
}

void expect_scored(const Request& request, const TestClient& client) {
  ASSERT_FALSE(client.events.empty());
  const std::vector<TokenScore>& scores = client.events[0].prompt_scores;
  ASSERT_EQ(scores.size(), request.prompt_ids.size() - 1);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const TokenScore want =
        FakeEngine::score_of(request.prompt_ids[i], request.prompt_ids[i + 1], request.scores.prompt_top);
    EXPECT_EQ(scores[i].logprob, want.logprob) << i;
    EXPECT_EQ(scores[i].rank, want.rank) << i;
    EXPECT_EQ(scores[i].top.size(), static_cast<std::size_t>(request.scores.prompt_top));
  }
  std::int64_t previous = request.prompt_ids.back();
  for (std::size_t i = 0; i < client.events.size(); ++i) {
    EXPECT_EQ(client.events[i].prompt_scores.empty(), i > 0 || scores.empty());
    ASSERT_TRUE(client.events[i].score.has_value());
    EXPECT_EQ(client.events[i].score->logprob, FakeEngine::score_of(previous, client.tokens[i], 3).logprob);
    EXPECT_EQ(client.events[i].score->top.size(), 3U);
    previous = client.tokens[i];
  }
}

TEST(Scores, EveryPromptTokenIsScoredOnceWhateverTheChunks) {
  for (const std::int64_t most_rows : {1, 7, 256}) {
    for (const std::int64_t budget : {3, 40, 256}) {
      EngineInfo info = small_engine();
      info.max_scored_rows = most_rows;
      Fixture fixture(info, {.max_batch_prefill_tokens = budget});
      std::vector<Request> requests;
      std::vector<TestClient> clients;
      for (const std::int64_t length : {1, 2, 16, 50, 90}) {
        requests.push_back(scored(request_of(length, 5, length * 3)));
        requests.push_back(request_of(length, 20, length * 7));
      }
      for (const Request& request : requests) clients.push_back(fixture.submit(request));
      for (std::size_t i = 0; i < clients.size(); ++i) {
        clients[i].wait_for_end();
        EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << i;
        if (i % 2 == 0) {
          expect_scored(requests[i], clients[i]);
        } else {
          EXPECT_FALSE(clients[i].events[0].score.has_value());
          EXPECT_TRUE(clients[i].events[0].prompt_scores.empty());
        }
      }
      fixture.expect_all_given_back();
    }
  }
}

TEST(Scores, APromptInThePrefixCacheIsComputedAgain) {
  Fixture fixture(small_engine(), {.prefix_caching = true});
  TestClient first = fixture.submit(request_of(100, 3));
  first.wait_for_end();
  const Request request = scored(request_of(100, 3));
  TestClient client = fixture.submit(request);
  client.wait_for_end();
  EXPECT_EQ(client.finish->cached_tokens, 0);
  expect_scored(request, client);
  TestClient plain = fixture.submit(request_of(100, 3));
  plain.wait_for_end();
  EXPECT_EQ(plain.finish->cached_tokens, 96);
}

TEST(Scores, PreemptedPromptsGoOnWhereTheyWere) {
  for (const bool prefix_caching : {false, true}) {
    EngineInfo info = small_engine();
    info.num_blocks = 12;
    info.max_scored_rows = 5;
    Fixture fixture(info, {.max_batch_prefill_tokens = 24, .prefix_caching = prefix_caching});
    std::vector<Request> requests;
    std::vector<TestClient> clients;
    for (int i = 0; i < 8; ++i) {
      requests.push_back(scored(request_of(30 + i, 60, i * 50), 1));
      clients.push_back(fixture.submit(requests.back()));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      clients[i].wait_for_end();
      EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << i;
      expect_scored(requests[i], clients[i]);
    }
    EXPECT_GT(fixture.scheduler.stats().preemptions, 0);
    fixture.expect_all_given_back();
  }
}

TEST(Scores, AnAnswerCannotHaveToBeLongerThanItMayBe) {
  Fixture fixture;
  Request request = request_of(5, 3);
  request.min_new_tokens = 4;
  EXPECT_FALSE(fixture.submit(request).accepted());
  request.min_new_tokens = 3;
  EXPECT_TRUE(fixture.submit(request).accepted());
}

}  // namespace
}  // namespace shoal
