// Backend: the one virtual interface that a device implements. Ops (the other headers of this folder)
// check shapes once and call it; nobody else does, except for memory and weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "core/device.h"
#include "core/tensor.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/lora.h"
#include "ops/matrix.h"
#include "ops/norm.h"
#include "ops/ranking.h"
#include "ops/rotary.h"
#include "ops/sampling.h"
#include "ops/watermark.h"

namespace shoal {

// What every op is given beside its operands.
struct Context {
  const Backend& backend;
  Arena& arena;  // scratch of this step
  Stream stream;
};

// Shapes and dtypes of each operation stand at the op of the same name. Arguments arrive checked.
// "activations" below means activation_dtype(): float32 on the CPU whatever the weights are.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "reference", "cpu/avx2", ...
  virtual DeviceKind device() const = 0;
  virtual const Allocator& allocator() const = 0;
  virtual DType activation_dtype(DType weight_dtype) const = 0;
  // The dtype in memory of matrices of `checkpoint_dtype` that multiply what a norm bounds. float16 holds a bfloat16
  // weight to 2^-25 and such an input with three bits more than bfloat16 does, at the same cost.
  virtual DType normed_matrix_dtype(DType checkpoint_dtype) const { return checkpoint_dtype; }

  // --- streams and copies: where the device is the host, everything happens at once and streams are null ---
  // Host memory that copies to and from the device run fastest from, and without stopping the caller.
  virtual const Allocator& staging_allocator() const { return allocator(); }
  virtual Stream main_stream() const { return {}; }  // of steps
  // Waits for all that was queued. Errors of queued work show here.
  virtual void synchronize(Stream stream) const;
  // The same for what was queued before `event` was recorded last, while more may follow.
  virtual DeviceEvent make_event() const { return {}; }
  virtual void record(DeviceEvent /*event*/, Stream /*stream*/) const {}
  virtual void wait(DeviceEvent /*event*/) const {}
  virtual void destroy(DeviceEvent /*event*/) const {}
  // Which kernel takes attention of these dtypes and heads, where there are several: for tests and logs.
  virtual std::string_view attention_kernel(DType /*activations*/, DType /*cache*/, std::int64_t /*head_dim*/) const {
    return "the only one";
  }
  // Device memory that nobody has taken; 0 where the device is the host.
  virtual std::int64_t free_memory_bytes() const { return 0; }
  // Queued in order: both tensors contiguous, of equal bytes; host memory from staging_allocator() stays untouched
  // until the stream has passed.
  virtual void upload(Stream stream, const Tensor& host, const Tensor& device) const;
  virtual void download(Stream stream, const Tensor& device, const Tensor& host) const;
  virtual void copy(Stream stream, const Tensor& from, const Tensor& to) const;  // device to device
  virtual void fill_bytes(Stream stream, const Tensor& tensor, std::uint8_t value) const;

  // --- graphs ---
  virtual bool has_graphs() const { return false; }
  // What this thread queues on `stream` is recorded, not run, until end_capture. Memory that it names must stay.
  virtual void begin_capture(Stream stream) const;
  virtual Graph end_capture(Stream stream) const;
  virtual void launch(Graph graph, Stream stream) const;
  // The same, for measurements: waits for it and returns the seconds that the device spent on it.
  virtual double timed_launch(Graph graph, Stream stream) const;
  virtual void release(Graph graph) const;

  // --- weights and memory (load time) ---
  virtual Matrix allocate_matrix(DType dtype, std::int64_t rows, std::int64_t cols) const = 0;
  // Throws std::range_error where a finite value is beyond the matrix' dtype.
  // Packs rows [row_begin, row_begin + n) from host memory; `host_rows` [n, cols] is any float dtype, rows may be
  // strided. Different row ranges that start at multiples of 16 may be filled from different threads.
  virtual void fill_rows(Matrix& matrix, std::int64_t row_begin, const Tensor& host_rows) const = 0;
  // Random values within +- `limit` for these rows, made on the device. False where the host has to make and send them.
  virtual bool fill_random(Matrix& matrix, std::int64_t row_begin, std::int64_t row_count, std::uint64_t seed,
                           float limit) const;
  // Whether two weights can become one after they were filled. Then [a.rows + b.rows, cols], or [rows, a.cols +
  // b.cols].
  virtual bool merges_matrices() const { return false; }
  virtual Matrix concat_rows(const Matrix& a, const Matrix& b) const;
  virtual Matrix concat_columns(const Matrix& a, const Matrix& b) const;
  // Copies bytes between host and device tensors of equal dtype and shape; both contiguous.
  virtual void copy_to_device(const Tensor& host, const Tensor& device) const = 0;
  virtual void copy_to_host(const Tensor& device, const Tensor& host) const = 0;

  // --- operations ---
  virtual void matmul(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                      const Tensor& out) const = 0;
  virtual void matmul_activated(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias,
                                Activation kind, const Tensor& out) const;
  virtual void embedding(Context& ctx, const Tensor& ids, const Matrix& table, EmbeddingOutput mode,
                         const Tensor& out) const = 0;
  virtual void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float epsilon,
                        const Tensor& out) const = 0;
  virtual void layer_norm(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                          const Tensor& out) const = 0;
  virtual void head_layer_norm(Context& ctx, const Tensor& weight, float epsilon, const Tensor& x) const = 0;
  virtual void rotary(Context& ctx, const Tensor& positions, const Tensor& cos_sin, RotaryStyle style,
                      const Tensor& x) const = 0;
  virtual void write_cache(Context& ctx, const Tensor& key, const Tensor& value, const Tensor& slots,
                           const Tensor& key_cache, const Tensor& value_cache) const = 0;
  virtual void rotary_write_cache(Context& ctx, const RotaryWriteInput& in) const;
  virtual void attention(Context& ctx, const AttentionInput& in, const Tensor& out) const = 0;
  virtual void activation(Context& ctx, Activation kind, const Tensor& x, const Tensor& out) const = 0;
  virtual void gated_activation(Context& ctx, Activation kind, const Tensor& gate_up, const Tensor& out) const = 0;
  virtual void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) const = 0;
  virtual void mix(Context& ctx, const Tensor& a, const Tensor& b, float t, const Tensor& out) const = 0;
  virtual void scale(Context& ctx, const Tensor& x, float factor, const Tensor& out) const = 0;
  virtual void gather_rows(Context& ctx, const Tensor& x, const Tensor& indices, const Tensor& out) const = 0;
  virtual void lora_add(Context& ctx, const Tensor& x, const LoraBatch& batch, std::span<const LoraPart> parts,
                        const Tensor& out) const = 0;
  // matmul and then lora_add for each input, beside each other where the device can. False, and nothing done: it
  // cannot.
  virtual bool linear(Context& ctx, const Tensor& x, const Matrix& weight, const Tensor& bias, MatmulOutput mode,
                      const LoraBatch& batch, std::span<const LoraInput> inputs, const Tensor& out) const;
  virtual void sample(Context& ctx, const SamplingInput& in, const SamplingOutput& out) const = 0;
  virtual void rank_logits(Context& ctx, const Tensor& logits, const RankedColumns& columns, const Tensor& tokens,
                           const RankingOutput& out) const = 0;
  virtual void add_biases(Context& ctx, const Tensor& begin, const Tensor& biases, const Tensor& logits) const;
  virtual void add_watermark(Context& ctx, const WatermarkInput& in, const Tensor& logits) const;
  virtual void count_sampled(Context& ctx, const Tensor& tokens, const Tensor& count_slot,
                             const Tensor& token_counts) const;
  virtual void take_sampled(Context& ctx, const Tensor& sampled, const Tensor& source_rows, const Tensor& ids) const;
  virtual void count_history(Context& ctx, const Tensor& history, std::int64_t prompt_length,
                             const Tensor& counts) const;
};

}  // namespace shoal
