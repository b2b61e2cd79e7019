// ModelOptions: the flags that every command which loads a model shares. Used by the commands of this folder.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cache/block_allocator.h"
#include "engine/model_engine.h"

namespace shoal {

struct ModelOptions {
  std::string model_id;
  std::string load_format = "auto";  // auto | dummy
  std::string device;                // cpu | cuda; empty: cuda where it is built and present
  std::string dtype;                 // empty: the checkpoint's
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_memory;  // "512MiB"; empty: a modest share of free memory
  std::string adapter_dir;
  int threads = 0;  // 0: all processors
  std::string log_level = "info";

  // Adds the flags with their environment names: --model-id is MODEL_ID.
  void add_to(CLI::App& command);
};

// Thrown for usage that the parser cannot see; exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For flags: anything else is refused with what was found and expected.
CLI::Validator at_least(std::int64_t smallest);  // a whole number, up to a billion: their sums and products fit
CLI::Validator number_between(double smallest, double largest);  // CLI11's own range lets NaN pass
CLI::Validator seed_number();                                    // 64 bits, no sign
CLI::Validator temperature_number();                             // finite, not negative
CLI::Validator some_text();                                      // not empty
// A switch that may be given alone or with true or false, since LoRAX has both kinds.
CLI::Option* add_switch(CLI::App& command, const std::string& name, bool& on, const std::string& meaning);
// "2GiB", "512MiB", "1000000" -> bytes; UsageError names the flag and the value.
std::int64_t parse_bytes(const std::string& flag, const std::string& text);
// "1,2,3" -> numbers; UsageError names the flag and the value.
std::vector<std::int64_t> parse_numbers(const std::string& flag, const std::string& text);

// SHOAL_BLOCK_ORDER=shuffled hands out cache blocks in random order and fills freed ones with NaN.
BlockOrder block_order_from_environment();

}  // namespace shoal
