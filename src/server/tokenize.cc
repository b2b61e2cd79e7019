// POST /tokenize. Its answer is some 50 times as long as the text, so texts are bounded, and of the answers that may
// take megabytes there is one at a time.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "server/adapter_names.h"
#include "server/context.h"
#include "server/field_reader.h"
#include "server/parse_request.h"

namespace shoal {

namespace {

// A text that fills --max-input-length has some 4 bytes a token.
constexpr std::int64_t kTextBytesPerToken = 8;
constexpr std::int64_t kLeastMaxTextBytes = std::int64_t{256} << 10;  // servers of short prompts count tokens too
constexpr std::size_t kLargeText = std::size_t{4} << 10;              // an answer of 200 KB

struct TokenizeRequest {
  std::string inputs;
  SpecialTokens add = SpecialTokens::kAdd;
  std::shared_ptr<const Texts> texts = {};
};

// A large request while it waits for its turn; the connection holds it, so that it goes with the client.
struct Waiting {
  ResponseWriter writer;
  TokenizeRequest request;
};

Parsed<TokenizeRequest> parse_tokenize(const InputJson& body, const ServerOptions& options) {
  std::optional<ApiError> error;
  TokenizeRequest request;
  std::optional<bool> add_special_tokens;
  FieldReader reader(body, "", error);
  reader.read("inputs", request.inputs, Presence::kRequired);
  reader.read("add_special_tokens", add_special_tokens);
  if (error) return *error;
  const std::int64_t limit = std::max(kLeastMaxTextBytes, kTextBytesPerToken * options.max_input_length);
  if (static_cast<std::int64_t>(request.inputs.size()) > limit) {
    return ApiError{
        .failure = Failure::kValidation,
        .message = fmt::format("`inputs` must have at most {} bytes, given: {}", limit, request.inputs.size()),
        .param = "inputs"};
  }
  request.add = add_special_tokens.value_or(true) ? SpecialTokens::kAdd : SpecialTokens::kNone;
  return request;
}

bool is_large(const TokenizeRequest& request) { return request.inputs.size() > kLargeText; }

// Appended to one string: a tree of JSON values would take ten times its text.
std::string tokens_json(std::span<const TokenSpan> tokens) {
  std::string json = "[";
  for (const TokenSpan& token : tokens) {
    if (json.size() > 1) json += ',';
    fmt::format_to(std::back_inserter(json), R"({{"id":{},"text":{},"start":{},"stop":{}}})", token.id,
                   to_text(OutputJson(token.piece)), token.start, token.stop);
  }
  return json += ']';
}

void answer(const ServerContext& context, const ResponseWriter& writer, const TokenizeRequest& request) {
  const auto tokens = request.texts->tokenizer().encode_spans(request.inputs, request.add);
  if (tokens.ok()) {
    const std::string json = tokens_json(tokens.value());
    if (is_large(request)) writer.send_within(context.options.large_answer_limit);  // the reader's time, not ours
    writer.send(200, {{"content-type", "application/json"}}, json);
  } else {
    send_error(writer, to_api_error(tokens.error()), ApiStyle::kNative);
  }
}

// The turn ends with the last byte sent, and with a client that does not read in time.
void answer_in_turn(ServerContext& context, const ResponseWriter& writer, const TokenizeRequest& request) {
  writer.hold(std::shared_ptr<Turn>(&context.large_answer_turn, [](Turn* turn) { turn->give_back(); }));
  answer(context, writer, request);
}

void wait_and_answer(ServerContext& context, const ResponseWriter& writer, TokenizeRequest request) {
  const auto waiting = std::make_shared<Waiting>(Waiting{.writer = writer, .request = std::move(request)});
  writer.hold(waiting);
  const auto on_turn = [&context, weak = std::weak_ptr(waiting)] {
    const std::shared_ptr<Waiting> next = weak.lock();
    if (next == nullptr) return false;
    next->writer.post([&context, weak] {
      const std::shared_ptr<Waiting> ready = weak.lock();
      if (ready == nullptr) {
        context.large_answer_turn.give_back();
      } else {
        answer_in_turn(context, ready->writer, ready->request);
      }
    });
    return true;
  };
  if (context.large_answer_turn.take(on_turn)) answer_in_turn(context, writer, waiting->request);
}

}  // namespace

void handle_tokenize(ServerContext& context, const JsonCall& call) {
  auto parsed = parse_tokenize(call.body, context.options);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    send_error(call.writer, *error, ApiStyle::kNative);
    return;
  }
  auto& request = std::get<TokenizeRequest>(parsed);
  auto texts = texts_of(context, call);
  if (const auto* error = std::get_if<ApiError>(&texts)) {
    send_error(call.writer, *error, ApiStyle::kNative);
    return;
  }
  request.texts = std::get<std::shared_ptr<const Texts>>(std::move(texts));
  if (is_large(request)) {
    wait_and_answer(context, call.writer, std::move(request));
  } else {
    answer(context, call.writer, request);
  }
}

}  // namespace shoal
