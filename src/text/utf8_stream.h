// Bytes in, whole UTF-8 characters out: holds back only an incomplete character. Used by IncrementalDecoder.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// Each longest broken part becomes one U+FFFD (Unicode 3.9, "substitution of maximal subparts"), as it does when
// the whole text is decoded at once, so the pieces always add up to the whole.
class Utf8Stream final {
 public:
  // Appends what is final after these bytes.
  void push(std::string_view bytes, std::string& text);
  // Appends U+FFFD for a character that never became whole.
  void finish(std::string& text);

 private:
  void push_byte(unsigned char byte, std::string& text);

  std::string tail_;          // the incomplete character: at most 3 bytes
  int missing_ = 0;           // continuation bytes that it still needs
  unsigned char low_ = 0x80;  // the range of the next one
  unsigned char high_ = 0xBF;
};

}  // namespace shoal
