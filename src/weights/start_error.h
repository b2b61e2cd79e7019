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

// At most `max_bytes` of `text`, as UTF-8 without control characters ('?' stands for what is neither), so that a
// hostile name cannot forge or flood a log or spoil an answer.
std::string printable(std::string_view text, std::size_t max_bytes = 200);

}  // namespace shoal
