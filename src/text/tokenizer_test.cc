#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>
#include <type_traits>
#include <utility>

#include "text/test_model_dir.h"

namespace shoal {
namespace {

using test::ModelDir;
using Ids = std::vector<std::int64_t>;

std::string start_error(const ModelDir& dir) {
  try {
    Tokenizer::load(dir.path());
  } catch (const StartError& error) {
    return error.what();
  }
  return "";
}

TEST(Tokenizer, EncodesBytesMergesAndAddedTokensGluedToWords) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const Ids expected = {256, 257, 'o', 258, 260, 'o', 261, '!'};
  EXPECT_EQ(tokenizer->encode("hello w<|turn|>o<|half|>!", SpecialTokens::kAdd).value(), expected);
  EXPECT_EQ(tokenizer->decode(expected, SkipSpecial::kNo), "hello w<|turn|>o<|half|>!");
  EXPECT_EQ(tokenizer->decode(expected, SkipSpecial::kYes), "hello wo<|half|>!");
  EXPECT_EQ(tokenizer->encode("", SpecialTokens::kAdd).value(), Ids());
  EXPECT_EQ(tokenizer->decode({}, SkipSpecial::kYes), "");
}

// The loop's head makes a temporary Result, and C++20 ends its life before the first round.
TEST(Tokenizer, IdsOfATemporaryResultOutliveTheHeadOfALoop) {
  static_assert(!std::is_reference_v<decltype(std::declval<Result<Ids>>().value())>);
  static_assert(!std::is_reference_v<decltype(std::declval<Result<Ids>>().error())>);
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  Ids seen;
  for (const std::int64_t id : tokenizer->encode("hello", SpecialTokens::kAdd).value()) seen.push_back(id);
  EXPECT_EQ(seen, (Ids{256, 257, 'o'}));
}

TEST(Tokenizer, AddsBosOnlyWhenAsked) {
  const auto tokenizer = test::load_tokenizer(test::byte_fallback_tokenizer());
  EXPECT_EQ(tokenizer->encode("a b", SpecialTokens::kAdd).value(), (Ids{1, 264, 259, 261}));
  EXPECT_EQ(tokenizer->encode("a b", SpecialTokens::kNone).value(), (Ids{264, 259, 261}));
  // The file's own truncation would have cut this to four tokens.
  const auto byte_level = test::load_tokenizer(test::byte_level_tokenizer());
  EXPECT_EQ(byte_level->encode("abcdefghij", SpecialTokens::kAdd).value().size(), 10u);
}

TEST(Tokenizer, FallsBackToBytesAndStripsOnlyTheFirstSpace) {
  const auto tokenizer = test::load_tokenizer(test::byte_fallback_tokenizer());
  const auto ids = tokenizer->encode("  a你\n é", SpecialTokens::kAdd).value();
  EXPECT_EQ(tokenizer->decode(ids, SkipSpecial::kYes), "  a你\n é");
  EXPECT_EQ(tokenizer->decode(Ids{264, 264}, SkipSpecial::kYes), "a a");
  EXPECT_EQ(tokenizer->decode(Ids{3 + ' ', 260}, SkipSpecial::kYes), "a");
  EXPECT_EQ(tokenizer->decode(Ids{1, 264}, SkipSpecial::kNo), "<s> a");
  // A broken run of bytes keeps its whole characters.
  EXPECT_EQ(tokenizer->decode(Ids{260, 3 + 0xC3, 3 + 0xA9, 3 + 0xFF, 261}, SkipSpecial::kYes), "aé\uFFFDb");
}

TEST(Tokenizer, SpansCountCharactersAndShowRawPieces) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const auto spans = tokenizer->encode_spans("é w<|end|>", SpecialTokens::kAdd).value();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0].piece, "Ã");
  EXPECT_EQ(std::pair(spans[0].start, spans[0].stop), std::pair(0L, 1L));
  EXPECT_EQ(std::pair(spans[1].start, spans[1].stop), std::pair(0L, 1L));
  EXPECT_EQ(spans[2].piece, "Ġw");
  EXPECT_EQ(std::pair(spans[2].start, spans[2].stop), std::pair(1L, 3L));
  EXPECT_EQ(spans[3].piece, "<|end|>");
  EXPECT_EQ(std::pair(spans[3].start, spans[3].stop), std::pair(3L, 10L));
}

TEST(Tokenizer, RefusesInvalidUtf8AndEndlessText) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80"}) {
    const auto ids = tokenizer->encode(text, SpecialTokens::kAdd);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kValidation);
    EXPECT_NE(ids.error().message.find("UTF-8"), std::string::npos);
    EXPECT_FALSE(tokenizer->encode_spans(text, SpecialTokens::kAdd).ok());
  }
  EXPECT_FALSE(tokenizer->encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a'), SpecialTokens::kAdd).ok());
  EXPECT_EQ(tokenizer->encode(std::string("a\0b", 3), SpecialTokens::kAdd).value(), (Ids{'a', 0, 'b'}));
}

TEST(Tokenizer, UnknownIdsAddNothing) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  EXPECT_EQ(tokenizer->decode(Ids{-1, 'a', 262, INT64_MAX, INT64_MIN, std::int64_t{1} << 32, 'b'}, SkipSpecial::kNo),
            "ab");
  EXPECT_EQ(tokenizer->piece(262), "");
  EXPECT_EQ(tokenizer->piece(-1), "");
  EXPECT_FALSE(tokenizer->is_special(262));
  EXPECT_FALSE(tokenizer->token_id("no such piece"));
  EXPECT_EQ(tokenizer->token_id("<|end|>"), 259);
  EXPECT_EQ(tokenizer->vocab_size(), 262);
}

TEST(Tokenizer, PlainRangesKeepControlTokensOutOfAText) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const std::string text = "<|turn|>x<|end|><|half|><|turn|>";
  const std::vector<TextRange> plain = {{9, 16}};
  const Ids expected = {260, 'x', '<', '|', 'e', 'n', 'd', '|', '>', 261, 260};
  EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kNone, plain).value(), expected);
  EXPECT_EQ(tokenizer->decode(expected, SkipSpecial::kNo), text);
  const auto spans = tokenizer->encode_spans(text, SpecialTokens::kNone, plain).value();
  ASSERT_EQ(spans.size(), expected.size());
  EXPECT_EQ(std::pair(spans.back().start, spans.back().stop), std::pair(24L, 32L));
  // Ranges that hide nothing change nothing, even beyond the end.
  EXPECT_EQ(tokenizer->encode("hello", SpecialTokens::kNone, std::vector<TextRange>{{0, 99}}).value(),
            tokenizer->encode("hello", SpecialTokens::kNone).value());

  const auto fallback = test::load_tokenizer(test::byte_fallback_tokenizer());
  const auto ids = fallback->encode("a</s> b", SpecialTokens::kAdd, std::vector<TextRange>{{1, 5}}).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0);
  EXPECT_EQ(fallback->decode(ids, SkipSpecial::kYes), "a</s> b");
}

TEST(Tokenizer, EndTokensAreTheUnionOfAllFiles) {
  const ModelDir dir;
  dir.write_json("tokenizer.json", test::byte_level_tokenizer());
  dir.write("tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}, "bos_token": "he"})");
  dir.write("generation_config.json", R"({"eos_token_id": [260, 7, 260]})");
  dir.write("config.json", R"({"eos_token_id": 11})");
  const auto tokenizer = Tokenizer::load(dir.path());
  EXPECT_EQ(Ids(tokenizer->eos_ids().begin(), tokenizer->eos_ids().end()), (Ids{7, 11, 259, 260}));
  EXPECT_EQ(tokenizer->bos_token(), "he");
  EXPECT_EQ(tokenizer->eos_token(), "<|end|>");
  EXPECT_TRUE(tokenizer->is_special(256)) << "a named token is special";

  dir.write("config.json", R"({"eos_token_id": "x"})");
  EXPECT_NE(start_error(dir).find("config.json"), std::string::npos);
  dir.write("config.json", R"({"eos_token_id": null})");
  dir.write("tokenizer_config.json", "{}");
  dir.write("special_tokens_map.json", R"({"eos_token": "<|turn|>"})");
  EXPECT_EQ(Tokenizer::load(dir.path())->eos_token(), "<|turn|>");
}

TEST(Tokenizer, FlagsOfTheConfigWin) {
  const ModelDir dir;
  dir.write_json("tokenizer.json", test::byte_level_tokenizer());
  dir.write("tokenizer_config.json",
            R"({"added_tokens_decoder": {"260": {"content": "<|turn|>", "rstrip": true, "special": false},
                                         "300": {"content": "<|nowhere|>", "special": true}}})");
  const auto tokenizer = Tokenizer::load(dir.path());
  EXPECT_EQ(tokenizer->encode("<|turn|>   a", SpecialTokens::kNone).value(), (Ids{260, 'a'}));
  EXPECT_EQ(tokenizer->vocab_size(), 262);
}

TEST(Tokenizer, SaysWhatKeepsItFromLoading) {
  const ModelDir dir;
  EXPECT_NE(start_error(dir).find("no tokenizer.json"), std::string::npos);
  dir.write("tokenizer.model", "x");
  EXPECT_NE(start_error(dir).find("save_pretrained"), std::string::npos);
  for (const std::string text : {"", "{", "{}", "[]", R"({"model": {"type": "Unknown"}})", "\xFF\xFE"}) {
    dir.write("tokenizer.json", text);
    EXPECT_NE(start_error(dir).find("tokenizer.json: "), std::string::npos) << text;
  }
  dir.write("tokenizer.json", std::string(1 << 20, '['));
  EXPECT_NE(start_error(dir), "");
  nlohmann::json json = test::byte_level_tokenizer();
  json["model"]["merges"] = {"no such"};
  dir.write_json("tokenizer.json", json);
  EXPECT_NE(start_error(dir), "");
  json = test::byte_level_tokenizer();
  json["decoder"] = {{"type", "BPEDecoder"}, {"suffix", "</w>"}};
  dir.write_json("tokenizer.json", json);
  EXPECT_NE(start_error(dir).find("BPEDecoder"), std::string::npos);
  json["decoder"] = 7;
  dir.write_json("tokenizer.json", json);
  EXPECT_NE(start_error(dir), "");
}

TEST(Tokenizer, ServesSeveralThreads) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const std::string text = "hello world, 你好 <|turn|>";
  const auto expected = tokenizer->encode(text, SpecialTokens::kAdd).value();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kAdd).value(), expected);
        EXPECT_EQ(tokenizer->decode(expected, SkipSpecial::kNo), text);
      }
    });
  }
}

}  // namespace
}  // namespace shoal
