#include "server/grammar_compiler.h"

#include <algorithm>
#include <utility>

namespace shoal {

namespace {

constexpr std::size_t kNumThreads = 2;

}  // namespace

GrammarCompiler::~GrammarCompiler() {
  for (std::jthread& thread : threads_) thread.request_stop();
  for (std::jthread& thread : threads_) thread.join();
}

void GrammarCompiler::compile(GrammarSpec spec, std::shared_ptr<const Texts> texts, const std::string& tenant,
                              Done done) {
  std::shared_ptr<const Grammar> kept;
  {
    const std::lock_guard lock(mutex_);
    kept = find_kept(spec, texts, tenant);
    if (kept == nullptr && jobs_.size() < kMaxQueued) {
      jobs_.push_back({.spec = std::move(spec), .texts = std::move(texts), .tenant = tenant, .done = std::move(done)});
      while (threads_.size() < kNumThreads) {
        threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
      }
      queued_.notify_one();
      return;
    }
  }
  if (kept != nullptr) {
    done(Compiled(std::move(kept)));
  } else {
    done(Compiled(Error{ErrorCode::kOverloaded, "too many grammars wait to be compiled"}));
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::find_kept(const GrammarSpec& spec,
                                                          const std::shared_ptr<const Texts>& texts,
                                                          const std::string& tenant) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.tenant == tenant && kept.texts == texts && kept.spec == spec;
  });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return found->grammar;
}

std::optional<GrammarCompiler::Job> GrammarCompiler::next_job(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const bool has_job = queued_.wait(lock, stop, [this] { return !jobs_.empty(); });
  if (!has_job || stop.stop_requested()) return std::nullopt;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void GrammarCompiler::work(const std::stop_token& stop) {
  while (std::optional<Job> job = next_job(stop)) {
    const Compiled compiled = job->texts->grammars().compile(job->spec, kLimit);
    if (compiled.ok()) {
      const std::lock_guard lock(mutex_);
      kept_.push_front({.spec = std::move(job->spec),
                        .texts = std::move(job->texts),
                        .tenant = std::move(job->tenant),
                        .grammar = compiled.value()});
      if (kept_.size() > kMaxKept) kept_.pop_back();
    }
    job->done(compiled);
  }
}

}  // namespace shoal
