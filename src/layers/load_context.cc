#include "layers/load_context.h"

#include <fmt/format.h>

#include <functional>
#include <stdexcept>

#include "core/result.h"

namespace shoal {

void load_rows(LoadContext& load, Matrix& matrix, std::int64_t row_begin, const MatrixRequest& request) {
  // Random weights: tens of gigabytes are a matter of milliseconds where they are made in place.
  if (load.weights.is_dummy()) {
    const std::uint64_t seed = std::hash<std::string>{}(request.name);
    if (load.backend.fill_random(matrix, row_begin, request.rows, seed, DummyValues::kMatrixBound)) {
      load.weights.count_made(request);
      return;
    }
  }
  load.weights.read_rows(request, [&](std::int64_t row, const Tensor& host_rows) {
    try {
      load.backend.fill_rows(matrix, row_begin + row, host_rows);
    } catch (const std::range_error& error) {
      throw StartError(fmt::format("{}: {}", request.name, error.what()));
    }
  });
}

Vector Vector::load(LoadContext& load, const std::string& name, std::initializer_list<std::int64_t> shape) {
  return from_host(load.backend, load.weights.read_floats(name, shape), shape);
}

Vector Vector::from_host(const Backend& backend, std::span<const float> host_values,
                         std::initializer_list<std::int64_t> shape) {
  Vector vector;
  vector.storage = Buffer(backend.allocator(), static_cast<std::int64_t>(host_values.size_bytes()));
  vector.values = vector.storage.view(DType::kFloat32, shape);
  // copy_to_device only reads its source; Tensor has no const form.
  backend.copy_to_device(Tensor(const_cast<float*>(host_values.data()), DType::kFloat32, shape), vector.values);
  return vector;
}

}  // namespace shoal
