// GenerateParameters and the parsers of all generate bodies, native and OpenAI: types and presence are checked here,
// values in validate.h. Used by the generate endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/request.h"
#include "server/errors.h"
#include "server/field_reader.h"
#include "server/json.h"
#include "server/merged_adapters.h"

namespace shoal {

// What the answer must look like, and which field says so.
struct AnswerGrammar {
  GrammarSpec spec;
  std::string field;
};

// What a client may ask of one generation; absent means the default.
struct GenerateParameters {
  std::optional<std::string> adapter_id;  // "" = the base model
  std::optional<std::string> adapter_source;
  std::optional<MergedAdapters> merged_adapters;
  std::optional<std::string> api_token;  // for adapters of the hub; others need none
  std::optional<float> temperature;
  std::optional<float> repetition_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> top_p;
  std::optional<float> typical_p;
  std::optional<std::int32_t> top_k;
  std::optional<std::int32_t> priority;
  std::optional<std::int64_t> max_new_tokens;
  std::optional<std::uint64_t> truncate;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> best_of;
  std::optional<std::int32_t> return_k_alternatives;
  // Of /v1 routes: answers that are given, and those they are chosen from.
  std::optional<std::int32_t> num_choices;
  std::optional<std::int32_t> num_candidates;
  std::optional<std::int32_t> top_n_tokens;     // TGI's name for nearly the same
  std::optional<std::int32_t> logprobs;         // of /v1 routes: likeliest tokens beside each generated one
  std::optional<std::int32_t> prompt_logprobs;  // beside each of the prompt
  std::optional<float> min_p;
  std::optional<std::uint32_t> min_tokens;
  std::vector<LogitBias> logit_bias;  // ascending ids
  std::optional<bool> return_full_text;
  std::optional<bool> skip_special_tokens;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  StopText stop_text = StopText::kKeep;
  bool do_sample = false;
  bool ignore_eos_token = false;
  bool details = false;
  bool decoder_input_details = false;
  bool watermark = false;
  bool apply_chat_template = false;
  std::string max_new_tokens_name = "max_new_tokens";  // as the client spelled it, for messages
  std::string logprobs_name = "logprobs";
  std::string prompt_name = "inputs";
  std::optional<AnswerGrammar> grammar;
  bool embed = false;  // of the embedding routes
  // The first field asked for that this server knows but does not serve; refused when values are checked.
  std::string unserved;
};

struct NativeRequest {
  std::string inputs;
  GenerateParameters parameters;
  bool stream = false;  // only `/` and `/invocations` obey it
};

using CompletionPrompt = std::variant<std::string, std::vector<std::int64_t>>;

struct CompletionRequest {
  std::string model;
  std::vector<CompletionPrompt> prompts;  // at least one
  std::string suffix;                     // what follows the answer; "": nothing is known
  GenerateParameters parameters;
  bool stream = false;
  bool include_usage = false;
  bool prompt_only = false;  // max_tokens 0 with echo: one token is generated, and not shown
};

// A call that the model made before.
struct PastCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

struct ChatMessage {
  std::string role;
  std::string content;
  std::vector<PastCall> calls = {};
  std::string tool_call_id = {};  // of a call's result; "" for none
};

struct ChatRequest {
  std::string model;
  std::vector<ChatMessage> messages;
  std::optional<std::string> guideline;
  GenerateParameters parameters;
  bool stream = false;
  bool include_usage = false;
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

// What names the adapter of an embedding.
void read_adapter_parameters(FieldReader& reader, GenerateParameters& parameters);

Parsed<NativeRequest> parse_native(const InputJson& body);
Parsed<CompletionRequest> parse_completion(const InputJson& body);
Parsed<ChatRequest> parse_chat(const InputJson& body);

}  // namespace shoal
