#include <cstring>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/parallel.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

// body(row) for each row of a [rows, width] op that touches `streams` rows of that width.
template <typename Body>
void each_row(ThreadPool& pool, const Tensor& x, std::int64_t streams, const Body& body) {
  parallel_rows(pool, x.dim(0), x.row_elements() * kFloatBytes * streams, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void CpuBackend::rms_norm(Context&, const Tensor& x, const Tensor& weight, float epsilon, const Tensor& out) const {
  each_row(pool_, x, 3, [&](std::int64_t row) {
    kernels_.rms_norm(x.row<float>(row), weight.data<float>(), epsilon, x.dim(1), out.row<float>(row));
  });
}

void CpuBackend::layer_norm(Context&, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                            const Tensor& out) const {
  const float* shift = bias.defined() ? bias.data<float>() : nullptr;
  each_row(pool_, x, 3, [&](std::int64_t row) {
    kernels_.layer_norm(x.row<float>(row), weight.data<float>(), shift, epsilon, x.dim(1), out.row<float>(row));
  });
}

void CpuBackend::head_layer_norm(Context&, const Tensor& weight, float epsilon, const Tensor& x) const {
  const std::int64_t head_dim = x.dim(2);
  each_row(pool_, x, 3, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < x.dim(1); ++head) {
      float* values = x.row<float>(row) + head * head_dim;
      kernels_.layer_norm(values, weight.row<float>(head), nullptr, epsilon, head_dim, values);
    }
  });
}

void CpuBackend::rotary(Context&, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                        const Tensor& x) const {
  each_row(pool_, x, 2, [&](std::int64_t row) {
    RotaryRow call;
    call.x = x.row<float>(row);
    call.heads = x.dim(1);
    call.head_dim = x.dim(2);
    call.cos_sin = cos_sin.row<float>(positions.data<std::int32_t>()[row]);
    call.rotary_dim = cos_sin.dim(1);
    call.neighbours = style == RotaryStyle::kNeighbours;
    kernels_.rotary(call);
  });
}

void CpuBackend::write_cache(Context&, const Tensor& key, const Tensor& value, const Tensor& slots,
                             const Tensor& key_cache, const Tensor& value_cache) const {
  const std::int64_t count = key.row_elements();
  const std::int64_t token_bytes = count * dtype_bytes(key_cache.dtype());
  const auto store = kernels_.store_floats[static_cast<int>(element_of(key_cache.dtype()))];
  each_row(pool_, key, 3, [&](std::int64_t row) {
    // Blocks are contiguous, so a slot is a row of the cache seen as [blocks * 16, kv_heads * head_dim].
    const std::int64_t at = slots.data<std::int64_t>()[row] * token_bytes;
    store(key.row<float>(row), count, static_cast<char*>(key_cache.raw()) + at);
    store(value.row<float>(row), count, static_cast<char*>(value_cache.raw()) + at);
  });
}

void CpuBackend::activation(Context&, Activation kind, const Tensor& x, const Tensor& out) const {
  const auto function = kernels_.activation[static_cast<int>(kind)];
  each_row(pool_, x, 8, [&](std::int64_t row) { function(x.row<float>(row), nullptr, x.dim(1), out.row<float>(row)); });
}

void CpuBackend::gated_activation(Context&, Activation kind, const Tensor& gate_up, const Tensor& out) const {
  const auto function = kernels_.activation[static_cast<int>(kind)];
  const std::int64_t width = out.dim(1);
  each_row(pool_, out, 8, [&](std::int64_t row) {
    const float* gate = gate_up.row<float>(row);
    function(gate, gate + width, width, out.row<float>(row));
  });
}

void CpuBackend::add(Context&, const Tensor& a, const Tensor& b, const Tensor& out) const {
  each_row(pool_, a, 3, [&](std::int64_t row) {
    kernels_.add(a.row<float>(row), b.row<float>(row), a.dim(1), out.row<float>(row));
  });
}

void CpuBackend::mix(Context&, const Tensor& a, const Tensor& b, float t, const Tensor& out) const {
  each_row(pool_, a, 3, [&](std::int64_t row) {
    kernels_.mix(a.row<float>(row), b.row<float>(row), t, a.dim(1), out.row<float>(row));
  });
}

void CpuBackend::scale(Context&, const Tensor& x, float factor, const Tensor& out) const {
  each_row(pool_, x, 2,
           [&](std::int64_t row) { kernels_.scale(x.row<float>(row), factor, x.dim(1), out.row<float>(row)); });
}

void CpuBackend::gather_rows(Context&, const Tensor& x, const Tensor& indices, const Tensor& out) const {
  const auto row_bytes = static_cast<std::size_t>(x.row_elements() * kFloatBytes);
  each_row(pool_, out, 2, [&](std::int64_t row) {
    std::memcpy(out.row<float>(row), x.row<float>(indices.data<std::int64_t>()[row]), row_bytes);
  });
}

}  // namespace shoal::cpu
