#include "scheduler/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace shoal {

std::optional<Error> Admission::enter(const std::string& tenant, const Load& load) {
  if (num_requests_ >= options_.max_concurrent_requests) {
    ++rejected_.max_concurrent_requests;
    return Error{ErrorCode::kOverloaded,
                 fmt::format("{} requests are running or queued, the most that are allowed", num_requests_)};
  }
  // What came into an empty queue since the loop looked will run at once, as far as there is room.
  const std::int64_t num_queued = num_requests_ - load.running - load.room;
  if (options_.max_queue && num_queued >= *options_.max_queue) {
    ++rejected_.max_queue;
    return Error{ErrorCode::kOverloaded, fmt::format("{} requests are queued, the most that are allowed",
                                                     std::max<std::int64_t>(num_queued, 0))};
  }
  if (options_.max_requests_per_tenant) {
    std::int64_t& num_of_tenant = by_tenant_[tenant];
    if (num_of_tenant >= *options_.max_requests_per_tenant) {
      ++rejected_.max_requests_per_tenant;
      return Error{
          ErrorCode::kOverloaded,
          fmt::format("{} requests of this tenant are running or queued, the most that are allowed", num_of_tenant)};
    }
    ++num_of_tenant;
  }
  ++num_requests_;
  return std::nullopt;
}

void Admission::leave(const std::string& tenant) {
  --num_requests_;
  if (!options_.max_requests_per_tenant) return;
  const auto found = by_tenant_.find(tenant);
  CHECK(found != by_tenant_.end());
  if (--found->second == 0) by_tenant_.erase(found);
}

}  // namespace shoal
