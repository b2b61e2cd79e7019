// Ops that treat each row on its own: look-ups, norms, rotary positions, cache writes, elementwise ops, and copies.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/block_size.h"
#include "ops/attention.h"
#include "ops/cuda/cuda_test_util.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rotary.h"

namespace shoal {
namespace {

constexpr std::array kBothGuards{kContiguous, kOddGuards};
constexpr std::array kActivations{Activation::kSilu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kRelu};
constexpr std::array<std::int64_t, 8> kNormWidths{1, 7, 64, 2048, 4544, 6144, 12288, 20000};
constexpr std::array<std::int64_t, 5> kWidths{1, 7, 64, 300, 4544};

std::string describe(DType dtype, std::int64_t width, Guards guards) {
  return fmt::format("{}, width {}, {} guards", dtype_name(dtype), width, guards.before);
}

class CudaRows : public CudaTest {
 protected:
  // `f(dtype, width, guards, random, where)` for every combination.
  template <std::size_t kCount, typename F>
  void sweep(const std::array<std::int64_t, kCount>& widths, const F& f) {
    RandomFill random(1);
    for (const DType dtype : kFloatDTypes) {
      for (const std::int64_t width : widths) {
        for (const Guards guards : kBothGuards) f(dtype, width, guards, random, describe(dtype, width, guards));
      }
    }
  }

  Twin between(RandomFill& random, DType dtype, std::int64_t width, Guards guards, float low, float high) {
    HostTensor values(dtype, {5, width});
    random.fill(values, low, high);
    return twin(values, guards);
  }
};

TEST_F(CudaRows, EmbeddingTakesTheTablesRows) {
  sweep(kWidths, [&](DType dtype, std::int64_t width, Guards guards, RandomFill& random, const std::string& where) {
    const HostTensor values = random.tensor(dtype, {11, width});
    Matrix table = backend().allocate_matrix(dtype, 11, width);
    backend().fill_rows(table, 0, values);
    Matrix reference_table = reference_ctx().backend.allocate_matrix(dtype, 11, width);
    reference_ctx().backend.fill_rows(reference_table, 0, values);
    const Twin wide_ids = twin(values_i64({10, 0, 3, 3}));
    const Twin narrow_ids = twin(values_i32({10, 0, 3, 3}));
    for (const Twin* ids : {&wide_ids, &narrow_ids}) {
      for (const EmbeddingOutput mode : {EmbeddingOutput::kOverwrite, EmbeddingOutput::kAccumulate}) {
        const Twin out = random_twin(random, dtype, {4, width}, guards);
        ops::embedding(ctx(), ids->device, table, mode, out.device);
        ops::embedding(reference_ctx(), ids->reference, reference_table, mode, out.reference);
        expect_rounded(out, where + (mode == EmbeddingOutput::kAccumulate ? ", accumulated" : ""));
      }
    }
  });
}

TEST_F(CudaRows, NormsMatchReference) {
  sweep(kNormWidths, [&](DType dtype, std::int64_t width, Guards guards, RandomFill& random, const std::string& where) {
    const Twin weight = random_twin(random, DType::kFloat32, {width});
    const Twin bias = random_twin(random, DType::kFloat32, {width});
    // A mean beside zero; then rows so small that epsilon decides.
    for (const float size : {1.0F, 1e-3F}) {
      const Twin x = between(random, dtype, width, guards, -size, 3 * size);
      const Twin rms = random_twin(random, dtype, {5, width}, guards);
      const Twin layer = random_twin(random, dtype, {5, width}, guards);
      const Twin plain = random_twin(random, dtype, {5, width}, guards);
      for (const Side side : {Side::kDevice, Side::kReference}) {
        ops::rms_norm(ctx(side), x.on(side), weight.on(side), 1e-5F, rms.on(side));
        ops::layer_norm(ctx(side), x.on(side), weight.on(side), bias.on(side), 1e-5F, layer.on(side));
        ops::layer_norm(ctx(side), x.on(side), weight.on(side), Tensor(), 1e-5F, plain.on(side));
        ops::rms_norm(ctx(side), x.on(side), weight.on(side), 1e-5F, x.on(side));  // in place
      }
      // A normalised value is at most about 3, its weight and bias 1.
      const Bound bound{.family = OpFamily::kNorm, .magnitude = 4.0};
      const std::string of_size = fmt::format("{}, values of {}", where, size);
      expect_within(rms, bound, "rms_norm, " + of_size);
      expect_within(layer, bound, "layer_norm, " + of_size);
      expect_within(plain, bound, "layer_norm without bias, " + of_size);
      expect_within(x, bound, "rms_norm in place, " + of_size);
    }
  });
}

TEST_F(CudaRows, HeadLayerNormMatchesReference) {
  sweep(std::array<std::int64_t, 4>{1, 24, 64, 128}, [&](DType dtype, std::int64_t head_dim, Guards guards,
                                                         RandomFill& random, const std::string& where) {
    const Twin weight = random_twin(random, DType::kFloat32, {6, head_dim});
    const Twin x = random_twin(random, dtype, {3, 6, head_dim}, guards);
    ops::head_layer_norm(ctx(), weight.device, 1e-5F, x.device);
    ops::head_layer_norm(reference_ctx(), weight.reference, 1e-5F, x.reference);
    expect_within(x, {.family = OpFamily::kNorm, .magnitude = 4.0}, where);  // a normalised value is at most about 3
  });
}

TEST_F(CudaRows, RotaryMatchesReference) {
  sweep(std::array<std::int64_t, 4>{24, 64, 80, 128},
        [&](DType dtype, std::int64_t head_dim, Guards guards, RandomFill& random, const std::string& where) {
          const Twin positions = twin(values_i32({40, 0, 3, 39, 1}));
          for (const std::int64_t rotary_dim : {head_dim, head_dim / 4, std::int64_t{2}}) {
            const Twin cos_sin = random_twin(random, DType::kFloat32, {41, rotary_dim});
            for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kNeighbours}) {
              const Twin x = random_twin(random, dtype, {5, 3, head_dim}, guards);
              ops::rotary(ctx(), positions.device, cos_sin.device, style, x.device);
              ops::rotary(reference_ctx(), positions.reference, cos_sin.reference, style, x.reference);
              expect_within(x, {.family = OpFamily::kRotary, .magnitude = 2.0},  // two products of at most 1
                            fmt::format("{}, rotary_dim {}, style {}", where, rotary_dim, static_cast<int>(style)));
            }
          }
        });
}

TEST_F(CudaRows, WriteCacheRoundsIntoItsSlotsAndTouchesNoOther) {
  const Twin slots = twin(values_i64({63, 0, 17, 16, 40}));
  for (const DType cache_dtype : kFloatDTypes) {
    sweep(std::array<std::int64_t, 4>{1, 8, 17, 64},
          [&](DType dtype, std::int64_t head_dim, Guards guards, RandomFill& random, const std::string& where) {
            const Twin key = random_twin(random, dtype, {5, 3, head_dim}, guards);
            const Twin value = random_twin(random, dtype, {5, 3, head_dim}, guards);
            const HostTensor want_keys = random.tensor(cache_dtype, {4, kBlockSize, 3, head_dim});
            const HostTensor want_values = random.tensor(cache_dtype, {4, kBlockSize, 3, head_dim});
            const DeviceTensor keys(backend(), want_keys);
            const DeviceTensor values(backend(), want_values);
            ops::write_cache(ctx(), key.device, value.device, slots.device, keys, values);
            ops::write_cache(reference_ctx(), key.reference, value.reference, slots.reference, want_keys, want_values);
            const std::string into = fmt::format("{} cache, {}", dtype_name(cache_dtype), where);
            expect_equal_bits(keys.download(), want_keys, "keys, " + into);
            expect_equal_bits(values.download(), want_values, "values, " + into);
          });
  }
}

TEST_F(CudaRows, RotaryWriteCacheIsRotaryThenWriteCache) {
  const Twin slots = twin(values_i64({63, 0, 17, 16, 40}));
  const Twin positions = twin(values_i32({40, 0, 3, 39, 1}));
  for (const DType cache_dtype : kFloatDTypes) {
    sweep(std::array<std::int64_t, 3>{24, 64, 128},
          [&](DType dtype, std::int64_t head_dim, Guards guards, RandomFill& random, const std::string& where) {
            for (const std::int64_t rotary_dim : {head_dim, head_dim / 4}) {
              const Twin cos_sin = random_twin(random, DType::kFloat32, {41, rotary_dim});
              for (const RotaryStyle style : {RotaryStyle::kHalfSplit, RotaryStyle::kNeighbours}) {
                const HostTensor query_values = random.tensor(dtype, {5, 7, head_dim});
                const HostTensor key_values = random.tensor(dtype, {5, 3, head_dim});
                const Twin value = random_twin(random, dtype, {5, 3, head_dim}, guards);
                const HostTensor cache = random.tensor(cache_dtype, {4, kBlockSize, 3, head_dim});
                const DeviceTensor query(backend(), query_values, guards), query_apart(backend(), query_values, guards);
                const DeviceTensor key(backend(), key_values, guards), key_apart(backend(), key_values, guards);
                const DeviceTensor keys(backend(), cache), keys_apart(backend(), cache);
                const DeviceTensor values(backend(), cache), values_apart(backend(), cache);
                ops::rotary_write_cache(ctx(), {.query = query,
                                                .key = key,
                                                .value = value.device,
                                                .positions = positions.device,
                                                .cos_sin = cos_sin.device,
                                                .style = style,
                                                .slots = slots.device,
                                                .key_cache = keys,
                                                .value_cache = values});
                ops::rotary(ctx(), positions.device, cos_sin.device, style, query_apart);
                ops::rotary(ctx(), positions.device, cos_sin.device, style, key_apart);
                ops::write_cache(ctx(), key_apart, value.device, slots.device, keys_apart, values_apart);
                const std::string what = fmt::format("{} cache, {}, rotary_dim {}, style {}", dtype_name(cache_dtype),
                                                     where, rotary_dim, static_cast<int>(style));
                expect_equal_bits(query.download(), query_apart.download(), "query, " + what);
                expect_equal_bits(keys.download(), keys_apart.download(), "keys, " + what);
                expect_equal_bits(values.download(), values_apart.download(), "values, " + what);
              }
            }
          });
  }
}

TEST_F(CudaRows, ActivationsMatchReference) {
  sweep(kWidths, [&](DType dtype, std::int64_t width, Guards guards, RandomFill& random, const std::string& where) {
    for (const Activation kind : kActivations) {
      const Twin x = between(random, dtype, width, guards, -8.0F, 8.0F);
      const Twin gate_up = between(random, dtype, 2 * width, guards, -8.0F, 8.0F);
      const Twin gated = random_twin(random, dtype, {5, width}, guards);
      const Twin out = random_twin(random, dtype, {5, width}, guards);
      for (const Side side : {Side::kDevice, Side::kReference}) {
        ops::gated_activation(ctx(side), kind, gate_up.on(side), gated.on(side));
        ops::activation(ctx(side), kind, x.on(side), out.on(side));
        ops::activation(ctx(side), kind, x.on(side), x.on(side));
      }
      const std::string of_kind = fmt::format("{}, kind {}", where, static_cast<int>(kind));
      const Bound bound{.family = OpFamily::kActivation, .magnitude = 8.0};  // |x| * (1 + something in [-1, 1])
      expect_within(out, bound, of_kind);
      expect_within(x, bound, of_kind + ", in place");
      expect_within(gated, {.family = OpFamily::kActivation, .magnitude = 64.0}, of_kind + ", gated");
    }
  });
}

TEST_F(CudaRows, ActivationsKeepNan) {
  for (const DType dtype : kFloatDTypes) {
    for (const Activation kind : kActivations) {
      HostTensor values(dtype, {1, 4});
      for (std::int64_t i = 0; i < 4; ++i) values.set(0, i, i == 2 ? std::nanf("") : 0.5F);
      const Twin x = twin(values);
      ops::activation(ctx(), kind, x.device, x.device);
      const HostTensor got = x.device.download();
      for (std::int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(std::isnan(got.at(0, i)), i == 2) << dtype_name(dtype) << ", kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST_F(CudaRows, SumsMixesScalesAndGathersMatchReference) {
  sweep(kWidths, [&](DType dtype, std::int64_t width, Guards guards, RandomFill& random, const std::string& where) {
    const Twin a = random_twin(random, dtype, {5, width}, guards);
    const Twin b = random_twin(random, dtype, {5, width}, guards);
    const Twin indices = twin(values_i64({4, 0, 4}));
    const Twin sum = random_twin(random, dtype, {5, width}, guards);
    const Twin mixed = random_twin(random, dtype, {5, width}, guards);
    const Twin scaled = random_twin(random, dtype, {5, width}, guards);
    const Twin gathered = random_twin(random, dtype, {3, width}, guards);
    for (const Side side : {Side::kDevice, Side::kReference}) {
      ops::add(ctx(side), a.on(side), b.on(side), sum.on(side));
      ops::mix(ctx(side), a.on(side), b.on(side), 0.3F, mixed.on(side));
      ops::scale(ctx(side), a.on(side), 0.37F, scaled.on(side));
      ops::gather_rows(ctx(side), a.on(side), indices.on(side), gathered.on(side));
      ops::add(ctx(side), a.on(side), b.on(side), b.on(side));
    }
    expect_rounded(sum, "add, " + where);
    expect_rounded(b, "add in place, " + where);
    expect_within(mixed, {.family = OpFamily::kActivation}, "mix, " + where);
    expect_rounded(scaled, "scale, " + where);
    expect_rounded(gathered, "gather_rows, " + where);
  });
}

TEST_F(CudaRows, CopiesAndFillsKeepTheirOrderOnTheStream) {
  RandomFill random(2);
  const HostTensor first = random.tensor(DType::kFloat16, {7, 33});
  const HostTensor second = random.tensor(DType::kFloat16, {7, 33});
  const DeviceTensor a(backend(), DType::kFloat16, {7, 33});
  const DeviceTensor b(backend(), DType::kFloat16, {7, 33});
  const HostTensor back(DType::kFloat16, {7, 33});
  const Stream stream = backend().main_stream();
  backend().upload(stream, first, a);
  backend().copy(stream, a, b);
  backend().upload(stream, second, a);
  backend().download(stream, b, back);
  backend().fill_bytes(stream, b.view().rows(2, 3), 0x5a);
  backend().synchronize(stream);
  expect_equal_bits(back, first, "download");
  expect_equal_bits(a.download(), second, "upload");
  const HostTensor filled = b.download();
  for (std::int64_t i = 0; i < filled.view().num_bytes(); ++i) {
    const bool inside = i / 66 >= 2 && i / 66 < 5;
    const std::uint8_t want = inside ? 0x5a : static_cast<const std::uint8_t*>(first.view().raw())[i];
    ASSERT_EQ(static_cast<const std::uint8_t*>(filled.view().raw())[i], want) << "byte " << i;
  }
}

}  // namespace
}  // namespace shoal
