// Each fault of the committed list, applied alone, turns the parity of its golden red; without it the same run is
// green. A fault that stays green means that the parity tests are blind to it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>

#include "core/thread_pool.h"
#include "ops/backends.h"
#include "parity/fault_list.h"
#include "parity/parity_run.h"

namespace shoal {

// What GoogleTest shows of the parameter of a failed test.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.wrong; }

namespace {

const std::vector<GoldenCase>& golden_cases() {
  static const std::vector<GoldenCase> kGoldens = read_golden_cases("tests/goldens");
  return kGoldens;
}

// The case of a fault with no more runs than the fault needs, since each adapter is loaded.
GoldenCase golden_of(const Fault& fault) {
  for (const GoldenCase& golden : golden_cases()) {
    if (golden.name != fault.golden) continue;
    GoldenCase needed = golden;
    if (fault.mode != FaultMode::kMixed) {
      std::erase_if(needed.runs, [&](const GoldenRun& run) { return run.adapter != fault.adapter; });
      CHECK_EQ(std::ssize(needed.runs), 1);
    }
    return needed;
  }
  throw StartError("no golden is named " + std::string(fault.golden));
}

// How far a run is off: above 1 is red. A difference in greedy decoding has no share and counts as infinite.
double share_of(ParityRun& parity, const GoldenCase& golden, FaultMode mode) {
  switch (mode) {
    case FaultMode::kPrefill:
      return parity.force(golden.runs.front(), {.block_order = BlockOrder::kShuffled}).worst_share;
    case FaultMode::kChunks:
      return parity.force(golden.runs.front(), {.chunk = 5, .block_order = BlockOrder::kShuffled}).worst_share;
    case FaultMode::kTokenByToken:
      return parity.force(golden.runs.front(), {.decode_from = 2, .block_order = BlockOrder::kShuffled}).worst_share;
    case FaultMode::kMixed:
      return parity.force_all_runs({.block_order = BlockOrder::kShuffled}).worst_share;
    case FaultMode::kGreedy:
      break;
  }
  return parity.greedy_difference(golden.runs.front()).empty() ? 0.0 : HUGE_VAL;
}

class ParityFault : public testing::TestWithParam<Fault> {
 protected:
  // avx2 where the processor has it, since the oracle is slow.
  static const Backend& right_backend() {
    static ThreadPool pool(2);
    static const std::unique_ptr<Backend> kBackend =
        make_cpu_backend(available_isas().size() > 1 ? CpuIsa::kAvx2 : CpuIsa::kReference, pool);
    return *kBackend;
  }

  static double right_share(const Fault& fault) {
    static std::map<std::string, double> shares;  // many faults share a run
    const std::string key = fmt::format("{}/{}/{}", fault.golden, fault.adapter, static_cast<int>(fault.mode));
    const auto found = shares.find(key);
    if (found != shares.end()) return found->second;
    const GoldenCase golden = golden_of(fault);
    ParityRun parity(golden, right_backend(), DType::kFloat32);
    return shares[key] = share_of(parity, golden, fault.mode);
  }

  static double faulty_share(const Fault& fault) {
    GoldenCase golden = golden_of(fault);
    if (fault.ops != nullptr) {
      const FaultyBackend backend(right_backend(), fault.ops(right_backend()));
      ParityRun parity(golden, backend, DType::kFloat32);
      return share_of(parity, golden, fault.mode);
    }
    if (fault.plan == nullptr) {
      const FaultyFolder folder(golden);
      if (!fault.config.empty()) folder.patch("config.json", fault.config);
      if (fault.files != nullptr) fault.files(folder);
      golden.folder = folder.path();
      ParityRun parity(golden, right_backend(), DType::kFloat32);
      return share_of(parity, golden, fault.mode);
    }
    ParityRun parity(golden, right_backend(), DType::kFloat32,
                     [&](Engine& engine) { return std::make_unique<FaultyEngine>(engine, fault.plan); });
    return share_of(parity, golden, fault.mode);
  }
};

TEST_P(ParityFault, TurnsItsGoldenRed) {
  const Fault& fault = GetParam();
  EXPECT_LE(right_share(fault), 1.0) << "the golden is red without the fault";
  const double share = faulty_share(fault);
  EXPECT_GT(share, 1.0) << fault.wrong << ": parity with " << fault.golden << " does not see it";
  fmt::print("{:>10.3g} of the bound: {} ({}{}{})\n", share, fault.wrong, fault.golden,
             fault.adapter.empty() ? "" : "/", fault.adapter);
}

INSTANTIATE_TEST_SUITE_P(All, ParityFault, testing::ValuesIn(fault_list()),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(FaultList, HoldsDistinctFaultsOfOneKindEach) {
  constexpr std::size_t kLeast = 24;
  EXPECT_GE(fault_list().size(), kLeast);
  std::set<std::string_view> names;
  for (const Fault& fault : fault_list()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " stands twice";
    const int kinds = int{fault.ops != nullptr} + int{!fault.config.empty()} + int{fault.files != nullptr} +
                      int{fault.plan != nullptr};
    EXPECT_EQ(kinds, 1) << fault.name;
  }
}

}  // namespace
}  // namespace shoal
