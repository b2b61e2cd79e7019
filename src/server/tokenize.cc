// POST /tokenize.
#include "server/context.h"
#include "server/field_reader.h"

namespace shoal {

void handle_tokenize(ServerContext& context, const JsonCall& call) {
  std::optional<ApiError> error;
  std::string inputs;
  std::optional<bool> add_special_tokens;
  FieldReader reader(call.body, "", error);
  reader.read("inputs", inputs, Presence::kRequired);
  reader.read("add_special_tokens", add_special_tokens);
  if (error) {
    send_error(call.writer, *error, ApiStyle::kNative);
    return;
  }
  const SpecialTokens add = add_special_tokens.value_or(true) ? SpecialTokens::kAdd : SpecialTokens::kNone;
  const auto spans = context.services.tokenizer.encode_spans(inputs, add);
  if (!spans.ok()) {
    send_error(call.writer, to_api_error(spans.error()), ApiStyle::kNative);
    return;
  }
  OutputJson tokens = OutputJson::array();
  for (const TokenSpan& span : spans.value()) {
    OutputJson token;
    token["id"] = span.id;
    token["text"] = span.piece;
    token["start"] = span.start;
    token["stop"] = span.stop;
    tokens.push_back(std::move(token));
  }
  call.writer.send(200, {{"content-type", "application/json"}}, to_text(tokens));
}

}  // namespace shoal
