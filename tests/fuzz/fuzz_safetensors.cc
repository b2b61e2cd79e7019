// libFuzzer harness: any bytes as the start of a .safetensors file. Run by hand and, for seconds, in CI.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/check.h"
#include "core/result.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, num_bytes));
  const auto file_bytes = static_cast<std::int64_t>(num_bytes);
  try {
    const shoal::SafetensorsHeader header = shoal::parse_safetensors_header(file, file_bytes, "fuzz.safetensors");
    std::int64_t tensor_bytes = 0;
    for (const auto& [name, info] : header.tensors) {
      CHECK_GE(info.byte_begin, header.data_begin);
      CHECK_LE(info.byte_begin + info.num_bytes, file_bytes);
      tensor_bytes += info.num_bytes;
    }
    CHECK_EQ(header.data_begin + tensor_bytes, file_bytes);
  } catch (const shoal::StartError& error) {
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
