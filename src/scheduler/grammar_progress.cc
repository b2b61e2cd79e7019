#include "scheduler/grammar_progress.h"

#include <bit>

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

bool GrammarProgress::allows_others(std::span<const std::int64_t> ids) const {
  std::int64_t allowed = 0;
  for (const std::int32_t word : mask_) allowed += std::popcount(static_cast<std::uint32_t>(word));
  for (const std::int64_t id : ids) {
    const auto word = static_cast<std::size_t>(id / 32);
    if (word < mask_.size()) allowed -= (static_cast<std::uint32_t>(mask_[word]) >> (id % 32)) & 1U;
  }
  return allowed > 0;
}

void GrammarProgress::find_mask() noexcept {
  const Status status = matcher_.fill_mask(mask_);
  if (!status.ok()) fault_ = status.error();
}

}  // namespace shoal
