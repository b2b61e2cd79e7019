// Grammar: what an answer must look like (a JSON schema, a regex, a Lark grammar, a choice), and the tokens that may
// come next in one answer. Compiled by server/, followed by the scheduler.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/result.h"
#include "text/tokenizer.h"

struct ShoalGrammar;
struct ShoalGrammarFactory;
struct ShoalMatcher;

namespace shoal {

enum class GrammarKind : std::uint8_t {
  kJsonSchema,
  kRegex,
  kLark,
  kChoice,  // a JSON array of strings: the answer is one of them
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;
  bool operator==(const GrammarSpec&) const = default;
};

// One answer under a grammar. Used by one thread at a time.
class GrammarMatcher final {
 public:
  GrammarMatcher(GrammarMatcher&& other) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&& other) noexcept;
  ~GrammarMatcher();

  // Bit id % 32 of word id / 32 is set where that token may come next, an end token only where the answer may end.
  // All other bits are clear, those past the vocabulary too. kValidation where the grammar allows no token, or
  // following it takes more work than the library's limits.
  Status fill_mask(std::span<std::int32_t> words);
  // The token that came, one that the mask allowed; true where the answer is whole by it.
  Result<bool> accept(std::int64_t id);

 private:
  friend class Grammar;
  explicit GrammarMatcher(ShoalMatcher* handle) : handle_(handle) {}

  ShoalMatcher* handle_ = nullptr;
};

// Compiled. Safe to use from several threads at once.
class Grammar final {
 public:
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  Result<GrammarMatcher> new_matcher() const;

 private:
  friend class GrammarFactory;
  explicit Grammar(ShoalGrammar* handle) : handle_(handle) {}

  ShoalGrammar* handle_ = nullptr;
};

// Safe to use from several threads at once.
class GrammarFactory final {
 public:
  static constexpr std::size_t kMaxTextBytes = std::size_t{256} << 10;

  // Reads the whole vocabulary, some 100 ms for a large one.
  explicit GrammarFactory(const Tokenizer& tokenizer);
  ~GrammarFactory();
  GrammarFactory(const GrammarFactory&) = delete;
  GrammarFactory& operator=(const GrammarFactory&) = delete;

  // Waits for at most `limit`. kValidation says what is wrong with the text. Shared by the requests that follow the
  // grammar and whoever keeps it for the next one.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec, std::chrono::milliseconds limit) const;

 private:
  ShoalGrammarFactory* handle_ = nullptr;
  std::string fault_;  // why there is no handle
};

}  // namespace shoal
