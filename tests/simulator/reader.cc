#include "simulator/reader.h"

#include <gtest/gtest.h>

#include <utility>
#include <variant>

#include "simulator/simulated_engine.h"

namespace shoal {

Reader::Reader(const FakeEngine& engine, const Trace& trace, const TraceRequest& traced, const VirtualTime& time)
    : engine_(engine),
      trace_(trace),
      traced_(traced),
      time_(time),
      submitted_(time.now()),
      request_(request_of(trace, traced)),
      oldest_generation_(request_.adapter ? engine.num_replacements(request_.adapter->id) : 0) {}

Reader::Answer Reader::answer_of(std::uint64_t generation) const {
  Answer answer;
  for (const std::int64_t token : engine_.solo_tokens(request_, generation)) {
    if (token < 0) {
      answer.is_whole = false;
      break;
    }
    answer.tokens.push_back(token);
    if (token == traced_.stop_token) break;
  }
  return answer;
}

void Reader::read() {
  if (stream_ == nullptr) return;  // its first event, before submit() returned
  while (const std::optional<Event> event = stream_->pop()) {
    EXPECT_FALSE(ended()) << "an event after the last one";
    if (const auto* token = std::get_if<TokenEvent>(&*event)) {
      read_token(*token);
    } else if (const auto* finish = std::get_if<FinishEvent>(&*event)) {
      read_finish(*finish);
    } else {
      read_error(std::get<Error>(*event));
    }
  }
}

void Reader::cancel() {
  if (stream_ == nullptr || std::exchange(cancelled_, true)) return;
  stream_->cancel();
}

void Reader::read_token(const TokenEvent& event) {
  EXPECT_FALSE(last_token_read_) << "a token after the last one";
  if (cancelled_) {
    EXPECT_EQ(++num_tokens_after_cancel_, 1) << "more than the step under way goes on after a cancel";
  }
  if (num_tokens_ == 0) {
    const std::uint64_t newest = request_.adapter ? engine_.num_replacements(request_.adapter->id) : 0;
    for (std::uint64_t generation = oldest_generation_; generation <= newest; ++generation) {
      answers_.push_back(answer_of(generation));
    }
  }
  const auto index = static_cast<std::size_t>(num_tokens_++);
  std::erase_if(answers_, [&](const Answer& answer) {
    const bool is_last = answer.is_whole && index + 1 == answer.tokens.size();
    return index >= answer.tokens.size() || answer.tokens[index] != event.id || is_last != event.last;
  });
  EXPECT_FALSE(answers_.empty()) << "token " << index << " (" << event.id << (event.last ? ", the last" : "")
                                 << ") is another one than the request gets alone";
  last_token_read_ = event.last;
  digest_ = draw_of(digest_, static_cast<std::uint64_t>(event.id));
  if (num_tokens_ == traced_.cancel_after_tokens) cancel();
}

void Reader::read_finish(const FinishEvent& event) {
  EXPECT_TRUE(last_token_read_) << "the answer ends before its last token";
  EXPECT_EQ(event.generated_tokens, num_tokens_);
  EXPECT_EQ(event.prompt_tokens, std::ssize(request_.prompt_ids));
  EXPECT_EQ(event.reason, num_tokens_ == request_.max_new_tokens ? FinishReason::kLength : FinishReason::kStopSequence);
  EXPECT_EQ(event.cached_tokens.has_value(), trace_.prefix_caching);
  EXPECT_TRUE(event.timings.submitted <= event.timings.started && event.timings.started < event.timings.first_token &&
              event.timings.first_token <= event.timings.finished);
  end_ = End::kFinished;
  digest_ = draw_of(digest_, static_cast<std::uint64_t>(event.timings.finished.time_since_epoch().count()));
}

void Reader::read_error(const Error& error) {
  EXPECT_FALSE(last_token_read_) << "an error after the last token";
  end_ = End::kError;
  digest_ = draw_of(digest_, static_cast<std::uint64_t>(error.code) + 1'000'000);
  if (error.code == ErrorCode::kAdapterInvalid) {
    const bool may_fail = traced_.adapter >= 0 && (trace_.fail_percent > 0 || is_broken(trace_, traced_.adapter) ||
                                                   never_fits(trace_, traced_.adapter));
    EXPECT_TRUE(may_fail) << "another one's failure: " << error.message;
    EXPECT_EQ(num_tokens_, 0) << "the adapter of a running request failed";
    return;
  }
  if (error.code == ErrorCode::kTimeout) {
    EXPECT_TRUE(trace_.timeout_ms > 0 && time_.now() - submitted_ >= std::chrono::milliseconds(trace_.timeout_ms));
    return;
  }
  EXPECT_EQ(error.code, ErrorCode::kGeneration) << error.message;
  if (error.message == SimulatedEngine::kFailedStep) {
    end_ = End::kFailedStep;
    return;
  }
  if (num_tokens_ == 0) answers_.push_back(answer_of(oldest_generation_));
  EXPECT_TRUE(!answers_.empty() && !answers_.front().is_whole && std::ssize(answers_.front().tokens) == num_tokens_)
      << error.message;
}

}  // namespace shoal
