#include "simulator/child_runs.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <system_error>
#include <type_traits>

namespace shoal {
namespace {

constexpr unsigned kMostSeconds = 60;  // a trace takes some milliseconds

static_assert(std::is_trivially_copyable_v<SimulationCounts>);

struct Child {
  pid_t process = -1;
  int output = -1;
};

void check_call(bool well, const char* call) {
  if (!well) throw std::system_error(errno, std::generic_category(), call);
}

// What goes to the child's standard error, a CHECK's last words, is its output too: before the result, if one comes.
Child start(const Trace& trace) {
  std::array<int, 2> ends{};
  check_call(::pipe(ends.data()) == 0, "pipe");
  const pid_t process = ::fork();
  check_call(process >= 0, "fork");
  if (process > 0) {
    ::close(ends[1]);
    return {.process = process, .output = ends[0]};
  }
  ::close(ends[0]);
  ::dup2(ends[1], STDERR_FILENO);
  ::alarm(kMostSeconds);
  // An exception stops the child: caught further up, it would go on as its parent.
  const auto run = [&trace]() noexcept { return simulate(trace); };
  const SimulationResult result = run();
  std::string bytes(sizeof(SimulationCounts), '\0');
  std::memcpy(bytes.data(), &result.counts, sizeof(SimulationCounts));
  bytes = result.failure + bytes;
  const bool whole = ::write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  ::_exit(whole ? 0 : 1);
}

SimulationResult finish(const Child& child) {
  std::string bytes;
  std::array<char, 4096> part{};
  ssize_t num_read = 0;
  while ((num_read = ::read(child.output, part.data(), part.size())) != 0) {
    if (num_read < 0 && errno == EINTR) continue;
    check_call(num_read > 0, "read");
    bytes.append(part.data(), static_cast<std::size_t>(num_read));
  }
  ::close(child.output);
  int status = 0;
  check_call(::waitpid(child.process, &status, 0) == child.process, "waitpid");
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return {.counts = {}, .failure = fmt::format("{}stopped by signal {} ({})", bytes, signal, ::strsignal(signal))};
  }
  if (WEXITSTATUS(status) != 0 || bytes.size() < sizeof(SimulationCounts)) {
    return {.counts = {}, .failure = fmt::format("{}exit status {}", bytes, WEXITSTATUS(status))};
  }
  SimulationResult result;
  const std::size_t text_size = bytes.size() - sizeof(SimulationCounts);
  std::memcpy(&result.counts, bytes.data() + text_size, sizeof(SimulationCounts));
  result.failure = bytes.substr(0, text_size);
  return result;
}

}  // namespace

SimulationResult simulate_in_child(const Trace& trace) { return finish(start(trace)); }

RunsReport simulate_seeds(std::uint64_t first_seed, std::int64_t num_traces, std::int64_t num_jobs) {
  RunsReport report;
  std::deque<Child> children;  // of ascending seeds
  std::int64_t num_started = 0;
  while (report.num_runs < num_traces) {
    while (std::ssize(children) < num_jobs && num_started < num_traces && !report.failed_seed) {
      children.push_back(start(random_trace(first_seed + static_cast<std::uint64_t>(num_started++))));
    }
    if (children.empty()) return report;
    const SimulationResult result = finish(children.front());
    children.pop_front();
    if (report.failed_seed) continue;
    ++report.num_runs;
    report.counts.add(result.counts);
    if (result.failure.empty()) continue;
    report.failed_seed = first_seed + static_cast<std::uint64_t>(report.num_runs) - 1;
    report.failure = result.failure;
  }
  for (const Child& child : children) finish(child);
  return report;
}

}  // namespace shoal
