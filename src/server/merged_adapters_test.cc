// The field `merged_adapters` of native requests, from JSON to the scheduler's request.
#include "server/merged_adapters.h"

#include <gtest/gtest.h>

#include "server/validate.h"

namespace shoal {
namespace {

ServerOptions local_options() {
  ServerOptions options;
  options.adapter_sources = {"local"};
  options.default_adapter_source = "local";
  options.max_best_of = 2;
  options.max_input_length = 15;
  options.max_total_tokens = 16;
  return options;
}

Parsed<NativeRequest> parsed(const std::string& parameters) {
  return parse_native(InputJson::parse(R"({"inputs":"a","parameters":)" + parameters + "}"));
}

std::optional<ApiError> error_of(const std::string& parameters) {
  const auto request = parsed(parameters);
  if (const auto* error = std::get_if<ApiError>(&request)) return *error;
  return check_values(std::get<NativeRequest>(request).parameters, local_options());
}

std::optional<ApiError> error_of_merge(const std::string& merge) {
  return error_of(R"({"merged_adapters":)" + merge + "}");
}

AdapterKey key_of(const std::string& merge) {
  const std::string parameters = R"({"max_new_tokens":1,"merged_adapters":)" + merge + "}";
  EXPECT_FALSE(error_of(parameters)) << parameters << ": " << error_of(parameters)->message;
  const auto request = parsed(parameters);
  const auto prepared = prepare_request(std::get<NativeRequest>(request).parameters, {1}, local_options(),
                                        /*vocab_size=*/10, /*random_seed=*/1);
  return std::get<PreparedRequest>(prepared).request.adapter.value();
}

TEST(MergedAdapters, RefusesEachBadValueByName) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"ids", "{}", "missing field"},
      {"ids", R"({"ids":"a","weights":[1]})", "expected an array of strings, got string"},
      {"ids", R"({"ids":[1],"weights":[1]})", "expected an array of strings, found number in it"},
      {"ids", R"({"ids":[],"weights":[]})", "must name at least one adapter"},
      {"ids", R"({"ids":["a",""],"weights":[1,1]})", "must not name the base model, given: ''"},
      {"ids", R"({"ids":["__base_model__"],"weights":[1]})", "must not name the base model"},
      {"ids", R"({"ids":["a\n"],"weights":[1]})", "must not hold control characters"},
      {"weights", R"({"ids":["a"]})", "must be as many as `ids`, given: 0 and 1"},
      {"weights", R"({"ids":["a"],"weights":[1,2]})", "must be as many as `ids`, given: 2 and 1"},
      {"weights", R"({"ids":["a"],"weights":null})", "expected an array of numbers, got null"},
      {"weights", R"({"ids":["a"],"weights":["1"]})", "expected an array of numbers, found string in it"},
      {"weights", R"({"ids":["a"],"weights":[1e39]})", "must be finite numbers"},
      {"merge_strategy", R"({"ids":["a"],"weights":[1],"merge_strategy":"svd"})",
       "must be linear, ties, dare_linear or dare_ties, given: 'svd'"},
      {"majority_sign_method", R"({"ids":["a"],"weights":[1],"majority_sign_method":"most"})",
       "must be total or frequency, given: 'most'"},
      {"density", R"({"ids":["a"],"weights":[1],"merge_strategy":"ties"})", "with ties"},
      {"density", R"({"ids":["a"],"weights":[1],"merge_strategy":"dare_linear","density":0})",
       "must be > 0.0 and <= 1.0"},
      {"density", R"({"ids":["a"],"weights":[1],"merge_strategy":"dare_ties","density":1.01})", "given: 1.01"},
      {"density", R"({"ids":["a"],"weights":[1],"merge_strategy":"ties","density":-0.5})", "given: -0.5"},
      {"density", R"({"ids":["a"],"weights":[1],"density":"half"})", "expected a number, got string"},
  };
  for (const auto& [field, merge, text] : cases) {
    const auto error = error_of_merge(merge);
    ASSERT_TRUE(error) << merge;
    EXPECT_TRUE(error->param.ends_with(std::string("merged_adapters.") + field)) << error->param << " for " << merge;
    EXPECT_NE(error->message.find(text), std::string::npos) << error->message;
    EXPECT_EQ(error_status(*error, ApiStyle::kNative), 422);
  }
  EXPECT_EQ(error_of_merge("[]")->message, "`parameters.merged_adapters`: expected an object, got array");
}

TEST(MergedAdapters, MoreThanAnyoneMergesIsRefused) {
  const auto merge_of = [](int count) {
    std::string ids = "\"a\"";
    std::string weights = "1";
    for (int i = 1; i < count; ++i) {
      ids += ",\"a\"";
      weights += ",1";
    }
    return R"({"ids":[)" + ids + R"(],"weights":[)" + weights + "]}";
  };
  EXPECT_FALSE(error_of_merge(merge_of(32)));
  EXPECT_NE(error_of_merge(merge_of(33))->message.find("at most 32 adapters, given: 33"), std::string::npos);
}

// LoRAX's order: the first of several faults is told.
TEST(MergedAdapters, ChecksInOrder) {
  EXPECT_EQ(error_of(R"({"adapter_id":"","merged_adapters":{"ids":[]},"temperature":-1})")->message,
            "`adapter_id` and `merged_adapters` must not both be set");
  EXPECT_EQ(error_of(R"({"merged_adapters":{"ids":[],"weights":[1]}})")->param, "merged_adapters.ids");
  EXPECT_EQ(error_of(R"({"merged_adapters":{"ids":["a"]},"temperature":-1,"best_of":3})")->param, "best_of")
      << "its upper limit comes first of all";
  EXPECT_EQ(error_of(R"({"merged_adapters":{"ids":["a"]},"temperature":-1})")->param, "merged_adapters.weights");
  EXPECT_EQ(error_of(R"({"merged_adapters":{"ids":["a"],"weights":[1]},"temperature":-1})")->param, "temperature");
}

TEST(MergedAdapters, ItsSourceIsCheckedAsThatOfOneAdapter) {
  EXPECT_FALSE(error_of(R"({"merged_adapters":{"ids":["a"],"weights":[1]},"adapter_source":"LOCAL"})"));
  const auto error = error_of(R"({"merged_adapters":{"ids":["a"],"weights":[1]},"adapter_source":"nowhere"})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->failure, Failure::kAdapterInvalid);
}

TEST(MergedAdapters, NullsAreDefaults) {
  EXPECT_FALSE(error_of(R"({"adapter_id":null,"merged_adapters":null})"));
  const AdapterKey key =
      key_of(R"({"ids":["a","b"],"weights":[1,0.5],"merge_strategy":null,"density":0.0,"majority_sign_method":null})");
  EXPECT_EQ(
      key,
      (AdapterKey{.source = "local", .id = "a,b", .merge = AdapterMerge{.ids = {"a", "b"}, .weights = {1.0F, 0.5F}}}));
}

TEST(MergedAdapters, NamesAreReadInAnyCase) {
  const AdapterKey key = key_of(
      R"({"ids":["a","b"],"weights":[1,2],"merge_strategy":"DARE_Ties","density":0.5,"majority_sign_method":"Frequency"})");
  EXPECT_EQ(key.merge, (AdapterMerge{.ids = {"a", "b"},
                                     .weights = {1.0F, 2.0F},
                                     .strategy = MergeStrategy::kDareTies,
                                     .density = 0.5F,
                                     .election = SignElection::kFrequency}));
}

// What a strategy does not read makes no second adapter of the same values.
TEST(MergedAdapters, EqualMergesHaveEqualKeys) {
  const AdapterKey linear = key_of(R"({"ids":["a","b"],"weights":[1,2]})");
  EXPECT_EQ(key_of(R"({"ids":["a","b"],"weights":[1,2],"density":0.3,"majority_sign_method":"frequency"})"), linear);
  EXPECT_EQ(key_of(R"({"ids":["a","b"],"weights":[1,2],"merge_strategy":"dare_linear","density":1})"), linear);
  EXPECT_NE(key_of(R"({"ids":["b","a"],"weights":[2,1]})"), linear);
  EXPECT_EQ(key_of(R"({"ids":["a"],"weights":[1]})"), (AdapterKey{.source = "local", .id = "a"})) << "is itself";
  EXPECT_TRUE(key_of(R"({"ids":["a"],"weights":[0.5]})").merge) << "LoRAX ignores the weight of one";
  EXPECT_TRUE(key_of(R"({"ids":["a"],"weights":[1],"merge_strategy":"ties","density":0.5})").merge);
}

}  // namespace
}  // namespace shoal
