// libFuzzer harness: the tokenizers of three styles over any text and any ids, and any tokenizer.json. The first byte
// chooses: 't' a text, 'i' ids, 'j' a tokenizer.json as it is, anything else one of ours with some values changed.
// Run by hand and, for seconds, in CI.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "core/check.h"
#include "core/result.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/fuzz_tokenizers.h"
#include "text/incremental_decoder.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int64_t>;
using nlohmann::json;

// The pieces of a stream that begins after `num_prompt` ids must continue what was final there, byte for byte.
void check_pieces(const Tokenizer& tokenizer, const Ids& ids, std::size_t num_prompt, SkipSpecial skip) {
  std::string text;
  IncrementalDecoder from_start(tokenizer, {}, skip);
  for (std::size_t i = 0; i < num_prompt; ++i) text += from_start.push(ids[i]);
  IncrementalDecoder after_prompt(tokenizer, std::span(ids).first(num_prompt), skip);
  for (std::size_t i = num_prompt; i < ids.size(); ++i) {
    const std::string piece = after_prompt.push(ids[i]);
    CHECK(fuzz::is_utf8(piece));
    text += piece;
  }
  text += after_prompt.finish();
  CHECK(text == tokenizer.decode(ids, skip));
}

void check_ids(const Tokenizer& tokenizer, const Ids& ids, std::size_t num_prompt) {
  for (const SkipSpecial skip : {SkipSpecial::kYes, SkipSpecial::kNo}) {
    CHECK(fuzz::is_utf8(tokenizer.decode(ids, skip)));
    check_pieces(tokenizer, ids, std::min(num_prompt, ids.size()), skip);
  }
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

Ids check_text(const Tokenizer& tokenizer, std::string_view text, std::span<const TextRange> plain) {
  const auto ids = tokenizer.encode(text, SpecialTokens::kAdd, plain);
  const auto spans = tokenizer.encode_spans(text, SpecialTokens::kAdd, plain);
  CHECK_EQ(ids.ok(), fuzz::is_utf8(text));
  CHECK_EQ(spans.ok(), ids.ok());
  if (!ids.ok()) {
    CHECK(ids.error().code == ErrorCode::kValidation && fuzz::is_plain_message(ids.error().message));
    return {};
  }
  CHECK_EQ(spans.value().size(), ids.value().size());
  const std::int64_t num_characters = count_characters(text);
  for (std::size_t i = 0; i < spans.value().size(); ++i) {
    const TokenSpan& span = spans.value()[i];
    CHECK_EQ(span.id, ids.value()[i]);
    CHECK(span.id >= 0 && span.id < tokenizer.vocab_size());
    CHECK_LE(0, span.start);
    CHECK_LE(span.start, span.stop);
    CHECK_LE(span.stop, num_characters);
  }
  return ids.value();
}

void run_text(FuzzedDataProvider& choices, const fuzz::Tokenizers& tokenizers) {
  const Tokenizer& tokenizer = tokenizers.get(choices.ConsumeIntegral<std::uint8_t>());
  const auto num_prompt = choices.ConsumeIntegral<std::uint8_t>();
  std::vector<TextRange> plain;
  for (int i = choices.ConsumeIntegralInRange(0, 2); i > 0; --i) {
    const auto start = choices.ConsumeIntegral<std::uint8_t>();
    plain.push_back({start, start + std::size_t{choices.ConsumeIntegral<std::uint8_t>()}});
  }
  const std::string text = choices.ConsumeRemainingBytesAsString();
  check_ids(tokenizer, check_text(tokenizer, text, plain), num_prompt);
}

void run_ids(FuzzedDataProvider& choices, const fuzz::Tokenizers& tokenizers) {
  const Tokenizer& tokenizer = tokenizers.get(choices.ConsumeIntegral<std::uint8_t>());
  const auto num_prompt = choices.ConsumeIntegral<std::uint8_t>();
  constexpr std::size_t kMaxIds = 200;
  Ids ids;
  while (choices.remaining_bytes() > 0 && ids.size() < kMaxIds) {
    // One in sixteen from anywhere, the others from the vocabulary and a little beyond.
    const auto lot = choices.ConsumeIntegral<std::uint16_t>();
    ids.push_back(lot % 16 == 0 ? choices.ConsumeIntegral<std::int64_t>()
                                : lot / 16 % (tokenizer.vocab_size() + 2) - 1);
  }
  check_ids(tokenizer, ids, num_prompt);
}

// The parts of a document in the order in which a reader meets them.
void collect_parts(json& value, std::vector<json*>& parts) {
  constexpr std::size_t kFirstOfMany = 12;  // a vocabulary has hundreds of alike entries
  parts.push_back(&value);
  std::size_t num_taken = 0;
  if (!value.is_structured()) return;
  for (auto& [key, item] : value.items()) {
    if (num_taken++ < kFirstOfMany) collect_parts(item, parts);
  }
}

std::string changed_json(FuzzedDataProvider& choices, const fuzz::Tokenizers& tokenizers) {
  json document = tokenizers.json(choices.ConsumeIntegral<std::uint8_t>());
  for (int i = choices.ConsumeIntegralInRange(1, 4); i > 0; --i) {
    std::vector<json*> parts;
    collect_parts(document, parts);
    json& part = *parts[choices.ConsumeIntegral<std::uint16_t>() % parts.size()];
    json other = *parts[choices.ConsumeIntegral<std::uint16_t>() % parts.size()];
    switch (choices.ConsumeIntegralInRange(0, 5)) {
      case 0:
        part = nullptr;
        break;
      case 1:
        part = choices.ConsumeIntegral<std::int64_t>();
        break;
      case 2:
        part = choices.ConsumeRandomLengthString(20);
        break;
      case 3:
        part = json::array({part, part});
        break;
      case 4:
        part = json::parse(choices.ConsumeRandomLengthString(60), nullptr, /*allow_exceptions=*/false);
        break;
      default:
        part = std::move(other);
    }
  }
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

void run_json(const std::string& text) {
  static const fuzz::ScratchFolder kFolder;
  kFolder.write("tokenizer.json", text);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = Tokenizer::load(kFolder.path());
  } catch (const StartError& error) {
    CHECK(fuzz::is_utf8(error.what()));
    return;
  }
  CHECK_GE(tokenizer->vocab_size(), 0);
  // What such a tokenizer makes of a text is its own affair; that it ends, and that its ids can be decoded, is not.
  constexpr std::string_view kText = "Hello <s> w\xC3\xB6rld, 12\n\xF0\x9F\x98\x80";
  const std::vector<TextRange> plain = {{6, 9}};
  for (const std::span<const TextRange> ranges : {std::span<const TextRange>(), std::span<const TextRange>(plain)}) {
    const auto ids = tokenizer->encode(kText, SpecialTokens::kAdd, ranges);
    if (ids.ok()) check_ids(*tokenizer, ids.value(), 3);
  }
}

}  // namespace
}  // namespace shoal

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  static const shoal::fuzz::Tokenizers kTokenizers;
  if (num_bytes == 0) return 0;
  FuzzedDataProvider choices(data + 1, num_bytes - 1);
  switch (data[0]) {
    case 't':
      shoal::run_text(choices, kTokenizers);
      break;
    case 'i':
      shoal::run_ids(choices, kTokenizers);
      break;
    case 'j':
      shoal::run_json(choices.ConsumeRemainingBytesAsString());
      break;
    default:
      shoal::run_json(shoal::changed_json(choices, kTokenizers));
  }
  return 0;
}
