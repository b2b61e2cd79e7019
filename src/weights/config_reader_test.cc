#include "weights/config_reader.h"

#include "weights/test_files.h"

namespace shoal {
namespace {

ConfigReader read(std::string_view text) { return ConfigReader::parse(text, "m/config.json"); }

TEST(ConfigReader, ReadsEveryKindOfValue) {
  const ConfigReader config =
      read(R"({"hidden_size":64,"rms_norm_eps":1e-5,"rope_theta":10000,"alibi":true,"model_type":"solar","none":null,)"
           R"("bskcn_1":[1,2],"bskcn_tv":[1,0.5],"architectures":["A","B"],"eos_token_id":[2,3],"bos_token_id":1})");
  EXPECT_EQ(config.required_size("hidden_size"), 64);
  EXPECT_EQ(config.required_int("hidden_size"), 64);
  EXPECT_EQ(config.required_float("rms_norm_eps"), 1e-5);
  EXPECT_EQ(config.optional_float("rope_theta", 1.0), 10000.0);
  EXPECT_TRUE(config.required_bool("alibi"));
  EXPECT_EQ(config.required_string("model_type"), "solar");
  EXPECT_TRUE(config.is_string("model_type"));
  EXPECT_FALSE(config.is_string("architectures"));
  EXPECT_EQ(config.optional_int_list("bskcn_1"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(config.optional_float_list("bskcn_tv"), (std::vector<double>{1.0, 0.5}));
  EXPECT_EQ(config.optional_string_list("architectures"), (std::vector<std::string>{"A", "B"}));
  EXPECT_EQ(config.optional_int_or_list("eos_token_id"), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config.optional_int_or_list("bos_token_id"), std::vector<std::int64_t>{1});
  EXPECT_EQ(config.keys().size(), 10U) << "null is no key";
}

TEST(ConfigReader, NullAndAbsentGiveTheCallersValue) {
  const ConfigReader config = read(R"({"none":null})");
  for (const char* key : {"none", "absent"}) {
    EXPECT_FALSE(config.has(key));
    EXPECT_EQ(config.optional_int(key, 5), 5);
    EXPECT_EQ(config.optional_size(key, 6), 6);
    EXPECT_EQ(config.optional_float(key, 0.5), 0.5);
    EXPECT_TRUE(config.optional_bool(key, true));
    EXPECT_EQ(config.optional_string(key, "gelu"), "gelu");
    EXPECT_TRUE(config.optional_int_list(key).empty());
    EXPECT_TRUE(config.optional_float_list(key).empty());
    EXPECT_TRUE(config.optional_string_list(key).empty());
    EXPECT_TRUE(config.optional_int_or_list(key).empty());
    EXPECT_FALSE(config.find_int(key).has_value());
    EXPECT_FALSE(config.optional_object(key).has_value());
  }
}

TEST(ConfigReader, MissingKeysAreNamed) {
  const ConfigReader config = read(R"({"hidden_size":null})");
  expect_start_error([&] { (void)config.required_size("hidden_size"); },
                     {"m/config.json: key hidden_size: found nothing, expected an integer from 1"});
  expect_start_error([&] { (void)config.required_size({"hidden_size", "n_embed"}); }, {"key hidden_size or n_embed"});
  expect_start_error([&] { (void)config.required_int("n"); }, {"key n: found nothing, expected an integer"});
  expect_start_error([&] { (void)config.required_float("f"); }, {"key f: found nothing, expected a finite number"});
  expect_start_error([&] { (void)config.required_bool("b"); }, {"key b: found nothing, expected true or false"});
  expect_start_error([&] { (void)config.required_string("s"); }, {"key s: found nothing, expected a string"});
}

TEST(ConfigReader, WrongTypesNameKeyFoundAndExpected) {
  const ConfigReader config =
      read(R"({"s":"64","i":1,"f":1.5,"b":true,"l":[1,"x"],"o":{},"big":18446744073709551615,"long":"line\nbreak"})");
  expect_start_error([&] { (void)config.find_int("s"); }, {"key s: found \"64\" (string), expected an integer"});
  expect_start_error([&] { (void)config.find_int("f"); }, {"key f: found 1.5 (fraction), expected an integer"});
  expect_start_error([&] { (void)config.find_int("b"); }, {"key b: found true (boolean), expected an integer"});
  expect_start_error([&] { (void)config.find_int("big"); }, {"key big: found 18446744073709551615"});
  expect_start_error([&] { (void)config.find_int("long"); }, {"key long: found"});
  expect_start_error([&] { (void)config.find_float("s"); }, {"key s: found \"64\" (string), expected a finite number"});
  expect_start_error([&] { (void)config.find_bool("i"); }, {"key i: found 1 (integer), expected true or false"});
  expect_start_error([&] { (void)config.find_string("i"); }, {"key i: found 1 (integer), expected a string"});
  expect_start_error([&] { (void)config.optional_int_list("i"); }, {"key i: found 1", "expected a list of integers"});
  expect_start_error([&] { (void)config.optional_int_list("l"); },
                     {"key l: found \"x\"", "expected a list of integers"});
  expect_start_error([&] { (void)config.optional_float_list("l"); }, {"key l: found \"x\"", "a list of numbers"});
  expect_start_error([&] { (void)config.optional_string_list("l"); }, {"key l: found 1", "a list of strings"});
  expect_start_error([&] { (void)config.optional_int_or_list("s"); }, {"key s: found \"64\""});
  expect_start_error([&] { (void)config.optional_object("l"); },
                     {"key l: found [1,\"x\"] (array), expected an object"});
  expect_start_error([&] { (void)config.find_string("o"); }, {"key o: found an object, expected a string"});
}

TEST(ConfigReader, SizesHaveARange) {
  const ConfigReader config = read(R"({"zero":0,"minus":-1,"most":2147483647,"over":2147483648})");
  EXPECT_EQ(config.required_size("most"), 2147483647);
  expect_start_error([&] { (void)config.required_size("zero"); }, {"key zero: found 0", "from 1 to 2^31 - 1"});
  expect_start_error([&] { (void)config.find_size("minus"); }, {"key minus: found -1"});
  expect_start_error([&] { (void)config.optional_size("over", 1); }, {"key over: found 2147483648"});
  EXPECT_EQ(config.required_int("minus"), -1);
}

TEST(ConfigReader, SpellingsMustAgree) {
  const ConfigReader config = read(R"({"hidden_size":64,"n_embed":64,"n_head":8,"num_attention_heads":4,"x":null})");
  EXPECT_EQ(config.required_size({"hidden_size", "n_embed"}), 64);
  EXPECT_EQ(config.required_size({"x", "n_head"}), 8);
  expect_start_error(
      [&] { (void)config.required_size({"num_attention_heads", "n_head"}); },
      {"keys num_attention_heads and n_head: found 4 (integer) and 8 (integer), expected the same value"});
  expect_start_error([&] { (void)config.has({"num_attention_heads", "n_head"}); }, {"num_attention_heads and n_head"});
}

TEST(ConfigReader, NestedObjectsKeepADottedPath) {
  std::optional<ConfigReader> inner;
  {
    const ConfigReader config = read(R"({"rope_scaling":{"factor":"x","deep":{"a":1.5}}})");
    inner = config.optional_object("rope_scaling");
  }
  ASSERT_TRUE(inner.has_value());  // and outlives the outer reader
  expect_start_error([&] { (void)inner->required_float("factor"); }, {"m/config.json: key rope_scaling.factor: found"});
  expect_start_error([&] { (void)inner->required_float({"type", "rope_type"}); },
                     {"key rope_scaling.type or rope_scaling.rope_type: found nothing"});
  const auto deep = inner->optional_object("deep");
  expect_start_error([&] { (void)deep->required_int("a"); }, {"key rope_scaling.deep.a: found 1.5"});
}

TEST(ConfigReader, RefusalNamesTheValue) {
  const ConfigReader config = read(R"({"activation":"swish"})");
  expect_start_error([&] { config.refuse("activation", "gelu"); },
                     {"m/config.json: key activation: found \"swish\" (string), expected gelu"});
  expect_start_error([&] { config.refuse("absent", "gelu"); }, {"key absent: found nothing, expected gelu"});
}

TEST(ConfigReader, RefusesBadFiles) {
  const TempFolder folder;
  expect_start_error([&] { ConfigReader::from_file(folder.file("config.json")); },
                     {folder.file("config.json"), "expected a readable file"});
  expect_start_error([&] { ConfigReader::from_file(folder.path()); }, {"found no regular file"});
  for (const std::string text : {"", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":1e999}", "{\"a\":NaN}"}) {
    expect_start_error([&] { ConfigReader::from_file(folder.write("config.json", text)); },
                       {folder.file("config.json"), "malformed JSON"});
  }
  for (const std::string text : {"[1]", "null", "3", "\"x\""}) {
    expect_start_error([&] { ConfigReader::from_file(folder.write("config.json", text)); },
                       {folder.file("config.json"), "top level: found " + text, "expected a JSON object"});
  }
  const ConfigReader config = ConfigReader::from_file(folder.write("config.json", R"({"a":1,"a":2})"));
  EXPECT_EQ(config.required_int("a"), 2) << "as Python reads it";
}

}  // namespace
}  // namespace shoal
