#include "server/fill_in_middle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/json.h"
#include "server/test_service.h"
#include "text/test_model_dir.h"

namespace shoal {
namespace {

// Ids of the markers: prefix 262, middle 263, suffix 264.
std::unique_ptr<Tokenizer> tokenizer_with(char joint) {
  const test::ModelDir dir;
  nlohmann::json json = test::byte_level_tokenizer();
  std::int64_t id = 262;
  for (const char* part : {"prefix", "middle", "suffix"}) {
    json["added_tokens"].push_back(test::added_token(id++, std::string("<fim") + joint + part + ">", true));
  }
  dir.write_json("tokenizer.json", json);
  return Tokenizer::load(dir.path());
}

TEST(FillInMiddle, TakesBothSpellingsAndNoOther) {
  for (const char joint : {'-', '_'}) {
    const auto markers = middle_markers(*tokenizer_with(joint));
    ASSERT_TRUE(markers.has_value()) << joint;
    EXPECT_EQ(markers->prefix, 262);
    EXPECT_EQ(markers->suffix, 264);
    EXPECT_EQ(markers->middle, 263);
  }
  EXPECT_FALSE(middle_markers(*tokenizer_with('+')).has_value());
}

TEST(FillInMiddle, IsThePromptThatTheMarkersSpell) {
  const auto tokenizer = tokenizer_with('-');
  for (const auto& [prefix, suffix] : std::vector<std::pair<std::string, std::string>>{
           {"def f(", "):\n  return x"}, {"", "he"}, {"he", " w"}, {"\u00e4", "\u20ac"}}) {
    const auto prefix_ids = tokenizer->encode(prefix, SpecialTokens::kNone).value();
    const auto ids = middle_prompt(*tokenizer, prefix_ids, suffix);
    const std::string spelled = fmt::format("<fim-prefix>{}<fim-suffix>{}<fim-middle>", prefix, suffix);
    EXPECT_EQ(std::get<std::vector<std::int64_t>>(ids), tokenizer->encode(spelled, SpecialTokens::kNone).value());
  }
}

TEST(FillInMiddle, AModelWithoutMarkersRefusesASuffix) {
  test::TestService service;
  const auto complete = [&](const std::string& suffix) {
    return test::post(service.port(), "/v1/completions",
                      R"({"model":"","prompt":"a","max_tokens":1,"suffix":)" + suffix + "}");
  };
  const auto response = complete("\"b\"");
  EXPECT_EQ(response.status, 400);
  const InputJson error = InputJson::parse(response.body)["error"];
  EXPECT_EQ(error["param"], "suffix");
  EXPECT_NE(error["message"].get<std::string>().find("<fim-prefix>"), std::string::npos);
  EXPECT_EQ(complete("null").status, 200);
  EXPECT_EQ(complete("\"\"").status, 200);
  EXPECT_EQ(complete("5").status, 400);
}

}  // namespace
}  // namespace shoal
