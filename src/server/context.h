// ServerContext: what the endpoints of one Server share, and the entry of each endpoint family. Used by server.cc and
// the endpoint files.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/adapter_texts.h"
#include "server/caller.h"
#include "server/errors.h"
#include "server/grammar_compiler.h"
#include "server/http_server.h"
#include "server/json.h"
#include "server/metrics.h"
#include "server/runtime_adapters.h"
#include "server/server_options.h"
#include "server/text_reader.h"
#include "server/turn.h"

namespace shoal {

// Adapter ids on disk, looked up at most every two seconds.
class AdapterList {
 public:
  explicit AdapterList(std::function<std::vector<std::string>()> list) : list_(std::move(list)) {}
  std::vector<std::string> ids();

 private:
  const std::function<std::vector<std::string>()> list_;
  std::mutex mutex_;
  std::vector<std::string> ids_;                     // guarded by mutex_
  std::chrono::steady_clock::time_point read_at_{};  // guarded by mutex_
};

// What the services hold outlives the server.
inline std::shared_ptr<const Texts> base_texts(const Services& services) {
  return std::make_shared<const Texts>(
      std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), &services.tokenizer),
      std::shared_ptr<const ChatTemplate>(std::shared_ptr<void>(), services.chat_template));
}

struct ServerContext {
  ServerContext(ServerOptions server_options, Services server_services)
      : options(std::move(server_options)),
        services(std::move(server_services)),
        metrics(options.max_input_length, options.max_total_tokens),
        adapters(services.list_adapters),
        runtime_adapters(options.max_runtime_adapters, services.forget_adapter),
        api_keys(api_key_options(options)),
        texts(base_texts(services), services.engine.vocab_size, services.adapter_folder),
        text_reader(texts) {}

  const ServerOptions options;
  const Services services;
  Metrics metrics;
  AdapterList adapters;
  RuntimeAdapters runtime_adapters;
  const ApiKeys api_keys;
  AdapterTexts texts;
  TextReader text_reader;
  GrammarCompiler grammars;
  Turn large_answer_turn;
  std::atomic<bool> ready{true};  // false while draining
};

// A parsed POST: the request's body is JSON by now.
struct JsonCall {
  const HttpRequest& request;
  const InputJson& body;
  const ResponseWriter& writer;
  std::chrono::steady_clock::time_point received;
  const Caller& caller;
};

void handle_generate(ServerContext& context, const JsonCall& call);         // POST /generate
void handle_generate_stream(ServerContext& context, const JsonCall& call);  // POST /generate_stream
void handle_compat_generate(ServerContext& context, const JsonCall& call);  // POST / and /invocations
void handle_completions(ServerContext& context, const JsonCall& call);      // POST /v1/completions
void handle_chat(ServerContext& context, const JsonCall& call);             // POST /v1/chat/completions
void handle_embed(ServerContext& context, const JsonCall& call);            // POST /embed
void handle_embeddings(ServerContext& context, const JsonCall& call);       // POST /v1/embeddings
void handle_tokenize(ServerContext& context, const JsonCall& call);         // POST /tokenize

void handle_detokenize(ServerContext& context, const JsonCall& call);  // POST /detokenize
void handle_classify(ServerContext& context, const JsonCall& call);    // POST /classify and /classify_batch

void handle_load_adapter(ServerContext& context, const JsonCall& call);    // POST /v1/load_lora_adapter
void handle_unload_adapter(ServerContext& context, const JsonCall& call);  // POST /v1/unload_lora_adapter

// GET; `caller` is nobody on routes that are open to all.
void handle_startup(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                    const Caller& caller);
void handle_health(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                   const Caller& caller);
void handle_info(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                 const Caller& caller);
void handle_metrics(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                    const Caller& caller);
void handle_openapi(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                    const Caller& caller);
void handle_docs(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                 const Caller& caller);
void handle_models(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                   const Caller& caller);
// /v1/models/{id}
void handle_model(ServerContext& context, const HttpRequest& request, const ResponseWriter& writer,
                  const Caller& caller);

}  // namespace shoal
