// Every golden of tests/goldens that is not quantized, on every kernel set of this processor and on its GPU, in three
// dtypes: as one prefill, in chunks of 5, token by token from position 2, and with all adapters of a case mixed in one
// batch. Cache blocks are handed out in random order and hold NaN until they are written.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>

#include "core/thread_pool.h"
#include "ops/backends.h"
#include "parity/parity_run.h"

namespace shoal {
namespace {

constexpr std::size_t kCases = 25;
constexpr std::size_t kRuns = 48;

const std::vector<GoldenCase>& golden_cases() {
  static const std::vector<GoldenCase> kGoldens = read_golden_cases("tests/goldens");
  return kGoldens;
}

struct ParityMode {
  std::string name;
  TeacherForcingOptions options;
};

std::vector<ParityMode> parity_modes() {
  return {{"one prefill", {.block_order = BlockOrder::kShuffled}},
          {"chunks of 5", {.chunk = 5, .block_order = BlockOrder::kShuffled}},
          {"token by token from 2", {.decode_from = 2, .block_order = BlockOrder::kShuffled}}};
}

// A kernel set by its name, or "cuda".
class Parity : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    const std::string& name = std::get<0>(GetParam());
    const std::optional<CpuIsa> isa = isa_from_name(name);
    const std::vector<CpuIsa> available = available_isas();
    if (!isa && cuda_is_present()) {
      backend_ = make_cuda_backend();
    } else if (isa && std::find(available.begin(), available.end(), *isa) != available.end()) {
      backend_ = make_cpu_backend(*isa, pool_);
    } else {
      GTEST_SKIP() << "skipped: no " << name;
    }
  }

  void expect_within_bound(const ParityResult& result, const std::string& what) {
    EXPECT_LE(result.worst_share, 1.0) << what << ": " << result.worst_sequence << " is off by "
                                       << result.worst_largest_error << " of its largest logit";
    worst_share_ = std::max(worst_share_, result.worst_share);
    ++comparisons_;
  }

  // A GPU's fast kernels must take what they were made for.
  void name_kernel(const std::string& golden, std::int64_t head_dim, DType dtype) {
    if (backend_->device() == DeviceKind::kCpu) return;
    const std::string_view kernel = backend_->attention_kernel(backend_->activation_dtype(dtype), dtype, head_dim);
    fmt::print("{}: {}, head_dim {}, attention on {}\n", golden, dtype_name(dtype), head_dim, kernel);
    if (dtype != DType::kFloat32 && (head_dim == 64 || head_dim == 128 || head_dim == 256)) {
      EXPECT_EQ(kernel, "tensor cores") << golden;
    }
  }

  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_;
  double worst_share_ = 0.0;
  int comparisons_ = 0;
};

TEST_P(Parity, EveryGoldenEveryWay) {
  const DType dtype = std::get<1>(GetParam());
  std::size_t runs = 0;
  for (const GoldenCase& golden : golden_cases()) {
    ParityRun parity(golden, *backend_, dtype);
    name_kernel(golden.name, parity.model_info().head_dim, dtype);
    for (const ParityMode& mode : parity_modes()) {
      for (const GoldenRun& run : golden.runs) {
        expect_within_bound(parity.force(run, mode.options),
                            fmt::format("{}/{} {}", golden.name, run.adapter, mode.name));
      }
      expect_within_bound(parity.force_all_runs(mode.options), fmt::format("{} mixed {}", golden.name, mode.name));
    }
    for (const GoldenRun& run : golden.runs) {
      EXPECT_EQ(parity.greedy_difference(run), "") << golden.name << "/" << run.adapter;
    }
    runs += golden.runs.size();
  }
  EXPECT_EQ(golden_cases().size(), kCases);
  EXPECT_EQ(runs, kRuns);
  fmt::print("{} comparisons, worst at {:.2f} of its bound\n", comparisons_, worst_share_);
}

std::string param_name(const testing::TestParamInfo<std::tuple<std::string, DType>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), dtype_name(std::get<1>(info.param)));
}

constexpr std::array<DType, 3> kDtypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

INSTANTIATE_TEST_SUITE_P(Cpu, Parity,
                         testing::Combine(testing::Values("reference", "avx2", "avx512", "avx512bf16"),
                                          testing::ValuesIn(kDtypes)),
                         param_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Parity, testing::Combine(testing::Values("cuda"), testing::ValuesIn(kDtypes)),
                         param_name);

}  // namespace
}  // namespace shoal
