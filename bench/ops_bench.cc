// Speed of the CPU kernels beside what the machine can do: a plain wide read of memory and oneDNN's products.
// shoal_ops_bench [--threads=N] [Google Benchmark flags]. Rates are of the best iteration, so that other load on the
// machine disturbs them least; `share` is of the best plain read or the best oneDNN product of the same run.
// With --threads=1 (and OMP_NUM_THREADS=1 for oneDNN) time is the thread's own, so a busy machine can be measured too.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <dnnl.hpp>
#include <random>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/backends.h"
#include "ops/lora.h"
#include "ops/matmul.h"
#include "wide_read.h"

namespace shoal {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{1} << 30;
constexpr std::int64_t kColdBytes = std::int64_t{512} << 20;  // weights rotate past every cache

enum class Clock : std::uint8_t { kWall, kThread };

// What this machine reached in this run.
struct Machine {
  Clock clock = Clock::kWall;
  double read_bytes_per_s = 0.0;
  double dnnl_flops = 0.0;
};

// What every benchmark works with.
struct Bench {
  explicit Bench(CpuIsa isa, ThreadPool& pool)
      : backend(make_cpu_backend(isa, pool)), arena(backend->allocator()), ctx{*backend, arena, {}} {}

  std::unique_ptr<Backend> backend;
  Arena arena;
  Context ctx;
};

class Floats {
 public:
  explicit Floats(std::int64_t count) : values_(static_cast<std::size_t>(count)) {
    std::minstd_rand engine(1);
    std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
    for (float& value : values_) value = uniform(engine);
  }
  Tensor view(std::initializer_list<std::int64_t> shape) { return {values_.data(), DType::kFloat32, shape}; }

 private:
  std::vector<float> values_;
};

double seconds_now(Clock clock) {
  timespec now{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename Step>
double seconds_of(Clock clock, const Step& step) {
  const double begin = seconds_now(clock);
  step();
  return seconds_now(clock) - begin;
}

// Runs `step` under Google Benchmark and returns the shortest time in seconds.
template <typename Step>
double best_seconds(benchmark::State& state, Clock clock, const Step& step) {
  step();
  double best = 1e30;
  for (auto _ : state) {
    const double seconds = seconds_of(clock, step);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["best_us"] = best * 1e6;
  return best;
}

double measure_read(ThreadPool& pool, Clock clock) {
  Buffer memory(host_allocator(), kReadBytes);
  auto* words = static_cast<std::int64_t*>(memory.raw());
  std::fill(words, words + kReadBytes / 8, std::int64_t{1});
  constexpr std::int64_t kPieces = 256;
  constexpr std::int64_t kPieceWords = kReadBytes / 8 / kPieces;
  static_assert(kPieceWords % 128 == 0);
  std::vector<std::int64_t> sums(kPieces);
  double best = 1e30;
  for (int repeat = 0; repeat < 9; ++repeat) {
    const double begin = seconds_now(clock);
    pool.parallel_for(kPieces, [&](std::int64_t piece) {
      sums[static_cast<std::size_t>(piece)] += wide_sum(words + piece * kPieceWords, kPieceWords);
    });
    best = std::min(best, seconds_now(clock) - begin);
  }
  benchmark::DoNotOptimize(sums.data());
  return static_cast<double>(kReadBytes) / best;
}

double measure_dnnl(std::int64_t size, dnnl::memory::data_type type, Clock clock) {
  using dnnl::memory;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc square({size, size}, type, memory::format_tag::ab);
  const memory::desc any({size, size}, type, memory::format_tag::any);
  const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(square, any, square), engine);
  memory a(square, engine);
  memory b(desc.weights_desc(), engine);
  memory c(square, engine);
  for (memory* operand : {&a, &b}) {
    std::fill_n(static_cast<char*>(operand->get_data_handle()), operand->get_desc().get_size(), char{0x3c});
  }
  const dnnl::matmul product(desc);
  double best = 1e30;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const double begin = seconds_now(clock);
    product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
    best = std::min(best, seconds_now(clock) - begin);
  }
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / best;
}

Matrix random_matrix(const Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols) {
  Matrix matrix = backend.allocate_matrix(dtype, rows, cols);
  Floats values(256 * cols);
  for (std::int64_t row = 0; row < rows; row += 256) {
    const std::int64_t count = std::min<std::int64_t>(256, rows - row);
    backend.fill_rows(matrix, row, values.view({count, cols}));
  }
  return matrix;
}

struct WeightShape {
  std::int64_t rows;
  std::int64_t cols;
};

void bench_matmul(benchmark::State& state, Bench& bench, const Machine& machine, DType dtype, WeightShape shape,
                  std::int64_t tokens) {
  const std::int64_t weight_bytes = shape.rows * shape.cols * dtype_bytes(dtype);
  const std::int64_t copies = tokens <= 16 ? std::max<std::int64_t>(1, kColdBytes / weight_bytes) : 1;
  std::vector<Matrix> weights;
  for (std::int64_t i = 0; i < copies; ++i) {
    weights.push_back(random_matrix(*bench.backend, dtype, shape.rows, shape.cols));
  }
  Floats x(tokens * shape.cols);
  Floats out(tokens * shape.rows);
  std::size_t next = 0;
  const double seconds = best_seconds(state, machine.clock, [&] {
    ops::matmul(bench.ctx, x.view({tokens, shape.cols}), weights[next], Tensor(), MatmulOutput::kOverwrite,
                out.view({tokens, shape.rows}));
    next = (next + 1) % weights.size();
  });
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.cols * tokens) / seconds;
  state.counters["GFLOP/s"] = flops / 1e9;
  if (tokens <= 16) {
    state.counters["GB/s"] = static_cast<double>(weight_bytes) / seconds / 1e9;
    state.counters["share"] = static_cast<double>(weight_bytes) / seconds / machine.read_bytes_per_s;
  } else {
    state.counters["share"] = flops / machine.dnnl_flops;
  }
}

struct AttentionShape {
  std::int64_t sequences;
  std::int32_t query;
  std::int32_t cached;
  std::int64_t kv_heads;
  std::int64_t group;
  std::int64_t head_dim;
};

void bench_attention(benchmark::State& state, Bench& bench, const Machine& machine, const AttentionShape& shape) {
  const std::int64_t blocks_each = (shape.cached + shape.query + kBlockSize - 1) / kBlockSize;
  const std::int64_t num_blocks = shape.sequences * blocks_each;
  const std::int64_t token_values = shape.kv_heads * shape.head_dim;
  const std::int64_t cache_values = num_blocks * kBlockSize * token_values;
  const std::array buffers{Buffer(host_allocator(), cache_values * 2), Buffer(host_allocator(), cache_values * 2)};
  std::array<Tensor, 2> caches;
  for (std::size_t i = 0; i < 2; ++i) {
    caches[i] = buffers[i].view(DType::kBFloat16, {num_blocks, kBlockSize, shape.kv_heads, shape.head_dim});
    std::fill_n(caches[i].data<BFloat16>(), cache_values, to_bfloat16(0.01F));
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(num_blocks));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>((i * 7919) % table.size());
  std::vector<std::int32_t> query(static_cast<std::size_t>(shape.sequences), shape.query);
  std::vector<std::int32_t> cached(query.size(), shape.cached);
  std::vector<std::int32_t> cu_query(query.size() + 1);
  std::vector<std::int32_t> cu_cached(query.size() + 1);
  for (std::size_t i = 0; i < query.size(); ++i) {
    cu_query[i + 1] = cu_query[i] + shape.query;
    cu_cached[i + 1] = cu_cached[i] + shape.cached;
  }
  const auto ints = [](std::vector<std::int32_t>& values) {
    return Tensor(values.data(), DType::kInt32, {std::ssize(values)});
  };
  const SequenceLengths seqlen{.query = ints(query),
                               .cached = ints(cached),
                               .cu_query = ints(cu_query),
                               .cu_cached = ints(cu_cached),
                               .host_query = query,
                               .host_cached = cached,
                               .host_cu_query = cu_query,
                               .host_cu_cached = cu_cached};
  const std::int64_t tokens = shape.sequences * shape.query;
  const std::int64_t heads = shape.kv_heads * shape.group;
  Floats q(tokens * heads * shape.head_dim);
  Floats out(tokens * heads * shape.head_dim);
  const AttentionInput in{.query = q.view({tokens, heads, shape.head_dim}),
                          .key_cache = caches[0],
                          .value_cache = caches[1],
                          .block_tables = Tensor(table.data(), DType::kInt32, {shape.sequences, blocks_each}),
                          .seqlen = seqlen,
                          .scale = 0.1F};
  const double seconds = best_seconds(
      state, machine.clock, [&] { ops::attention(bench.ctx, in, out.view({tokens, heads, shape.head_dim})); });
  const double keys_seen = static_cast<double>(shape.query) * (shape.cached + (shape.query + 1) / 2.0);
  const double flops = 4.0 * keys_seen * static_cast<double>(shape.sequences * heads * shape.head_dim) / seconds;
  const double bytes = static_cast<double>(cache_values) * 2 * sizeof(BFloat16);
  state.counters["GFLOP/s"] = flops / 1e9;
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["share"] = shape.query == 1 ? bytes / seconds / machine.read_bytes_per_s : flops / machine.dnnl_flops;
}

void bench_lora(benchmark::State& state, Bench& bench, const Machine& machine, std::int64_t num_groups,
                std::int64_t tokens_each, std::int64_t rank) {
  constexpr std::int64_t kWidth = 4096;
  const std::int64_t copies = std::max<std::int64_t>(1, kColdBytes / (num_groups * rank * kWidth * 4));
  std::vector<BFloat16> factors(static_cast<std::size_t>(copies * num_groups * rank * kWidth * 2), to_bfloat16(0.01F));
  std::vector<LoraPair> pairs;
  for (std::int64_t i = 0; i < copies * num_groups; ++i) {
    BFloat16* a = factors.data() + i * rank * kWidth * 2;
    pairs.push_back({Tensor(a, DType::kBFloat16, {rank, kWidth}),
                     Tensor(a + rank * kWidth, DType::kBFloat16, {rank, kWidth}), 2.0F});
  }
  std::vector<std::int32_t> rows(static_cast<std::size_t>(num_groups * tokens_each));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  const LoraPart part{.target_id = 0, .column_begin = 0, .column_count = kWidth};
  Floats x(std::ssize(rows) * kWidth);
  Floats out(std::ssize(rows) * kWidth);
  std::vector<LoraGroup> groups(static_cast<std::size_t>(num_groups));
  std::int64_t next = 0;
  const double seconds = best_seconds(state, machine.clock, [&] {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      const LoraPair* pair = pairs.data() + next * num_groups + g;
      groups[static_cast<std::size_t>(g)] = {std::span(pair, 1), g * tokens_each, tokens_each};
    }
    next = (next + 1) % copies;
    const LoraBatch batch{groups, Tensor(rows.data(), DType::kInt32, {std::ssize(rows)}), rows, rank};
    ops::lora_add(bench.ctx, x.view({std::ssize(rows), kWidth}), batch, std::span(&part, 1),
                  out.view({std::ssize(rows), kWidth}));
  });
  const double bytes = static_cast<double>(num_groups * rank * kWidth * 2 * 2);
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["share"] = bytes / seconds / machine.read_bytes_per_s;
}

void bench_fill(benchmark::State& state, Bench& bench, const Machine& machine) {
  constexpr std::int64_t kRows = 4096;
  Matrix matrix = bench.backend->allocate_matrix(DType::kBFloat16, kRows, kRows);
  std::vector<BFloat16> host(static_cast<std::size_t>(kRows * kRows), to_bfloat16(0.5F));
  const Tensor rows(host.data(), DType::kBFloat16, {kRows, kRows});
  const double seconds = best_seconds(state, machine.clock, [&] { bench.backend->fill_rows(matrix, 0, rows); });
  state.counters["GB/s"] = static_cast<double>(kRows * kRows * 2) / seconds / 1e9;
}

template <typename Body>
void add(const std::string& name, const Body& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

void add_all(Bench& bench, const Machine& machine) {
  const std::string prefix(bench.backend->name());
  for (const WeightShape shape : {WeightShape{4096, 4096}, WeightShape{14336, 4096}, WeightShape{32768, 2048}}) {
    for (const std::int64_t tokens : {1, 2, 4, 8, 16}) {
      add(fmt::format("{}/decode_bf16/{}x{}/m{}", prefix, shape.rows, shape.cols, tokens),
          [&bench, &machine, shape, tokens](benchmark::State& state) {
            bench_matmul(state, bench, machine, DType::kBFloat16, shape, tokens);
          });
    }
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t tokens : {64, 512, 2048}) {
      add(fmt::format("{}/prefill_{}/4096x4096/m{}", prefix, dtype_name(dtype), tokens),
          [&bench, &machine, dtype, tokens](benchmark::State& state) {
            bench_matmul(state, bench, machine, dtype, {4096, 4096}, tokens);
          });
    }
  }
  for (const AttentionShape shape : {AttentionShape{8, 1, 1023, 8, 4, 128}, AttentionShape{8, 1, 1023, 32, 1, 128},
                                     AttentionShape{1, 1, 4095, 1, 71, 64}, AttentionShape{1, 512, 0, 8, 4, 128},
                                     AttentionShape{1, 512, 0, 1, 71, 64}, AttentionShape{1, 512, 0, 32, 1, 128}}) {
    add(fmt::format("{}/attention/{}seq_{}q_{}cached_{}kv_{}group_{}dim", prefix, shape.sequences, shape.query,
                    shape.cached, shape.kv_heads, shape.group, shape.head_dim),
        [&bench, &machine, shape](benchmark::State& state) { bench_attention(state, bench, machine, shape); });
  }
  for (const std::int64_t tokens : {1, 64}) {
    add(fmt::format("{}/lora_bf16/8groups_r16/tokens{}", prefix, tokens),
        [&bench, &machine, tokens](benchmark::State& state) { bench_lora(state, bench, machine, 8, tokens, 16); });
  }
  add(prefix + "/fill_bf16/4096x4096",
      [&bench, &machine](benchmark::State& state) { bench_fill(state, bench, machine); });
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int num_threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument.starts_with("--threads=")) {
      std::from_chars(argument.data() + 10, argument.data() + argument.size(), num_threads);
    }
  }
  ThreadPool pool(num_threads);
  Machine machine;
  machine.clock = num_threads == 1 ? Clock::kThread : Clock::kWall;
  machine.read_bytes_per_s = measure_read(pool, machine.clock);
  machine.dnnl_flops = measure_dnnl(2048, dnnl::memory::data_type::f32, machine.clock);
  fmt::print("threads {}, plain read {:.1f} GB/s, oneDNN f32 2048^3 {:.0f} GFLOP/s\n", num_threads,
             machine.read_bytes_per_s / 1e9, machine.dnnl_flops / 1e9);
  if (available_isas().back() >= CpuIsa::kAvx512) {
    machine.dnnl_flops = measure_dnnl(4096, dnnl::memory::data_type::bf16, machine.clock);
    fmt::print("oneDNN bf16 4096^3 {:.0f} GFLOP/s\n", machine.dnnl_flops / 1e9);
  }
  std::vector<std::unique_ptr<Bench>> benches;
  for (const CpuIsa isa : available_isas()) {
    if (isa == CpuIsa::kReference) continue;
    benches.push_back(std::make_unique<Bench>(isa, pool));
    add_all(*benches.back(), machine);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) { return shoal::run(argc, argv); }
