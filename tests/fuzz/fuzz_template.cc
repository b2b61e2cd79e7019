// libFuzzer harness: any chat template over any messages, as the server renders and then encodes them. Input: template,
// messages, tools, documents, each ended by a zero byte. Run by hand and, for seconds, in CI.
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "fuzz/fuzz_support.h"
#include "fuzz/fuzz_tokenizers.h"
#include "text/chat_template.h"

namespace shoal {
namespace {

void check_error(const Error& error) {
  CHECK(error.code == ErrorCode::kTemplate || error.code == ErrorCode::kValidation);
  CHECK(fuzz::is_utf8(error.message));
}

void check_prompt(const RenderedPrompt& prompt, const Tokenizer& tokenizer) {
  CHECK(fuzz::is_utf8(prompt.text));
  std::size_t last_stop = 0;
  for (const TextRange& range : prompt.plain_ranges) {
    CHECK_LE(last_stop, range.start);
    CHECK_LE(range.start, range.stop);
    CHECK_LE(range.stop, prompt.text.size());
    last_stop = range.stop;
  }
  constexpr std::size_t kEncodedBytes = 4096;  // longer texts are another harness's work
  if (prompt.text.size() > kEncodedBytes) return;
  const auto ids = tokenizer.encode(prompt.text, SpecialTokens::kNone, prompt.plain_ranges);
  CHECK(ids.ok());
  for (const std::int64_t id : ids.value()) CHECK(id >= 0 && id < tokenizer.vocab_size());
}

void render(std::string_view input, const Tokenizer& tokenizer) {
  static const fuzz::ScratchFolder kFolder;
  kFolder.write("chat_template.jinja", fuzz::take_part(input));
  const std::string messages(fuzz::take_part(input));
  ChatTemplateOptions options;
  if (const std::string tools(fuzz::take_part(input)); !tools.empty()) options.tools_json = tools;
  if (const std::string documents(fuzz::take_part(input)); !documents.empty()) options.documents_json = documents;

  const ChatTemplate chat_template = ChatTemplate::load(kFolder.path());
  (void)chat_template.uses("tools", options);
  const auto plain = chat_template.render(messages, options);
  if (plain.ok()) {
    CHECK(fuzz::is_utf8(plain.value()));
  } else {
    check_error(plain.error());
  }
  const auto prompt = chat_template.render_prompt(messages, options, tokenizer);
  if (prompt.ok()) {
    check_prompt(prompt.value(), tokenizer);
  } else {
    check_error(prompt.error());
  }
}

}  // namespace
}  // namespace shoal

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  static const shoal::fuzz::Tokenizers kTokenizers;
  shoal::render({reinterpret_cast<const char*>(data), num_bytes}, kTokenizers.get(0));
  return 0;
}
