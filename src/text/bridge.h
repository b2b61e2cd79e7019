// Strings and errors across the C interface of rust/text. Used inside src/text only.
#pragma once

#include <shoal_text.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace shoal::text_bridge {

ShoalTextView view_of(std::string_view text);

// A buffer that the crate fills; freed with this object.
class Buffer final {
 public:
  Buffer() = default;
  ~Buffer() { shoal_text_buffer_free(&raw_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  ShoalTextBuffer* out() { return &raw_; }
  std::string_view view() const;
  std::string str() const { return std::string(view()); }

 private:
  ShoalTextBuffer raw_{nullptr, 0};
};

// An encoding that the crate fills; freed with this object.
class Encoding final {
 public:
  Encoding() = default;
  ~Encoding() { shoal_text_encoding_free(&raw_); }
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  ShoalTextEncoding* out() { return &raw_; }
  std::size_t count() const { return raw_.count; }
  std::int64_t id(std::size_t i) const { return raw_.ids[i]; }
  std::int64_t start(std::size_t i) const { return raw_.starts[i]; }
  std::int64_t stop(std::size_t i) const { return raw_.stops[i]; }

 private:
  ShoalTextEncoding raw_{nullptr, nullptr, nullptr, 0};
};

}  // namespace shoal::text_bridge
