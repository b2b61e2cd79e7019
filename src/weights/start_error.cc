#include "weights/start_error.h"

#include <fmt/core.h>

#include "core/result.h"

namespace shoal {

std::string printable(std::string_view text, std::size_t max_chars) {
  std::string line(text.substr(0, max_chars));
  for (char& character : line) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) character = '?';
  }
  if (text.size() > max_chars) line += "...";
  return line;
}

void throw_mismatch(std::string_view file, std::string_view what, const Mismatch& mismatch) {
  constexpr std::size_t kMaxPathChars = 4096;
  constexpr std::size_t kMaxPartChars = 1000;
  throw StartError(fmt::format("{}: {}: found {}, expected {}", printable(file, kMaxPathChars),
                               printable(what, kMaxPartChars), printable(mismatch.found, kMaxPartChars),
                               printable(mismatch.expected, kMaxPartChars)));
}

}  // namespace shoal
