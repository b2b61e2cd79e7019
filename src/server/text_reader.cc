#include "server/text_reader.h"

#include <utility>

namespace shoal {

TextReader::~TextReader() {
  if (thread_) thread_->request_stop();
}

bool TextReader::read(const AdapterKey& adapter, std::function<void()> done) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() >= kMaxWaiting) return false;
  jobs_.push_back({.adapter = adapter, .done = std::move(done)});
  if (!thread_) thread_.emplace([this](const std::stop_token& stop) { work(stop); });
  waiting_.notify_one();
  return true;
}

std::optional<TextReader::Job> TextReader::next_job(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const bool has_job = waiting_.wait(lock, stop, [this] { return !jobs_.empty(); });
  if (!has_job || stop.stop_requested()) return std::nullopt;
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void TextReader::work(const std::stop_token& stop) {
  while (const std::optional<Job> job = next_job(stop)) {
    static_cast<void>(texts_.find(job->adapter));  // kept there, the failure too: whoever asked looks it up
    job->done();
  }
}

}  // namespace shoal
