#include "cli/options.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace shoal {
namespace {

constexpr std::int64_t kLargestNumber = 1'000'000'000;

// The whole of `text` as a number; nothing where it is none or does not fit.
template <typename Number>
std::optional<Number> parse_number(const std::string& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

CLI::Validator expect(const std::string& expected, std::function<bool(const std::string&)> is_fine) {
  const auto check = [expected, is_fine = std::move(is_fine)](const std::string& text) {
    return is_fine(text) ? std::string() : fmt::format("'{}' is not {}", text, expected);
  };
  return {check, ""};
}

}  // namespace

void ModelOptions::add_to(CLI::App& command) {
  command.add_option("--model-id", model_id, "folder of a Hugging Face checkpoint")->envname("MODEL_ID");
  command.add_option("--load-format", load_format, "auto, or dummy for random weights from the config alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command
      .add_option("--device", device, "cpu, or cuda where it is built (default: cuda where it is built and present)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--dtype", dtype, "float32, bfloat16 or float16 (default: the checkpoint's)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->envname("DTYPE");
  command.add_option("--kv-cache-dtype", kv_cache_dtype, "auto: as the weights")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command.add_option("--kv-cache-memory", kv_cache_memory,
                     "bytes, or with MiB or GiB (default: what a GPU has left; on a CPU the smaller of 2GiB and a "
                     "quarter of free memory)");
  command.add_option("--adapter-dir", adapter_dir, "folder under which local adapters lie")->envname("ADAPTER_DIR");
  command.add_option("--threads", threads, "compute threads (default: all processors)")->check(CLI::Range(0, 1024));
  command.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->envname("LOG_LEVEL")
      ->capture_default_str();
}

CLI::Validator at_least(std::int64_t smallest) {
  const std::string expected = fmt::format("a whole number from {} to {}", smallest, kLargestNumber);
  return expect(expected, [smallest](const std::string& text) {
    const auto number = parse_number<std::int64_t>(text);
    return number && *number >= smallest && *number <= kLargestNumber;
  });
}

CLI::Validator number_between(double smallest, double largest) {
  return expect(fmt::format("a number from {} to {}", smallest, largest), [smallest, largest](const std::string& text) {
    const auto number = parse_number<double>(text);
    return number && *number >= smallest && *number <= largest;
  });
}

CLI::Validator seed_number() {
  return expect("a whole number from 0 to 2^64 - 1",
                [](const std::string& text) { return parse_number<std::uint64_t>(text).has_value(); });
}

CLI::Validator temperature_number() {
  return expect("a number from 0 up", [](const std::string& text) {
    const auto number = parse_number<float>(text);
    return number && std::isfinite(*number) && *number >= 0;
  });
}

CLI::Validator some_text() {
  return expect("a text of at least one character", [](const std::string& text) { return !text.empty(); });
}

CLI::Option* add_switch(CLI::App& command, const std::string& name, bool& on, const std::string& meaning) {
  // A flag of CLI11 takes a value after '=' alone, and an option's bool is false where none is given.
  return command
      .add_option_function<std::string>(
          name, [&on](const std::string& given) { on = given.empty() || given == "true" || given == "1"; }, meaning)
      ->expected(0, 1)
      ->type_name("")
      ->check(expect("true or false", [](const std::string& text) {
        return text.empty() || text == "true" || text == "1" || text == "false" || text == "0";
      }));
}

std::int64_t parse_bytes(const std::string& flag, const std::string& text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  double factor = 0.0;
  if (unit.empty() || unit == "B") factor = 1.0;
  if (unit == "KiB") factor = 0x1p10;
  if (unit == "MiB") factor = 0x1p20;
  if (unit == "GiB") factor = 0x1p30;
  const double bytes = number * factor;
  if (error != std::errc() || !(bytes >= 1) || bytes > 0x1p60) {
    throw UsageError(fmt::format("{} is {}, expected a size such as 512MiB or 2GiB", flag, text));
  }
  return static_cast<std::int64_t>(bytes);
}

std::vector<std::int64_t> parse_numbers(const std::string& flag, const std::string& text) {
  std::vector<std::int64_t> numbers;
  const char* at = text.data();
  const char* const last = text.data() + text.size();
  while (at <= last && !text.empty()) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(at, last, number);
    if (error != std::errc() || number < 0 || (end != last && *end != ',')) break;
    numbers.push_back(number);
    if (end == last) return numbers;
    at = end + 1;
  }
  throw UsageError(fmt::format("{} is '{}', expected numbers such as 1,2,3", flag, text));
}

BlockOrder block_order_from_environment() {
  const char* order = std::getenv("SHOAL_BLOCK_ORDER");
  if (order == nullptr || std::string_view(order).empty()) return BlockOrder::kAscending;
  if (std::string_view(order) == "shuffled") return BlockOrder::kShuffled;
  throw UsageError(fmt::format("SHOAL_BLOCK_ORDER is {}, expected shuffled or nothing", order));
}

}  // namespace shoal
