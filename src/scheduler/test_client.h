// TestClient: reads the events of one stream to its end and checks their order. Used by scheduler tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/test_patience.h"
#include "core/wakeup.h"
#include "scheduler/scheduler.h"

namespace shoal {

class TestClient {
 public:
  TestClient(Scheduler& scheduler, Request request) : bell_(std::make_shared<Wakeup>()) {
    auto result = scheduler.submit(std::move(request), [bell = bell_] { bell->notify(); });
    if (result.ok()) {
      stream_ = result.value();
    } else {
      refusal_ = result.error();
    }
  }

  // Takes what is there; true once the last event was read.
  bool poll() {
    while (auto event = stream_->pop()) {
      EXPECT_FALSE(ended()) << "an event after the last one";
      if (const auto* token = std::get_if<TokenEvent>(&*event)) {
        tokens.push_back(token->id);
        texts.push_back(token->text);
        deltas += token->delta;
        events.push_back(*token);
      } else if (auto* finished = std::get_if<FinishEvent>(&*event)) {
        finish = std::move(*finished);
      } else {
        error = std::get<Error>(*event);
      }
    }
    return ended();
  }
  void wait_for_tokens(std::size_t count) {
    while (!poll() && tokens.size() < count) wait();
  }
  void wait_for_end() {
    while (!poll()) wait();
  }
  void cancel() { stream_->cancel(); }

  bool accepted() const { return stream_ != nullptr; }
  const Error& refusal() const { return *refusal_; }
  bool ended() const { return finish.has_value() || error.has_value(); }

  std::vector<std::int64_t> tokens;
  std::vector<std::string> texts;
  std::vector<TokenEvent> events;
  std::string deltas;
  std::optional<FinishEvent> finish;
  std::optional<Error> error;

 private:
  // Thrown, so that a stream that never ends is a failed test and not one that never ends.
  void wait() {
    if (!bell_->wait_for(test::kPatience)) throw std::runtime_error("nothing came from the stream");
  }

  // Shared with the callback, which may still run when the last event was read.
  std::shared_ptr<Wakeup> bell_;
  std::shared_ptr<EventStream> stream_;
  std::optional<Error> refusal_;
};

}  // namespace shoal
