// SHA-256 as lower-case hexadecimal digits. Used by the cache of snapshots and by downloads.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shoal {

std::string sha256_of(std::string_view text);
// Of the whole file behind `fd`, whose position it moves; none where it cannot be read.
std::optional<std::string> sha256_of_file(int fd);

}  // namespace shoal
