// What the op tests share: one fixture over all kernel sets, host tensors with guarded padding, and comparisons.
// Used by the tests of ops/ alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "ops/backends.h"

namespace shoal {

// A backend with its pool, scratch and context.
class TestBackend {
 public:
  explicit TestBackend(CpuIsa isa, int num_threads = 3);

  Context& ctx() { return ctx_; }
  const Backend& backend() const { return *backend_; }
  // The values of `host` [rows, cols] as a weight of this backend.
  Matrix matrix(DType dtype, const Tensor& host) const;

 private:
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  Context ctx_;
};

// Runs each test once a kernel set; skips those that this processor lacks, by name.
class BackendTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override;

  Context& ctx() { return tested_->ctx(); }
  TestBackend& tested() { return *tested_; }
  Context& reference_ctx() { return reference_.ctx(); }
  TestBackend& reference() { return reference_; }

 private:
  std::optional<TestBackend> tested_;
  TestBackend reference_{CpuIsa::kReference, 1};
};

std::string isa_test_name(const ::testing::TestParamInfo<CpuIsa>& info);
const std::vector<CpuIsa>& all_isas();
// Those that are compared with the reference.
std::vector<CpuIsa> kernel_isas();

enum class Padding : std::uint8_t { kNone, kRows };

// A host tensor and its memory. With padded rows, each row starts off alignment between guard elements: NaN in
// float tensors, so that a kernel which reads them shows it, and checked for stray writes.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, const std::vector<std::int64_t>& shape, Padding padding = Padding::kNone);
  // The same values and row distances in other memory.
  HostTensor clone() const;

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT(google-explicit-constructor): stands in for its view
  float at(std::int64_t row, std::int64_t column) const;
  void set(std::int64_t row, std::int64_t column, float value);
  bool guards_intact() const;

 private:
  Buffer buffer_;
  Tensor whole_;  // [rows, row_elements + guards]
  Tensor view_;
  Padding padding_ = Padding::kNone;
};

// Uniform values, the same for the same seed.
class RandomFill {
 public:
  explicit RandomFill(std::uint64_t seed) : engine_(seed) {}

  float uniform(float low, float high);
  std::int64_t integer(std::int64_t begin, std::int64_t end);
  void fill(HostTensor& tensor, float low = -1.0F, float high = 1.0F);
  HostTensor tensor(DType dtype, const std::vector<std::int64_t>& shape, Padding padding = Padding::kNone);

 private:
  std::mt19937_64 engine_;
};

HostTensor values_f32(const std::vector<std::int64_t>& shape, std::initializer_list<float> values);
HostTensor values_i32(std::initializer_list<std::int32_t> values);
HostTensor values_i64(std::initializer_list<std::int64_t> values);
// Each element of `got` is within tolerance * magnitude of `want`. `where` is what the message says.
void expect_close(const HostTensor& got, const HostTensor& want, double tolerance, double magnitude,
                  const std::string& where);
// Rows [begin, begin + count) of `batch` have the bits of all rows of `alone`.
void expect_same_bits(const HostTensor& batch, std::int64_t begin, const HostTensor& alone, const std::string& where);

}  // namespace shoal
