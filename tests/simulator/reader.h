// Reader: the client of one request. Checks each event as it comes against what the request gets alone, and cancels
// when the trace says so. Used by the simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "scheduler/fake_engine.h"
#include "scheduler/request.h"
#include "simulator/trace.h"
#include "simulator/virtual_time.h"

namespace shoal {

class Reader {
 public:
  // All outlive the reader.
  Reader(const FakeEngine& engine, const Trace& trace, const TraceRequest& traced, const VirtualTime& time);

  const Request& request() const { return request_; }
  void open(std::shared_ptr<EventStream> stream) { stream_ = std::move(stream); }
  void read();  // all that is there
  void cancel();

  bool accepted() const { return stream_ != nullptr; }
  bool cancelled() const { return cancelled_; }
  bool finished() const { return end_ == End::kFinished; }
  bool failed() const { return end_ == End::kError || end_ == End::kFailedStep; }
  bool failed_with_its_step() const { return end_ == End::kFailedStep; }
  bool ended() const { return end_ != End::kNone; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::uint64_t digest() const { return digest_; }  // of all events in their order

 private:
  enum class End : std::uint8_t { kNone, kFinished, kError, kFailedStep };
  // What a request gets alone.
  struct Answer {
    std::vector<std::int64_t> tokens;
    bool is_whole = true;  // else its next token would not be a number
  };

  Answer answer_of(std::uint64_t generation) const;
  void read_token(const TokenEvent& event);
  void read_finish(const FinishEvent& event);
  void read_error(const Error& error);

  const FakeEngine& engine_;
  const Trace& trace_;
  const TraceRequest& traced_;
  const VirtualTime& time_;
  const VirtualTime::TimePoint submitted_;
  const Request request_;
  const std::uint64_t oldest_generation_;
  std::shared_ptr<EventStream> stream_;  // shared with the scheduler, as every stream is
  // Those that agree with what was read; several only where the adapter was replaced.
  std::vector<Answer> answers_;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_tokens_after_cancel_ = 0;
  bool last_token_read_ = false;
  bool cancelled_ = false;
  End end_ = End::kNone;
  std::uint64_t digest_ = 0;
};

}  // namespace shoal
