#include "text/incremental_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_model_dir.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;

std::string streamed(const Tokenizer& tokenizer, const Ids& prompt, const Ids& ids, SkipSpecial skip) {
  IncrementalDecoder decoder(tokenizer, prompt, skip);
  std::string text;
  for (const std::int64_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

// The final part of a prompt's text: what is decoded without a broken tail.
std::string final_text(const Tokenizer& tokenizer, const Ids& prompt, SkipSpecial skip) {
  IncrementalDecoder decoder(tokenizer, {}, skip);
  std::string text;
  for (const std::int64_t id : prompt) text += decoder.push(id);
  return text;
}

Ids random_ids(std::mt19937& random, std::size_t max_count, std::int64_t vocab_size) {
  Ids ids(random() % (max_count + 1));
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % static_cast<unsigned>(vocab_size + 2));
  return ids;
}

TEST(IncrementalDecoder, HoldsOnlyAnIncompleteCharacter) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  IncrementalDecoder decoder(*tokenizer, {}, SkipSpecial::kNo);
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xBD), "");
  EXPECT_EQ(decoder.push(0xA0), "你");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push('b'), "\uFFFDb");
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(IncrementalDecoder, ARealReplacementCharacterIsText) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  IncrementalDecoder decoder(*tokenizer, {}, SkipSpecial::kNo);
  EXPECT_EQ(decoder.push(0xEF), "");
  EXPECT_EQ(decoder.push(0xBF), "");
  EXPECT_EQ(decoder.push(0xBD), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(IncrementalDecoder, EmojiWithJoinersComeCharacterByCharacter) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const std::string family = "👩‍👩‍👧 e\u0301";
  const Ids ids = tokenizer->encode(family, SpecialTokens::kAdd).value();
  IncrementalDecoder decoder(*tokenizer, {}, SkipSpecial::kNo);
  std::string text;
  std::size_t num_deltas = 0;
  for (const std::int64_t id : ids) {
    const std::string delta = decoder.push(id);
    num_deltas += delta.empty() ? 0 : 1;
    text += delta;
  }
  EXPECT_EQ(text, family);
  EXPECT_EQ(num_deltas, 8u);
}

TEST(IncrementalDecoder, ThePromptDecidesAboutTheFirstSpace) {
  const auto tokenizer = test::load_tokenizer(test::byte_fallback_tokenizer());
  const std::int64_t space_a = 264;
  EXPECT_EQ(streamed(*tokenizer, {}, {space_a}, SkipSpecial::kYes), "a");
  EXPECT_EQ(streamed(*tokenizer, {1}, {space_a}, SkipSpecial::kYes), "a");
  EXPECT_EQ(streamed(*tokenizer, {1}, {space_a}, SkipSpecial::kNo), " a");
  EXPECT_EQ(streamed(*tokenizer, {1, 260}, {space_a}, SkipSpecial::kYes), " a");
  EXPECT_EQ(streamed(*tokenizer, Ids(1000, 260), {space_a}, SkipSpecial::kYes), " a");
}

TEST(IncrementalDecoder, APromptThatEndsInsideACharacterIsNotRepeated) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  Ids prompt(500, 'p');
  prompt.insert(prompt.end(), {0xE4, 0xBD});
  EXPECT_EQ(streamed(*tokenizer, prompt, {0xA0, 'x'}, SkipSpecial::kYes), "你x");
  EXPECT_EQ(streamed(*tokenizer, {0xE4, 259, 0xBD, 259}, {0xA0}, SkipSpecial::kYes), "你");
}

TEST(IncrementalDecoder, DeltasAddUpToTheWholeDecode) {
  std::mt19937 random(11);
  for (const auto& json : {test::byte_level_tokenizer(), test::byte_fallback_tokenizer()}) {
    const auto tokenizer = test::load_tokenizer(json);
    for (int round = 0; round < 400; ++round) {
      const SkipSpecial skip = round % 2 == 0 ? SkipSpecial::kYes : SkipSpecial::kNo;
      const Ids prompt = random_ids(random, 12, tokenizer->vocab_size());
      const Ids ids = random_ids(random, 40, tokenizer->vocab_size());
      Ids all = prompt;
      all.insert(all.end(), ids.begin(), ids.end());
      EXPECT_EQ(final_text(*tokenizer, prompt, skip) + streamed(*tokenizer, prompt, ids, skip),
                tokenizer->decode(all, skip));
      EXPECT_EQ(streamed(*tokenizer, {}, ids, skip), tokenizer->decode(ids, skip));
    }
  }
}

TEST(IncrementalDecoder, BrokenBytesDecodeAsUnicodeAdvises) {
  const auto tokenizer = test::load_tokenizer(test::byte_level_tokenizer());
  const auto decode = [&](const Ids& ids) { return tokenizer->decode(ids, SkipSpecial::kNo); };
  const std::string r = "\uFFFD";
  EXPECT_EQ(decode({0xC0, 0x80}), r + r);
  EXPECT_EQ(decode({0xE0, 0x9F, 0x80}), r + r + r);
  EXPECT_EQ(decode({0xED, 0xA0, 0x80}), r + r + r);
  EXPECT_EQ(decode({0xF0, 0x8F, 0x80}), r + r + r);
  EXPECT_EQ(decode({0xF4, 0x90, 0x80, 0x80}), r + r + r + r);
  EXPECT_EQ(decode({0xF0, 0x9F, 0x98, 'x'}), r + "x");
  EXPECT_EQ(decode({0xF4, 0x8F, 0xBF, 0xBF}), "\U0010FFFF");
  EXPECT_EQ(decode({0xE4, 0xE4, 0xBD, 0xA0}), r + "你");
}

}  // namespace
}  // namespace shoal
