// OpenAiAnswer: carries one /v1 answer, whole or streamed, from events to bytes. Used by openai_completions.cc and
// openai_chat.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_scores.h"
#include "server/generation.h"
#include "server/responses.h"

namespace shoal {

// How the two routes differ, for one choice.
struct OpenAiForm {
  const char* chunk_object = "";  // "chat.completion.chunk"
  // The answer that is not streamed, with one choice; `echoed` is the prompt where it is repeated, else "".
  std::function<OutputJson(const OpenAiHead&, const std::string& echoed, const FinishEvent&)> whole;
  // Before any text of a choice; may be empty, or null where there is none.
  std::function<OutputJson(const OpenAiHead&, const std::string& echoed)> first_chunk;
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
  std::size_t num_choices = 1;                       // for each prompt
  std::size_t num_candidates = 1;                    // that they are chosen from; the same in a stream
  bool prompt_only = false;                          // what was generated is not shown
};

// `model` is the requested one: "" or the base model's id is the base model, anything else an adapter. Where it is the
// base model, LoRAX's `adapter_id` may name the adapter, which `model` then becomes; the fault is that both name one.
std::optional<ApiError> select_model(const ServerContext& context, std::string& model, GenerateParameters& parameters);

// How many answers are made and given, from checked parameters; the fault is a stream that would have to wait for its
// end.
std::optional<ApiError> choose_counts(const GenerateParameters& parameters, OpenAiDelivery& delivery);

OpenAiHead make_head(const ServerContext& context, const char* id_prefix, const std::string& model);

struct OpenAiPrompt {
  PreparedRequest prepared;
  std::string echoed = {};
};

// Answers with the events of all prompts, whose choices follow one another. A failure before the first token keeps its
// own status; later ones are events.
void answer_openai(ServerContext& context, const ResponseWriter& writer, std::vector<OpenAiPrompt> prompts,
                   OpenAiHead head, const std::function<OpenAiForm()>& make_form, OpenAiDelivery delivery);

}  // namespace shoal
