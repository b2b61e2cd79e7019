#include "lora/adapter_merge.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>

#include "core/thread_pool.h"
#include "lora/adapter_digest.h"
#include "lora/merged_pair.h"

namespace shoal {
namespace {

struct TargetMerge {
  std::int32_t target_id = -1;
  std::vector<PairMember> members;
  PairPlan plan;
};

Error invalid(std::string message) { return {.code = ErrorCode::kAdapterInvalid, .message = std::move(message)}; }

// The masks of one merge are the same at every load and on every rank of a group: they follow from what the request
// said and the module's name alone.
std::uint64_t mask_seed(const AdapterMerge& merge, const std::string& path, std::size_t member) {
  return seed_of(fmt::format("{} {} {}", member, path, merge_text(merge)));
}

Result<std::vector<TargetMerge>> plan_targets(std::span<const AdapterWeights> members, const AdapterMerge& merge,
                                              const LoraTargets& targets, std::int64_t most_rank) {
  std::vector<TargetMerge> merges;
  for (std::int32_t id = 0; id < targets.size(); ++id) {
    TargetMerge one{.target_id = id, .members = {}, .plan = {}};
    for (std::size_t i = 0; i < members.size(); ++i) {
      const LoraPair& pair = members[i].pairs()[static_cast<std::size_t>(id)];
      if (!pair.a.defined()) continue;
      one.members.push_back(
          {.pair = pair, .weight = merge.weights[i], .seed = mask_seed(merge, targets.at(id).path, i)});
    }
    if (one.members.empty()) continue;
    const Result<PairPlan> plan = plan_pair(one.members, merge, targets.at(id), most_rank);
    if (!plan.ok()) return plan.error();
    one.plan = plan.value();
    merges.push_back(std::move(one));
  }
  return merges;
}

// Modules are computed by several threads; what each comes to does not depend on which.
Result<MergeShare> fill_pairs(std::span<const TargetMerge> merges, const AdapterMerge& merge,
                              const LoraTargets& targets, const MergeOptions& options, std::span<LoraPair> pairs) {
  struct Filled {
    bool finite = false, no_memory = false;
    MergeShare share;
  };
  std::vector<Filled> all(merges.size());
  ThreadPool pool(is_sum(merge) ? 1 : std::clamp(options.num_threads, 1, std::max(1, static_cast<int>(merges.size()))));
  pool.parallel_for(std::ssize(merges), [&](std::int64_t index) {
    const TargetMerge& one = merges[static_cast<std::size_t>(index)];
    Filled& filled = all[static_cast<std::size_t>(index)];
    if (options.stopped()) return;
    try {
      filled.finite = fill_pair(one.plan, one.members, merge, targets.at(one.target_id), options.stopped,
                                pairs[static_cast<std::size_t>(one.target_id)], filled.share);
    } catch (const std::bad_alloc&) {  // it must not leave the pool's thread
      filled.no_memory = true;
    }
  });
  if (options.stopped()) return invalid("the merge was given up");
  MergeShare share;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].no_memory) return invalid("not enough memory to merge");
    if (!all[i].finite) {
      return invalid(fmt::format("the merged values of {} are not finite", targets.at(merges[i].target_id).path));
    }
    share.all += all[i].share.all;
    share.kept += all[i].share.kept;
  }
  return share;
}

}  // namespace

Result<AdapterWeights> merge_adapters(std::span<const AdapterWeights> members, const AdapterMerge& merge,
                                      const LoraTargets& targets, const PlaceAdapter& place,
                                      const MergeOptions& options) {
  CHECK_EQ(members.size(), merge.ids.size());
  CHECK_EQ(members.size(), merge.weights.size());
  const Result<std::vector<TargetMerge>> planned = plan_targets(members, merge, targets, options.most_rank);
  if (!planned.ok()) return planned.error();
  std::int64_t total_bytes = 0;
  for (const TargetMerge& one : planned.value()) {
    total_bytes += one.plan.a_bytes(targets.at(one.target_id)) + one.plan.b_bytes(targets.at(one.target_id));
  }
  std::byte* const storage = place(total_bytes);
  if (storage == nullptr) return invalid(fmt::format("no place for {} bytes", total_bytes));
  std::vector<LoraPair> pairs(static_cast<std::size_t>(targets.size()));
  std::int64_t offset = 0;
  for (const TargetMerge& one : planned.value()) {
    const LoraTarget& target = targets.at(one.target_id);
    LoraPair& pair = pairs[static_cast<std::size_t>(one.target_id)];
    pair.a = Tensor(storage + offset, one.plan.dtype, {one.plan.rank, target.in_features});
    offset += one.plan.a_bytes(target);
    pair.b = Tensor(storage + offset, one.plan.dtype, {one.plan.rank, target.out_features});
    offset += one.plan.b_bytes(target);
  }
  const Result<MergeShare> filled = fill_pairs(planned.value(), merge, targets, options, pairs);
  if (!filled.ok()) return filled.error();
  const MergeShare& share = filled.value();
  if (share.all > 0.0) {
    spdlog::info("a {} merge keeps {:.1f} % of what it changes (squared)", strategy_name(merge.strategy),
                 100.0 * share.kept / share.all);
  }
  const AdapterIdentity identity = digest_of(pairs);
  return AdapterWeights(Tensor(storage, DType::kUInt8, {total_bytes}), std::move(pairs), identity);
}

}  // namespace shoal
