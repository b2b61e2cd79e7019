#include "simulator/shrink.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace shoal {
namespace {

class Shrinker {
 public:
  Shrinker(Trace trace, const std::function<bool(const Trace&)>& fails, std::int64_t most_runs)
      : trace_(std::move(trace)), fails_(fails), runs_left_(most_runs) {}

  Trace run() {
    Trace before;
    do {
      before = trace_;
      shorten(&Trace::requests);
      shorten(&Trace::replacements);
      shorten(&Trace::failed_steps);
      simplify_requests();
      simplify_sizes();
    } while (trace_ != before && runs_left_ > 0);
    return trace_;
  }

 private:
  bool keep_if_fails(Trace smaller) {
    if (smaller == trace_ || runs_left_ <= 0) return false;
    --runs_left_;
    if (!fails_(smaller)) return false;
    trace_ = std::move(smaller);
    return true;
  }

  // Without one half, one quarter, ... one element.
  template <typename Element>
  void shorten(std::vector<Element> Trace::* list) {
    for (std::int64_t part = (std::ssize(trace_.*list) + 1) / 2; part > 0; part /= 2) {
      for (std::int64_t begin = 0; begin < std::ssize(trace_.*list);) {
        Trace shorter = trace_;
        std::vector<Element>& elements = shorter.*list;
        const std::int64_t end = std::min(begin + part, std::ssize(elements));
        elements.erase(elements.begin() + begin, elements.begin() + end);
        if (!keep_if_fails(std::move(shorter))) begin = end;
      }
    }
  }

  void simplify_requests() {
    const TraceRequest plain;
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      const auto set = [&](auto member, auto value) {
        Trace simpler = trace_;
        simpler.requests[i].*member = value;
        keep_if_fails(std::move(simpler));
      };
      const auto reset = [&](auto member) { set(member, plain.*member); };
      reset(&TraceRequest::cancel_after_us);
      reset(&TraceRequest::cancel_after_tokens);
      reset(&TraceRequest::stop_token);
      reset(&TraceRequest::has_penalties);
      reset(&TraceRequest::tenant);
      reset(&TraceRequest::priority);
      reset(&TraceRequest::sampling_seed);
      reset(&TraceRequest::adapter);
      reset(&TraceRequest::shared_text);
      reset(&TraceRequest::own_text);
      if (trace_.requests[i].own_tokens > 0) reset(&TraceRequest::shared_tokens);
      if (trace_.requests[i].shared_tokens == 0 || trace_.requests[i].own_tokens > 1) reset(&TraceRequest::own_tokens);
      for (auto member : {&TraceRequest::shared_tokens, &TraceRequest::max_new_tokens, &TraceRequest::own_tokens,
                          &TraceRequest::arrival_us, &TraceRequest::cancel_after_us}) {
        lessen(member, trace_.requests[i], [&](std::int64_t value) { set(member, value); });
      }
    }
  }

  void simplify_sizes() {
    const Trace plain;
    const auto set = [&](auto member, auto value) {
      Trace simpler = trace_;
      simpler.*member = value;
      keep_if_fails(std::move(simpler));
    };
    const auto reset = [&](auto member) { set(member, plain.*member); };
    reset(&Trace::prefix_caching);
    reset(&Trace::shuffled_blocks);
    reset(&Trace::runs_ahead);
    for (auto member :
         {&Trace::sliding_window, &Trace::max_requests, &Trace::max_queue, &Trace::max_of_tenant, &Trace::timeout_ms,
          &Trace::max_device_adapters, &Trace::big_every, &Trace::broken_every, &Trace::fail_percent,
          &Trace::device_units, &Trace::host_units, &Trace::num_blocks, &Trace::step_tokens, &Trace::max_sequences,
          &Trace::cycle_ms, &Trace::num_loaders, &Trace::load_us, &Trace::upload_us}) {
      reset(member);
    }
  }

  // By a half, a quarter, ... by one, as long as that fails.
  template <typename Struct, typename Set>
  void lessen(std::int64_t Struct::* member, const Struct& value, const Set& set) {
    for (std::int64_t step = value.*member / 2; step > 0; step /= 2) {
      if (value.*member - step >= 1) set(value.*member - step);
    }
  }

  Trace trace_;
  const std::function<bool(const Trace&)>& fails_;
  std::int64_t runs_left_;
};

}  // namespace

Trace shrink(Trace trace, const std::function<bool(const Trace&)>& fails, std::int64_t most_runs) {
  return Shrinker(std::move(trace), fails, most_runs).run();
}

}  // namespace shoal
