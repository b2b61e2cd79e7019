#include "text/grammar.h"

#include <fmt/format.h>

#include <utility>

#include "text/bridge.h"

namespace shoal {

using text_bridge::Buffer;
using text_bridge::view_of;

namespace {

std::int32_t code_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return SHOAL_GRAMMAR_JSON_SCHEMA;
    case GrammarKind::kRegex:
      return SHOAL_GRAMMAR_REGEX;
    case GrammarKind::kLark:
      return SHOAL_GRAMMAR_LARK;
    case GrammarKind::kChoice:
      return SHOAL_GRAMMAR_CHOICE;
  }
  return SHOAL_GRAMMAR_LARK;
}

const char* name_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return "JSON schema";
    case GrammarKind::kRegex:
      return "regular expression";
    case GrammarKind::kLark:
      return "grammar";
    case GrammarKind::kChoice:
      return "choice";
  }
  return "grammar";
}

// Whoever asked for the grammar can do something about it.
Error matcher_error(const Buffer& error) {
  return {ErrorCode::kValidation, fmt::format("the answer cannot go on under its grammar: {}", error.view())};
}

}  // namespace

GrammarMatcher::GrammarMatcher(GrammarMatcher&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

GrammarMatcher::~GrammarMatcher() { shoal_matcher_free(handle_); }

Status GrammarMatcher::fill_mask(std::span<std::int32_t> words) {
  Buffer error;
  auto* bits = reinterpret_cast<std::uint32_t*>(words.data());
  if (shoal_matcher_mask(handle_, bits, words.size(), error.out()) != SHOAL_TEXT_OK) return matcher_error(error);
  return Ok{};
}

Result<bool> GrammarMatcher::accept(std::int64_t id) {
  Buffer error;
  std::int32_t ended = 0;
  if (shoal_matcher_accept(handle_, id, &ended, error.out()) != SHOAL_TEXT_OK) return matcher_error(error);
  return ended != 0;
}

Grammar::~Grammar() { shoal_grammar_free(handle_); }

Result<GrammarMatcher> Grammar::new_matcher() const {
  Buffer error;
  ShoalMatcher* matcher = nullptr;
  if (shoal_matcher_new(handle_, &matcher, error.out()) != SHOAL_TEXT_OK) return matcher_error(error);
  return GrammarMatcher(matcher);
}

GrammarFactory::GrammarFactory(const Tokenizer& tokenizer) {
  Buffer error;
  const auto eos_ids = tokenizer.eos_ids();
  if (shoal_grammar_factory_new(tokenizer.handle_, eos_ids.data(), eos_ids.size(), &handle_, error.out()) !=
      SHOAL_TEXT_OK) {
    fault_ = error.str();
  }
}

GrammarFactory::~GrammarFactory() { shoal_grammar_factory_free(handle_); }

Result<std::shared_ptr<const Grammar>> GrammarFactory::compile(const GrammarSpec& spec,
                                                               std::chrono::milliseconds limit) const {
  const auto refuse = [&spec](std::string_view why) {
    return Error{ErrorCode::kValidation, fmt::format("the {} is not usable: {}", name_of(spec.kind), why)};
  };
  if (handle_ == nullptr) return refuse("this model's tokenizer serves none: " + fault_);
  if (spec.text.size() > kMaxTextBytes) {
    return refuse(fmt::format("it has {} bytes, at most {} are accepted", spec.text.size(), kMaxTextBytes));
  }
  Buffer error;
  ShoalGrammar* grammar = nullptr;
  const std::int32_t code = shoal_grammar_compile(handle_, code_of(spec.kind), view_of(spec.text),
                                                  static_cast<std::uint32_t>(limit.count()), &grammar, error.out());
  if (code != SHOAL_TEXT_OK) return refuse(error.view());
  return std::shared_ptr<const Grammar>(new Grammar(grammar));
}

}  // namespace shoal
