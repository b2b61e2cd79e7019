#include "ops/staging.h"

#include <cstring>

namespace shoal {

Staging::Staging(const Backend& backend, std::int64_t capacity_bytes) : backend_(backend) {
  if (backend.device() == DeviceKind::kCpu) return;
  for (Buffer& host : host_) host = Buffer(backend.staging_allocator(), capacity_bytes);
  device_ = Buffer(backend.allocator(), capacity_bytes);
}

void Staging::begin() {
  turn_ = 1 - turn_;
  next_byte_ = 0;
  end_byte_ = 0;
}

Tensor Staging::put_bytes(const void* values, DType dtype, std::int64_t count, std::int64_t capacity_bytes) {
  // Ops only read these; Tensor has no const form.
  const Tensor source(const_cast<void*>(values), dtype, {count});
  if (backend_.device() == DeviceKind::kCpu) return source;
  CHECK_LE(source.num_bytes(), capacity_bytes);
  const Tensor device = device_.view(dtype, {count}, next_byte_);
  if (count > 0) {
    std::memcpy(static_cast<std::byte*>(host_[turn_].raw()) + next_byte_, values,
                static_cast<std::size_t>(source.num_bytes()));
  }
  end_byte_ = next_byte_ + source.num_bytes();
  next_byte_ += (capacity_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return device;
}

void Staging::flush(Stream stream) {
  if (end_byte_ == 0) return;
  backend_.upload(stream, host_[turn_].view(DType::kUInt8, {end_byte_}), device_.view(DType::kUInt8, {end_byte_}));
}

}  // namespace shoal
