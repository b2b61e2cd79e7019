#include <omp.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "probe_matrix.h"

namespace shoal {
namespace {

constexpr dnnl::memory::dim kSize = 4096;
constexpr int kRuns = 3;

using Type = dnnl::memory::data_type;

// Throws dnnl::error where the processor has no such product.
double product_gflop_s(Type type) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc desc({kSize, kSize}, type, dnnl::memory::format_tag::ab);
  const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(desc, desc, desc), engine);
  const dnnl::matmul matmul(primitive);
  std::unordered_map<int, dnnl::memory> arguments;
  for (const int argument : {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}) {
    dnnl::memory memory(desc, engine);
    auto* values = static_cast<unsigned char*>(memory.get_data_handle());
    // Small finite numbers of varying bits in either dtype: 0x3c.. is about 0.01 to 1.
    for (std::size_t i = 0; i < desc.get_size(); ++i) {
      values[i] = i % 2 == 1 ? 0x3c : static_cast<unsigned char>(i * 37);
    }
    arguments.emplace(argument, memory);
  }
  double best = 0.0;
  for (int run = 0; run <= kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    matmul.execute(stream, arguments);
    stream.wait();
    const std::chrono::duration<double> elapsed_s = std::chrono::steady_clock::now() - start;
    const double flop = 2.0 * kSize * kSize * kSize;
    if (run > 0) best = std::max(best, flop / elapsed_s.count() / 1e9);  // the first one warms up
  }
  return best;
}

}  // namespace

MatrixRate probe_matrix_rate(int num_threads) {
  omp_set_num_threads(num_threads);  // Debian's oneDNN runs on OpenMP
  try {
    return {.gflop_s = product_gflop_s(Type::bf16), .dtype = "bfloat16"};
  } catch (const dnnl::error&) {
    return {.gflop_s = product_gflop_s(Type::f32), .dtype = "float32"};
  }
}

}  // namespace shoal
