#include "text/tokenizer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/bridge.h"
#include "text/incremental_decoder.h"
#include "text/model_files.h"

namespace shoal {
namespace {

using text_bridge::Buffer;
using text_bridge::Encoding;
using text_bridge::view_of;

constexpr std::uintmax_t kMaxTokenizerBytes = std::uintmax_t{256} << 20;

// An added token as tokenizer_config.json states it, with the text that the C view points into.
struct AddedToken {
  std::string content;
  ShoalTextAddedToken flags{};
};

std::vector<AddedToken> added_tokens(const TokenizerConfig& config) {
  std::vector<AddedToken> tokens;
  const auto listed = config.json.find("added_tokens_decoder");
  if (listed != config.json.end() && listed->is_object()) {
    for (const auto& [id, token] : listed->items()) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) continue;
      AddedToken added{.content = token["content"].get<std::string>()};
      const auto flag = [&entry = token](const char* name, bool otherwise) {
        const auto found = entry.find(name);
        return static_cast<std::uint8_t>(found != entry.end() && found->is_boolean() ? found->get<bool>() : otherwise);
      };
      added.flags.single_word = flag("single_word", false);
      added.flags.lstrip = flag("lstrip", false);
      added.flags.rstrip = flag("rstrip", false);
      added.flags.special = flag("special", false);
      added.flags.normalized = flag("normalized", added.flags.special == 0);
      tokens.push_back(std::move(added));
    }
  }
  // A named token is special even where no list of added tokens has it.
  for (const auto& [name, content] : config.special_tokens) {
    AddedToken added{.content = content};
    added.flags.special = 1;
    added.flags.keep_known = 1;
    tokens.push_back(std::move(added));
  }
  return tokens;
}

std::string read_tokenizer_json(const std::filesystem::path& model_dir) {
  auto json = read_text_file(model_dir / "tokenizer.json", kMaxTokenizerBytes);
  if (json) return std::move(*json);
  const bool is_sentencepiece = std::filesystem::exists(model_dir / "tokenizer.model");
  throw StartError(fmt::format("{}: no tokenizer.json{}", model_dir.string(),
                               is_sentencepiece ? ", only tokenizer.model; convert it once with Python: "
                                                  "transformers.AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
                                                : ""));
}

Error encode_error(std::int32_t code, const Buffer& error) {
  const std::string_view reason = code == SHOAL_TEXT_PANIC ? "the tokenizer failed on it: " : "";
  return {ErrorCode::kValidation, fmt::format("the text cannot be tokenized: {}{}", reason, error.view())};
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir, const Tokenizer* base) {
  const std::string json = read_tokenizer_json(model_dir);
  const TokenizerConfig config = TokenizerConfig::read(model_dir);
  std::vector<AddedToken> added = added_tokens(config);
  std::vector<ShoalTextAddedToken> flags;
  for (AddedToken& token : added) {
    token.flags.content = view_of(token.content);
    flags.push_back(token.flags);
  }

  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  ShoalTextTraits traits{};
  Buffer error;
  const std::int32_t code =
      shoal_tokenizer_load(view_of(json), flags.data(), flags.size(), &tokenizer->handle_, &traits, error.out());
  if (code != SHOAL_TEXT_OK) {
    throw StartError(fmt::format("{}: {}", (model_dir / "tokenizer.json").string(), error.view()));
  }
  Buffer prefix;
  *prefix.out() = traits.strip_prefix;
  tokenizer->strip_prefix_ = prefix.str();
  tokenizer->strip_count_ = static_cast<std::int64_t>(traits.strip_count);
  tokenizer->vocab_size_ = traits.vocab_size;

  Encoding special;
  shoal_tokenizer_special_ids(tokenizer->handle_, special.out(), Buffer().out());
  for (std::size_t i = 0; i < special.count(); ++i) tokenizer->special_ids_.push_back(special.id(i));
  for (const AddedToken& token : added) {
    if (!tokenizer->token_id(token.content)) {
      spdlog::warn("{}: token '{}' is not in tokenizer.json and is ignored", model_dir.string(), token.content);
    }
  }

  tokenizer->set_ends(config, configured_eos_ids(model_dir), base);
  return tokenizer;
}

void Tokenizer::set_ends(const TokenizerConfig& config, std::vector<std::int64_t> configured_eos_ids,
                         const Tokenizer* base) {
  // A token of the base means something here only where the vocabulary has it.
  const auto named = [&](const char* name, const std::string& of_base) {
    std::string token = config.special_token(name);
    if (token.empty() && token_id(of_base)) token = of_base;
    return token;
  };
  bos_token_ = named("bos_token", base == nullptr ? "" : base->bos_token());
  eos_token_ = named("eos_token", base == nullptr ? "" : base->eos_token());
  if (configured_eos_ids.empty() && base != nullptr) configured_eos_ids = base->configured_eos_ids_;
  configured_eos_ids_ = std::move(configured_eos_ids);
  eos_ids_ = configured_eos_ids_;
  if (const auto id = token_id(eos_token_)) eos_ids_.push_back(*id);
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
}

Tokenizer::~Tokenizer() { shoal_tokenizer_free(handle_); }

namespace {

enum class Offsets { kNone, kCharacters };

// Fills `encoding`, or says what is wrong with the text.
std::optional<Error> run_encode(const ShoalTokenizer* handle, std::string_view text, SpecialTokens add,
                                std::span<const TextRange> plain, Offsets offsets, Encoding& encoding) {
  if (text.size() > Tokenizer::kMaxTextBytes) {
    return Error{ErrorCode::kValidation,
                 fmt::format("the text has {} bytes, at most {} are accepted", text.size(), Tokenizer::kMaxTextBytes)};
  }
  std::vector<ShoalTextRange> ranges;
  for (const TextRange& range : plain) ranges.push_back({range.start, range.stop});
  Buffer error;
  const std::int32_t code =
      shoal_tokenizer_encode(handle, view_of(text), add == SpecialTokens::kAdd ? 1 : 0, ranges.data(), ranges.size(),
                             offsets == Offsets::kCharacters ? 1 : 0, encoding.out(), error.out());
  if (code != SHOAL_TEXT_OK) return encode_error(code, error);
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::int64_t>> Tokenizer::encode(std::string_view text, SpecialTokens add,
                                                    std::span<const TextRange> plain) const {
  Encoding encoding;
  if (auto error = run_encode(handle_, text, add, plain, Offsets::kNone, encoding)) return std::move(*error);
  std::vector<std::int64_t> ids(encoding.count());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = encoding.id(i);
  return ids;
}

Result<std::vector<TokenSpan>> Tokenizer::encode_spans(std::string_view text, SpecialTokens add,
                                                       std::span<const TextRange> plain) const {
  Encoding encoding;
  if (auto error = run_encode(handle_, text, add, plain, Offsets::kCharacters, encoding)) return std::move(*error);
  std::vector<TokenSpan> spans(encoding.count());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    spans[i] = {encoding.id(i), piece(encoding.id(i)), encoding.start(i), encoding.stop(i)};
  }
  return spans;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, SkipSpecial skip) const {
  IncrementalDecoder decoder(*this, {}, skip);
  std::string text;
  for (const std::int64_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string Tokenizer::token_bytes(std::int64_t id, bool is_first) const {
  Buffer bytes;
  Buffer error;
  const std::int32_t code = shoal_tokenizer_token_bytes(handle_, id, is_first ? 1 : 0, bytes.out(), error.out());
  if (code != SHOAL_TEXT_OK) spdlog::warn("token {} cannot be decoded: {}", id, error.view());
  return bytes.str();
}

bool Tokenizer::is_special(std::int64_t id) const {
  return std::binary_search(special_ids_.begin(), special_ids_.end(), id);
}

std::string Tokenizer::piece(std::int64_t id) const {
  Buffer piece;
  std::int32_t is_found = 0;
  shoal_tokenizer_piece(handle_, id, piece.out(), &is_found, Buffer().out());
  return piece.str();
}

std::optional<std::int64_t> Tokenizer::token_id(std::string_view piece) const {
  std::int64_t id = -1;
  const std::int32_t code = shoal_tokenizer_token_id(handle_, view_of(piece), &id, Buffer().out());
  if (code != SHOAL_TEXT_OK || id < 0) return std::nullopt;
  return id;
}

}  // namespace shoal
