#include "simulator/trace.h"

#include <fmt/format.h>

namespace shoal {
namespace {

constexpr std::int64_t kBigUnits = 3;

bool is_every(std::int64_t adapter, std::int64_t every) { return every > 0 && adapter % every == every - 1; }

template <typename Struct>
class Initializer {
 public:
  explicit Initializer(const Struct& value) : value_(value) {}

  template <typename Value>
  Initializer& add(const char* name, Value Struct::* member) {
    if (value_.*member != default_.*member) add_text(fmt::format(".{} = {}", name, value_.*member));
    return *this;
  }
  void add_text(const std::string& text) {
    if (!text_.empty()) text_ += ", ";
    text_ += text;
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  const Struct& value_;
  Struct default_;
  std::string text_;
};

std::string to_text(const TraceRequest& request) {
  return Initializer(request)
      .add("arrival_us", &TraceRequest::arrival_us)
      .add("adapter", &TraceRequest::adapter)
      .add("shared_text", &TraceRequest::shared_text)
      .add("shared_tokens", &TraceRequest::shared_tokens)
      .add("own_tokens", &TraceRequest::own_tokens)
      .add("own_text", &TraceRequest::own_text)
      .add("max_new_tokens", &TraceRequest::max_new_tokens)
      .add("stop_token", &TraceRequest::stop_token)
      .add("sampling_seed", &TraceRequest::sampling_seed)
      .add("has_penalties", &TraceRequest::has_penalties)
      .add("tenant", &TraceRequest::tenant)
      .add("priority", &TraceRequest::priority)
      .add("cancel_after_us", &TraceRequest::cancel_after_us)
      .add("cancel_after_tokens", &TraceRequest::cancel_after_tokens)
      .text();
}

}  // namespace

std::uint64_t draw_of(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15U + index * 0xd1342543de82ef95U + 0x632be59bd9b4e019U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

Request request_of(const Trace& trace, const TraceRequest& request) {
  Request made{.prompt_ids = {}, .max_new_tokens = request.max_new_tokens, .sampling = {}, .adapter = {}, .stop = {}};
  const auto add = [&](std::uint64_t text, std::int64_t index) {
    const std::uint64_t drawn = draw_of(text, static_cast<std::uint64_t>(index));
    made.prompt_ids.push_back(static_cast<std::int64_t>(drawn % static_cast<std::uint64_t>(kTraceVocabulary)));
  };
  for (std::int64_t i = 0; i < request.shared_tokens; ++i) add(static_cast<std::uint64_t>(request.shared_text), i);
  for (std::int64_t i = 0; i < request.own_tokens; ++i) add(request.own_text, -1 - i);
  if (request.adapter >= 0) made.adapter = AdapterKey{.id = adapter_name(trace, request.adapter)};
  if (request.stop_token >= 0) made.stop_token_ids = {request.stop_token};
  made.sampling.seed = request.sampling_seed;
  if (request.has_penalties) made.sampling.frequency_penalty = 0.5F;
  made.priority = request.priority;
  if (request.tenant > 0) made.tenant = made.cache_salt = fmt::format("tenant {}", request.tenant);
  return made;
}

std::string adapter_name(const Trace& trace, std::int64_t adapter) {
  return fmt::format("{}{}", is_every(adapter, trace.big_every) ? "big-" : "a-", adapter);
}

bool is_broken(const Trace& trace, std::int64_t adapter) { return is_every(adapter, trace.broken_every); }

bool never_fits(const Trace& trace, std::int64_t adapter) {
  return is_every(adapter, trace.big_every) && kBigUnits > std::min(trace.device_units, trace.host_units);
}

std::string to_text(const Trace& trace) {
  Initializer<Trace> made(trace);
  made.add("num_blocks", &Trace::num_blocks)
      .add("step_tokens", &Trace::step_tokens)
      .add("max_sequences", &Trace::max_sequences)
      .add("sliding_window", &Trace::sliding_window)
      .add("prefix_caching", &Trace::prefix_caching)
      .add("shuffled_blocks", &Trace::shuffled_blocks)
      .add("runs_ahead", &Trace::runs_ahead)
      .add("max_requests", &Trace::max_requests)
      .add("max_queue", &Trace::max_queue)
      .add("max_of_tenant", &Trace::max_of_tenant)
      .add("timeout_ms", &Trace::timeout_ms)
      .add("cycle_ms", &Trace::cycle_ms)
      .add("device_units", &Trace::device_units)
      .add("host_units", &Trace::host_units)
      .add("max_device_adapters", &Trace::max_device_adapters)
      .add("num_loaders", &Trace::num_loaders)
      .add("load_us", &Trace::load_us)
      .add("upload_us", &Trace::upload_us)
      .add("big_every", &Trace::big_every)
      .add("broken_every", &Trace::broken_every)
      .add("fail_percent", &Trace::fail_percent);
  std::string requests;
  for (const TraceRequest& request : trace.requests) requests += fmt::format("\n    {},", to_text(request));
  made.add_text(fmt::format("\n  .requests = {{{}}}", requests));
  if (!trace.replacements.empty()) {
    std::string replacements;
    for (const auto& [time_us, adapter] : trace.replacements) {
      replacements += fmt::format("{{.time_us = {}, .adapter = {}}}, ", time_us, adapter);
    }
    made.add_text(fmt::format("\n  .replacements = {{{}}}", replacements));
  }
  if (!trace.failed_steps.empty()) {
    made.add_text(fmt::format("\n  .failed_steps = {{{}}}", fmt::join(trace.failed_steps, ", ")));
  }
  return "Trace" + made.text();
}

}  // namespace shoal
