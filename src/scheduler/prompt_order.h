// PromptOrder: in which order the prompts that a step could compute get its tokens. Used by Batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/sequence.h"

namespace shoal {

// By place, those that run before those that wait; but two may go before prompts of lower priority and of later places:
// - a prompt of a tenant that sent so little that it uses a round which it saved (FairLevel), before all of these;
// - a prompt that came while none of its tenant waited, before those that would end later if the tenants shared the
//   tokens equally from now on, each of them computing its own one after the other.
// So what a tenant sends now and then does not wait for the rest of another's long prompt, while a flood, of prompts
// however short, overtakes nobody; prompts of equal length and those of one tenant stay in order.
// Nobody starves: a prompt is overtaken by so many starts at most (kMaxPassed of FairQueue).
class PromptOrder {
 public:
  struct Prompt {
    Sequence* sequence = nullptr;
    bool waits = false;             // for its start
    std::int64_t tokens_ahead = 0;  // what its tenant has to compute until this one is done
    std::size_t rank = 0;           // in the order of places
  };

  enum class Listed : std::uint8_t { kRunning, kAll };
  // `running` and `waiting` are in the order of places; of those that run, prompts alone are listed, and those that
  // wait only with kAll. Allocates nothing once the longest lists were seen.
  void list(const Sequences& running, const Sequences& waiting, Listed listed);

  const std::vector<Prompt>& prompts() const { return prompts_; }
  // Whether all that came before this one, and that it goes before, may be overtaken once more.
  bool may_start(std::size_t index) const;
  void note_start(std::size_t index);

 private:
  struct TenantTokens {
    const std::string* tenant = nullptr;
    std::int64_t num_tokens = 0;
  };

  void add(Sequence& sequence, bool waits);

  std::vector<Prompt> prompts_;
  std::vector<TenantTokens> tenants_;
};

}  // namespace shoal
