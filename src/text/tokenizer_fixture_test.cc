// Ids, offsets and text against the reference implementation (tools/make_tokenizer_fixtures.py).
#include <gtest/gtest.h>

#include <fstream>

#include "text/incremental_decoder.h"
#include "text/test_model_dir.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;

class ReferenceTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const bool is_style = name.ends_with("_like");  // else one of models/
    std::ifstream file(is_style ? "tests/data/tokenizers/fixtures.json" : "tests/data/tokenizers/models.json");
    ASSERT_TRUE(file) << "run in the repository's root";
    fixture_ = nlohmann::json::parse(file).at(name);
    if (is_style) {
      tokenizer_ = test::load_tokenizer(fixture_["tokenizer"]);
    } else {
      tokenizer_ = Tokenizer::load("models/" + name);
    }
  }

  nlohmann::json fixture_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(ReferenceTokenizer, GivesTheSameIdsAndOffsets) {
  ASSERT_GT(fixture_["encode"].size(), 20u);
  for (const auto& expected : fixture_["encode"]) {
    const std::string text = expected["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kNone).value(), expected["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kAdd).value(), expected["ids_with_special"].get<Ids>()) << text;
    Ids offsets;
    const auto spans = tokenizer_->encode_spans(text, SpecialTokens::kAdd).value();
    for (const TokenSpan& span : spans) {
      EXPECT_EQ(tokenizer_->token_id(span.piece), span.id);
      offsets.push_back(span.start);
      offsets.push_back(span.stop);
    }
    EXPECT_EQ(offsets, expected["offsets"].get<Ids>()) << text;
  }
}

TEST_P(ReferenceTokenizer, GivesTheSameText) {
  auto cases = fixture_["decode"];
  for (const auto& encoded : fixture_["encode"]) {
    cases.push_back({{"ids", encoded["ids_with_special"]},
                     {"decoded", encoded["decoded"]},
                     {"decoded_with_special", encoded["decoded_with_special"]}});
  }
  for (const auto& expected : cases) {
    const Ids ids = expected["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->decode(ids, SkipSpecial::kYes), expected["decoded"].get<std::string>()) << expected["ids"];
    EXPECT_EQ(tokenizer_->decode(ids, SkipSpecial::kNo), expected["decoded_with_special"].get<std::string>());
  }
}

// Where the texts' markers are known.
class StyledTokenizer : public ReferenceTokenizer {};

TEST_P(StyledTokenizer, PlainRangesThatHideNothingChangeNothing) {
  for (const auto& expected : fixture_["encode"]) {
    const std::string text = expected["text"].get<std::string>();
    if (text.find("<|") != std::string::npos || text.find("<s>") != std::string::npos) continue;
    const std::vector<TextRange> everything = {{0, text.size()}};
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kAdd, everything).value(),
              expected["ids_with_special"].get<Ids>());
  }
}

// The reference library takes no such bytes either; a caller replaces them first, as the fixtures' U+FFFD shows.
TEST_P(ReferenceTokenizer, BytesThatAreNoUtf8AreRefused) {
  for (const char* text : {"a\xff z", "\xc3", "\xe2\x82", "\xf0\x9f\x98 x", "\xed\xa0\x80"}) {
    EXPECT_FALSE(tokenizer_->encode(text, SpecialTokens::kNone).ok()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, ReferenceTokenizer, testing::Values("falcon_like", "command_like", "solar_like"));
INSTANTIATE_TEST_SUITE_P(Styles, StyledTokenizer, testing::Values("falcon_like", "command_like", "solar_like"));
INSTANTIATE_TEST_SUITE_P(Models, ReferenceTokenizer, testing::Values("falcon", "cohere", "solar", "santacoder"));

}  // namespace
}  // namespace shoal
