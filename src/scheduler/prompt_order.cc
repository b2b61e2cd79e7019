#include "scheduler/prompt_order.h"

#include <algorithm>
#include <span>

#include "scheduler/fair_queue.h"

namespace shoal {
namespace {

// More than that is not looked at in one step, however many wait. A tenant that sends little has an early place.
constexpr std::size_t kMostWaiting = 64;

}  // namespace

void PromptOrder::list(const Sequences& running, const Sequences& waiting, Listed listed) {
  prompts_.clear();
  tenants_.clear();
  for (const auto& sequence : running) {
    if (sequence->num_pending() > 1) add(*sequence, /*waits=*/false);
  }
  if (listed == Listed::kAll) {
    for (const auto& sequence : std::span(waiting).first(std::min(waiting.size(), kMostWaiting))) {
      add(*sequence, /*waits=*/true);
    }
  }
}

void PromptOrder::add(Sequence& sequence, bool waits) {
  const std::string& tenant = sequence.request.tenant;
  auto found = std::find_if(tenants_.begin(), tenants_.end(),
                            [&tenant](const TenantTokens& each) { return *each.tenant == tenant; });
  if (found == tenants_.end()) found = tenants_.insert(found, {.tenant = &tenant});
  found->num_tokens += sequence.num_pending();
  const Prompt added{.sequence = &sequence, .waits = waits, .tokens_ahead = found->num_tokens, .rank = prompts_.size()};
  const auto stands_back = [&added](const Prompt& each) {
    if (each.sequence->priority != added.sequence->priority) {
      return each.sequence->priority < added.sequence->priority;
    }
    if (added.sequence->in_saved_round && runs_before(*added.sequence, *each.sequence)) return true;
    return added.sequence->came_alone && each.tokens_ahead > added.tokens_ahead;
  };
  const bool may_overtake = sequence.came_alone || sequence.in_saved_round;
  auto place = prompts_.end();
  for (auto each = prompts_.begin(); may_overtake && each != prompts_.end(); ++each) {
    const bool is_own = each->sequence->request.tenant == tenant && each->sequence->priority >= sequence.priority;
    if (is_own) {
      place = prompts_.end();
    } else if (place == prompts_.end() && stands_back(*each)) {
      place = each;
    }
  }
  prompts_.insert(place, added);
}

bool PromptOrder::may_start(std::size_t index) const {
  return std::none_of(prompts_.begin() + static_cast<std::ptrdiff_t>(index), prompts_.end(), [&](const Prompt& each) {
    return each.rank < prompts_[index].rank && each.sequence->times_overtaken >= kMaxPassed;
  });
}

void PromptOrder::note_start(std::size_t index) {
  for (const Prompt& each : std::span(prompts_).subspan(index)) {
    if (each.rank < prompts_[index].rank) ++each.sequence->times_overtaken;
  }
}

}  // namespace shoal
