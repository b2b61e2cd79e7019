#include "weights/checkpoint.h"

#include "weights/tensor_values.h"
#include "weights/test_files.h"

namespace shoal {
namespace {

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";
const std::string kIndex = "model.safetensors.index.json";

// Two shards, {a, b} and {c}, with an index that a test may replace.
void write_shards(const TempFolder& folder) {
  write_floats(folder.file(kFirst), {{"a", {2}, {1.0F, 2.0F}}, {"b", {1}, {3.0F}}});
  write_floats(folder.file(kSecond), {{"c", {1, 2}, {4.0F, 5.0F}}});
  folder.write(kIndex, R"({"metadata":{"total_size":20},"weight_map":{"a":")" + kFirst + R"(","b":")" + kFirst +
                           R"(","c":")" + kSecond + "\"}}");
}

void write_index(const TempFolder& folder, const std::string& weight_map) {
  folder.write(kIndex, "{\"weight_map\":" + weight_map + "}");
}

TEST(Checkpoint, OpensOneFile) {
  const TempFolder folder;
  write_floats(folder.file("model.safetensors"), {{"w", {2}, {1.0F, 2.0F}}});
  write_floats(folder.file("other.safetensors"), {{"x", {1}, {1.0F}}});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"w"});
  EXPECT_EQ(float_values(checkpoint.tensor("w")), (std::vector<float>{1.0F, 2.0F}));
  EXPECT_EQ(checkpoint.find("x"), nullptr);
  EXPECT_EQ(checkpoint.total_bytes(), 8);
}

TEST(Checkpoint, OpensALoneFileOfAnyName) {
  const TempFolder folder;
  write_floats(folder.file("adapter_model.safetensors"), {{"w", {1}, {1.0F}}});
  folder.write("training_args.bin", "pickle");
  EXPECT_TRUE(Checkpoint::open(folder.path()).has("w"));
}

TEST(Checkpoint, OpensShards) {
  const TempFolder folder;
  write_shards(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(float_values(checkpoint.tensor("c")), (std::vector<float>{4.0F, 5.0F}));
  EXPECT_EQ(checkpoint.file_of("b").path(), folder.file(kFirst));
  EXPECT_EQ(checkpoint.total_bytes(), 20);
}

TEST(Checkpoint, RefusesAMissingShard) {
  const TempFolder folder;
  write_shards(folder);
  std::filesystem::remove(folder.file(kSecond));
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {folder.file(kIndex), "shard " + kSecond, "found no such file", "tensor c"});
}

TEST(Checkpoint, RefusesATensorThatItsShardLacks) {
  const TempFolder folder;
  write_shards(folder);
  write_index(folder,
              R"({"a":")" + kFirst + R"(","b":")" + kFirst + R"(","c":")" + kSecond + R"(","d":")" + kSecond + "\"}");
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {kIndex, "tensor d", "found it in no shard", "expected it in " + kSecond});
}

TEST(Checkpoint, RefusesATensorInTheWrongShard) {
  const TempFolder folder;
  write_shards(folder);
  write_index(folder, R"({"a":")" + kFirst + R"(","b":")" + kSecond + R"(","c":")" + kSecond + "\"}");
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {kIndex, "tensor b", "found it in " + kFirst, "expected it in " + kSecond});
}

TEST(Checkpoint, RefusesATensorThatTheIndexDoesNotName) {
  const TempFolder folder;
  write_shards(folder);
  write_index(folder, R"({"a":")" + kFirst + R"(","c":")" + kSecond + "\"}");
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {kIndex, "tensor b", "found it in " + kFirst, "expected every tensor in weight_map"});
}

TEST(Checkpoint, RefusesANameInTwoShards) {
  const TempFolder folder;
  write_shards(folder);
  write_floats(folder.file(kSecond), {{"b", {1}, {3.0F}}, {"c", {1, 2}, {4.0F, 5.0F}}});
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {kIndex, "tensor b", "found it in " + kFirst + " and " + kSecond, "alone"});
}

TEST(Checkpoint, RefusesABrokenIndex) {
  const TempFolder folder;
  folder.write(kIndex, "{\"weight_map\": {");
  expect_start_error([&] { Checkpoint::open(folder.path()); }, {folder.file(kIndex), "malformed JSON"});
  folder.write(kIndex, "{}");
  expect_start_error([&] { Checkpoint::open(folder.path()); }, {kIndex, "weight_map: found no such key"});
  write_index(folder, "[]");
  expect_start_error([&] { Checkpoint::open(folder.path()); }, {kIndex, "weight_map: found [] (array)"});
  write_index(folder, "{}");
  expect_start_error([&] { Checkpoint::open(folder.path()); }, {kIndex, "weight_map: found no tensors"});
  for (const std::string shard : {R"("../x.safetensors")", R"("/etc/passwd")", R"("..")", R"("")", "7"}) {
    write_index(folder, "{\"a\":" + shard + "}");
    expect_start_error([&] { Checkpoint::open(folder.path()); },
                       {kIndex, "tensor a", "found " + shard, "the name of a file in the same folder"});
  }
}

TEST(Checkpoint, RefusesABrokenShardByItsName) {
  const TempFolder folder;
  write_shards(folder);
  folder.write(kSecond, "short");
  expect_start_error([&] { Checkpoint::open(folder.path()); }, {folder.file(kSecond), "found 5 bytes"});
}

TEST(Checkpoint, RefusesPickledWeightsAndSaysHowToConvert) {
  for (const std::string name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth"}) {
    const TempFolder folder;
    folder.write(name, "pickle");
    expect_start_error([&] { Checkpoint::open(folder.path()); },
                       {folder.path(), "only pickled files (" + name + ")", "python -c \"from transformers import",
                        "AutoModelForCausalLM.from_pretrained('" + folder.path(), "safe_serialization=True)\""});
  }
}

TEST(Checkpoint, RefusesFoldersWithoutWeightsOrWithSeveralFiles) {
  const TempFolder folder;
  expect_start_error([&] { Checkpoint::open(folder.file("absent")); }, {"absent", "found no such folder"});
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {folder.path(), "found no weight file", "expected model.safetensors"});
  write_floats(folder.file("x.safetensors"), {{"w", {1}, {1.0F}}});
  write_floats(folder.file("y.safetensors"), {{"w", {1}, {1.0F}}});
  expect_start_error([&] { Checkpoint::open(folder.path()); },
                     {folder.path(), "2 files (x.safetensors, y.safetensors) and no index", "single *.safetensors"});
}

}  // namespace
}  // namespace shoal
