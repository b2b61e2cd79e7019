#include "server/parse_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "server/parse_scores.h"
#include "server/prompts.h"

namespace shoal {

namespace {

void note_unserved(GenerateParameters& parameters, bool asked, std::string_view field) {
  if (asked && parameters.unserved.empty()) parameters.unserved = field;
}

bool empty_or_zero(const InputJson& value) {
  if (value.is_number()) return value == 0;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

// A field that clients of this protocol, or of servers like this one, send and that is not served here. Ignoring it
// would answer another question than was asked.
struct UnservedField {
  const char* name;
  const char* defaults = "[]";  // JSON: values that ask for nothing, beside null, false, 0 and what is empty
};

constexpr UnservedField kUnservedNative[] = {
    {"schema"},
    {"grammar"},
};

constexpr UnservedField kUnservedOpenAi[] = {
    {"functions"},
    {"function_call", R"(["auto","none"])"},
    {"modalities", R"([["text"]])"},
    {"audio"},
    {"prediction"},
    {"reasoning_effort", R"(["none"])"},
    {"web_search_options"},
    // LoRAX's, on its native routes alone
    {"merged_adapters"},
    {"truncate"},
    {"typical_p", "[1]"},
    {"watermark"},
    {"return_k_alternatives"},
    // of other servers
    {"schema"},
    {"grammar"},
    {"guided_whitespace_pattern"},
    {"bad_words"},
    {"allowed_token_ids"},
    {"use_beam_search"},
    {"length_penalty", "[1]"},
    {"truncate_prompt_tokens"},
    {"chat_template"},
    {"documents"},
};

// Of chats alone.
constexpr UnservedField kUnservedCompletion[] = {
    {"top_logprobs"},
    {"tools"},
    {"tool_choice", R"(["auto","none"])"},
    {"tool_prompt"},
};

void note_unserved_fields(const FieldReader& reader, GenerateParameters& parameters,
                          std::span<const UnservedField> fields) {
  for (const UnservedField& field : fields) {
    const InputJson* value = reader.find(field.name);
    if (value == nullptr || empty_or_zero(*value)) continue;
    const InputJson defaults = InputJson::parse(field.defaults);
    note_unserved(parameters, std::find(defaults.begin(), defaults.end(), *value) == defaults.end(), field.name);
  }
}

// Fields that the native and the OpenAI routes spell alike.
void read_common(FieldReader& reader, GenerateParameters& parameters) {
  reader.read("adapter_source", parameters.adapter_source);
  reader.read("temperature", parameters.temperature);
  reader.read("repetition_penalty", parameters.repetition_penalty);
  reader.read("frequency_penalty", parameters.frequency_penalty);
  reader.read("presence_penalty", parameters.presence_penalty);
  reader.read("top_k", parameters.top_k);
  reader.read("top_p", parameters.top_p);
  reader.read("seed", parameters.seed);
  reader.read("priority", parameters.priority);
  read_token_rules(reader, parameters);
  reader.read("api_token", parameters.api_token);
}

void read_native_parameters(FieldReader& reader, GenerateParameters& parameters) {
  read_common(reader, parameters);
  reader.read("adapter_id", parameters.adapter_id);
  read_merged_adapters(reader, parameters.merged_adapters);
  reader.read("best_of", parameters.best_of);
  reader.read("typical_p", parameters.typical_p);
  reader.read("do_sample", parameters.do_sample);
  std::optional<std::uint32_t> max_new_tokens;
  reader.read("max_new_tokens", max_new_tokens);
  if (max_new_tokens) parameters.max_new_tokens = *max_new_tokens;
  reader.read("ignore_eos_token", parameters.ignore_eos_token);
  reader.read("return_full_text", parameters.return_full_text);
  reader.read("stop", parameters.stop);
  reader.read("truncate", parameters.truncate);
  reader.read("details", parameters.details);
  read_native_scores(reader, parameters);
  reader.read("watermark", parameters.watermark);
  reader.read("apply_chat_template", parameters.apply_chat_template);
  note_unserved_fields(reader, parameters, kUnservedNative);
}

void read_stop(FieldReader& reader, GenerateParameters& parameters) {
  const InputJson* stop = reader.find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    parameters.stop = {stop->get<std::string>()};
  } else if (stop->is_array()) {
    reader.read("stop", parameters.stop);
  } else {
    reader.fail("stop", fmt::format("expected a string or an array of strings, got {}", stop->type_name()));
  }
}

// Of vLLM: tokens that end the answer, and whether the text that ended it stays.
void read_stop_tokens(FieldReader& reader, GenerateParameters& parameters) {
  if (const InputJson* ids = reader.find("stop_token_ids"); ids != nullptr) {
    if (ids->is_array()) {
      parameters.stop_token_ids = reader.token_ids("stop_token_ids", *ids);
    } else {
      reader.fail("stop_token_ids", fmt::format("expected token ids, got {}", ids->type_name()));
    }
  }
  std::optional<bool> include_stop;
  reader.read("include_stop_str_in_output", include_stop);
  parameters.stop_text = include_stop.value_or(false) ? StopText::kKeep : StopText::kCut;
}

// OpenAI fields that both /v1 routes share.
void read_openai(FieldReader& reader, GenerateParameters& parameters, bool& stream, bool& include_usage) {
  read_common(reader, parameters);
  reader.read("adapter_id", parameters.adapter_id);
  std::optional<std::int32_t> max_tokens;
  std::optional<std::int32_t> max_completion_tokens;
  reader.read("max_tokens", max_tokens);
  reader.read("max_completion_tokens", max_completion_tokens);
  if (max_tokens && max_completion_tokens && *max_tokens != *max_completion_tokens) {
    reader.fail("max_completion_tokens", "differs from `max_tokens`; give one of them");
  }
  parameters.max_new_tokens_name = max_completion_tokens ? "max_completion_tokens" : "max_tokens";
  if (max_completion_tokens) max_tokens = max_completion_tokens;
  if (max_tokens) parameters.max_new_tokens = *max_tokens;
  read_stop(reader, parameters);
  read_stop_tokens(reader, parameters);
  std::optional<bool> flag;
  for (const char* name : {"ignore_eos_token", "ignore_eos"}) {
    reader.read(name, flag);
    parameters.ignore_eos_token = parameters.ignore_eos_token || flag.value_or(false);
    flag.reset();
  }
  reader.read("skip_special_tokens", parameters.skip_special_tokens);
  reader.read("stream", flag);
  stream = flag.value_or(false);
  if (const InputJson* options = reader.find("stream_options"); options != nullptr) {
    if (!options->is_object()) {
      reader.fail("stream_options", fmt::format("expected an object, got {}", options->type_name()));
    } else if (const auto usage = options->find("include_usage"); usage != options->end() && !usage->is_null()) {
      if (usage->is_boolean()) {
        include_usage = usage->get<bool>();
      } else {
        reader.fail("stream_options.include_usage", fmt::format("expected a boolean, got {}", usage->type_name()));
      }
    }
  }
  reader.read("n", parameters.num_choices);
  reader.read("best_of", parameters.num_candidates);
  note_unserved_fields(reader, parameters, kUnservedOpenAi);
}

void refuse_streamed_prompt_logprobs(FieldReader& reader, bool stream, const GenerateParameters& parameters) {
  if (stream && parameters.prompt_logprobs) reader.fail("prompt_logprobs", "is not possible with `stream`");
}

// "model" names the adapter; whether it is the base model's id is known to the endpoint.
void read_model(FieldReader& reader, std::string& model) { reader.read("model", model, Presence::kRequired); }

// Text parts are joined; an image becomes a markdown image, as LoRAX does it.
std::string join_parts(FieldReader& reader, const InputJson& parts) {
  std::string content;
  for (const InputJson& part : parts) {
    const bool is_object = part.is_object();
    const auto type = is_object ? part.find("type") : part.end();
    if (is_object && type != part.end() && *type == "text" && part.contains("text") && part["text"].is_string()) {
      content += part["text"].get_ref<const std::string&>();
    } else if (is_object && type != part.end() && *type == "image_url" && part.contains("image_url") &&
               part["image_url"].is_object() && part["image_url"].contains("url") &&
               part["image_url"]["url"].is_string()) {
      content += "![](" + part["image_url"]["url"].get_ref<const std::string&>() + ")";
    } else {
      reader.fail(
          "content",
          "a part is neither {\"type\":\"text\",\"text\"} nor {\"type\":\"image_url\",\"image_url\":{\"url\"}}");
      break;
    }
  }
  return content;
}

// Arguments as JSON: OpenAI's text of it, LoRAX's object, or none. "" after a fault. A text that is none, as a call has
// it that `max_tokens` cut off, is told to the template as a string.
std::string read_arguments(FieldReader& reader, const InputJson& function, const std::string& where) {
  const InputJson* arguments = find_set(function, "arguments");
  if (arguments == nullptr) return "{}";
  if (arguments->is_object()) return arguments->dump();
  if (arguments->is_string()) {
    std::string text = arguments->get<std::string>();
    if (text.empty()) return "{}";
    return InputJson::accept(text) ? text : arguments->dump();
  }
  reader.fail((where + ".function.arguments").c_str(),
              fmt::format("expected a string, got {}", arguments->type_name()));
  return "";
}

std::vector<PastCall> read_calls(FieldReader& reader) {
  std::vector<PastCall> calls;
  const InputJson* list = reader.find("tool_calls");
  if (list == nullptr) return calls;
  if (!list->is_array()) {
    reader.fail("tool_calls", fmt::format("expected an array, got {}", list->type_name()));
    return calls;
  }
  const auto text_of = [](const InputJson& object, const char* name) {
    const InputJson* found = object.is_object() ? find_set(object, name) : nullptr;
    return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (std::size_t i = 0; i < list->size(); ++i) {
    const InputJson& call = (*list)[i];
    const std::string where = fmt::format("tool_calls[{}]", i);
    const InputJson* function = call.is_object() ? find_set(call, "function") : nullptr;
    PastCall past{
        .id = text_of(call, "id"), .name = function == nullptr ? "" : text_of(*function, "name"), .arguments = {}};
    if (past.name.empty()) {
      reader.fail(where.c_str(), "expected a call: an object whose `function` has a `name`");
      break;
    }
    past.arguments = read_arguments(reader, *function, where);
    calls.push_back(std::move(past));
  }
  return calls;
}

// Text or parts. The assistant may have called tools or said nothing, and a tool may have answered nothing.
std::string read_content(FieldReader& reader, const std::string& role) {
  const InputJson* content = reader.find("content");
  const bool optional = role == "assistant" || role == "tool";
  if (content == nullptr) {
    if (!optional) reader.fail("content", "missing field");
    return "";
  }
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array() && (optional || !content->empty())) return join_parts(reader, *content);
  reader.fail("content", fmt::format("expected a string or an array of parts, got {}",
                                     content->is_array() ? "an empty array" : content->type_name()));
  return "";
}

void read_messages(FieldReader& reader, std::optional<ApiError>& error, std::vector<ChatMessage>& messages) {
  const InputJson* list = reader.find("messages");
  if (list == nullptr) {
    reader.fail("messages", "missing field");
    return;
  }
  if (!list->is_array()) {
    reader.fail("messages", fmt::format("expected an array, got {}", list->type_name()));
    return;
  }
  for (std::size_t i = 0; i < list->size() && !error; ++i) {
    FieldReader message_reader((*list)[i], fmt::format("messages[{}].", i), error);
    ChatMessage message;
    message_reader.read("role", message.role, Presence::kRequired);
    message.content = read_content(message_reader, message.role);
    message.calls = read_calls(message_reader);
    std::optional<std::string> tool_call_id;
    message_reader.read("tool_call_id", tool_call_id);
    message.tool_call_id = tool_call_id.value_or("");
    messages.push_back(std::move(message));
  }
}

}  // namespace

void read_adapter_parameters(FieldReader& reader, GenerateParameters& parameters) {
  reader.read("adapter_id", parameters.adapter_id);
  reader.read("adapter_source", parameters.adapter_source);
  reader.read("api_token", parameters.api_token);
  read_merged_adapters(reader, parameters.merged_adapters);
}

Parsed<NativeRequest> parse_native(const InputJson& body) {
  std::optional<ApiError> error;
  NativeRequest request;
  FieldReader reader(body, "", error);
  reader.read("inputs", request.inputs, Presence::kRequired);
  if (!error && body.contains("parameters")) {
    FieldReader parameters(body["parameters"], "parameters.", error);
    read_native_parameters(parameters, request.parameters);
  }
  reader.read("stream", request.stream);
  if (error) return *error;
  return request;
}

Parsed<CompletionRequest> parse_completion(const InputJson& body) {
  std::optional<ApiError> error;
  CompletionRequest request;
  FieldReader reader(body, "", error);
  read_model(reader, request.model);
  if (!error) request.prompts = read_prompts(reader, "prompt");
  request.parameters.prompt_name = "prompt";
  read_openai(reader, request.parameters, request.stream, request.include_usage);
  read_completion_scores(reader, request.parameters);
  note_unserved_fields(reader, request.parameters, kUnservedCompletion);
  std::optional<std::string> suffix;
  reader.read("suffix", suffix);
  request.suffix = suffix.value_or("");
  reader.read("echo", request.parameters.return_full_text);
  if (request.parameters.return_full_text.value_or(false) && request.parameters.max_new_tokens == 0) {
    request.prompt_only = true;
    request.parameters.max_new_tokens = 1;
  }
  refuse_streamed_prompt_logprobs(reader, request.stream, request.parameters);
  // LoRAX samples where `n` is given, be it 1. A temperature of 1 that a client spells asks for sampling as 0.9 does;
  // without one completions are greedy, as LoRAX's are.
  request.parameters.do_sample = request.parameters.num_choices || request.parameters.temperature;
  if (error) return *error;
  return request;
}

Parsed<ChatRequest> parse_chat(const InputJson& body) {
  std::optional<ApiError> error;
  ChatRequest request;
  FieldReader reader(body, "", error);
  read_model(reader, request.model);
  if (!error) read_messages(reader, error, request.messages);
  request.parameters.prompt_name = "messages";
  read_openai(reader, request.parameters, request.stream, request.include_usage);
  read_chat_scores(reader, request.parameters);
  reader.read("guideline", request.guideline);
  refuse_streamed_prompt_logprobs(reader, request.stream, request.parameters);
  // OpenAI samples unless told not to; temperature 0 stays greedy.
  request.parameters.do_sample = true;
  if (error) return *error;
  return request;
}

}  // namespace shoal
