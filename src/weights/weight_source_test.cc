#include "weights/weight_source.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "weights/progress.h"
#include "weights/row_blocks.h"
#include "weights/tensor_values.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

// A file tensor [rows, cols] of random numbers in `dtype`, and the same numbers as floats.
struct Random {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  std::vector<std::byte> bytes;
  std::vector<float> values;

  Random(DType matrix_dtype, std::int64_t num_rows, std::int64_t num_cols)
      : dtype(matrix_dtype), rows(num_rows), cols(num_cols) {
    std::mt19937 random(static_cast<std::uint32_t>(num_rows * 131 + num_cols));
    const auto element_bytes = static_cast<std::size_t>(dtype_bytes(dtype));
    const auto count = static_cast<std::size_t>(rows * cols);
    bytes.resize(count * element_bytes + 1);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random() % 20001) / 10000.0F - 1.0F;
      const std::uint16_t narrow = dtype == DType::kBFloat16 ? to_bfloat16(value).bits : to_float16(value).bits;
      if (dtype == DType::kFloat32) {
        std::memcpy(bytes.data() + i * element_bytes, &value, sizeof(value));
      } else {
        std::memcpy(bytes.data() + i * element_bytes, &narrow, sizeof(narrow));
      }
    }
    values = float_values(tensor());
  }
  Tensor tensor() { return Tensor(bytes.data(), dtype, {rows, cols}); }
  float at(std::int64_t row, std::int64_t col) const { return values[static_cast<std::size_t>(row * cols + col)]; }
};

// Reads a request and checks what every sink may rely on; gives the rows as floats.
std::vector<float> read_all(WeightSource& source, const MatrixRequest& request, DType dtype) {
  const std::int64_t num_cols = request.column_count > 0 ? request.column_count : request.cols - request.column_begin;
  const std::int64_t num_rows = request.row_ranges.empty() ? request.rows : count_rows(request.row_ranges);
  std::vector<float> all;
  std::int64_t next_row = 0;
  source.read_rows(request, [&](std::int64_t row_begin, const Tensor& host_rows) {
    EXPECT_EQ(row_begin, next_row);
    EXPECT_EQ(row_begin % kRowsPerPanel, 0);
    EXPECT_EQ(host_rows.dims(), 2);
    EXPECT_EQ(host_rows.dim(1), num_cols);
    EXPECT_EQ(host_rows.dtype(), dtype);
    EXPECT_TRUE(host_rows.contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host_rows.raw()) % static_cast<std::uintptr_t>(dtype_bytes(dtype)), 0U);
    EXPECT_LE(host_rows.num_bytes(), std::max<std::int64_t>(8 << 20, kRowsPerPanel * num_cols * dtype_bytes(dtype)));
    next_row += host_rows.dim(0);
    const std::vector<float> values = float_values(host_rows);
    all.insert(all.end(), values.begin(), values.end());
  });
  EXPECT_EQ(next_row, num_rows);
  return all;
}

// What a request means, one element at a time.
std::vector<float> naive(const Random& file, const MatrixRequest& request) {
  const std::int64_t col_end = request.column_count > 0 ? request.column_begin + request.column_count : request.cols;
  std::vector<float> all;
  for (const RowRange& range : request.row_ranges.empty() ? identity_rows(request.rows) : request.row_ranges) {
    for (std::int64_t row = range.begin; row < range.begin + range.count; ++row) {
      for (std::int64_t col = request.column_begin; col < col_end; ++col) {
        all.push_back(request.orientation == Orientation::kOutIn ? file.at(row, col) : file.at(col, row));
      }
    }
  }
  return all;
}

void expect_same_as_naive(Random& file, Orientation orientation) {
  const TempFolder folder;
  write_safetensors(folder.file("model.safetensors"), std::vector<NamedTensor>{{"w", file.tensor()}});
  WeightSource source(Checkpoint::open(folder.path()));
  MatrixRequest request{.name = "w", .rows = file.rows, .cols = file.cols, .orientation = orientation};
  if (orientation == Orientation::kInOut) std::swap(request.rows, request.cols);
  EXPECT_EQ(read_all(source, request, file.dtype), naive(file, request));
  if (request.cols > 2) {
    request.column_begin = 1;
    request.column_count = request.cols - 2;
    EXPECT_EQ(read_all(source, request, file.dtype), naive(file, request));
  }
  if (request.rows > 40) {
    request.row_ranges = {{33, 7}, {0, 17}, {5, 0}, {40, request.rows - 40}, {0, 1}};
    EXPECT_EQ(read_all(source, request, file.dtype), naive(file, request));
    request.column_begin = 0;
    request.column_count = 0;
    EXPECT_EQ(read_all(source, request, file.dtype), naive(file, request));
  }
  source.finish();
}

TEST(WeightSource, RowsMatchANaiveReadInEveryDtypeAndOrientation) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {1, 37}, {17, 1}, {16, 64}, {45, 33}, {131, 71}, {97, 4099}}) {
      Random file(dtype, rows, cols);
      expect_same_as_naive(file, Orientation::kOutIn);
      expect_same_as_naive(file, Orientation::kInOut);
    }
  }
}

TEST(WeightSource, LargeMatricesComeInSeveralBlocks) {
  Random file(DType::kFloat32, 1031, 2311);  // 9.5 MB
  expect_same_as_naive(file, Orientation::kOutIn);
  expect_same_as_naive(file, Orientation::kInOut);
  Random wide(DType::kFloat16, 18, 300001);  // sixteen rows pass the block size
  expect_same_as_naive(wide, Orientation::kOutIn);
}

TEST(WeightSource, UnalignedTensorsReadTheSame) {
  const TempFolder folder;
  Random file(DType::kFloat32, 19, 5);
  const std::string num_end = std::to_string(1 + 19 * 5 * 4);
  std::string text = raw_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                     R"("w":{"dtype":"F32","shape":[19,5],"data_offsets":[1,)" +
                                         num_end + "]}}",
                                     1);
  text.append(reinterpret_cast<const char*>(file.bytes.data()), 19 * 5 * 4);
  folder.write("model.safetensors", text);
  WeightSource source(Checkpoint::open(folder.path()));
  const MatrixRequest request{.name = "w", .rows = 19, .cols = 5};
  EXPECT_EQ(read_all(source, request, DType::kFloat32), file.values);
}

TEST(WeightSource, EmptyRangesAndEmptyTensorsGiveNoRows) {
  const TempFolder folder;
  write_floats(folder.file("model.safetensors"), {{"w", {4, 2}, std::vector<float>(8)}, {"none", {0, 5}, {0.0F}}});
  WeightSource source(Checkpoint::open(folder.path()));
  const auto no_rows = [](std::int64_t, const Tensor&) { FAIL() << "no rows were asked for"; };
  source.read_rows({.name = "w", .rows = 4, .cols = 2, .row_ranges = {{2, 0}}}, no_rows);
  source.read_rows({.name = "none", .rows = 0, .cols = 5}, no_rows);
  source.read_rows({.name = "none", .rows = 5, .cols = 0, .orientation = Orientation::kInOut}, no_rows);
  source.finish();
}

TEST(WeightSource, RangesOutsideTheMatrixAreOurMistake) {
  WeightSource source = WeightSource::dummy(DType::kFloat32);
  const auto sink = [](std::int64_t, const Tensor&) {};
  EXPECT_DEATH(source.read_rows({.name = "w", .rows = 4, .cols = 2, .row_ranges = {{3, 2}}}, sink), "check failed");
  EXPECT_DEATH(source.read_rows({.name = "w", .rows = 4, .cols = 2, .column_begin = 1, .column_count = 2}, sink),
               "check failed");
}

TEST(WeightSource, VectorsAndFloatsOfEveryDtype) {
  const TempFolder folder;
  std::vector<float> wide{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  std::vector<BFloat16> narrow{to_bfloat16(0.5F), to_bfloat16(-3.0F)};
  std::vector<Float16> half{to_float16(0.25F)};
  const std::vector<NamedTensor> tensors{{"bias", Tensor(wide.data(), DType::kFloat32, {6})},
                                         {"q_norm", Tensor(wide.data(), DType::kFloat32, {2, 3})},
                                         {"narrow", Tensor(narrow.data(), DType::kBFloat16, {2})},
                                         {"half", Tensor(half.data(), DType::kFloat16, {1})}};
  write_safetensors(folder.file("model.safetensors"), tensors);
  WeightSource source(Checkpoint::open(folder.path()));
  EXPECT_EQ(source.read_vector("bias", 6), wide);
  EXPECT_EQ(source.read_vector("bias", 6, std::vector<RowRange>{{4, 2}, {0, 1}, {2, 0}}),
            (std::vector<float>{5.0F, 6.0F, 1.0F}));
  EXPECT_EQ(source.read_floats("q_norm", {2, 3}), wide);
  EXPECT_EQ(source.read_vector("narrow", 2), (std::vector<float>{0.5F, -3.0F}));
  EXPECT_EQ(source.read_vector("half", 1), std::vector<float>{0.25F});
  EXPECT_EQ(source.dtype_of("narrow"), DType::kBFloat16);
  source.finish();
}

TEST(WeightSource, AScalarIsAVectorOfOne) {
  const TempFolder folder;
  folder.write("model.safetensors", raw_safetensors(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
  WeightSource source(Checkpoint::open(folder.path()));
  EXPECT_EQ(source.read_vector("s", 1), std::vector<float>{0.0F});
  expect_start_error([&] { (void)source.read_vector("s", 2); }, {"tensor s: found float32 []", "[2]"});
}

TEST(WeightSource, WrongTensorsNameFileTensorFoundAndExpected) {
  const TempFolder folder;
  std::vector<std::int32_t> packed(6);
  std::vector<float> floats(6);
  const std::vector<NamedTensor> tensors{{"packed", Tensor(packed.data(), DType::kInt32, {2, 3})},
                                         {"w", Tensor(floats.data(), DType::kFloat32, {2, 3})}};
  write_safetensors(folder.file("model.safetensors"), tensors);
  WeightSource source(Checkpoint::open(folder.path()));
  const auto sink = [](std::int64_t, const Tensor&) { FAIL(); };
  const auto read = [&](const std::string& name, std::int64_t rows, std::int64_t cols, Orientation orientation) {
    return [&source, &sink, name, rows, cols, orientation] {
      source.read_rows({.name = name, .rows = rows, .cols = cols, .orientation = orientation}, sink);
    };
  };
  const std::string file = folder.file("model.safetensors");
  expect_start_error(read("w", 3, 2, Orientation::kOutIn),
                     {file, "tensor w: found float32 [2, 3], expected float32, bfloat16 or float16 [3, 2]"});
  expect_start_error(read("w", 2, 3, Orientation::kInOut), {file, "tensor w", "found float32 [2, 3]", "[3, 2]"});
  expect_start_error(read("packed", 2, 3, Orientation::kOutIn),
                     {file, "tensor packed: found int32 [2, 3], expected float32, bfloat16 or float16 [2, 3]"});
  expect_start_error(read("absent", 2, 3, Orientation::kOutIn),
                     {folder.path(), "tensor absent: found no such tensor", "[2, 3]"});
  expect_start_error([&] { (void)source.read_vector("w", 6); }, {file, "tensor w: found float32 [2, 3]", "[6]"});
  expect_start_error([&] { (void)source.read_floats("w", {3, 2}); }, {file, "tensor w", "[3, 2]"});
  expect_start_error([&] { (void)source.dtype_of("absent"); }, {folder.path(), "tensor absent"});
}

TEST(WeightSource, FindsTheFirstOfSeveralNames) {
  const TempFolder folder;
  write_floats(folder.file("model.safetensors"), {{"b", {1}, {1.0F}}, {"c", {1}, {1.0F}}});
  const WeightSource source(Checkpoint::open(folder.path()));
  EXPECT_EQ(source.first_of({"a", "b", "c"}), "b");
  EXPECT_TRUE(source.has("c"));
  EXPECT_FALSE(source.has("a", DummyHas::kYes));
  expect_start_error([&] { (void)source.first_of({"x", "y"}); }, {folder.path(), "tensor x or y", "none of these"});
}

TEST(WeightSource, FinishListsLeftOverWeights) {
  const TempFolder folder;
  std::vector<FloatTensor> tensors;
  for (int i = 0; i < 12; ++i) tensors.push_back({"w" + std::to_string(10 + i), {1}, {1.0F}});
  write_floats(folder.file("model.safetensors"), tensors);
  WeightSource source(Checkpoint::open(folder.path()));
  (void)source.read_vector("w10", 1);
  source.mark_used("w11");
  expect_start_error([&] { source.finish(); },
                     {folder.path(), "found 10 that this model does not read", "(w12, w13, w14", "w19 and 2 more)"});
  for (int i = 2; i < 11; ++i) source.mark_used("w" + std::to_string(10 + i));
  expect_start_error([&] { source.finish(); }, {"found 1 that this model does not read (w21)"});
  source.mark_used("w21");
  source.finish();
}

TEST(WeightSource, FinishSkipsHarmlessBuffersAlone) {
  const TempFolder folder;
  std::vector<float> floats(4);
  std::vector<std::uint8_t> mask(4);
  std::vector<NamedTensor> tensors{
      {"model.layers.0.self_attn.rotary_emb.inv_freq", Tensor(floats.data(), DType::kFloat32, {4})},
      {"transformer.h.0.attn.bias", Tensor(floats.data(), DType::kFloat32, {1, 1, 2, 2})},
      {"transformer.h.1.attn.bias", Tensor(mask.data(), DType::kUInt8, {2, 2})},
      {"transformer.h.0.attn.masked_bias", Tensor(floats.data(), DType::kFloat32, {1})},
      {"model.layers.0.self_attn.k_scale", Tensor(floats.data(), DType::kFloat32, {1})},
      {"model.layers.0.self_attn.k_proj.output_scale", Tensor(floats.data(), DType::kFloat32, {1})}};
  write_safetensors(folder.file("model.safetensors"), tensors);
  WeightSource(Checkpoint::open(folder.path())).finish();
  tensors.push_back({"transformer.h.2.attn.bias", Tensor(floats.data(), DType::kFloat32, {4})});
  tensors.push_back({"model.layers.0.q_proj.output_scale", Tensor(floats.data(), DType::kFloat32, {1})});
  write_safetensors(folder.file("model.safetensors"), tensors);
  expect_start_error([&] { WeightSource(Checkpoint::open(folder.path())).finish(); },
                     {"found 2", "(model.layers.0.q_proj.output_scale, transformer.h.2.attn.bias)"});
}

TEST(WeightSource, ComparesTensorsByteForByte) {
  const TempFolder folder;
  std::vector<float> large(3 << 20, 0.5F);  // 12 MB: more than one block
  std::vector<float> other = large;
  other.back() = 0.25F;
  const std::int64_t count = std::ssize(large);
  const std::vector<NamedTensor> tensors{{"a", Tensor(large.data(), DType::kFloat32, {count})},
                                         {"same", Tensor(large.data(), DType::kFloat32, {count})},
                                         {"other", Tensor(other.data(), DType::kFloat32, {count})},
                                         {"shape", Tensor(large.data(), DType::kFloat32, {count, 1})}};
  write_safetensors(folder.file("model.safetensors"), tensors);
  const WeightSource source(Checkpoint::open(folder.path()));
  EXPECT_TRUE(source.equal_tensors("a", "same"));
  EXPECT_FALSE(source.equal_tensors("a", "other"));
  EXPECT_FALSE(source.equal_tensors("a", "shape"));
}

TEST(WeightSource, ReportsEveryByteOnce) {
  const TempFolder folder;
  write_floats(folder.file("model.safetensors"),
               {{"w", {100, 30}, std::vector<float>(3000)}, {"b", {7}, std::vector<float>(7)}});
  WeightSource source(Checkpoint::open(folder.path()));
  ProgressReporter progress({.label = "loading weights", .total_bytes = source.total_bytes()});
  std::int64_t num_bytes = 0;
  source.set_bytes_read([&](std::int64_t bytes) { num_bytes += bytes; });
  source.read_rows({.name = "w", .rows = 100, .cols = 30}, [](std::int64_t, const Tensor&) {});
  (void)source.read_vector("b", 7);
  EXPECT_EQ(num_bytes, source.total_bytes());
}

std::int64_t resident_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  ADD_FAILURE() << "no VmRSS";
  return 0;
}

// Touches every page and gives the highest resident size seen on the way.
std::int64_t peak_kb_while_touching(const Tensor& rows, std::int64_t peak_kb) {
  const auto* bytes = static_cast<const volatile unsigned char*>(rows.raw());
  for (std::int64_t i = 0; i < rows.num_bytes(); i += 4096) (void)bytes[i];
  return std::max(peak_kb, resident_kb());
}

TEST(WeightSource, ResidentMemoryStaysLowWhileReadingALargeFile) {
  const TempFolder folder;
  const std::string path =
      folder.write("model.safetensors",
                   raw_safetensors(R"({"w":{"dtype":"F16","shape":[51200,3072],"data_offsets":[0,314572800]}})", 0));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + 314572800);  // sparse, yet mapped like any
  WeightSource source(Checkpoint::open(folder.path()));
  const std::int64_t before_kb = resident_kb();
  std::int64_t peak_kb = 0;
  const MatrixRequest request{.name = "w", .rows = 51200, .cols = 3072};
  source.read_rows(request, [&](std::int64_t, const Tensor& rows) { peak_kb = peak_kb_while_touching(rows, peak_kb); });
  EXPECT_LT(peak_kb - before_kb, 40 * 1024);
  EXPECT_LT(resident_kb() - before_kb, 20 * 1024);
  const Tensor whole = source.checkpoint()->tensor("w");
  EXPECT_GT(peak_kb_while_touching(whole, 0) - before_kb, 250 * 1024) << "the measure must see mapped pages";
}

TEST(DummyWeights, DependOnNameAndRowAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    WeightSource source = WeightSource::dummy(dtype);
    const MatrixRequest whole{.name = "w", .rows = 60, .cols = 37};
    const std::vector<float> values = read_all(source, whole, dtype);
    MatrixRequest part = whole;
    part.row_ranges = {{50, 3}, {1, 20}};
    part.column_begin = 5;
    part.column_count = 11;
    std::vector<float> expected;
    for (const std::int64_t first :
         {50, 51, 52, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}) {
      for (std::int64_t col = 5; col < 16; ++col)
        expected.push_back(values[static_cast<std::size_t>(first * 37 + col)]);
    }
    EXPECT_EQ(read_all(source, part, dtype), expected);
    MatrixRequest other = whole;
    other.name = "v";
    EXPECT_NE(read_all(source, other, dtype), values);
    source.finish();
  }
}

TEST(DummyWeights, HaveTheSpreadOfRealOnes) {
  WeightSource source = WeightSource::dummy(DType::kBFloat16);
  const std::vector<float> values = read_all(source, {.name = "w", .rows = 512, .cols = 511}, DType::kBFloat16);
  double sum = 0.0;
  double squares = 0.0;
  std::int64_t num_zeros = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    num_zeros += value == 0.0F ? 1 : 0;
    ASSERT_LE(std::abs(value), 0.035F);
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 2e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 2e-4);
  EXPECT_EQ(num_zeros, 0);
  for (const char* name : {"model.norm.weight", "transformer.h.0.ln_attn.weight", "transformer.ln_f.weight"}) {
    for (const float value : source.read_vector(name, 100)) ASSERT_NEAR(value, 1.0F, 0.05F);
  }
  for (const float value : source.read_vector("transformer.ln_f.bias", 100)) ASSERT_NEAR(value, 0.0F, 0.02F);
}

TEST(DummyWeights, AnswerHasAsTheCallerSays) {
  const WeightSource source = WeightSource::dummy(DType::kFloat32);
  EXPECT_FALSE(source.has("lm_head.weight"));
  EXPECT_TRUE(source.has("lm_head.weight", DummyHas::kYes));
  EXPECT_EQ(source.first_of({"a", "b"}), "a");
  EXPECT_EQ(source.checkpoint(), nullptr);
  EXPECT_EQ(source.total_bytes(), 0);
}

}  // namespace
}  // namespace shoal
