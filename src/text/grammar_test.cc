#include "text/grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "text/test_model_dir.h"

namespace shoal {
namespace {

using test::byte_level_tokenizer;
using test::load_tokenizer;

constexpr std::chrono::milliseconds kLimit{20'000};

// A byte-level tokenizer with <|end|> as its end token.
class GrammarTest : public testing::Test {
 protected:
  GrammarTest() {
    const test::ModelDir dir;
    dir.write_json("tokenizer.json", byte_level_tokenizer());
    dir.write_json("tokenizer_config.json", {{"eos_token", "<|end|>"}});
    tokenizer_ = Tokenizer::load(dir.path());
    factory_.emplace(*tokenizer_);
  }

  Result<std::shared_ptr<const Grammar>> compile(GrammarKind kind, const std::string& text) const {
    return factory_->compile({.kind = kind, .text = text}, kLimit);
  }
  GrammarMatcher matcher(GrammarKind kind, const std::string& text) const {
    auto grammar = compile(kind, text);
    EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
    return grammar.value()->new_matcher().value();
  }
  std::string why_not(GrammarKind kind, const std::string& text) const {
    auto grammar = compile(kind, text);
    if (grammar.ok()) return "";
    EXPECT_EQ(grammar.error().code, ErrorCode::kValidation);
    return grammar.error().message;
  }

  std::set<std::int64_t> allowed(GrammarMatcher& matcher) const {
    std::vector<std::int32_t> words(kWords, -1);
    EXPECT_TRUE(matcher.fill_mask(words).ok());
    std::set<std::int64_t> ids;
    for (std::int64_t id = 0; id < kWords * 32; ++id) {
      if (((static_cast<std::uint32_t>(words[static_cast<std::size_t>(id / 32)]) >> (id % 32)) & 1U) != 0)
        ids.insert(id);
    }
    return ids;
  }
  // Whether this text is an answer, byte by byte, and the end token comes after all of it.
  bool takes(GrammarMatcher matcher, const std::string& text) const {
    for (const char c : text) {
      const auto id = static_cast<std::int64_t>(static_cast<unsigned char>(c));
      if (!allowed(matcher).contains(id)) return false;
      EXPECT_FALSE(matcher.accept(id).value());
    }
    return allowed(matcher).contains(kEnd) && matcher.accept(kEnd).value();
  }

  static constexpr std::int64_t kWords = 12;  // more than the 262 ids need
  static constexpr std::int64_t kEnd = 259;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<GrammarFactory> factory_;
};

const std::string kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0}},)"
    R"("required":["name","age"],"additionalProperties":false})";

TEST_F(GrammarTest, SchemaTakesWhatFitsAndNothingElse) {
  for (const char* text :
       {R"({"name":"a","age":7})", R"({"name": "é\n", "age": 0})", "{\n  \"name\": \"x\",\n  \"age\": 12\n}"}) {
    EXPECT_TRUE(takes(matcher(GrammarKind::kJsonSchema, kPerson), text)) << text;
  }
  for (const char* text : {R"({"name":"a"})", R"({"name":"a","age":-1})", R"({"age":1,"name":"a"})",
                           R"({"name":"a","age":1,)", "[]", R"({"name":"a","age":1}x)", R"({"name":1,"age":1})", ""}) {
    EXPECT_FALSE(takes(matcher(GrammarKind::kJsonSchema, kPerson), text)) << text;
  }
}

TEST_F(GrammarTest, TokensOfSeveralBytesAreAllowedWhereTheyFit) {
  GrammarMatcher chosen = matcher(GrammarKind::kChoice, R"(["hello", "help"])");
  EXPECT_EQ(allowed(chosen), (std::set<std::int64_t>{'h', 256}));  // "h" and "he"
  EXPECT_FALSE(chosen.accept(256).value());
  EXPECT_EQ(allowed(chosen), (std::set<std::int64_t>{'l', 257}));  // "l" and "ll"
  EXPECT_FALSE(chosen.accept(257).value());
  EXPECT_EQ(allowed(chosen), (std::set<std::int64_t>{'o'}));
  EXPECT_FALSE(chosen.accept('o').value());
  EXPECT_EQ(allowed(chosen), (std::set<std::int64_t>{kEnd}));  // and nothing past the vocabulary
  EXPECT_TRUE(chosen.accept(kEnd).value());
}

TEST_F(GrammarTest, SpecialTokensAreNoText) {
  GrammarMatcher anything = matcher(GrammarKind::kRegex, "(.|\\n)*");
  const std::set<std::int64_t> ids = allowed(anything);
  EXPECT_TRUE(ids.contains('<') && ids.contains(261));  // <|half|> is an ordinary piece
  EXPECT_FALSE(ids.contains(260));                      // <|turn|> is not
  EXPECT_TRUE(ids.contains(kEnd));
  EXPECT_EQ(*ids.rbegin(), 261);
}

TEST_F(GrammarTest, WhitespaceBetweenTokensOfJsonEnds) {
  GrammarMatcher json =
      matcher(GrammarKind::kJsonSchema, R"({"type":"array","x-guidance":{"whitespace_pattern":"[ ]*"}})");
  EXPECT_FALSE(allowed(json).contains(' '));
  EXPECT_FALSE(json.accept('[').value());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(allowed(json).contains(' ')) << i;
    EXPECT_FALSE(json.accept(' ').value());
  }
  const std::set<std::int64_t> ids = allowed(json);
  EXPECT_TRUE(ids.contains(']'));
  for (const char c : {' ', '\n', '\t', '\r'}) EXPECT_FALSE(ids.contains(c));
}

TEST_F(GrammarTest, PropertiesComeInTheOrderOfTheSchema) {
  GrammarMatcher json =
      matcher(GrammarKind::kJsonSchema,
              R"({"type":"object","properties":{"z":{"const":1},"a":{"const":2}},"required":["a","z"]})");
  EXPECT_TRUE(takes(std::move(json), R"({"z":1,"a":2})"));
}

TEST_F(GrammarTest, RegexesMatchTheWholeTextWithOrWithoutAnchors) {
  for (const char* regex : {"[0-9]{3}-[0-9]{4}", "^[0-9]{3}-[0-9]{4}$", "^([0-9]{3}-[0-9]{4})$"}) {
    EXPECT_TRUE(takes(matcher(GrammarKind::kRegex, regex), "555-1234")) << regex;
    EXPECT_FALSE(takes(matcher(GrammarKind::kRegex, regex), "555-12345")) << regex;
    EXPECT_FALSE(takes(matcher(GrammarKind::kRegex, regex), "555-123")) << regex;
  }
  EXPECT_TRUE(takes(matcher(GrammarKind::kRegex, R"(cost\$)"), "cost$"));
  EXPECT_TRUE(takes(matcher(GrammarKind::kRegex, "a/b"), "a/b"));
  EXPECT_TRUE(takes(matcher(GrammarKind::kRegex, R"([\w-]+\s\d)"), "a_B-9 7"));
  EXPECT_FALSE(takes(matcher(GrammarKind::kRegex, R"(\d)"), "\u0663"));  // a digit of Arabic
}

TEST_F(GrammarTest, LarkGrammarsNestAsNoRegexCan) {
  const std::string balanced = "start: pair+\npair: \"(\" pair* \")\"";
  EXPECT_TRUE(takes(matcher(GrammarKind::kLark, balanced), "(()(()))()"));
  EXPECT_FALSE(takes(matcher(GrammarKind::kLark, balanced), "(()"));
}

TEST_F(GrammarTest, RecursiveSchemasAreFollowed) {
  const std::string tree =
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/n"}}},)"
      R"("required":["c"],"additionalProperties":false}}})";
  EXPECT_TRUE(takes(matcher(GrammarKind::kJsonSchema, tree), R"({"c":[{"c":[]},{"c":[{"c":[]}]}]})"));
}

TEST_F(GrammarTest, MatchersOfOneGrammarKnowNothingOfEachOther) {
  const auto grammar = compile(GrammarKind::kChoice, R"(["ab","cd"])").value();
  GrammarMatcher one = grammar->new_matcher().value();
  GrammarMatcher other = grammar->new_matcher().value();
  EXPECT_FALSE(one.accept('a').value());
  EXPECT_EQ(allowed(one), (std::set<std::int64_t>{'b'}));
  EXPECT_EQ(allowed(other), (std::set<std::int64_t>{'a', 'c'}));
}

TEST_F(GrammarTest, ATokenThatDoesNotFitIsAnError) {
  GrammarMatcher one = matcher(GrammarKind::kChoice, R"(["ab"])");
  const auto refused = one.accept('x');
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kValidation);
  EXPECT_FALSE(matcher(GrammarKind::kChoice, R"(["ab"])").accept(-1).ok());
  EXPECT_FALSE(matcher(GrammarKind::kChoice, R"(["ab"])").accept(1 << 20).ok());
}

TEST_F(GrammarTest, WhatCannotBeCompiledIsRefusedWithTheReason) {
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, R"({"type":"strin"})"), "");
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, R"({"type":)"), "");
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, "false").find("nothing fits"), std::string::npos);
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, "[1]"), "");
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, R"({"$ref":"#/$defs/none"})"), "");
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, R"({"$ref":"http://127.0.0.1:1/x.json"})"), "");
  EXPECT_NE(why_not(GrammarKind::kRegex, "(a"), "");
  EXPECT_NE(why_not(GrammarKind::kRegex, "(?=a)b"), "");
  EXPECT_NE(why_not(GrammarKind::kLark, "begin: \"a\""), "");
  EXPECT_NE(why_not(GrammarKind::kLark, "start: unknown_rule"), "");
  EXPECT_NE(why_not(GrammarKind::kChoice, "[]").find("nothing to choose"), std::string::npos);
  EXPECT_NE(why_not(GrammarKind::kChoice, "[1]"), "");
  EXPECT_EQ(why_not(GrammarKind::kJsonSchema, "true"), "");
}

TEST_F(GrammarTest, HostileTextsAreRefusedWithinTheLimit) {
  const auto repeat = [](const std::string& part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  EXPECT_NE(why_not(GrammarKind::kRegex, repeat("(", 5000) + "a" + repeat(")", 5000)).find("nested"),
            std::string::npos);
  EXPECT_NE(why_not(GrammarKind::kLark, "start: " + repeat("(", 5000) + "\"a\"" + repeat(")", 5000)).find("nested"),
            std::string::npos);
  EXPECT_NE(why_not(GrammarKind::kJsonSchema, repeat(R"({"not":)", 2000) + "{}" + repeat("}", 2000)), "");
  EXPECT_NE(
      why_not(GrammarKind::kJsonSchema, repeat(R"({"properties":{"a":)", 60) + R"({"$ref":"#/x"})" + repeat("}}", 60)),
      "");
  EXPECT_NE(why_not(GrammarKind::kLark, std::string(GrammarFactory::kMaxTextBytes + 1, ' ')).find("bytes"),
            std::string::npos);
}

TEST_F(GrammarTest, TimeRunsOut) {
  std::string patterns = R"({"type":"object","patternProperties":{)";
  for (int i = 0; i < 200; ++i) patterns += "\"^x" + std::to_string(i) + R"([a-z]*$":{"type":"integer"},)";
  patterns += R"("^y$":{}}})";
  const auto late =
      factory_->compile({.kind = GrammarKind::kJsonSchema, .text = patterns}, std::chrono::milliseconds(1));
  ASSERT_FALSE(late.ok());
  EXPECT_NE(late.error().message.find("more than 1 ms"), std::string::npos) << late.error().message;
}

TEST_F(GrammarTest, ADocumentOfManyDefinitionsDoesNotEndTheProcess) {
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 3000; ++i) {
    chain += "\"d" + std::to_string(i) + R"(":{"anyOf":[{"$ref":"#/$defs/d)" + std::to_string(i + 1) +
             R"("},{"type":"null"}]},)";
  }
  chain += R"("d3000":{"type":"null"}}})";
  (void)why_not(GrammarKind::kJsonSchema, chain);
  std::string self = R"({"$ref":"#"})";
  (void)why_not(GrammarKind::kJsonSchema, self);
  (void)why_not(GrammarKind::kLark, "start: start");
  (void)why_not(GrammarKind::kLark, "start: a\na: a | b\nb: a");
}

TEST(GrammarWithoutEndToken, IsWholeWhereNothingMoreFits) {
  const auto tokenizer = load_tokenizer(byte_level_tokenizer());
  ASSERT_TRUE(tokenizer->eos_ids().empty());
  const GrammarFactory factory(*tokenizer);
  const auto grammar = factory.compile({.kind = GrammarKind::kChoice, .text = R"(["ab"])"}, kLimit).value();
  GrammarMatcher matcher = grammar->new_matcher().value();
  EXPECT_FALSE(matcher.accept('a').value());
  std::vector<std::int32_t> words(9);
  ASSERT_TRUE(matcher.fill_mask(words).ok());
  EXPECT_EQ(words['b' / 32], 1 << ('b' % 32));
  EXPECT_EQ(words[8], 0);  // 262 would be the end token that there is not
  EXPECT_TRUE(matcher.accept('b').value());
}

}  // namespace
}  // namespace shoal
