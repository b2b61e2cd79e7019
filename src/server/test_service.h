// TestService: a Server over a real scheduler, a real small tokenizer and a fake engine. Used by the tests of
// src/server.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/test_patience.h"
#include "scheduler/fake_engine.h"
#include "scheduler/scheduler.h"
#include "server/json.h"
#include "server/raw_client.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/test_model_dir.h"
#include "text/tokenizer.h"

namespace shoal::test {

inline InputJson json_of(const std::string& text) { return InputJson::parse(text); }

// Of a stream's body, without the blank lines between them.
inline std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = body.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    events.push_back(body.substr(begin, end - begin));
  }
  EXPECT_EQ(begin, body.size()) << "text after the last event";
  return events;
}

inline InputJson json_of_event(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ")) << event;
  return json_of(event.substr(6));
}

// But for OpenAI's mark of the end.
inline std::vector<InputJson> json_events_of(const std::string& body) {
  std::vector<InputJson> events;
  for (const std::string& event : events_of(body)) {
    if (event != "data: [DONE]") events.push_back(json_of_event(event));
  }
  return events;
}

struct ServiceSizes {
  std::int64_t max_sequences = 8;
  std::int64_t num_blocks = 512;
  std::int64_t max_concurrent_requests = 64;
  std::optional<std::int64_t> max_queue = {};
  std::optional<std::int64_t> max_requests_per_tenant = {};
  std::chrono::milliseconds request_timeout{0};
  bool prefix_caching = false;
};

class TestService {
 public:
  explicit TestService(const ServiceSizes& sizes = {}, ServerOptions options = {})
      : engine({.model_family = "fake",
                .dtype = "float32",
                .device = "cpu/fake",
                .vocab_size = 262,
                .max_positions = 1024,
                .num_blocks = sizes.num_blocks,
                .max_step_tokens = 256,
                .max_sequences = sizes.max_sequences},
               wakeup_),
        tokenizer_(make_tokenizer(dir_)),
        chat_template_(ChatTemplate::load(dir_.path())),
        scheduler(engine, wakeup_, tokenizer_.get(),
                  {.max_batch_prefill_tokens = 256,
                   .max_concurrent_requests = sizes.max_concurrent_requests,
                   .max_queue = sizes.max_queue,
                   .max_requests_per_tenant = sizes.max_requests_per_tenant,
                   .request_timeout = sizes.request_timeout,
                   .max_total_tokens = 1024,
                   .prefix_caching = sizes.prefix_caching}),
        server(with_defaults(std::move(options)),
               Services{.scheduler = scheduler,
                        .tokenizer = *tokenizer_,
                        .chat_template = &chat_template_,
                        .engine = engine.info(),
                        .model_id = "test/base",
                        .list_adapters =
                            [this] {
                              ++num_lists;
                              return std::vector<std::string>{"alpha", "org/beta"};
                            },
                        .adapter_stats =
                            [] {
                              AdapterStats stats;
                              stats.tiers.device_adapters = 3;
                              stats.tiers.host_bytes = 512;
                              stats.load_seconds = 0.25;
                              return stats;
                            },
                        .adapter_version =
                            [](const AdapterKey& key) {
                              AdapterVersion version;
                              if (key.id == "alpha") version.signature = 1;
                              if (key.id == "org/beta") version.signature = 2;
                              return version;
                            },
                        .forget_adapter = [this](const AdapterKey& key) { engine.forget_adapter(key); },
                        .adapter_folder = [this](const AdapterKey& key) { return folder_of(key); }}) {}

  std::int32_t port() const { return server.port(); }

  // What the engine samples for a prompt alone.
  std::vector<std::int64_t> solo_ids(const std::string& prompt, std::int64_t max_new_tokens,
                                     const std::string& adapter = "") const {
    Request request;
    request.prompt_ids = tokenizer_->encode(prompt, SpecialTokens::kAdd).value();
    request.max_new_tokens = max_new_tokens;
    if (!adapter.empty()) request.adapter = AdapterKey{.source = "local", .id = adapter};
    return engine.solo_tokens(request);
  }

  // True once nothing runs, waits or holds blocks or adapters any more.
  bool comes_to_rest() const {
    return eventually([&] {
      const SchedulerStats stats = scheduler.stats();
      return stats.queued == 0 && stats.running == 0 && stats.used_blocks == 0 && engine.num_pins() == 0;
    });
  }

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  Result<std::filesystem::path> folder_of(const AdapterKey& key) const {
    if (on_look) on_look(key);
    const std::filesystem::path folder = adapter_root / key.id;
    if (!adapter_root.empty() && std::filesystem::exists(folder)) return folder;
    return Error{ErrorCode::kAdapterNotFound, "adapter '" + key.id + "' not found"};
  }

  static std::unique_ptr<Tokenizer> make_tokenizer(const ModelDir& dir) {
    dir.write_json("tokenizer.json", byte_level_tokenizer());
    dir.write("chat_template.jinja",
              "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
              "<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}<|turn|>assistant:");
    return Tokenizer::load(dir.path());
  }

  static ServerOptions with_defaults(ServerOptions options) {
    options.http.hostname = "127.0.0.1";
    options.http.port = 0;
    options.max_input_length = 1000;
    options.max_total_tokens = 1024;
    return options;
  }

  ModelDir dir_;
  Wakeup wakeup_;

 public:
  FakeEngine engine;
  std::atomic<int> num_lists{0};                   // look-ups of the adapter folder
  std::function<void(const AdapterKey&)> on_look;  // before a folder of those below is looked at
  std::filesystem::path adapter_root;  // where adapters' tokenizers and templates lie; set before the first request

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate chat_template_;

 public:
  Scheduler scheduler;
  Server server;
};

}  // namespace shoal::test
