// GenerationGroup: several answers of one call, to one prompt or to several, each a request of its own to the
// scheduler. Used by the generate endpoints.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "server/generation.h"

namespace shoal {

// Called on the connection's loop. `part` = prompt * copies + copy. Tokens and ends of parts; after the last end
// nothing; on_error ends all parts at once.
struct GroupSink {
  std::function<void(std::size_t part, const TokenEvent&)> on_token;
  std::function<void(std::size_t part, const FinishEvent&)> on_finish;
  std::function<void(const ApiError&)> on_error;
};

// `copies` answers to each prompt. The seed of copy i is the request's plus i, so each can be had again alone. Copies
// wait for the first one's first token where that saves work: they then find the prompt in the prefix cache, and are
// not asked for its scores again.
void start_group(ServerContext& context, const ResponseWriter& writer, std::vector<PreparedRequest> prompts,
                 std::size_t copies, GroupSink sink);

// The summary of all parts: tokens of prompts count once, those of all answers do, times are the first part's, but for
// the end.
FinishEvent sum_of_parts(const std::vector<FinishEvent>& parts, std::size_t copies);

// The mean logprob of an answer's tokens, as they are counted.
class MeanLogprob {
 public:
  void add(float logprob) {
    sum_ += static_cast<double>(logprob);
    ++count_;
  }
  double value() const { return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_); }

 private:
  double sum_ = 0.0;
  std::size_t count_ = 0;
};

// Parts [begin, end) by falling mean, equal ones in order.
std::vector<std::size_t> by_mean_logprob(const std::vector<MeanLogprob>& means, std::size_t begin, std::size_t end);

}  // namespace shoal
