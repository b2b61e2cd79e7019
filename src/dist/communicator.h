// Communicator: how the ranks of one model add and join their partial results. Used by the parallel layers and by
// the loader that reads each rank's slice.
#pragma once

#include <cstdint>
#include <memory>

#include "core/device.h"
#include "core/tensor.h"

namespace shoal {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;
  // x = sum of x over all ranks, in place: [rows, width] activations.
  virtual void all_reduce(Stream stream, const Tensor& x) const = 0;
  // out = the ranks' x side by side: x [rows, width], out [rows, size * width].
  virtual void all_gather(Stream stream, const Tensor& x, const Tensor& out) const = 0;
};

// One rank: sums and joins are already whole, so nothing may ask for one.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace shoal
