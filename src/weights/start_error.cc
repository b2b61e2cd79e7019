#include "weights/start_error.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/result.h"

namespace shoal {

namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// How many bytes the character at the start of `text` takes; 0 where no UTF-8 character starts.
std::size_t character_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t num_bytes = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (num_bytes == 0 || text.size() < num_bytes) return 0;
  for (std::size_t i = 1; i < num_bytes; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  // Overlong forms, surrogates and what lies above U+10FFFF show in the second byte.
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_wrong = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return is_wrong ? 0 : num_bytes;
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string line;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t num_bytes = character_bytes(text.substr(i));
    if (i + std::max<std::size_t>(num_bytes, 1) > max_bytes) return line + "...";
    const auto byte = static_cast<unsigned char>(text[i]);
    if (num_bytes == 0 || byte < 0x20 || byte == 0x7f) {
      line += '?';
      ++i;
    } else {
      line += text.substr(i, num_bytes);
      i += num_bytes;
    }
  }
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
