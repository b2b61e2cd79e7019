// Requests for hidden states under the scheduler, beside requests for answers.
#include <gtest/gtest.h>

#include "scheduler/scheduler_fixture.h"

namespace shoal {
namespace {

using test::request_of;
using test::small_engine;
using test::with_adapter;
using Fixture = test::SchedulerFixture;

Request embedded(Request request) {
  request.max_new_tokens = 0;
  request.embed = true;
  return request;
}

void expect_embedded(const Fixture& fixture, const Request& request, const TestClient& client) {
  ASSERT_TRUE(client.finish.has_value());
  EXPECT_TRUE(client.tokens.empty());
  EXPECT_EQ(client.finish->hidden, fixture.engine.solo_hidden(request));
  EXPECT_EQ(client.finish->prompt_tokens, std::ssize(request.prompt_ids));
  EXPECT_EQ(client.finish->generated_tokens, 0);
  EXPECT_EQ(client.finish->generated_text, "");
}

TEST(Embedding, IsTheSameInEveryChunkingAndCompany) {
  for (const bool prefix_caching : {false, true}) {
    for (const std::int64_t budget : {3, 40, 256}) {
      Fixture fixture(small_engine(), {.max_batch_prefill_tokens = budget, .prefix_caching = prefix_caching});
      std::vector<Request> requests;
      std::vector<TestClient> clients;
      for (const std::int64_t length : {1, 2, 16, 50, 90}) {
        requests.push_back(embedded(request_of(length, 0, length * 3)));
        requests.push_back(embedded(with_adapter(request_of(length, 0, length * 3), "a")));
        requests.push_back(request_of(length, 20, length * 3));
      }
      for (int round = 0; round < 2; ++round) {
        clients.clear();
        for (const Request& request : requests) clients.push_back(fixture.submit(request));
        for (std::size_t i = 0; i < clients.size(); ++i) {
          clients[i].wait_for_end();
          if (requests[i].embed) {
            expect_embedded(fixture, requests[i], clients[i]);
          } else {
            EXPECT_EQ(clients[i].tokens, fixture.engine.solo_tokens(requests[i])) << i;
            EXPECT_TRUE(clients[i].finish->hidden.empty());
          }
        }
      }
      fixture.expect_all_given_back();
    }
  }
}

TEST(Embedding, SurvivesPreemption) {
  EngineInfo info = small_engine();
  info.num_blocks = 12;
  Fixture fixture(info, {.max_batch_prefill_tokens = 16});
  std::vector<Request> requests;
  std::vector<TestClient> clients;
  for (std::int64_t i = 0; i < 8; ++i) {
    requests.push_back(request_of(10, 60, 100 * i));
    requests.push_back(embedded(request_of(70, 0, 100 * i + 50)));
  }
  for (const Request& request : requests) clients.push_back(fixture.submit(request));
  for (std::size_t i = 0; i < clients.size(); ++i) {
    clients[i].wait_for_end();
    if (requests[i].embed) expect_embedded(fixture, requests[i], clients[i]);
  }
  EXPECT_GT(fixture.scheduler.stats().preemptions, 0);
  fixture.expect_all_given_back();
}

TEST(Embedding, StatesThatAreNotFiniteFailTheirRequestAlone) {
  Fixture fixture;
  Request bad = embedded(request_of(5, 0));
  bad.sampling.seed = FakeEngine::kNanSeed;
  const Request good = embedded(request_of(6, 0));
  TestClient fails = fixture.submit(bad);
  TestClient works = fixture.submit(good);
  fails.wait_for_end();
  works.wait_for_end();
  ASSERT_TRUE(fails.error.has_value());
  EXPECT_EQ(fails.error->code, ErrorCode::kGeneration);
  expect_embedded(fixture, good, works);
  fixture.expect_all_given_back();
}

TEST(Embedding, HasNoNewTokens) {
  Fixture fixture;
  Request request = embedded(request_of(5, 0));
  request.max_new_tokens = 1;
  EXPECT_FALSE(fixture.submit(request).accepted());
}

}  // namespace
}  // namespace shoal
