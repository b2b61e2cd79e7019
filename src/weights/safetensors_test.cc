#include "weights/safetensors.h"

#include <random>

#include "weights/tensor_values.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

constexpr std::string_view kFile = "some/model.safetensors: ";

void expect_refused(const std::string& text, std::initializer_list<std::string_view> parts) {
  expect_start_error([&] { parse_text(text); }, {kFile});
  expect_start_error([&] { parse_text(text); }, parts);
}

TEST(SafetensorsHeader, ReadsTensorsAndMetadata) {
  const SafetensorsHeader header = parse_text(
      raw_safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[3,2],"data_offsets":[0,12]},)"
                      R"("scale":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
                      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}  )",
                      16));
  EXPECT_EQ(header.metadata.at("format"), "pt");
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors.at("a").describe(), "bfloat16 [3, 2]");
  EXPECT_EQ(header.tensors.at("a").byte_begin, header.data_begin);
  EXPECT_EQ(header.tensors.at("scale").byte_begin, header.data_begin + 12);
  EXPECT_TRUE(header.tensors.at("scale").shape.empty());
  EXPECT_EQ(header.tensors.at("none").num_bytes, 0);
}

TEST(SafetensorsHeader, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(parse_text(raw_safetensors("{}", 0)).tensors.empty());
}

TEST(SafetensorsHeader, RefusesBrokenLengths) {
  expect_refused("", {"found 0 bytes", "expected at least 8"});
  expect_refused("1234567", {"found 7 bytes", "expected at least 8"});
  expect_refused(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), {"found 100000001 bytes", "at most 100000000"});
  expect_refused(std::string(8, '\xff') + "{}", {"found 18446744073709551615 bytes", "at most 100000000"});
  const std::string whole = raw_safetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
  expect_refused(whole.substr(0, 20), {"header", "found 12 bytes (truncated?)", "expected 53 bytes"});
}

TEST(SafetensorsHeader, RefusesATruncatedOrOverlongData) {
  const std::string whole = raw_safetensors(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 9);
  expect_refused(whole.substr(0, whole.size() - 1), {"tensor a", "found 8 bytes", "expected at least 9 (truncated?)"});
  expect_refused(whole + "x", {"tensor data", "found 10 bytes", "expected 9 bytes"});
}

TEST(SafetensorsHeader, RefusesMalformedJson) {
  expect_refused(raw_safetensors("{\"a\":\n nonsense}", 0), {"malformed JSON", "expected a JSON object"});
  expect_refused(raw_safetensors("", 0), {"malformed JSON"});
  expect_refused(raw_safetensors("[1]", 0), {"found [1] (array)", "expected a JSON object"});
  expect_refused(raw_safetensors("{\"\xff\":1}", 0), {"malformed JSON"});
  expect_refused(raw_safetensors("{\"a\":" + std::string(100000, '['), 0), {"nesting", "at most 64 levels"});
}

TEST(SafetensorsHeader, RefusesWrongEntries) {
  const auto with = [](const std::string& entry) { return raw_safetensors("{\"w.x\":" + entry + "}", 8); };
  expect_refused(with("3"), {"tensor w.x", "found 3 (integer)", "expected an object"});
  expect_refused(with(R"({"shape":[2],"data_offsets":[0,8]})"), {"tensor w.x", "found no dtype"});
  expect_refused(with(R"({"dtype":"F32","data_offsets":[0,8]})"), {"tensor w.x", "found no shape"});
  expect_refused(with(R"({"dtype":"F32","shape":[2]})"), {"tensor w.x", "found no data_offsets"});
  expect_refused(with(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"),
                 {"tensor w.x", "found dtype \"F64\"", "expected one of F32, BF16"});
  expect_refused(with(R"({"dtype":7,"shape":[1],"data_offsets":[0,8]})"), {"tensor w.x", "found dtype 7"});
  expect_refused(with(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})"), {"tensor w.x", "found shape \"2\""});
  expect_refused(with(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), {"tensor w.x", "found -2", "integers"});
  expect_refused(with(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
                 {"tensor w.x", "found 2.0", "integers"});
  expect_refused(with(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
                 {"tensor w.x", "found 9223372036854775808", "below 2^63"});
  expect_refused(with(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), {"tensor w.x", "found 1 data_offsets"});
  expect_refused(with(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
                 {"tensor w.x", "found data_offsets [8, 0]", "begin <= end"});
  expect_refused(with(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
                 {"tensor w.x", "found 8 bytes", "expected 12 for float32 [3]"});
  expect_refused(with(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
                 {"tensor w.x", "found 8 bytes", "float32 [4294967296, 4294967296]"});
  expect_refused(with(R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"), {"tensor w.x"});
}

TEST(SafetensorsHeader, RefusesOverlapsAndHoles) {
  const auto two = [](const std::string& second_offsets, std::int64_t data_bytes) {
    return raw_safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":)" +
                               second_offsets + "}}",
                           data_bytes);
  };
  EXPECT_EQ(parse_text(two("[4,8]", 8)).tensors.size(), 2U);
  expect_refused(two("[3,7]", 7), {"tensor b", "found data at 3", "overlaps", "expected data at 4"});
  expect_refused(two("[0,4]", 4), {"tensor b", "found data at 0", "overlaps", "expected data at 4"});
  expect_refused(two("[5,9]", 9), {"tensor b", "found data at 5", "hole", "expected data at 4"});
  expect_refused(raw_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2), {"tensor a", "hole"});
}

TEST(SafetensorsHeader, RefusesANameThatStandsTwice) {
  expect_refused(raw_safetensors(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                 R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                                 0),
                 {": a: ", "found the name twice", "expected unique names"});
}

TEST(SafetensorsHeader, RefusesMetadataOtherThanText) {
  expect_refused(raw_safetensors(R"({"__metadata__":[]})", 0), {"__metadata__", "expected an object of strings"});
  expect_refused(raw_safetensors(R"({"__metadata__":{"k":1}})", 0), {"__metadata__ key k", "found 1 (integer)"});
}

TEST(SafetensorsHeader, HostileNamesStayInOneShortLine) {
  const std::string name = "evil\\n\\u001b[2J" + std::string(5000, 'x');
  const std::string message = start_error_of([&] { parse_text(raw_safetensors("{\"" + name + "\":1}", 0)); });
  EXPECT_LT(message.size(), 500U);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

// One random change: a byte, a cut, a doubled stretch, a digit, a length.
void mutate(std::string& text, std::mt19937& random) {
  const auto below = [&](std::size_t bound) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(bound, 1));
  };
  if (text.empty()) return;
  const std::size_t at = below(text.size());
  switch (random() % 5) {
    case 0:
      text[at] = static_cast<char>(random() % 256);
      break;
    case 1:
      text.resize(at);
      break;
    case 2:
      text.insert(at, text.substr(below(text.size()), below(40)));
      break;
    case 3: {
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random() % 10);
      break;
    }
    default:
      text[below(8)] = static_cast<char>(random() % 256);
      break;
  }
}

TEST(SafetensorsHeader, SurvivesMutations) {
  const std::string seed =
      raw_safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                      R"("b":{"dtype":"I64","shape":[1],"data_offsets":[24,32]},)"
                      R"("c":{"dtype":"F16","shape":[],"data_offsets":[32,34]}})",
                      34);
  std::mt19937 random(7);
  std::int64_t num_accepted = 0;
  std::int64_t num_refused = 0;
  for (int iteration = 0; iteration < 20000; ++iteration) {
    std::string text = seed;
    for (auto change = random() % 3; change < 3; ++change) mutate(text, random);
    try {
      const SafetensorsHeader header = parse_text(text);
      for (const auto& [name, info] : header.tensors) {
        ASSERT_GE(info.byte_begin, header.data_begin);
        ASSERT_LE(info.byte_begin + info.num_bytes, std::ssize(text));
      }
      ++num_accepted;
    } catch (const StartError& error) {
      ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      ++num_refused;
    }
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_GT(num_refused, 10000);
}

TEST(SafetensorsFile, WrittenFilesReadBack) {
  const TempFolder folder;
  std::vector<float> floats{1.0F, -2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  std::vector<std::int64_t> ids{7, -8};
  std::vector<BFloat16> narrow{to_bfloat16(0.5F), to_bfloat16(-3.0F), to_bfloat16(9.0F)};
  std::vector<std::uint8_t> bytes{1, 2, 3};
  const Tensor matrix(floats.data(), DType::kFloat32, {2, 3});
  const std::vector<NamedTensor> tensors{{"bytes", Tensor(bytes.data(), DType::kUInt8, {3})},
                                         {"narrow", Tensor(narrow.data(), DType::kBFloat16, {3, 1})},
                                         {"ids", Tensor(ids.data(), DType::kInt64, {2})},
                                         {"matrix", matrix},
                                         {"column", matrix.columns(1, 1)},
                                         {"empty", Tensor(floats.data(), DType::kFloat32, {0, 5})}};
  const std::string path = folder.file("out.safetensors");
  write_safetensors(path, tensors, {{"format", "pt"}});
  SafetensorsFile opened(path);
  const SafetensorsFile file = std::move(opened);
  EXPECT_EQ(file.tensors().size(), 6U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(float_values(file.tensor("matrix")), floats);
  EXPECT_EQ(float_values(file.tensor("column")), (std::vector<float>{-2.0F, 5.0F}));
  EXPECT_EQ(float_values(file.tensor("narrow")), (std::vector<float>{0.5F, -3.0F, 9.0F}));
  EXPECT_EQ(int_values(file.tensor("ids")), ids);
  EXPECT_EQ(file.tensor("bytes").row<std::uint8_t>(2)[0], 3);
  EXPECT_EQ(file.tensor("empty").describe(), "float32 [0, 5]");
  EXPECT_EQ(file.info("ids").byte_begin % 8, 0);
  EXPECT_EQ(file.info("matrix").byte_begin % 4, 0);
  file.release(file.info("matrix"));
  EXPECT_EQ(float_values(file.tensor("matrix")), floats) << "released pages must come back";
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(SafetensorsReader, CopiesTensorsAndRefusesAFileThatShrank) {
  const TempFolder folder;
  std::vector<float> first{1.0F, -2.0F, 3.0F};
  std::vector<float> second(4096, 0.5F);
  const std::string path = folder.file("adapter.safetensors");
  write_safetensors(path, std::vector<NamedTensor>{{"first", Tensor(first.data(), DType::kFloat32, {3})},
                                                   {"second", Tensor(second.data(), DType::kFloat32, {4096})}});
  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.tensors().size(), 2U);
  EXPECT_EQ(reader.find("third"), nullptr);
  std::vector<float> copied(second.size());
  reader.read(*reader.find("first"), copied.data());
  EXPECT_EQ(std::vector<float>(copied.begin(), copied.begin() + 3), first);
  reader.read(*reader.find("second"), copied.data());
  EXPECT_EQ(copied, second);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THROW(reader.read(*reader.find("second"), copied.data()), StartError);
  EXPECT_THROW(SafetensorsReader{path}, StartError);
}

TEST(SafetensorsReader, RefusesAPipeWithoutWaiting) {
  const TempFolder folder;
  const std::string path = folder.file("pipe.safetensors");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(SafetensorsReader{path}, StartError);
  EXPECT_THROW(SafetensorsFile{path}, StartError);
}

TEST(SafetensorsFile, ReadsUnalignedTensors) {
  const TempFolder folder;
  std::string text = raw_safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                     R"("b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
                                     0);
  const std::array<float, 2> values{1.5F, -7.0F};
  text += '\x05';
  text.append(reinterpret_cast<const char*>(values.data()), sizeof(values));
  const SafetensorsFile file(folder.write("odd.safetensors", text));
  EXPECT_EQ(float_values(file.tensor("b")), (std::vector<float>{1.5F, -7.0F}));
}

TEST(SafetensorsFile, NamesFileAndTensorOfFailures) {
  const TempFolder folder;
  expect_start_error([&] { SafetensorsFile(folder.file("absent.safetensors")); },
                     {"absent.safetensors: file: found No such file", "expected a readable file"});
  expect_start_error([&] { SafetensorsFile(folder.path()); }, {folder.path(), "no regular file"});
  expect_start_error([&] { SafetensorsFile(folder.write("e.safetensors", "")); }, {"e.safetensors", "found 0 bytes"});
  const SafetensorsFile file(folder.write(
      "five.safetensors", raw_safetensors(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", 1)));
  expect_start_error([&] { (void)file.tensor("b"); }, {"five.safetensors: tensor b: found no such name"});
  expect_start_error([&] { (void)file.tensor("a"); }, {"tensor a: found uint8 [1, 1, 1, 1, 1]", "4 dimensions"});
}

TEST(SafetensorsFile, WritingToABadPathIsRefused) {
  const TempFolder folder;
  expect_start_error([&] { write_safetensors(folder.file("no/such/folder.safetensors"), {}); },
                     {"no/such/folder.safetensors: writing the file", "expected a writable path"});
  std::vector<float> values(1);
  const NamedTensor named{"a", Tensor(values.data(), DType::kFloat32, {1})};
  EXPECT_DEATH(write_safetensors(folder.file("twice.safetensors"), std::vector<NamedTensor>{named, named}),
               "check failed");
}

}  // namespace
}  // namespace shoal
