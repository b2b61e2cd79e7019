// GrammarProgress: where one answer stands in its grammar, and which tokens may come next. It depends on the tokens of
// the answer alone, so a preempted answer goes on as it would have. Used by Sequence and the scheduler's loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/result.h"
#include "text/grammar.h"

namespace shoal {

class GrammarProgress {
 public:
  // At the beginning, with the first mask. Any thread. `vocab_size`: ids that the engine may sample.
  static Result<GrammarProgress> start(const Grammar& grammar, std::int64_t vocab_size);

  // The token that was sampled under the mask; true where the answer is whole by it.
  Result<bool> accept(std::int64_t id) { return matcher_.accept(id); }
  // Finds the mask of the next token; any thread, as long as nobody else uses this.
  void find_mask() noexcept;
  // Why there is no mask.
  const std::optional<Error>& fault() const { return fault_; }
  // [ceil(vocab_size / 32)] bit set = allowed, see SamplingInput::mask.
  std::span<const std::int32_t> mask() const { return mask_; }
  // Whether the mask allows any token but these, which are ascending.
  bool allows_others(std::span<const std::int64_t> ids) const;

 private:
  GrammarProgress(GrammarMatcher matcher, std::int64_t vocab_size);

  GrammarMatcher matcher_;
  std::vector<std::int32_t> mask_;
  std::optional<Error> fault_;
};

}  // namespace shoal
