// libFuzzer harness: any bytes as a config.json, read by every kind of reader. Run by hand and, for seconds, in CI.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/result.h"
#include "weights/config_reader.h"

namespace {

// Runs a reader whose refusal is a right answer.
template <typename Read>
void try_read(const Read& read) {
  try {
    read();
  } catch (const shoal::StartError& error) {
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

void read_everything(const shoal::ConfigReader& config, int depth) {
  constexpr int kMaxDepth = 3;
  for (const std::string& key : config.keys()) {
    try_read([&] { (void)config.required_int(key); });
    try_read([&] {
      const std::int64_t value = config.required_size({key, "hidden_size"});
      CHECK_GT(value, 0);
    });
    try_read([&] { (void)config.required_float(key); });
    try_read([&] { (void)config.required_bool(key); });
    try_read([&] { (void)config.required_string(key); });
    try_read([&] { (void)config.optional_int_list(key); });
    try_read([&] { (void)config.optional_float_list(key); });
    try_read([&] { (void)config.optional_string_list(key); });
    try_read([&] { (void)config.optional_int_or_list(key); });
    try_read([&] { config.refuse(key, "nothing"); });
    try_read([&] {
      const auto inner = config.optional_object(key);
      if (inner.has_value() && depth < kMaxDepth) read_everything(*inner, depth + 1);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  try_read([&] { read_everything(shoal::ConfigReader::parse(text, "fuzz/config.json"), 0); });
  return 0;
}
