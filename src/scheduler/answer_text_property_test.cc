// Generated answers against a plain oracle: what AnswerText streams is the whole decoded text, byte for byte, up to
// what ends it. Splits inside characters, byte tokens, special tokens, stop strings that overlap, stop tokens, least
// lengths.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/answer_text.h"
#include "text/test_model_dir.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::string_view kReplacement = "\uFFFD";

struct Family {
  nlohmann::json tokenizer;
  std::string eos_token;
  Ids alphabet;  // few tokens, so that stop strings occur
};

Family byte_level() {
  return {test::byte_level_tokenizer(),
          "<|end|>",
          {'a', 'b', 'a', 'b', ' ', 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 256, 258, 259, 260, 261}};
}

// 259 is "▁", then come a, b, c, é and "▁a"; bytes are shifted by three.
Family byte_fallback() {
  return {test::byte_fallback_tokenizer(),
          "</s>",
          {259, 260, 261, 260, 261, 263, 264, 3 + 'a', 3 + 0xC3, 3 + 0xA9, 3 + 0xE4, 3 + 0xBD, 3 + 0xA0, 0, 1, 2}};
}

std::unique_ptr<Tokenizer> load(const Family& family) {
  const test::ModelDir dir;
  dir.write_json("tokenizer.json", family.tokenizer);
  dir.write_json("tokenizer_config.json", {{"eos_token", family.eos_token}});
  return Tokenizer::load(dir.path());
}

// Bytes at the end that begin a character and do not end it.
bool ends_inside_a_character(const std::string& bytes) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, bytes.size()); ++length) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[bytes.size() - length + i]); };
    if (at(0) < 0xC2 || at(0) > 0xF4) continue;
    const std::size_t needed = at(0) < 0xE0 ? 2 : at(0) < 0xF0 ? 3 : 4;
    bool continues = length < needed;
    for (std::size_t i = 1; i < length; ++i) continues = continues && (at(i) & 0xC0) == 0x80;
    if (continues) return true;
  }
  return false;
}

// The whole text of prompt and answer by the tokenizer's own decode, each time from the beginning.
class Oracle {
 public:
  Oracle(const Tokenizer& tokenizer, const Request& request) : tokenizer_(tokenizer), request_(request) {
    base_ = decoded(request.prompt_ids, /*final_part=*/true).size();
  }

  bool is_end(std::int64_t id) const {
    const auto eos = tokenizer_.eos_ids();
    return !request_.ignore_eos && std::find(eos.begin(), eos.end(), id) != eos.end();
  }
  bool is_stop(std::int64_t id) const {
    return std::find(request_.stop_token_ids.begin(), request_.stop_token_ids.end(), id) !=
           request_.stop_token_ids.end();
  }

  // Of an answer's first tokens; the final part: less a character that is not whole.
  std::string text(const Ids& ids, bool final_part) const {
    Ids all = request_.prompt_ids;
    for (const std::int64_t id : ids) {
      const bool is_cut = request_.stop_text == StopText::kCut && is_stop(id);
      if (!is_cut && !(request_.skip_special_tokens && is_end(id))) all.push_back(id);
    }
    return decoded(all, final_part).substr(base_);
  }

 private:
  std::string decoded(const Ids& ids, bool final_part) const {
    const SkipSpecial skip = request_.skip_special_tokens ? SkipSpecial::kYes : SkipSpecial::kNo;
    std::string whole = tokenizer_.decode(ids, skip);
    std::string bytes;
    for (const std::int64_t id : ids) {
      if (skip == SkipSpecial::kNo || !tokenizer_.is_special(id)) bytes += tokenizer_.token_bytes(id, false);
    }
    if (final_part && ends_inside_a_character(bytes)) {
      EXPECT_TRUE(whole.ends_with(kReplacement));
      whole.resize(whole.size() - kReplacement.size());
    }
    return whole;
  }

  const Tokenizer& tokenizer_;
  const Request& request_;
  std::size_t base_ = 0;  // bytes of the prompt's text
};

struct Expected {
  std::string text;
  std::size_t num_tokens = 0;
  std::optional<FinishReason> reason;
  bool matched = false;  // a stop string ended the text
};

// Where the first stop string is complete behind `from`, and how long the longest that ends there is.
std::pair<std::size_t, std::size_t> first_match(const Request& request, const std::string& text, std::size_t from) {
  for (std::size_t end = from + 1; end <= text.size(); ++end) {
    const std::string_view seen = std::string_view(text).substr(from, end - from);
    std::size_t longest = 0;
    for (const std::string& stop : request.stop) longest = std::max(longest, seen.ends_with(stop) ? stop.size() : 0);
    if (longest > 0) return {end, longest};
  }
  return {0, 0};
}

Expected expected_of(const Oracle& oracle, const Request& request, const Ids& ids) {
  std::size_t from = 0;
  for (std::size_t count = 1; count <= ids.size(); ++count) {
    const Ids so_far(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    const std::string text = oracle.text(so_far, true);
    if (static_cast<std::int64_t>(count) <= request.min_new_tokens) from = text.size();
    const auto [end, length] = first_match(request, text, from);
    std::optional<FinishReason> reason;
    if (static_cast<std::int64_t>(count) == request.max_new_tokens) {
      reason = FinishReason::kLength;
    } else if (oracle.is_end(so_far.back())) {
      reason = FinishReason::kEndOfSequence;
    } else if (oracle.is_stop(so_far.back()) || length > 0) {
      reason = FinishReason::kStopSequence;
    }
    if (!reason) continue;
    const std::size_t shown = request.stop_text == StopText::kCut ? end - length : end;
    return {.text = length > 0 ? text.substr(0, shown) : oracle.text(so_far, false),
            .num_tokens = count,
            .reason = reason,
            .matched = length > 0};
  }
  return {.text = oracle.text(ids, false), .num_tokens = ids.size(), .reason = std::nullopt};
}

std::string random_stop(std::mt19937_64& random, const std::vector<std::string>& others) {
  constexpr std::array<const char*, 8> kParts = {"a", "b", " ", "é", "你", "he", "<|turn|>", "aé"};
  std::string text;
  if (!others.empty() && random() % 2 == 0) {  // begins as another does, or ends as it does
    const std::string& other = others[random() % others.size()];
    text = random() % 2 == 0 ? other : other.substr(other.find_first_not_of("\x80\xA0\xA9\xBD", 1) % other.size());
  }
  for (std::size_t n = random() % 3 + (text.empty() ? 1 : 0); n > 0; --n) text += kParts[random() % kParts.size()];
  return text;
}

Request random_request(std::mt19937_64& random, const Family& family) {
  Request request{.prompt_ids = {},
                  .max_new_tokens = static_cast<std::int64_t>(random() % 30 + 1),
                  .sampling = {},
                  .adapter = std::nullopt,
                  .stop = {}};
  for (std::size_t n = random() % 4 + 1; n > 0; --n) {
    request.prompt_ids.push_back(family.alphabet[random() % family.alphabet.size()]);
  }
  for (std::size_t n = random() % 5; n > 0; --n) request.stop.push_back(random_stop(random, request.stop));
  for (std::size_t n = random() % 4 / 2; n > 0; --n) {
    request.stop_token_ids.push_back(family.alphabet[random() % family.alphabet.size()]);
  }
  std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
  request.stop_text = random() % 2 == 0 ? StopText::kCut : StopText::kKeep;
  request.ignore_eos = random() % 2 == 0;
  request.skip_special_tokens = random() % 2 == 0;
  if (random() % 3 == 0) request.min_new_tokens = static_cast<std::int64_t>(random() % 6);
  return request;
}

// As a sampler does it: what is banned is not drawn.
Ids random_answer(std::mt19937_64& random, const Family& family, const Oracle& oracle, const Request& request) {
  Ids ids;
  for (std::int64_t n = 0; n < request.max_new_tokens; ++n) {
    std::int64_t id = 0;
    do {
      id = family.alphabet[random() % family.alphabet.size()];
    } while (n < request.min_new_tokens && (oracle.is_end(id) || oracle.is_stop(id)));
    ids.push_back(id);
  }
  return ids;
}

std::string described(const Request& request, const Ids& ids) {
  std::string text = "prompt " + testing::PrintToString(request.prompt_ids) + " ids " + testing::PrintToString(ids) +
                     " stop " + testing::PrintToString(request.stop) + " stop ids " +
                     testing::PrintToString(request.stop_token_ids);
  text += request.stop_text == StopText::kCut ? " cut" : " keep";
  if (request.ignore_eos) text += " ignore_eos";
  if (request.skip_special_tokens) text += " skip_special";
  return text + " least " + std::to_string(request.min_new_tokens);
}

struct Seen {
  std::array<int, 3> reasons = {};
  int matches = 0;
  int broken_ends = 0;
};

void check(const Tokenizer& tokenizer, const Request& request, const Oracle& oracle, const Ids& ids, Seen& seen) {
  const Expected expected = expected_of(oracle, request, ids);
  AnswerText answer(request, &tokenizer);
  std::string shown;
  std::optional<FinishReason> reason;
  std::size_t num_tokens = 0;
  std::size_t longest_stop = 0;
  for (const std::string& stop : request.stop) longest_stop = std::max(longest_stop, stop.size());
  while (!reason && num_tokens < ids.size()) {
    AnswerText::Step step = answer.push(ids[num_tokens++], -1.0F);
    shown += step.event.delta;
    reason = step.reason;
    ASSERT_TRUE(std::string_view(expected.text).starts_with(shown)) << "shown too early: " << shown;
    if (reason) break;
    // Held back: nothing but what may still become a stop string.
    const Ids so_far(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(num_tokens));
    const std::size_t most = request.stop_text == StopText::kCut && longest_stop > 0 ? longest_stop - 1 : 0;
    ASSERT_LE(oracle.text(so_far, true).size() - shown.size(), most) << "held back without need: " << shown;
  }
  FinishEvent finish;
  answer.finish(finish);
  ASSERT_EQ(reason, expected.reason);
  ASSERT_EQ(num_tokens, expected.num_tokens);
  ASSERT_EQ(finish.generated_text, expected.text);
  ASSERT_EQ(shown + finish.tail, expected.text);
  ++seen.reasons[static_cast<std::size_t>(*reason)];
  seen.matches += expected.matched ? 1 : 0;
  seen.broken_ends += !expected.matched && expected.text.ends_with(kReplacement) ? 1 : 0;
}

TEST(AnswerTextProperty, StreamedTextIsTheWholeTextUpToWhatEndsIt) {
  std::mt19937_64 random(3);
  for (const Family& family : {byte_level(), byte_fallback()}) {
    const auto tokenizer = load(family);
    Seen seen;
    for (int round = 0; round < 10'000; ++round) {
      const Request request = random_request(random, family);
      const Oracle oracle(*tokenizer, request);
      const Ids ids = random_answer(random, family, oracle, request);
      check(*tokenizer, request, oracle, ids, seen);
      if (testing::Test::HasFatalFailure()) FAIL() << described(request, ids);
    }
    for (const int count : seen.reasons) EXPECT_GT(count, 500);
    EXPECT_GT(seen.matches, 1500);
    EXPECT_GT(seen.broken_ends, 150);
  }
}

}  // namespace
}  // namespace shoal
