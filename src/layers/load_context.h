// LoadContext: what a layer needs to read its weights. Made by the engine, passed down while a model is built.
#pragma once

#include "core/dtype.h"
#include "dist/communicator.h"
#include "lora/lora_targets.h"
#include "ops/backend.h"
#include "weights/weight_source.h"

namespace shoal {

struct LoadContext {
  const Backend& backend;
  const Communicator& communicator;
  WeightSource& weights;
  LoraTargets& lora_targets;
  DType dtype = DType::kFloat32;      // of matrices in memory; norms, biases and angles are float32
  std::int64_t served_positions = 0;  // longest sequence that will be served: length of rotary tables

  // Of matrices that read a norm's output, and of the embedding, which may be one.
  DType normed_dtype() const { return backend.normed_matrix_dtype(dtype); }
};

// Reads a weight into rows [row_begin, ...) of `matrix`. Throws StartError where the matrix' dtype cannot hold it.
void load_rows(LoadContext& load, Matrix& matrix, std::int64_t row_begin, const MatrixRequest& request);

// A float32 vector of the checkpoint in the backend's memory: norm weights and biases.
struct Vector {
  Buffer storage;
  Tensor values;  // float32, undefined when there is none

  static Vector load(LoadContext& load, const std::string& name, std::initializer_list<std::int64_t> shape);
  static Vector from_host(const Backend& backend, std::span<const float> host_values,
                          std::initializer_list<std::int64_t> shape);
};

}  // namespace shoal
