// Tokenizer: text to token ids and back, after a model's tokenizer.json. Used by server, scheduler and cli.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

struct ShoalTokenizer;

namespace shoal {

struct TokenizerConfig;

enum class SpecialTokens { kAdd, kNone };  // what the tokenizer itself puts around a text, such as BOS
enum class SkipSpecial { kYes, kNo };      // whether special tokens are left out of decoded text

// A token with its raw vocabulary piece and the characters [start, stop) of the text that it stands for.
struct TokenSpan {
  std::int64_t id = 0;
  std::string piece;
  std::int64_t start = 0;
  std::int64_t stop = 0;
};

// Bytes [start, stop) of a text.
struct TextRange {
  std::size_t start = 0;
  std::size_t stop = 0;
  bool operator==(const TextRange&) const = default;
};

// Safe to use from several threads at once.
class Tokenizer final {
 public:
  // The longest text that is encoded.
  static constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

  // Reads tokenizer.json, and tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json
  // where they exist. What they do not say of beginning and end is taken from `base`, if there is one: an adapter's
  // files say little of them. Throws StartError naming the file.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& model_dir, const Tokenizer* base = nullptr);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // A special token written in the text becomes its id, except where it touches one of the `plain` ranges: there its
  // characters are ordinary text. kValidation for invalid UTF-8 or a text that is too long.
  Result<std::vector<std::int64_t>> encode(std::string_view text, SpecialTokens add,
                                           std::span<const TextRange> plain = {}) const;
  Result<std::vector<TokenSpan>> encode_spans(std::string_view text, SpecialTokens add,
                                              std::span<const TextRange> plain = {}) const;

  // Unknown ids add nothing. Bytes that are not UTF-8 become U+FFFD, one for each longest broken part.
  std::string decode(std::span<const std::int64_t> ids, SkipSpecial skip) const;
  // The bytes that a token adds to a text, part of a character at times; "" for an unknown id.
  std::string token_bytes(std::int64_t id, bool is_first) const;

  bool is_special(std::int64_t id) const;
  std::string piece(std::int64_t id) const;                // as it stands in the vocabulary; "" for an unknown id
  std::int64_t vocab_size() const { return vocab_size_; }  // highest id + 1, added tokens included
  std::optional<std::int64_t> token_id(std::string_view piece) const;

  std::span<const std::int64_t> special_ids() const { return special_ids_; }  // ascending
  // Every id that ends a text, ascending: eos_token of tokenizer_config.json, eos_token_id of generation_config.json
  // and of config.json.
  std::span<const std::int64_t> eos_ids() const { return eos_ids_; }
  const std::string& bos_token() const { return bos_token_; }  // "" if there is none
  const std::string& eos_token() const { return eos_token_; }

  // What the decoder drops at the very start of a whole text, at most strip_count() times.
  const std::string& strip_prefix() const { return strip_prefix_; }
  std::int64_t strip_count() const { return strip_count_; }

 private:
  friend class GrammarFactory;  // reads the vocabulary
  Tokenizer() = default;
  void set_ends(const TokenizerConfig& config, std::vector<std::int64_t> configured_eos_ids, const Tokenizer* base);

  ShoalTokenizer* handle_ = nullptr;
  std::int64_t vocab_size_ = 0;
  std::string strip_prefix_;
  std::int64_t strip_count_ = 0;
  std::vector<std::int64_t> special_ids_;
  std::vector<std::int64_t> eos_ids_;
  std::vector<std::int64_t> configured_eos_ids_;  // of generation_config.json and config.json
  std::string bos_token_;
  std::string eos_token_;
};

}  // namespace shoal
