#include "server/generation_group.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

namespace shoal {

namespace {

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(ServerContext& context, ResponseWriter writer, std::size_t copies, GroupSink sink)
      : context_(context), writer_(std::move(writer)), copies_(copies), sink_(std::move(sink)) {}

  void start(std::vector<PreparedRequest> prompts) {
    prompts_ = std::move(prompts);
    cancels_.resize(prompts_.size() * copies_);
    finishes_.resize(cancels_.size());
    num_open_ = cancels_.size();
    waits_ = std::vector<bool>(prompts_.size(), false);
    // One call asks for one grammar.
    with_grammar(context_, writer_, prompts_.front(),
                 [self = shared_from_this()](Parsed<std::shared_ptr<const Grammar>> compiled) {
                   if (const auto* error = std::get_if<ApiError>(&compiled)) {
                     self->fail(*error);
                     return;
                   }
                   for (PreparedRequest& prompt : self->prompts_) {
                     prompt.request.grammar = std::get<std::shared_ptr<const Grammar>>(compiled);
                   }
                   self->start_parts();
                 });
  }

 private:
  void start_parts() {
    for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      const bool saves = context_.services.scheduler.prefix_caching() || prompts_[prompt].request.scores.prompt;
      waits_[prompt] = copies_ > 1 && saves;
      for (std::size_t copy = 0; copy < (waits_[prompt] ? 1 : copies_); ++copy) start_part(prompt, copy);
    }
    if (ended_) return;
    const auto self = shared_from_this();
    if (writer_.closed()) {
      client_gone();
    } else {
      writer_.on_close([self] { self->client_gone(); });
    }
  }

  void start_part(std::size_t prompt, std::size_t copy) {
    if (ended_) return;
    PreparedRequest part = prompts_[prompt];
    part.request.sampling.seed += copy;
    if (copy > 0) part.request.scores.prompt = false;
    const std::size_t index = prompt * copies_ + copy;
    const auto self = shared_from_this();
    GenerationSink sink;
    sink.on_token = [self, prompt, index](const TokenEvent& token) {
      self->sink_.on_token(index, token);
      self->start_waiting(prompt);
    };
    sink.on_finish = [self, index](const FinishEvent& finish) { self->part_finished(index, finish); };
    sink.on_error = [self](const ApiError& error) { self->fail(error); };
    auto cancel = start_generation_part(context_, writer_, std::move(part), std::move(sink));
    if (!ended_) cancels_[index] = std::move(cancel);
  }

  void start_waiting(std::size_t prompt) {
    if (!waits_[prompt]) return;
    waits_[prompt] = false;
    // A server that shuts down finishes the answers that it began.
    prompts_[prompt].request.continues = true;
    for (std::size_t copy = 1; copy < copies_; ++copy) start_part(prompt, copy);
  }

  void part_finished(std::size_t index, const FinishEvent& finish) {
    cancels_[index] = nullptr;
    finishes_[index] = finish;
    if (--num_open_ == 0) {
      ended_ = true;
      const FinishEvent sum = sum_of_parts(finishes_, copies_);
      writer_.note("prompt_tokens", sum.prompt_tokens);
      writer_.note("generated_tokens", sum.generated_tokens);
      count_success(context_, prompts_.front().info, sum);
    }
    sink_.on_finish(index, finish);
  }

  void fail(const ApiError& error) {
    if (std::exchange(ended_, true)) return;
    cancel_all();
    context_.metrics.count_failure(failure_row(error.failure).metric);
    sink_.on_error(error);
  }

  void client_gone() {
    if (std::exchange(ended_, true)) return;
    cancel_all();
    context_.metrics.count_failure("dropped");
  }

  // Parts hold the group, and the group what cancels them: let go, or none is freed.
  void cancel_all() {
    for (auto& cancel : cancels_) {
      if (cancel) std::exchange(cancel, nullptr)();
    }
  }

  ServerContext& context_;
  const ResponseWriter writer_;
  const std::size_t copies_;
  const GroupSink sink_;
  std::vector<PreparedRequest> prompts_;
  std::vector<bool> waits_;  // by prompt: its other copies are not started yet
  std::vector<std::function<void()>> cancels_;
  std::vector<FinishEvent> finishes_;
  std::size_t num_open_ = 0;
  bool ended_ = false;
};

}  // namespace

void start_group(ServerContext& context, const ResponseWriter& writer, std::vector<PreparedRequest> prompts,
                 std::size_t copies, GroupSink sink) {
  std::make_shared<Group>(context, writer, copies, std::move(sink))->start(std::move(prompts));
}

FinishEvent sum_of_parts(const std::vector<FinishEvent>& parts, std::size_t copies) {
  FinishEvent sum = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    sum.generated_tokens += parts[i].generated_tokens;
    sum.timings.finished = std::max(sum.timings.finished, parts[i].timings.finished);
    if (i % copies != 0) continue;
    sum.prompt_tokens += parts[i].prompt_tokens;
    if (sum.cached_tokens) *sum.cached_tokens += parts[i].cached_tokens.value_or(0);
  }
  return sum;
}

std::vector<std::size_t> by_mean_logprob(const std::vector<MeanLogprob>& means, std::size_t begin, std::size_t end) {
  std::vector<std::size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return means[a].value() > means[b].value(); });
  return order;
}

}  // namespace shoal
