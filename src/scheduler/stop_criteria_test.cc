#include "scheduler/stop_criteria.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "scheduler/stop_matcher.h"

namespace shoal {
namespace {

using Strings = std::vector<std::string>;

struct Shown {
  std::string text;  // all deltas
  std::string tail;  // the last of them, from finish()
  bool matched = false;

  bool operator==(const Shown&) const = default;
};

Shown show(const Strings& stop, StopText stop_text, const Strings& pieces) {
  StopMatcher matcher(stop, stop_text);
  Shown shown;
  for (const std::string& piece : pieces) shown.text += matcher.push(piece);
  shown.tail = matcher.finish();
  shown.text += shown.tail;
  shown.matched = matcher.matched();
  return shown;
}

// Tries every end of every stop string on the whole text.
Shown reference(const Strings& stop, StopText stop_text, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& each : stop) {
      if (text.substr(0, end).ends_with(each)) longest = std::max(longest, each.size());
    }
    if (longest > 0) {
      return {.text = text.substr(0, stop_text == StopText::kCut ? end - longest : end), .tail = "", .matched = true};
    }
  }
  return {.text = text, .tail = "", .matched = false};
}

TEST(StopMatcher, NoStopStringsPassesAllOn) {
  StopMatcher matcher({}, StopText::kCut);
  EXPECT_EQ(matcher.push("any"), "any");
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, HoldsBackNoMoreThanAProperPrefixOfAStopString) {
  const Strings stop{"STOP"};
  StopMatcher matcher(stop, StopText::kCut);
  EXPECT_EQ(matcher.push("go S"), "go ");
  EXPECT_EQ(matcher.push("TO"), "");
  EXPECT_EQ(matcher.push("S"), "STO") << "the mismatch releases what can no longer be a stop string, and only that";
  EXPECT_EQ(matcher.push("TO"), "");
  EXPECT_EQ(matcher.finish(), "STO") << "the end releases the rest";
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, CutsAStopStringThatIsSplitOverPieces) {
  const Strings stop{"STOP"};
  EXPECT_EQ(show(stop, StopText::kCut, {"a", "b S", "T", "OP c"}), (Shown{.text = "ab ", .tail = "", .matched = true}));
  EXPECT_EQ(show(stop, StopText::kKeep, {"a", "b S", "T", "OP c"}),
            (Shown{.text = "ab STOP", .tail = "", .matched = true}));
}

TEST(StopMatcher, FindsAStopStringInsideOnePiece) {
  const Strings stop{"\n\n"};
  EXPECT_EQ(show(stop, StopText::kCut, {"x = 1\n\ny = 2\n\n"}).text, "x = 1");
  EXPECT_EQ(show(stop, StopText::kKeep, {"x = 1\n\ny = 2\n\n"}).text, "x = 1\n\n");
}

TEST(StopMatcher, KeepingHoldsNothingBack) {
  const Strings stop{"STOP"};
  StopMatcher matcher(stop, StopText::kKeep);
  EXPECT_EQ(matcher.push("STO"), "STO");
  EXPECT_EQ(matcher.push("P!"), "P");
  EXPECT_EQ(matcher.push("more"), "") << "nothing follows a match";
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, OverlappingBeginnings) {
  EXPECT_EQ(show({"aab"}, StopText::kCut, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(show({"aab"}, StopText::kCut, {"aaab"}).text, "a");
  EXPECT_EQ(show({"abab!"}, StopText::kCut, {"ab", "ab", "ab", "!"}).text, "ab");
  EXPECT_EQ(show({"aa"}, StopText::kCut, {"a"}), (Shown{.text = "a", .tail = "a", .matched = false}));
}

TEST(StopMatcher, StopStringThatIsTheWholeText) {
  EXPECT_EQ(show({"done"}, StopText::kCut, {"do", "ne"}), (Shown{.text = "", .tail = "", .matched = true}));
  EXPECT_EQ(show({"done"}, StopText::kKeep, {"do", "ne"}), (Shown{.text = "done", .tail = "", .matched = true}));
  EXPECT_EQ(show({"x"}, StopText::kCut, {"x"}).text, "");
}

TEST(StopMatcher, OfSeveralTheFirstCompleteWins) {
  EXPECT_EQ(show({"world", "lo"}, StopText::kCut, {"hello world"}).text, "hel");
  EXPECT_EQ(show({"b", "abc"}, StopText::kCut, {"xabc"}).text, "xa");
  EXPECT_EQ(show({"bc", "abc", "c"}, StopText::kCut, {"xabc"}).text, "x") << "the longest of those that end together";
  EXPECT_EQ(show({"ab", "ab"}, StopText::kCut, {"1ab"}).text, "1") << "the same one twice";
}

TEST(StopMatcher, MultiByteCharacters) {
  EXPECT_EQ(show({"終わり"}, StopText::kCut, {"これで", "終", "わ", "り。"}).text, "これで");
  StopMatcher matcher(Strings{"é!"}, StopText::kCut);
  EXPECT_EQ(matcher.push("caf"), "caf");
  EXPECT_EQ(matcher.push("é"), "");
  EXPECT_EQ(matcher.push("è"), "éè") << "both characters share their first byte";
}

TEST(StopMatcher, LongRepetitiveStopStringsStayLinear) {
  // A matcher that tries every suffix at each token takes minutes.
  const Strings stop{std::string(20'000, 'a') + "b"};
  StopMatcher matcher(stop, StopText::kCut);
  for (int i = 0; i < 30'000; ++i) ASSERT_TRUE(matcher.push("a").size() <= 1U);
  EXPECT_EQ(matcher.finish().size(), 20'000U);
}

TEST(StopMatcher, EqualsTheReferenceCutterHoweverTheTextIsCut) {
  std::mt19937_64 random(7);
  const auto random_text = [&random](std::size_t max_length) {
    std::string text;
    for (std::size_t n = random() % (max_length + 1); n > 0; --n) text += "ab\xc3\xa9"[random() % 3];
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    Strings stop;
    for (std::size_t n = random() % 4; n > 0; --n) stop.push_back(random_text(4) + "ab"[random() % 2]);
    const std::string text = random_text(24);
    Strings pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = random() % 4;
      pieces.push_back(text.substr(at, length));
      at += pieces.back().size();
    }
    for (const StopText stop_text : {StopText::kKeep, StopText::kCut}) {
      Shown shown = show(stop, stop_text, pieces);
      shown.tail.clear();
      ASSERT_EQ(shown, reference(stop, stop_text, text)) << text << " " << round;
      matches += shown.matched ? 1 : 0;
    }
  }
  EXPECT_GT(matches, 10'000);
}

Request request_of(std::int64_t max_new_tokens, Strings stop = {}, bool ignore_eos = false) {
  return {.prompt_ids = {1},
          .max_new_tokens = max_new_tokens,
          .sampling = {},
          .adapter = std::nullopt,
          .stop = std::move(stop),
          .ignore_eos = ignore_eos};
}

constexpr std::int64_t kEosIds[] = {7, 9};

TEST(StopCriteria, LengthWinsOverEndTokenAndStopString) {
  StopCriteria criteria(request_of(2, {"x"}), kEosIds);
  EXPECT_FALSE(criteria.push(1, "a").reason.has_value());
  EXPECT_EQ(criteria.push(7, "x").reason, FinishReason::kLength);
  EXPECT_EQ(criteria.num_tokens(), 2);
}

TEST(StopCriteria, EndTokenWinsOverStopString) {
  StopCriteria criteria(request_of(5, {"x"}), kEosIds);
  EXPECT_EQ(criteria.push(9, "x").reason, FinishReason::kEndOfSequence);
}

TEST(StopCriteria, StopStringEnds) {
  StopCriteria criteria(request_of(5, {"x"}), kEosIds);
  EXPECT_EQ(criteria.push(1, "axb").reason, FinishReason::kStopSequence);
}

TEST(StopCriteria, IgnoredEndTokensDoNotEnd) {
  StopCriteria criteria(request_of(3, {}, true), kEosIds);
  EXPECT_FALSE(criteria.is_end_token(7));
  EXPECT_FALSE(criteria.push(7, "").reason.has_value());
  EXPECT_FALSE(criteria.push(9, "").reason.has_value());
  EXPECT_EQ(criteria.push(7, "").reason, FinishReason::kLength);
}

TEST(StopCriteria, OneTokenAtMost) {
  StopCriteria criteria(request_of(1), kEosIds);
  EXPECT_EQ(criteria.push(3, "a").reason, FinishReason::kLength);
}

TEST(StopCriteria, HeldTextComesBackAtTheEnd) {
  Request request = request_of(5, {"STOP"});
  request.stop_text = StopText::kCut;
  StopCriteria criteria(request, kEosIds);
  EXPECT_EQ(criteria.push(1, "a ST").delta, "a ");
  EXPECT_EQ(criteria.push(7, "").reason, FinishReason::kEndOfSequence);
  EXPECT_EQ(criteria.finish("\xef\xbf\xbd"), "ST\xef\xbf\xbd") << "after it, what the end made final";
}

TEST(StopCriteria, NoPartOfAStopStringFollowsTheMatch) {
  Request request = request_of(1, {"ab"});
  request.stop_text = StopText::kCut;
  StopCriteria criteria(request, kEosIds);
  const StopCriteria::Outcome outcome = criteria.push(1, "1ab2");
  EXPECT_EQ(outcome.delta, "1") << "though the length is why it ends";
  EXPECT_EQ(criteria.finish("late"), "");
}

TEST(StopCriteria, LooksForStopStringsBehindTheLeastLengthOnly) {
  Request request{.prompt_ids = {1},
                  .max_new_tokens = 10,
                  .sampling = {},
                  .adapter = std::nullopt,
                  .stop = {"ab"},
                  .stop_text = StopText::kCut};
  request.min_new_tokens = 2;
  request.stop_token_ids = {7};
  const std::vector<std::int64_t> eos = {5};
  StopCriteria criteria(request, eos);
  const auto banned = [&criteria] {
    const auto ids = criteria.banned_ids();
    return std::vector<std::int64_t>(ids.begin(), ids.end());
  };
  EXPECT_EQ(banned(), (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(criteria.push(1, "ab").delta, "ab");
  EXPECT_EQ(banned(), (std::vector<std::int64_t>{5, 7}));
  EXPECT_EQ(criteria.push(1, "ca").delta, "ca") << "the second token is still too early";
  EXPECT_TRUE(banned().empty());
  EXPECT_FALSE(criteria.push(1, "b").reason.has_value()) << "its beginning came too early";
  const auto last = criteria.push(1, "xab");
  EXPECT_EQ(last.delta, "x");
  EXPECT_EQ(last.reason, FinishReason::kStopSequence);
}

}  // namespace
}  // namespace shoal
