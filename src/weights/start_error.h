// The one wording of "cannot start" texts for files: place, found, expected, in a single printable line.
// Used inside weights/ and by lora/ for adapter files.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

struct Mismatch {
  std::string_view found;
  std::string_view expected;
};

// Throws StartError "FILE: WHAT: found FOUND, expected EXPECTED".
[[noreturn]] void throw_mismatch(std::string_view file, std::string_view what, const Mismatch& mismatch);

// `text` without control characters and at most `max_chars` long, so that a hostile name cannot forge or flood a log.
std::string printable(std::string_view text, std::size_t max_chars = 200);

}  // namespace shoal
