// OpenAiAnswer: carries one /v1 answer, whole or streamed, from events to bytes. Used by openai_completions.cc and
// openai_chat.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "server/answer_scores.h"
#include "server/generation.h"
#include "server/responses.h"

namespace shoal {

// How the two routes differ.
struct OpenAiForm {
  const char* chunk_object = "";                                           // "chat.completion.chunk"
  std::function<OutputJson(const OpenAiHead&, const FinishEvent&)> whole;  // the answer that is not streamed
  std::function<OutputJson(const OpenAiHead&)> first_chunk;                // before any text; may be empty
  std::function<OutputJson(const OpenAiHead&, const std::string& text)> text_chunk;
  std::function<OutputJson(const OpenAiHead&, const char* reason)> last_chunk;
};

struct OpenAiDelivery {
  bool stream = false;
  bool include_usage = false;  // a chunk of usage alone at the end of a stream
  LogprobsForm logprobs_form = LogprobsForm::kCompletion;
  std::optional<std::int64_t> logprobs = {};         // likeliest tokens beside each; none: no logprobs at all
  std::optional<std::int64_t> prompt_logprobs = {};  // of an answer that is not streamed
  bool echo = false;                                 // the text begins with the prompt
  bool prompt_only = false;                          // what was generated is not shown
};

// `model` is the requested one: "" or the base model's id is the base model, anything else an adapter.
void select_model(const ServerContext& context, const std::string& model, GenerateParameters& parameters);

OpenAiHead make_head(const ServerContext& context, const char* id_prefix, const std::string& model);

// Answers with the events of `prepared`. A failure before the first token keeps its own status; later ones are events.
void answer_openai(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared, OpenAiHead head,
                   OpenAiForm form, OpenAiDelivery delivery);

}  // namespace shoal
