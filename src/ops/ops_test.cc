#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "ops/matmul.h"
#include "ops/op_test_util.h"

namespace shoal {
namespace {

TEST(Backends, AreNamedAndTheReferenceIsAlwaysThere) {
  const std::vector<CpuIsa> available = available_isas();
  ASSERT_FALSE(available.empty());
  EXPECT_EQ(available[0], CpuIsa::kReference);
  EXPECT_TRUE(std::is_sorted(available.begin(), available.end()));
  EXPECT_NE(std::find(available.begin(), available.end(), default_isa()), available.end());
  std::string ran;
  for (const CpuIsa isa : all_isas()) {
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
    const bool here = std::find(available.begin(), available.end(), isa) != available.end();
    ran += fmt::format("{}{} ", here ? "" : "no ", isa_name(isa));
    if (!here) continue;
    const TestBackend tested(isa);
    EXPECT_NE(tested.backend().name().find(isa_name(isa)), std::string_view::npos) << tested.backend().name();
    EXPECT_EQ(tested.backend().device(), DeviceKind::kCpu);
    EXPECT_EQ(tested.backend().activation_dtype(DType::kBFloat16), DType::kFloat32);
  }
  std::printf("kernel sets: %s\n", ran.c_str());
  EXPECT_EQ(isa_from_name("sse"), std::nullopt);
  EXPECT_EQ(isa_from_name(""), std::nullopt);
  EXPECT_EQ(make_reference_backend()->name(), "reference");
}

TEST(Backends, CopyBytesBothWays) {
  for (const CpuIsa isa : available_isas()) {
    const TestBackend tested(isa);
    const HostTensor host = values_i64({1, -2, 3});
    const HostTensor device(DType::kInt64, {3});
    const HostTensor back(DType::kInt64, {3});
    tested.backend().copy_to_device(host, device);
    tested.backend().copy_to_host(device, back);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(back.view().span<std::int64_t>()[i], host.view().span<std::int64_t>()[i]);
  }
}

// What a wrong call prints before it stops. The reference backend has no threads, so a fork is safe.
class OpChecksDeathTest : public ::testing::Test {
 protected:
  static HostTensor f32(const std::vector<std::int64_t>& shape) {
    HostTensor tensor(DType::kFloat32, shape);
    RandomFill(1).fill(tensor);
    return tensor;
  }

  TestBackend tested_{CpuIsa::kReference, 1};
  Context& ctx_ = tested_.ctx();
  Matrix weight_ = tested_.matrix(DType::kFloat32, f32({4, 3}));
};

TEST_F(OpChecksDeathTest, MatmulRefusesWrongShapesAndOverlap) {
  const HostTensor x = f32({2, 3});
  const HostTensor out = f32({2, 4});
  const auto run = [&](const Tensor& in, const Tensor& bias, const Tensor& to) {
    ops::matmul(ctx_, in, weight_, bias, MatmulOutput::kOverwrite, to);
  };
  run(x, Tensor(), out);
  EXPECT_DEATH(run(f32({2, 4}), Tensor(), out), "check failed");
  EXPECT_DEATH(run(x, Tensor(), f32({2, 3})), "check failed");
  EXPECT_DEATH(run(x, Tensor(), f32({1, 4})), "check failed");
  EXPECT_DEATH(run(x, f32({3}), out), "check failed");
  EXPECT_DEATH(run(x, HostTensor(DType::kBFloat16, {4}), out), "bfloat16");
  EXPECT_DEATH(run(HostTensor(DType::kBFloat16, {2, 3}), Tensor(), out), "bfloat16");
  const HostTensor both = f32({2, 7});
  run(both.view().columns(0, 3), Tensor(), both.view().columns(3, 4));
  EXPECT_DEATH(run(both.view().columns(0, 3), Tensor(), both.view().columns(2, 4)), "overlap");
}

TEST_F(OpChecksDeathTest, IndicesStayInTheirTables) {
  const HostTensor out = f32({2, 3});
  const auto embed = [&](const Tensor& ids) { ops::embedding(ctx_, ids, weight_, EmbeddingOutput::kOverwrite, out); };
  embed(values_i64({0, 3}));
  EXPECT_DEATH(embed(values_i64({0, 4})), "with 4 and 4");
  EXPECT_DEATH(embed(values_i32({-1, 0})), "with -1 and 0");
  const auto gather = [&](std::int64_t index) { ops::gather_rows(ctx_, f32({5, 3}), values_i64({0, index}), out); };
  gather(4);
  EXPECT_DEATH(gather(5), "with 5 and 5");
  const HostTensor cos_sin = f32({4, 2});
  const auto rotate = [&](std::int32_t position) {
    ops::rotary(ctx_, values_i32({position}), cos_sin, RotaryStyle::kHalfSplit, f32({1, 1, 2}));
  };
  rotate(3);
  EXPECT_DEATH(rotate(4), "with 4 and 4");
  const HostTensor cache = f32({2, kBlockSize, 1, 2});
  const auto write = [&](std::int64_t slot) {
    ops::write_cache(ctx_, f32({1, 1, 2}), f32({1, 1, 2}), values_i64({slot}), cache, cache);
  };
  write(31);
  EXPECT_DEATH(write(32), "with 32 and 32");
  EXPECT_DEATH(write(-1), "with -1 and 0");
}

TEST_F(OpChecksDeathTest, RotaryRefusesOddAndWideTables) {
  const HostTensor positions = values_i32({0});
  const auto rotate = [&](std::int64_t rotary_dim, std::int64_t head_dim) {
    ops::rotary(ctx_, positions, f32({1, rotary_dim}), RotaryStyle::kHalfSplit, f32({1, 1, head_dim}));
  };
  rotate(2, 3);
  EXPECT_DEATH(rotate(3, 4), "check failed");
  EXPECT_DEATH(rotate(4, 2), "check failed");
}

TEST_F(OpChecksDeathTest, PartialOverlapIsNotInPlace) {
  const HostTensor memory = f32({4, 6});
  const Tensor left = memory.view().columns(0, 3);
  ops::scale(ctx_, left, 2.0F, left);
  ops::scale(ctx_, left, 2.0F, memory.view().columns(3, 3));
  ops::scale(ctx_, left.rows(0, 2), 2.0F, left.rows(2, 2));
  EXPECT_DEATH(ops::scale(ctx_, left, 2.0F, memory.view().columns(1, 3)), "check failed");
  EXPECT_DEATH(ops::scale(ctx_, left.rows(0, 3), 2.0F, left.rows(1, 3)), "check failed");
  EXPECT_DEATH(ops::rms_norm(ctx_, left, f32({3}), 0.1F, memory.view().columns(2, 3)), "check failed");
  EXPECT_DEATH(ops::gated_activation(ctx_, Activation::kSilu, memory, left), "overlap");
}

// A step of one decode row over two cached keys; each test spoils one thing.
class AttentionChecksDeathTest : public OpChecksDeathTest {
 protected:
  void attend(std::int64_t heads, std::int32_t block, std::int64_t max_blocks, std::int32_t num_queries) {
    std::array<std::int32_t, 1> query{num_queries};
    std::array<std::int32_t, 1> cached{2};
    std::array<std::int32_t, 2> cu_query{0, num_queries};
    std::array<std::int32_t, 2> cu_cached{0, 2};
    const SequenceLengths seqlen{.query = {query.data(), DType::kInt32, {1}},
                                 .cached = {cached.data(), DType::kInt32, {1}},
                                 .cu_query = {cu_query.data(), DType::kInt32, {2}},
                                 .cu_cached = {cu_cached.data(), DType::kInt32, {2}},
                                 .host_query = query,
                                 .host_cached = cached,
                                 .host_cu_query = cu_query,
                                 .host_cu_cached = cu_cached,
                                 .num_decode = 1};
    const HostTensor cache = f32({3, kBlockSize, 2, 4});
    HostTensor tables(DType::kInt32, {1, max_blocks});
    if (max_blocks > 0) tables.view().data<std::int32_t>()[0] = block;
    ops::attention(ctx_,
                   {.query = f32({1, heads, 4}),
                    .key_cache = cache,
                    .value_cache = cache,
                    .block_tables = tables,
                    .seqlen = seqlen},
                   f32({1, heads, 4}));
  }
};

TEST_F(AttentionChecksDeathTest, RefusesWrongHeadsBlocksAndLengths) {
  attend(4, 2, 1, 1);
  EXPECT_DEATH(attend(3, 2, 1, 1), "check failed");
  EXPECT_DEATH(attend(4, 3, 1, 1), "with 3 and 3");
  EXPECT_DEATH(attend(4, -1, 1, 1), "with -1 and 0");
  EXPECT_DEATH(attend(4, 2, 0, 1), "check failed");
  EXPECT_DEATH(attend(4, 2, 1, 2), "check failed");
}

TEST_F(OpChecksDeathTest, LoraRefusesPairsThatDoNotFit) {
  std::array<std::int32_t, 1> rows{0};
  const auto run = [&](std::int64_t num_inputs, std::int64_t columns, std::int64_t max_rank, std::int32_t row) {
    rows[0] = row;
    const HostTensor a = f32({2, num_inputs});
    const HostTensor b = f32({2, columns});
    const std::array<LoraPair, 1> pairs{LoraPair{.a = a, .b = b, .scale = 1.0F}};
    const std::array<LoraGroup, 1> groups{LoraGroup{.pairs = pairs, .token_begin = 0, .token_count = 1}};
    const LoraBatch batch{.groups = groups,
                          .token_rows = {rows.data(), DType::kInt32, {1}},
                          .host_token_rows = rows,
                          .max_rank = max_rank};
    const std::array<LoraPart, 1> parts{LoraPart{.target_id = 0, .column_begin = 1, .column_count = 4}};
    ops::lora_add(ctx_, f32({2, 3}), batch, parts, f32({2, 5}));
  };
  run(3, 4, 2, 1);
  EXPECT_DEATH(run(2, 4, 2, 1), "check failed");
  EXPECT_DEATH(run(3, 5, 2, 1), "check failed");
  EXPECT_DEATH(run(3, 4, 1, 1), "check failed");
  EXPECT_DEATH(run(3, 4, 2, 2), "with 2 and 2");
}

}  // namespace
}  // namespace shoal
