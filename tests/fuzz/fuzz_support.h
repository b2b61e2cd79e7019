// What several harnesses share: a folder in memory for readers that want files, and two questions about text.
#pragma once

#include <string>
#include <string_view>

namespace shoal::fuzz {

// A folder of this process, in memory where the system has such a place; removed with this object.
class ScratchFolder final {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const;

 private:
  std::string path_;
};

bool is_utf8(std::string_view text);
// What a log line or an answer can hold: UTF-8 without line breaks, and no essay.
bool is_plain_message(std::string_view message);

// The part of `input` before the next zero byte, which is taken out of it as well; all of it when there is none.
std::string_view take_part(std::string_view& input);

}  // namespace shoal::fuzz
