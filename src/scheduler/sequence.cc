#include "scheduler/sequence.h"

#include <algorithm>

namespace shoal {

void insert_in_order(Sequences& sequences, std::unique_ptr<Sequence> sequence) {
  const auto place =
      std::upper_bound(sequences.begin(), sequences.end(), sequence,
                       [](const std::unique_ptr<Sequence>& a, const auto& b) { return runs_before(*a, *b); });
  sequences.insert(place, std::move(sequence));
}

}  // namespace shoal
