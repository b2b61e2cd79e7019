#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "server/json.h"

namespace shoal {

namespace {

using Boundaries = prometheus::Histogram::BucketBoundaries;
using Quantiles = prometheus::Summary::Quantiles;
using prometheus::MetricFamily;
using prometheus::MetricType;

Boundaries duration_boundaries() { return {kDurationBounds.begin(), kDurationBounds.end()}; }

Boundaries hundred_steps(std::int64_t limit) {
  Boundaries boundaries;
  for (int i = 1; i <= 100; ++i) boundaries.push_back(static_cast<double>(limit) / 100.0 * i);
  return boundaries;
}

prometheus::Counter& add_counter(prometheus::Registry& registry, const char* name) {
  return prometheus::BuildCounter().Name(name).Register(registry).Add({});
}

prometheus::Histogram& add_histogram(prometheus::Registry& registry, const char* name, const Boundaries& boundaries) {
  return prometheus::BuildHistogram().Name(name).Register(registry).Add({}, boundaries);
}

MetricFamily family(const char* name, MetricType type, double value) {
  MetricFamily result{.name = name, .help = "", .type = type, .metric = {}};
  prometheus::ClientMetric metric;
  metric.counter.value = value;
  metric.gauge.value = value;
  result.metric.push_back(std::move(metric));
  return result;
}

prometheus::ClientMetric labelled_count(const char* label, const char* value, std::int64_t count) {
  prometheus::ClientMetric metric;
  metric.label = {{label, value}};
  metric.counter.value = static_cast<double>(count);
  return metric;
}

MetricFamily by_method(const char* name, std::int64_t prefill, std::int64_t decode) {
  return {.name = name,
          .help = "",
          .type = MetricType::Counter,
          .metric = {labelled_count("method", "prefill", prefill), labelled_count("method", "decode", decode)}};
}

template <std::size_t kNumBounds>
prometheus::ClientMetric histogram(const Distribution<kNumBounds>& values,
                                   const std::array<double, kNumBounds>& bounds) {
  prometheus::ClientMetric metric;
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < values.counts.size(); ++i) {
    cumulative += static_cast<std::uint64_t>(values.counts[i]);
    const double bound = i < kNumBounds ? bounds[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({.cumulative_count = cumulative, .upper_bound = bound});
  }
  metric.histogram.sample_count = cumulative;
  metric.histogram.sample_sum = values.sum;
  return metric;
}

// How the steps of the engine went.
void append_steps(std::vector<MetricFamily>& families, const SchedulerStats& stats) {
  const StepStats& prefill = stats.prefill;
  const StepStats& decode = stats.decode;
  families.push_back(
      by_method("lorax_batch_inference_count", prefill.succeeded + prefill.failed, decode.succeeded + decode.failed));
  families.push_back(by_method("lorax_batch_inference_success", prefill.succeeded, decode.succeeded));
  families.push_back(by_method("lorax_batch_inference_failure", prefill.failed, decode.failed));
  MetricFamily durations{
      .name = "lorax_batch_inference_duration", .help = "", .type = MetricType::Histogram, .metric = {}};
  for (const auto& [method, steps] : {std::pair("prefill", &prefill), std::pair("decode", &decode)}) {
    durations.metric.push_back(histogram(steps->seconds, kDurationBounds));
    durations.metric.back().label = {{"method", method}};
  }
  families.push_back(std::move(durations));
  families.push_back({.name = "lorax_batch_next_size",
                      .help = "",
                      .type = MetricType::Histogram,
                      .metric = {histogram(stats.next_size, kBatchSizeBounds)}});
  // New requests never wait for a batch to end: of LoRAX's reasons, chunked prefill alone is there.
  families.push_back({.name = "lorax_batch_concat",
                      .help = "",
                      .type = MetricType::Counter,
                      .metric = {labelled_count("reason", "chunking", stats.joined_batches)}});
}

MetricFamily by_tier(const char* name, MetricType type, std::int64_t device, std::int64_t host) {
  MetricFamily by_label{.name = name, .help = "", .type = type, .metric = {}};
  for (const auto& [tier, value] : {std::pair("device", device), std::pair("host", host)}) {
    prometheus::ClientMetric metric;
    metric.label = {{"tier", tier}};
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = static_cast<double>(value);
    by_label.metric.push_back(std::move(metric));
  }
  return by_label;
}

// Where adapters lie and how they came there.
void append_adapters(std::vector<MetricFamily>& families, const AdapterStats& stats) {
  const AdapterTierStats& tiers = stats.tiers;
  const auto counter = [&](const char* name, double value) {
    families.push_back(family(name, MetricType::Counter, value));
  };
  families.push_back(family("shoal_adapters_loaded", MetricType::Gauge, static_cast<double>(tiers.device_adapters)));
  families.push_back(by_tier("shoal_adapters", MetricType::Gauge, tiers.device_adapters, tiers.host_adapters));
  families.push_back(by_tier("shoal_adapter_bytes", MetricType::Gauge, tiers.device_bytes, tiers.host_bytes));
  families.push_back(
      by_tier("shoal_adapter_limit_bytes", MetricType::Gauge, tiers.device_limit_bytes, tiers.host_limit_bytes));
  families.push_back(family("shoal_adapter_pinned_bytes", MetricType::Gauge, static_cast<double>(tiers.pinned_bytes)));
  families.push_back(by_tier("shoal_adapter_hits", MetricType::Counter, tiers.device_hits, tiers.host_hits));
  families.push_back(
      by_tier("shoal_adapter_evictions", MetricType::Counter, tiers.device_evictions, tiers.host_evictions));
  counter("shoal_adapter_loads", static_cast<double>(tiers.loads));
  counter("shoal_adapter_load_failures", static_cast<double>(tiers.failed_loads));
  counter("shoal_adapter_load_seconds", stats.load_seconds);
  counter("shoal_adapter_uploads", static_cast<double>(tiers.uploads));
}

// What the scheduler counts already is read when somebody asks.
void append_scheduler(std::vector<MetricFamily>& families, const SchedulerStats& stats) {
  const auto gauge = [&](const char* name, std::int64_t value) {
    families.push_back(family(name, MetricType::Gauge, static_cast<double>(value)));
  };
  const auto counter = [&](const char* name, std::int64_t value) {
    families.push_back(family(name, MetricType::Counter, static_cast<double>(value)));
  };
  gauge("lorax_queue_length", stats.queued);
  gauge("lorax_batch_current_size", stats.batch_size);
  gauge("lorax_batch_current_max_tokens", stats.used_blocks * 16);
  append_steps(families, stats);
  gauge("shoal_queued", stats.queued);
  gauge("shoal_running", stats.running);
  gauge("shoal_used_blocks", stats.used_blocks);
  gauge("shoal_total_blocks", stats.total_blocks);
  counter("shoal_steps", stats.steps);
  counter("shoal_decode_steps", stats.decode_steps);
  counter("shoal_steps_ahead", stats.steps_ahead);
  counter("shoal_generated_tokens", stats.generated_tokens);
  counter("shoal_prompt_tokens", stats.prompt_tokens);
  counter("shoal_preemptions", stats.preemptions);
  counter("shoal_grammar_masks", stats.masks);
  families.push_back(family("shoal_grammar_mask_seconds", MetricType::Counter, stats.mask_seconds));
  gauge("shoal_prefix_cached_blocks", stats.prefix.cached_blocks);
  counter("shoal_prefix_lookups", stats.prefix.lookups);
  counter("shoal_prefix_hits", stats.prefix.hits);
  counter("shoal_prefix_hit_tokens", stats.prefix.hit_tokens);
  counter("shoal_prefix_evicted_blocks", stats.prefix.evicted_blocks);
  counter("shoal_requests_finished", stats.finished);
  counter("shoal_requests_cancelled", stats.cancelled);
  counter("shoal_requests_failed", stats.failed);
  const RejectedCounts& rejected = stats.rejected;
  families.push_back(
      {.name = "shoal_requests_rejected",
       .help = "",
       .type = MetricType::Counter,
       .metric = {labelled_count("reason", "max_concurrent_requests", rejected.max_concurrent_requests),
                  labelled_count("reason", "max_queue", rejected.max_queue),
                  labelled_count("reason", "max_requests_per_tenant", rejected.max_requests_per_tenant)}});
  families.push_back({.name = "shoal_requests_timed_out",
                      .help = "",
                      .type = MetricType::Counter,
                      .metric = {labelled_count("stage", "queued", stats.timed_out_queued),
                                 labelled_count("stage", "running", stats.timed_out_running)}});
}

const char* type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
    case MetricType::Summary:
      return "summary";
    default:
      return "untyped";
  }
}

OutputJson point(std::string key, double value) {
  OutputJson json;
  json["key"] = std::move(key);
  // Counts stay whole: float32 text would round them above 2^24.
  if (value == std::floor(value) && std::abs(value) < 9e15) {
    json["value"] = static_cast<std::int64_t>(value);
  } else {
    json["value"] = static_cast<float>(value);
  }
  return json;
}

std::string labelled(const std::string& name, const prometheus::ClientMetric& metric) {
  if (metric.label.empty()) return name;
  std::string text = name + "{";
  for (const auto& label : metric.label) {
    if (text.back() != '{') text += ",";
    text += fmt::format("{}=\"{}\"", label.name, label.value);
  }
  return text + "}";
}

}  // namespace

struct Metrics::Series {
  Series(std::int64_t max_input_length, std::int64_t max_total_tokens)
      : durations(duration_boundaries()),
        failures(prometheus::BuildCounter().Name("lorax_request_failure").Register(registry)),
        requests(add_counter(registry, "lorax_request_count")),
        successes(add_counter(registry, "lorax_request_success")),
        duration(add_histogram(registry, "lorax_request_duration", durations)),
        validation(add_histogram(registry, "lorax_request_validation_duration", durations)),
        queue(add_histogram(registry, "lorax_request_queue_duration", durations)),
        inference(add_histogram(registry, "lorax_request_inference_duration", durations)),
        time_per_token(add_histogram(registry, "lorax_request_mean_time_per_token_duration", durations)),
        generated(add_histogram(registry, "lorax_request_generated_tokens", hundred_steps(max_total_tokens))),
        input_length(add_histogram(registry, "lorax_request_input_length", hundred_steps(max_input_length))),
        skipped(
            prometheus::BuildSummary().Name("lorax_request_skipped_tokens").Register(registry).Add({}, Quantiles())),
        max_new(add_histogram(registry, "lorax_request_max_new_tokens", hundred_steps(max_total_tokens))),
        first_token(add_histogram(registry, "shoal_time_to_first_token_seconds", durations)),
        inter_token(add_histogram(registry, "shoal_inter_token_seconds", durations)) {}

  std::vector<MetricFamily> collect(const SchedulerStats& stats, const std::optional<AdapterStats>& adapters) const {
    std::vector<MetricFamily> families = registry.Collect();
    append_scheduler(families, stats);
    if (adapters) append_adapters(families, *adapters);
    return families;
  }

  prometheus::Registry registry;
  const Boundaries durations;
  prometheus::Family<prometheus::Counter>& failures;
  prometheus::Counter& requests;
  prometheus::Counter& successes;
  prometheus::Histogram& duration;
  prometheus::Histogram& validation;
  prometheus::Histogram& queue;
  prometheus::Histogram& inference;
  prometheus::Histogram& time_per_token;
  prometheus::Histogram& generated;
  prometheus::Histogram& input_length;
  prometheus::Summary& skipped;
  prometheus::Histogram& max_new;
  prometheus::Histogram& first_token;
  prometheus::Histogram& inter_token;
};

Metrics::Metrics(std::int64_t max_input_length, std::int64_t max_total_tokens)
    : series_(std::make_unique<Series>(max_input_length, max_total_tokens)) {}

Metrics::~Metrics() = default;

void Metrics::count_request() { series_->requests.Increment(); }

void Metrics::count_failure(std::string_view err) {
  if (!err.empty()) series_->failures.Add({{"err", std::string(err)}}).Increment();
}

void Metrics::observe_input_length(std::int64_t tokens) { series_->input_length.Observe(static_cast<double>(tokens)); }

void Metrics::observe_max_new_tokens(std::int64_t tokens) { series_->max_new.Observe(static_cast<double>(tokens)); }

void Metrics::observe_first_token(double seconds) { series_->first_token.Observe(seconds); }

void Metrics::observe_inter_token(double seconds) { series_->inter_token.Observe(seconds); }

void Metrics::count_success(const RequestReport& report) {
  series_->successes.Increment();
  series_->duration.Observe(report.total_s);
  series_->validation.Observe(report.validation_s);
  series_->queue.Observe(report.queue_s);
  series_->inference.Observe(report.inference_s);
  if (report.generated_tokens > 0) {
    series_->time_per_token.Observe(report.inference_s / static_cast<double>(report.generated_tokens));
  }
  series_->generated.Observe(static_cast<double>(report.generated_tokens));
  series_->skipped.Observe(0);  // each step yields one token of an answer: nothing is guessed ahead
}

std::string Metrics::text(const SchedulerStats& stats, const std::optional<AdapterStats>& adapters) const {
  return prometheus::TextSerializer().Serialize(series_->collect(stats, adapters));
}

std::string Metrics::json(const SchedulerStats& stats, const std::optional<AdapterStats>& adapters) const {
  OutputJson json = OutputJson::object();
  for (const MetricFamily& metrics : series_->collect(stats, adapters)) {
    OutputJson data = OutputJson::array();
    for (const prometheus::ClientMetric& metric : metrics.metric) {
      if (metrics.type == MetricType::Histogram) {
        data.push_back(point(labelled("sum", metric), metric.histogram.sample_sum));
        data.push_back(point(labelled("count", metric), static_cast<double>(metric.histogram.sample_count)));
      } else if (metrics.type == MetricType::Summary) {
        data.push_back(point("sum", metric.summary.sample_sum));
        data.push_back(point("count", static_cast<double>(metric.summary.sample_count)));
      } else {
        const bool is_counter = metrics.type == MetricType::Counter;
        data.push_back(point(metric.label.empty() ? std::string() : labelled(metrics.name, metric),
                             is_counter ? metric.counter.value : metric.gauge.value));
      }
    }
    json[metrics.name]["type"] = type_name(metrics.type);
    json[metrics.name]["data"] = std::move(data);
  }
  return to_text(json);
}

}  // namespace shoal
