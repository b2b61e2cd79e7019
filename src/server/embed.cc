// POST /embed and /v1/embeddings: the final hidden state of a prompt's last token, scaled to length 1.
#include <fmt/format.h>
#include <openssl/evp.h>

#include <cmath>
#include <iterator>
#include <memory>
#include <span>

#include "server/adapter_names.h"
#include "server/field_reader.h"
#include "server/generation_group.h"
#include "server/openai_answer.h"
#include "server/prompts.h"
#include "server/responses.h"

namespace shoal {

namespace {

constexpr std::size_t kMostInputs = 2048;

enum class VectorForm : std::uint8_t { kNumbers, kBase64 };

struct EmbedRequest {
  std::vector<CompletionPrompt> inputs;
  GenerateParameters parameters;
  std::string model;  // of /v1/embeddings: as asked for, then as answered
  VectorForm form = VectorForm::kNumbers;
};

// LoRAX's `parameters`, which name the adapter.
void read_parameters(const InputJson& body, EmbedRequest& request, std::optional<ApiError>& error) {
  const InputJson* parameters = find_set(body, "parameters");
  if (parameters == nullptr || error) return;
  FieldReader reader(*parameters, "parameters.", error);
  read_adapter_parameters(reader, request.parameters);
}

Parsed<EmbedRequest> parse_native_embed(const InputJson& body) {
  std::optional<ApiError> error;
  EmbedRequest request;
  FieldReader reader(body, "", error);
  std::string inputs;
  reader.read("inputs", inputs, Presence::kRequired);
  request.inputs.emplace_back(std::move(inputs));
  read_parameters(body, request, error);
  if (error) return *error;
  return request;
}

Parsed<EmbedRequest> parse_openai_embed(ServerContext& context, const JsonCall& call) {
  const InputJson& body = call.body;
  std::optional<ApiError> error;
  EmbedRequest request;
  FieldReader reader(body, "", error);
  reader.read("model", request.model, Presence::kRequired);
  request.inputs = read_prompts(reader, "input");
  request.parameters.prompt_name = "input";
  if (!error && request.inputs.size() > kMostInputs) {
    reader.fail("input", fmt::format("must hold at most {} texts, given: {}", kMostInputs, request.inputs.size()));
  }
  std::optional<std::string> format;
  reader.read("encoding_format", format);
  if (format == "base64") request.form = VectorForm::kBase64;
  if (format && format != "base64" && format != "float") {
    reader.fail("encoding_format", fmt::format("expected `float` or `base64`, got `{}`", *format));
  }
  if (reader.find("dimensions") != nullptr) {
    reader.fail("dimensions", "is not served: embeddings have the model's hidden size");
  }
  read_parameters(body, request, error);
  if (error) return *error;
  GenerateParameters& named = request.parameters;
  if (named.adapter_id.value_or("").empty() && !named.merged_adapters) {
    // LoRAX ignores the field, and its clients fill in anything: what cannot be an adapter is the base model.
    const bool is_named = named.adapter_source ? !request.model.empty() && request.model != context.services.model_id
                                               : may_name_adapter(context, call.caller, request.model);
    named.adapter_id = is_named ? request.model : "";
  }
  request.model = named.adapter_id.value_or("").empty() ? context.services.model_id : *named.adapter_id;
  return request;
}

void scale_to_length_1(std::vector<float>& vector) {
  double sum = 0.0;
  for (const float value : vector) sum += static_cast<double>(value) * static_cast<double>(value);
  if (sum == 0.0) return;
  const double factor = 1.0 / std::sqrt(sum);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) * factor);
}

// Appended to one string: a tree of JSON values would take many times its text.
void append_numbers(std::span<const float> vector, std::string& json) {
  json += '[';
  for (std::size_t i = 0; i < vector.size(); ++i) {
    if (i > 0) json += ',';
    fmt::format_to(std::back_inserter(json), "{}", vector[i]);
  }
  json += ']';
}

// Little-endian float32, as OpenAI's clients read it.
void append_base64(std::span<const float> vector, std::string& json) {
  const auto bytes = std::as_bytes(vector);
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // with the zero that is written at its end
  const int length =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  json += '"' + text + '"';
}

std::string vectors_json(const std::vector<FinishEvent>& finishes, VectorForm form) {
  std::string json = "[";
  for (std::size_t i = 0; i < finishes.size(); ++i) {
    fmt::format_to(std::back_inserter(json), R"({}{{"object":"embedding","index":{},"embedding":)", i == 0 ? "" : ",",
                   i);
    if (form == VectorForm::kBase64) {
      append_base64(finishes[i].hidden, json);
    } else {
      append_numbers(finishes[i].hidden, json);
    }
    json += '}';
  }
  return json += ']';
}

std::string native_body(const std::vector<FinishEvent>& finishes) {
  std::string json = R"({"embeddings":)";
  append_numbers(finishes.front().hidden, json);
  return json += '}';
}

// OpenAI's form, and beside it, for clients that read numbers, LoRAX's `embeddings`.
std::string openai_body(const std::vector<FinishEvent>& finishes, VectorForm form, const std::string& model) {
  const std::string vectors = vectors_json(finishes, form);
  OutputJson usage = openai_usage(sum_of_parts(finishes, 1));
  usage.erase("completion_tokens");
  std::string json = fmt::format(R"({{"object":"list","data":{},"model":{},"usage":{})", vectors,
                                 to_text(OutputJson(model)), to_text(usage));
  if (form == VectorForm::kNumbers) json += R"(,"embeddings":)" + vectors;
  return json += '}';
}

using Finishes = std::vector<FinishEvent>;

void embed(ServerContext& context, const JsonCall& call, ApiStyle style, EmbedRequest request,
           std::function<std::string(const Finishes&)> make_body) {
  request.parameters.embed = true;
  std::vector<Tokenize> tokenize;
  tokenize.reserve(request.inputs.size());
  for (const CompletionPrompt& input : request.inputs) {
    tokenize.emplace_back(
        [&input](const Texts& texts) { return prompt_ids(texts.tokenizer(), input, SpecialTokens::kAdd); });
  }
  auto prepared = prepare_prompts(context, call, request.parameters, tokenize);
  if (const auto* error = std::get_if<ApiError>(&prepared)) {
    refuse(context, call.writer, *error, style);
    return;
  }
  auto& prompts = std::get<std::vector<PreparedRequest>>(prepared);
  struct State {
    Finishes finishes;
    std::size_t num_open;
  };
  const auto state = std::make_shared<State>(State{.finishes = Finishes(prompts.size()), .num_open = prompts.size()});
  GroupSink sink;
  sink.on_token = [](std::size_t, const TokenEvent&) {};
  sink.on_finish = [state, writer = call.writer, make_body = std::move(make_body)](std::size_t part,
                                                                                   const FinishEvent& finish) {
    state->finishes[part] = finish;
    scale_to_length_1(state->finishes[part].hidden);
    if (--state->num_open > 0) return;
    writer.send(200, {{"content-type", "application/json"}}, make_body(state->finishes));
  };
  sink.on_error = [writer = call.writer, style](const ApiError& error) { send_error(writer, error, style); };
  start_group(context, call.writer, std::move(prompts), 1, std::move(sink));
}

}  // namespace

void handle_embed(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_native_embed(call.body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kNative);
    return;
  }
  embed(context, call, ApiStyle::kNative, std::move(std::get<EmbedRequest>(parsed)), native_body);
}

void handle_embeddings(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_openai_embed(context, call);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    refuse(context, call.writer, *error, ApiStyle::kOpenAi);
    return;
  }
  auto& request = std::get<EmbedRequest>(parsed);
  const auto make_body = [form = request.form, model = request.model](const Finishes& finishes) {
    return openai_body(finishes, form, model);
  };
  embed(context, call, ApiStyle::kOpenAi, std::move(request), make_body);
}

}  // namespace shoal
