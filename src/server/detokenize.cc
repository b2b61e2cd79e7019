// POST /detokenize: {"tokens": [ids]} -> {"prompt": text}, as vLLM names them. Special tokens are written out.
#include <fmt/format.h>

#include "server/adapter_names.h"
#include "server/context.h"
#include "server/field_reader.h"
#include "server/parse_request.h"

namespace shoal {

namespace {

Parsed<std::vector<std::int64_t>> parse_detokenize(const InputJson& body, std::int64_t vocab_size) {
  std::optional<ApiError> error;
  std::vector<std::int64_t> ids;
  FieldReader reader(body, "", error);
  const InputJson* tokens = error ? nullptr : reader.find("tokens");
  if (tokens == nullptr) {
    reader.fail("tokens", "missing field");
  } else if (!tokens->is_array()) {
    reader.fail("tokens", fmt::format("expected token ids, got {}", tokens->type_name()));
  } else {
    ids = reader.token_ids("tokens", *tokens);
  }
  if (error) return *error;
  for (const std::int64_t id : ids) {
    if (id < vocab_size) continue;
    return ApiError{.failure = Failure::kValidation,
                    .message = fmt::format("token id {} is outside the vocabulary of {}", id, vocab_size),
                    .param = "tokens"};
  }
  return ids;
}

}  // namespace

void handle_detokenize(ServerContext& context, const JsonCall& call) {
  const auto parsed = parse_detokenize(call.body, context.services.engine.vocab_size);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    send_error(call.writer, *error, ApiStyle::kNative);
    return;
  }
  const auto texts = texts_of(context, call);
  if (const auto* error = std::get_if<ApiError>(&texts)) {
    send_error(call.writer, *error, ApiStyle::kNative);
    return;
  }
  const Tokenizer& tokenizer = std::get<std::shared_ptr<const Texts>>(texts)->tokenizer();
  OutputJson json;
  json["prompt"] = tokenizer.decode(std::get<std::vector<std::int64_t>>(parsed), SkipSpecial::kNo);
  call.writer.send(200, {{"content-type", "application/json"}}, to_text(json));
}

}  // namespace shoal
