// GET /startup: 200 once a real request went through, whatever its token was.
#include "server/context.h"
#include "server/generation.h"

namespace shoal {

void handle_startup(ServerContext& context, const HttpRequest& /*request*/, const ResponseWriter& writer,
                    const Caller& /*caller*/) {
  const auto now = std::chrono::steady_clock::now();
  PreparedRequest prepared;
  prepared.request.prompt_ids = {0};
  prepared.request.max_new_tokens = 1;
  prepared.request.ignore_eos = true;
  prepared.info.received = prepared.info.validated = now;
  prepared.info.prompt_tokens = prepared.info.max_new_tokens = 1;
  context.metrics.count_request();
  GenerationSink sink;
  sink.on_token = [](const TokenEvent&) {};
  sink.on_finish = [writer](const FinishEvent&) { writer.send(200, {}, ""); };
  sink.on_error = [writer](const ApiError& error) {
    send_error(writer, {.failure = Failure::kUnhealthy, .message = error.message, .param = {}}, ApiStyle::kNative);
  };
  start_generation(context, writer, std::move(prepared), std::move(sink));
}

}  // namespace shoal
