#include "scheduler/grammar_progress.h"

namespace shoal {

GrammarProgress::GrammarProgress(GrammarMatcher matcher, std::int64_t vocab_size)
    : matcher_(std::move(matcher)), mask_(static_cast<std::size_t>((vocab_size + 31) / 32)) {}

Result<GrammarProgress> GrammarProgress::start(const Grammar& grammar, std::int64_t vocab_size) {
  Result<GrammarMatcher> matcher = grammar.new_matcher();
  if (!matcher.ok()) return matcher.error();
  GrammarProgress progress(std::move(matcher).value(), vocab_size);
  progress.find_mask();
  if (progress.fault_) return *progress.fault_;
  return progress;
}

void GrammarProgress::find_mask() noexcept {
  const Status status = matcher_.fill_mask(mask_);
  if (!status.ok()) fault_ = status.error();
}

}  // namespace shoal
