#include "text/bridge.h"

namespace shoal::text_bridge {

ShoalTextView view_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string_view Buffer::view() const {
  if (raw_.data == nullptr) return {};
  return {reinterpret_cast<const char*>(raw_.data), raw_.length};
}

}  // namespace shoal::text_bridge
