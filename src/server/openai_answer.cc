#include "server/openai_answer.h"

#include <fmt/format.h>

namespace shoal {

namespace {

struct StreamState {
  ServerContext& context;
  const ResponseWriter writer;
  const GenerationInfo info;
  const OpenAiHead head;
  const OpenAiForm form;
  const OpenAiDelivery delivery;
  bool begun = false;

  void write(const OutputJson& json) const { writer.write(to_event(json)); }

  void begin() {
    if (begun) return;
    begun = true;
    writer.begin_stream(stream_headers(context, info));
    if (form.first_chunk) write(form.first_chunk(head));
  }

  void write_text(const std::string& text) {
    begin();
    if (!text.empty()) write(form.text_chunk(head, text));
  }

  void finish(const FinishEvent& event) {
    write_text(event.tail);
    OutputJson last = form.last_chunk(head, openai_finish_reason(event.reason));
    // LoRAX's clients read usage from the last chunk; OpenAI's ask for one of its own.
    if (!delivery.include_usage) last["usage"] = openai_usage(event);
    write(last);
    if (delivery.include_usage) write(usage_chunk(head, form.chunk_object, event));
    writer.write("data: [DONE]\n\n");
    writer.end();
  }

  void fail(const ApiError& error) const {
    if (!begun) {
      send_error(writer, error, ApiStyle::kOpenAi);
      return;
    }
    writer.write(error_event(error, ApiStyle::kOpenAi));
    writer.end();
  }
};

GenerationSink whole_sink(ServerContext& context, const ResponseWriter& writer, const GenerationInfo& info,
                          OpenAiHead head, OpenAiForm form) {
  GenerationSink sink;
  sink.on_token = [](const TokenEvent&) {};
  sink.on_finish = [&context, writer, info, head = std::move(head), form = std::move(form)](const FinishEvent& finish) {
    writer.send(200, answer_headers(context, info, finish), to_text(form.whole(head, finish)));
  };
  sink.on_error = [writer](const ApiError& error) { send_error(writer, error, ApiStyle::kOpenAi); };
  return sink;
}

}  // namespace

void select_model(const ServerContext& context, const std::string& model, GenerateParameters& parameters) {
  parameters.adapter_id = model == context.services.model_id ? std::string() : model;
}

OpenAiHead make_head(const ServerContext& context, const char* id_prefix, const std::string& model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.id = fmt::format("{}{:016x}{:08x}", id_prefix, random_u64(), static_cast<std::uint32_t>(random_u64())),
          .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
          .model = model.empty() ? context.services.model_id : model};
}

void answer_openai(ServerContext& context, const ResponseWriter& writer, PreparedRequest prepared, OpenAiHead head,
                   OpenAiForm form, OpenAiDelivery delivery) {
  if (!delivery.stream) {
    GenerationSink sink = whole_sink(context, writer, prepared.info, std::move(head), std::move(form));
    start_generation(context, writer, std::move(prepared), std::move(sink));
    return;
  }
  const auto state = std::make_shared<StreamState>(StreamState{.context = context,
                                                               .writer = writer,
                                                               .info = prepared.info,
                                                               .head = std::move(head),
                                                               .form = std::move(form),
                                                               .delivery = delivery});
  GenerationSink sink;
  sink.on_token = [state](const TokenEvent& token) { state->write_text(token.delta); };
  sink.on_finish = [state](const FinishEvent& finish) { state->finish(finish); };
  sink.on_error = [state](const ApiError& error) { state->fail(error); };
  start_generation(context, writer, std::move(prepared), std::move(sink));
}

}  // namespace shoal
