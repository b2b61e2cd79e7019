#include "server/responses.h"

#include "server/answer_scores.h"

namespace shoal {

namespace {

const char* native_finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEndOfSequence:
      return "eos_token";
    case FinishReason::kStopSequence:
      return "stop_sequence";
  }
  return "length";
}

OutputJson or_null(const std::optional<std::uint64_t>& value) { return value ? OutputJson(*value) : OutputJson(); }

OutputJson or_null(const char* text) { return text != nullptr ? OutputJson(text) : OutputJson(); }

OutputJson head_json(const OpenAiHead& head, const char* object) {
  OutputJson json;
  json["id"] = head.id;
  json["object"] = object;
  json["created"] = head.created;
  json["model"] = head.model;
  return json;
}

OutputJson completion_choice(const std::string& text, const char* reason) {
  OutputJson choice;
  choice["index"] = 0;
  choice["text"] = text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = or_null(reason);
  return choice;
}

}  // namespace

OutputJson native_token(const TokenEvent& token, const NativeExtras& extras) {
  OutputJson json;
  json["id"] = token.id;
  json["text"] = token.text;
  json["logprob"] = token.logprob;
  json["special"] = token.special;
  if (extras.alternatives > 0 && token.score) {
    json["alternative_tokens"] = native_alternatives(*extras.tokenizer, *token.score, extras.alternatives);
  }
  json["skipped"] = false;
  return json;
}

OutputJson native_response(const std::string& generated_text, const FinishEvent& finish,
                           std::optional<std::uint64_t> seed, const std::vector<TokenEvent>* tokens,
                           const NativeExtras& extras) {
  OutputJson json;
  json["generated_text"] = generated_text;
  if (tokens == nullptr) return json;
  OutputJson details;
  details["finish_reason"] = native_finish_reason(finish.reason);
  details["prompt_tokens"] = finish.prompt_tokens;
  details["generated_tokens"] = finish.generated_tokens;
  details["skipped_tokens"] = 0;
  if (finish.cached_tokens) details["cached_tokens"] = *finish.cached_tokens;
  details["seed"] = or_null(seed);
  details["prefill"] = extras.prefill;
  OutputJson list = OutputJson::array();
  for (const TokenEvent& token : *tokens) list.push_back(native_token(token, extras));
  details["tokens"] = std::move(list);
  if (extras.top_tokens > 0) {
    OutputJson tops = OutputJson::array();
    for (const TokenEvent& token : *tokens) {
      tops.push_back(native_top_tokens(*extras.tokenizer, token.score.value_or(TokenScore()), extras.top_tokens));
    }
    details["top_tokens"] = std::move(tops);
  }
  json["details"] = std::move(details);
  return json;
}

OutputJson native_other(const std::string& generated_text, const FinishEvent& finish, std::optional<std::uint64_t> seed,
                        const std::vector<TokenEvent>& tokens, const NativeExtras& extras) {
  OutputJson json;
  json["generated_text"] = generated_text;
  json["finish_reason"] = native_finish_reason(finish.reason);
  json["generated_tokens"] = finish.generated_tokens;
  json["seed"] = or_null(seed);
  json["prefill"] = extras.prefill;
  OutputJson list = OutputJson::array();
  for (const TokenEvent& token : tokens) list.push_back(native_token(token, extras));
  json["tokens"] = std::move(list);
  return json;
}

OutputJson native_stream_token(const TokenEvent& token, const NativeExtras& extras) {
  OutputJson json;
  json["token"] = native_token(token, extras);
  if (extras.top_tokens > 0 && token.score) {
    json["top_tokens"] = native_top_tokens(*extras.tokenizer, *token.score, extras.top_tokens);
  }
  json["generated_text"] = nullptr;
  json["details"] = nullptr;
  return json;
}

OutputJson native_stream_last(const TokenEvent& token, const NativeSummary& summary, const NativeExtras& extras) {
  OutputJson json = native_stream_token(token, extras);
  json["generated_text"] = summary.generated_text;
  if (!summary.details) return json;
  OutputJson details;
  details["finish_reason"] = native_finish_reason(summary.finish.reason);
  details["prompt_tokens"] = summary.finish.prompt_tokens;
  details["generated_tokens"] = summary.finish.generated_tokens;
  if (summary.finish.cached_tokens) details["cached_tokens"] = *summary.finish.cached_tokens;
  details["seed"] = or_null(summary.seed);
  json["details"] = std::move(details);
  return json;
}

OutputJson openai_usage(const FinishEvent& finish) {
  OutputJson json;
  json["prompt_tokens"] = finish.prompt_tokens;
  json["total_tokens"] = finish.prompt_tokens + finish.generated_tokens;
  json["completion_tokens"] = finish.generated_tokens;
  if (finish.cached_tokens) json["prompt_tokens_details"]["cached_tokens"] = *finish.cached_tokens;
  return json;
}

const char* openai_finish_reason(FinishReason reason) { return reason == FinishReason::kLength ? "length" : "stop"; }

OutputJson completion_response(const OpenAiHead& head, const std::string& text, const FinishEvent& finish) {
  OutputJson json = head_json(head, "text_completion");
  json["choices"] = OutputJson::array({completion_choice(text, openai_finish_reason(finish.reason))});
  json["usage"] = openai_usage(finish);
  return json;
}

OutputJson chat_response(const OpenAiHead& head, const std::string& fingerprint, const FinishEvent& finish) {
  OutputJson json = head_json(head, "chat.completion");
  OutputJson message;
  message["role"] = "assistant";
  message["content"] = finish.generated_text;
  message["refusal"] = nullptr;  // the types of OpenAI's clients know no answer without the two nulls
  OutputJson choice;
  choice["index"] = 0;
  choice["message"] = std::move(message);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = openai_finish_reason(finish.reason);
  json["choices"] = OutputJson::array({std::move(choice)});
  json["usage"] = openai_usage(finish);
  json["system_fingerprint"] = fingerprint;
  return json;
}

OutputJson completion_chunk(const OpenAiHead& head, const std::string& text, const char* reason) {
  OutputJson json = head_json(head, "text_completion");
  json["choices"] = OutputJson::array({completion_choice(text, reason)});
  return json;
}

OutputJson chat_chunk(const OpenAiHead& head, OutputJson delta, const char* reason) {
  OutputJson json = head_json(head, "chat.completion.chunk");
  OutputJson choice;
  choice["index"] = 0;
  choice["delta"] = std::move(delta);
  choice["finish_reason"] = or_null(reason);
  json["choices"] = OutputJson::array({std::move(choice)});
  return json;
}

OutputJson usage_chunk(const OpenAiHead& head, const char* object, const FinishEvent& finish) {
  OutputJson json = head_json(head, object);
  json["choices"] = OutputJson::array();
  json["usage"] = openai_usage(finish);
  return json;
}

}  // namespace shoal
