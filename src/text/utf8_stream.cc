#include "text/utf8_stream.h"

namespace shoal {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Continuation bytes that a lead byte asks for; 0 for a byte that cannot lead.
int continuation_count(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 1;
  if (lead >= 0xE0 && lead <= 0xEF) return 2;
  if (lead >= 0xF0 && lead <= 0xF4) return 3;
  return 0;
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) push_byte(static_cast<unsigned char>(byte), text);
}

void Utf8Stream::finish(std::string& text) {
  if (!tail_.empty()) text += kReplacement;
  tail_.clear();
  missing_ = 0;
}

void Utf8Stream::push_byte(unsigned char byte, std::string& text) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      tail_ += static_cast<char>(byte);
      low_ = 0x80;
      high_ = 0xBF;
      if (--missing_ == 0) {
        text += tail_;
        tail_.clear();
      }
      return;
    }
    finish(text);
  }
  if (byte < 0x80) {
    text += static_cast<char>(byte);
    return;
  }
  missing_ = continuation_count(byte);
  if (missing_ == 0) {
    text += kReplacement;
    return;
  }
  tail_ = static_cast<char>(byte);
  // Overlong forms, surrogates and what lies above U+10FFFF end at the second byte.
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
}

}  // namespace shoal
