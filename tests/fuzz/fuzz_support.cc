#include "fuzz/fuzz_support.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace shoal::fuzz {

ScratchFolder::ScratchFolder() {
  const bool has_memory_folder = std::filesystem::is_directory("/dev/shm");
  const std::filesystem::path parent = has_memory_folder ? "/dev/shm" : std::filesystem::temp_directory_path();
  path_ = parent / ("shoal-fuzz-" + std::to_string(::getpid()));
  std::filesystem::create_directories(path_);
}

ScratchFolder::~ScratchFolder() { std::filesystem::remove_all(path_); }

void ScratchFolder::write(const std::string& name, std::string_view content) const {
  const int file = ::open((path_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  CHECK_GE(file, 0);
  CHECK_EQ(::write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  CHECK_EQ(::close(file), 0);
}

bool is_utf8(std::string_view text) {
  // A second opinion: the library that will write the answer refuses anything else.
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

bool is_plain_message(std::string_view message) {
  constexpr std::size_t kMaxMessageBytes = 16384;
  const auto is_control = [](char character) { return static_cast<unsigned char>(character) < 0x20; };
  return !message.empty() && message.size() <= kMaxMessageBytes && is_utf8(message) &&
         std::none_of(message.begin(), message.end(), is_control);
}

std::string_view take_part(std::string_view& input) {
  const std::size_t end = std::min(input.find('\0'), input.size());
  const std::string_view part = input.substr(0, end);
  input.remove_prefix(std::min(end + 1, input.size()));
  return part;
}

}  // namespace shoal::fuzz
