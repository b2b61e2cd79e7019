// Staging: the small arrays of a step on their way to the device, in one copy. Where the device is the host, ops read
// the callers' own memory. Used by engine/ and sampling/.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "ops/backend.h"

namespace shoal {

class Staging {
 public:
  // Room for `capacity_bytes` of arrays, each rounded up to kAlignment. `backend` outlives this.
  Staging(const Backend& backend, std::int64_t capacity_bytes);
  static constexpr std::int64_t kAlignment = 256;

  // Starts a new step. What the step before was given may still be on its way; that of the one before it must have
  // passed, and its place on the host is taken.
  void begin();
  // `values` as the device sees them. They stay as they are until the next begin(). The place depends on `capacity`
  // alone (and on those of the calls before it), so that a captured graph finds every array again.
  template <typename T>
  Tensor put(const std::vector<T>& values, DType dtype, std::size_t capacity) {
    const auto count = static_cast<std::int64_t>(values.size());
    return put_bytes(values.data(), dtype, count, static_cast<std::int64_t>(capacity * sizeof(T)));
  }
  // The same for plain structures, seen as bytes.
  template <typename T>
  Tensor put_structs(const std::vector<T>& values, std::size_t capacity) {
    const auto num_bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    return put_bytes(values.data(), DType::kUInt8, num_bytes, static_cast<std::int64_t>(capacity * sizeof(T)));
  }
  // Queues the copy of all arrays put since begin().
  void flush(Stream stream);

 private:
  Tensor put_bytes(const void* values, DType dtype, std::int64_t count, std::int64_t capacity_bytes);

  const Backend& backend_;
  std::array<Buffer, 2> host_;  // from staging_allocator(): steps take them in turns
  Buffer device_;
  std::size_t turn_ = 0;
  std::int64_t next_byte_ = 0;  // where the next array goes
  std::int64_t end_byte_ = 0;   // of the last value
};

}  // namespace shoal
