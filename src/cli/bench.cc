// `shoal bench`: decode and prefill speed of a model or of a config with random weights, beside the rates of the
// machine measured in the same run.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/bench_adapters.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "core/block_size.h"
#include "core/log.h"
#include "probe.h"

namespace shoal {
namespace {

constexpr std::int64_t kMostSequences = 4096;  // as of `shoal serve`

struct BenchOptions {
  ModelOptions model;
  std::string config;
  std::string batches = "1,8,32";
  std::int64_t context = 512;
  std::int64_t prompt_len = 2048;
  std::int64_t new_tokens = 16;
  std::int64_t prompts = 1;
  std::int64_t chunk = 512;
  std::int64_t repeat = 5;
  std::int64_t adapters = 0;
  std::int64_t rank = 16;
  std::string targets = "all";
  bool base_rows = false;
  bool graph_time = false;
  bool upload_time = false;
  std::string json_path;
};

// Seconds, as a median with its spread.
struct Timing {
  double median = 0.0, fastest = 0.0, slowest = 0.0, p99 = 0.0;
};

Timing summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {.median = samples[samples.size() / 2],
          .fastest = samples.front(),
          .slowest = samples.back(),
          .p99 = samples[(samples.size() - 1) * 99 / 100]};
}

class BenchRun {
 public:
  // Rows take `adapters` in turns, or none.
  BenchRun(const BenchOptions& options, Session& session, std::vector<std::int32_t> adapters)
      : options_(options), engine_(session.engine()), adapters_(std::move(adapters)) {
    for (std::int32_t target = 0; target < engine_.lora_targets().size(); ++target) {
      const LoraTarget& linear = engine_.lora_targets().at(target);
      const auto elements = static_cast<double>(linear.in_features * linear.out_features);
      linear_elements_ += elements;
      if (linear.path == "lm_head") head_elements_ = elements;
    }
  }

  // Bytes of weights that one step reads: every linear layer and the head once.
  double weight_bytes() const {
    return linear_elements_ * static_cast<double>(dtype_bytes(*dtype_from_name(engine_.info().dtype)));
  }
  double cache_bytes_per_token() const {
    return static_cast<double>(engine_.kv_cache_bytes()) / static_cast<double>(engine_.info().num_blocks * kBlockSize);
  }
  // Of the linear layers of a prompt; only its last token reads the head. Attention adds 4 * width * keys a token.
  double prefill_flop(std::int64_t tokens) const {
    const ModelInfo& model = engine_.model_info();
    const auto n = static_cast<double>(tokens);
    const auto width = static_cast<double>(model.heads * model.head_dim);
    return 2 * (linear_elements_ - head_elements_) * n + 2 * head_elements_ +
           static_cast<double>(model.num_layers) * 4 * width * n * (n + 1) / 2;
  }

  Timing time_prefill() {
    std::vector<double> samples;
    for (std::int64_t run = 0; run <= options_.repeat; ++run) {
      const double seconds = prefill(options_.prompt_len, options_.prompts);
      if (run > 0) samples.push_back(seconds);
    }
    return summarize(std::move(samples));
  }

  // Steps of `batch` sequences that each hold `context` tokens.
  Timing time_decode(std::int64_t batch) {
    fill_context(batch);
    std::vector<double> samples;
    for (std::int64_t step = -2; step < options_.new_tokens * options_.repeat; ++step) {
      const double seconds = decode_step(batch);
      if (step >= 0) samples.push_back(seconds);  // two steps warm up
    }
    return summarize(std::move(samples));
  }

  // Seconds of the wall and of the device's graphs alone, over as many steps. After time_decode.
  struct Shares {
    double wall_s = 0.0, graphs_s = 0.0;
  };
  Shares time_graphs(std::int64_t batch) {
    GraphCache& graphs = *engine_.graphs();
    graphs.time_launches();
    const double graphs_before = graphs.device_seconds();
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t step = 0; step < options_.new_tokens * options_.repeat; ++step) decode_step(batch);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return {.wall_s = elapsed.count(), .graphs_s = graphs.device_seconds() - graphs_before};
  }

  // The same steps while adapters arrive from host memory, what that costs between steps included. After time_decode.
  Timing time_uploads(std::int64_t batch, const std::vector<AdapterKey>& spares) {
    AdapterExchange exchange(engine_, spares);
    const std::int64_t all_in_host_memory = uploads() + std::ssize(spares);
    while (uploads() < all_in_host_memory) {
      exchange.turn();
      decode_step(batch);
    }
    std::vector<double> samples;
    for (std::int64_t step = 0; step < options_.new_tokens * options_.repeat; ++step) {
      const auto start = std::chrono::steady_clock::now();
      exchange.turn();
      decode_step(batch);
      samples.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return summarize(std::move(samples));
  }
  std::int64_t uploads() const { return engine_.adapter_stats().tiers.uploads; }

 private:
  std::int64_t blocks_per_sequence() const { return blocks_for_tokens(options_.context + 1); }

  double decode_step(std::int64_t batch) {
    plan_.clear();
    for (std::int64_t i = 0; i < batch; ++i) add_decode_row(i);
    const auto start = std::chrono::steady_clock::now();
    engine_.step(plan_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double prefill(std::int64_t tokens, std::int64_t prompts) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t done = 0; done < tokens; done += options_.chunk) {
      const std::int64_t piece = std::min(options_.chunk, tokens - done);
      plan_.clear();
      for (std::int64_t prompt = 0; prompt < prompts; ++prompt) add_piece(prompt, done, piece, tokens);
      engine_.step(plan_);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Tokens [done, done + piece) of a prompt that lies in blocks of its own.
  void add_piece(std::int64_t prompt, std::int64_t done, std::int64_t piece, std::int64_t tokens) {
    const std::int64_t num_blocks = blocks_for_tokens(done + piece);
    plan_.sequences.push_back({.input_begin = std::ssize(plan_.input_ids),
                               .query_length = static_cast<std::int32_t>(piece),
                               .cached_length = static_cast<std::int32_t>(done),
                               .block_begin = std::ssize(plan_.block_ids),
                               .num_blocks = static_cast<std::int32_t>(num_blocks),
                               .adapter = adapters_.empty() ? -1 : adapters_[0],
                               .logit_rows = done + piece == tokens ? 1 : 0});
    for (std::int64_t i = 0; i < piece; ++i) plan_.input_ids.push_back((done + i) * 31 % engine_.info().vocab_size);
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      plan_.block_ids.push_back(static_cast<std::int32_t>(prompt * blocks_for_tokens(tokens) + i));
    }
  }

  // One real context, copied for every other sequence: reading it costs what reading different ones costs.
  void fill_context(std::int64_t batch) {
    prefill(options_.context, 1);
    plan_.clear();
    for (std::int64_t i = 1; i < batch; ++i) {
      for (std::int64_t block = 0; block < blocks_per_sequence(); ++block) {
        plan_.copy_blocks.push_back({.from = static_cast<std::int32_t>(block),
                                     .to = static_cast<std::int32_t>(i * blocks_per_sequence() + block)});
      }
    }
    add_decode_row(0);
    engine_.step(plan_);
  }

  void add_decode_row(std::int64_t row) {
    const auto blocks = blocks_per_sequence();
    plan_.sequences.push_back(
        {.state_slot = static_cast<std::int32_t>(row),
         .input_begin = static_cast<std::int64_t>(plan_.input_ids.size()),
         .query_length = 1,
         .cached_length = static_cast<std::int32_t>(options_.context),
         .block_begin = static_cast<std::int64_t>(plan_.block_ids.size()),
         .num_blocks = static_cast<std::int32_t>(blocks),
         .adapter = adapters_.empty() ? -1 : adapters_[static_cast<std::size_t>(row) % adapters_.size()],
         .logit_rows = 1});
    plan_.input_ids.push_back(row % engine_.info().vocab_size);
    for (std::int64_t block = 0; block < blocks; ++block) {
      plan_.block_ids.push_back(static_cast<std::int32_t>(row * blocks + block));
    }
  }

  const BenchOptions& options_;
  ModelEngine& engine_;
  std::vector<std::int32_t> adapters_;
  double linear_elements_ = 0.0;
  double head_elements_ = 0.0;
  StepPlan plan_;
};

nlohmann::json timing_json(const Timing& timing) {
  return {
      {"median_s", timing.median}, {"fastest_s", timing.fastest}, {"slowest_s", timing.slowest}, {"p99_s", timing.p99}};
}

nlohmann::json uploads_json(BenchRun& run, const BenchAdapters& adapters, std::int64_t batch, const Timing& quiet) {
  const std::int64_t before = run.uploads();
  const Timing timing = run.time_uploads(batch, adapters.spares());
  const std::int64_t uploads = run.uploads() - before;
  fmt::print("  p99 {:.2f} ms, and {:.2f} ms ({:+.1f} %) amid {} uploads of {:.1f} MB; medians {:.2f} and {:.2f} ms\n",
             quiet.p99 * 1e3, timing.p99 * 1e3, 100 * (timing.p99 / quiet.p99 - 1), uploads,
             adapters.bytes_each() / 1e6, quiet.median * 1e3, timing.median * 1e3);
  nlohmann::json json = timing_json(timing);
  json.update({{"quiet_p99_s", quiet.p99}, {"uploads", uploads}, {"upload_bytes", adapters.bytes_each()}});
  return json;
}

nlohmann::json decode_json(BenchRun& run, const BenchOptions& options, const MachineRates& rates, std::int64_t batch,
                           const BenchAdapters& adapters) {
  const double adapter_bytes = options.base_rows ? 0.0 : adapters.bytes_read(batch);
  const Timing timing = run.time_decode(batch);
  const auto sequences = static_cast<double>(batch);
  const double bytes = run.weight_bytes() + adapter_bytes +
                       sequences * static_cast<double>(options.context) * run.cache_bytes_per_token();
  const double gb_s = bytes / timing.median / 1e9;
  fmt::print(
      "decode batch {:>3}   {:>9.2f} ms  ({:.2f} - {:.2f})  {:>8.1f} tokens/s  {:>6.2f} GB/s  {:>5.1f} % of read\n",
      batch, timing.median * 1e3, timing.fastest * 1e3, timing.slowest * 1e3, sequences / timing.median, gb_s,
      100 * gb_s / rates.read_gb_s);
  nlohmann::json json = timing_json(timing);
  json.update({{"batch", batch},
               {"context", options.context},
               {"tokens_per_s", sequences / timing.median},
               {"bytes", bytes},
               {"gb_per_s", gb_s},
               {"share_of_read", gb_s / rates.read_gb_s}});
  if (options.graph_time) {
    const BenchRun::Shares shares = run.time_graphs(batch);
    const double outside = 1 - shares.graphs_s / shares.wall_s;
    fmt::print("  over {} steps {:.2f} ms, their graphs {:.2f} ms on the device: {:.1f} % of the time outside\n",
               options.new_tokens * options.repeat, shares.wall_s * 1e3, shares.graphs_s * 1e3, 100 * outside);
    json.update({{"wall_s", shares.wall_s}, {"graphs_s", shares.graphs_s}, {"share_outside_graphs", outside}});
  }
  if (options.upload_time) json["uploads"] = uploads_json(run, adapters, batch, timing);
  return json;
}

nlohmann::json prefill_json(BenchRun& run, const BenchOptions& options, const MachineRates& rates) {
  const Timing timing = run.time_prefill();
  const double gflop_s =
      static_cast<double>(options.prompts) * run.prefill_flop(options.prompt_len) / timing.median / 1e9;
  const double share = rates.matrix_gflop_s > 0 ? gflop_s / rates.matrix_gflop_s : 0.0;
  fmt::print(
      "prefill {:>6}     {:>9.2f} ms  ({:.2f} - {:.2f})  {:>8.1f} tokens/s  {:>6.1f} GFLOP/s  {:>5.1f} % of {}\n",
      options.prompt_len, timing.median * 1e3, timing.fastest * 1e3, timing.slowest * 1e3,
      static_cast<double>(options.prompts * options.prompt_len) / timing.median, gflop_s, 100 * share,
      rates.matrix_dtype);
  nlohmann::json json = timing_json(timing);
  json.update({{"prompt_len", options.prompt_len},
               {"prompts", options.prompts},
               {"tokens_per_s", static_cast<double>(options.prompts * options.prompt_len) / timing.median},
               {"gflop_per_s", gflop_s},
               {"share_of_matrix_rate", share}});
  return json;
}

// What the flags ask of the engine; UsageError for what no model, or not this one, can do.
EngineOptions sizes_for(const BenchOptions& options, const std::vector<std::int64_t>& batches, const ModelInfo& model) {
  const auto [smallest, largest] = std::minmax_element(batches.begin(), batches.end());
  if (*smallest < 1 || *largest > kMostSequences) {
    throw UsageError(fmt::format("--batch is {}, expected numbers from 1 to {}", options.batches, kMostSequences));
  }
  check_positions("--prompt-len", options.prompt_len, model);
  check_positions("--context", options.context + 1, model);
  EngineOptions sizes;
  sizes.min_served_positions = std::max(options.prompt_len, options.context + 1);
  sizes.min_cache_tokens = std::max(options.prompts * blocks_for_tokens(options.prompt_len),
                                    *largest * blocks_for_tokens(options.context + 1)) *
                           kBlockSize;
  sizes.max_step_tokens = std::max(options.prompts * options.chunk, *largest);
  sizes.max_sequences = std::max(options.prompts, *largest);
  sizes.min_adapters = {.count = options.adapters, .rank = options.rank};
  if (options.upload_time) {  // one spare fits, so that two of them take turns
    sizes.min_adapters.count = options.adapters + 1;
    sizes.adapters.max_device_adapters = options.adapters + 1;
  }
  return sizes;
}

// Opened before anything is measured: minutes of work must not end in a file that cannot be written.
std::ofstream open_json(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  if (!file) throw UsageError(fmt::format("--json is {}, which cannot be written", path));
  return file;
}

// Minutes pass between lines of figures; stdout is for these alone.
void say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

MachineRates probe(const ModelOptions& model) {
  if (takes_cuda(model.device)) return probe_gpu();
  return probe_machine(model.threads > 0 ? model.threads : static_cast<int>(std::thread::hardware_concurrency()));
}

int run_bench(BenchOptions& options) {
  init_logging(options.model.log_level, LogFormat::kText);
  if (!options.config.empty()) options.model.model_id = options.config;
  const std::vector<std::int64_t> batches = parse_numbers("--batch", options.batches);
  const ModelInfo model = read_model(options.model, options.config.empty() ? "--model-id" : "--config");
  const EngineOptions sizes = sizes_for(options, batches, model);
  std::ofstream json_file = open_json(options.json_path);
  say("probing how fast this machine reads memory and multiplies matrices");
  const MachineRates rates = probe(options.model);
  fmt::print("machine: read {:.1f} GB/s, {} product {:.1f} GFLOP/s\n", rates.read_gb_s, rates.matrix_dtype,
             rates.matrix_gflop_s);
  PathSource source(options.model.adapter_dir);
  const bool random = options.model.load_format == "dummy";
  say(random ? fmt::format("filling {} with random weights", options.model.model_id)
             : fmt::format("loading {}", options.model.model_id));
  Session session(options.model, source, sizes);
  if (options.adapters > 0) say(fmt::format("writing and loading {} adapters", options.adapters));
  const BenchAdapters adapters(session, {.count = options.adapters,
                                         .rank = options.rank,
                                         .targets = options.targets,
                                         .spares = options.upload_time ? 2 : 0});
  if (options.graph_time && session.engine().graphs() == nullptr) {
    throw UsageError("--graph-time needs a device with graphs: --device cuda");
  }
  BenchRun run(options, session, options.base_rows ? std::vector<std::int32_t>() : adapters.slots());
  fmt::print("{}: {}, {} weights, {:.3f} GB read a step, {} adapters of rank {} on {}\n", options.model.model_id,
             session.engine().info().device, session.engine().info().dtype, run.weight_bytes() / 1e9, options.adapters,
             options.rank, options.targets);

  nlohmann::json json = {{"model", options.model.model_id},
                         {"device", session.engine().info().device},
                         {"dtype", session.engine().info().dtype},
                         {"threads", session.pool().num_threads()},
                         {"adapters", options.adapters},
                         {"rank", options.rank},
                         {"targets", options.targets},
                         {"read_gb_per_s", rates.read_gb_s},
                         {"matrix_gflop_per_s", rates.matrix_gflop_s},
                         {"matrix_dtype", rates.matrix_dtype},
                         {"decode", nlohmann::json::array()}};
  for (const std::int64_t batch : batches) {
    say(fmt::format("timing decode, batch {}", batch));
    json["decode"].push_back(decode_json(run, options, rates, batch, adapters));
  }
  if (options.prompt_len > 0) {
    say(fmt::format("timing prefill of {} tokens", options.prompt_len));
    json["prefill"] = prefill_json(run, options, rates);
  }
  if (json_file.is_open()) json_file << json.dump(2) << '\n';
  return 0;
}

}  // namespace

Command add_bench_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "decode and prefill speed beside the machine's own rates");
  auto options = std::make_shared<BenchOptions>();
  options->model.log_level = "warn";
  options->model.add_to(*command);
  command->add_option("--config", options->config, "config.json alone, with --load-format dummy");
  command->add_option("--batch", options->batches, "batch sizes of decode")->capture_default_str();
  command->add_option("--context", options->context, "tokens that each sequence of a decode step holds")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--prompt-len", options->prompt_len, "tokens of the prefill; 0 leaves it out")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--prompts", options->prompts, "prompts that a prefill step holds at once")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--new-tokens", options->new_tokens, "decode steps of one repeat")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--chunk", options->chunk, "tokens of one prefill step")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "repeats behind each median")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--adapters", options->adapters, "different random adapters, spread over the batch")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--rank", options->rank, "of these adapters")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--targets", options->targets, "all linear layers but the head, or qkv")
      ->check(CLI::IsMember({"all", "qkv"}))
      ->capture_default_str();
  command->add_flag("--base-rows", options->base_rows, "the adapters are loaded, but no row uses one");
  command->add_flag("--graph-time", options->graph_time,
                    "also the share of decode steps that lies outside CUDA graphs");
  command->add_flag("--upload-time", options->upload_time,
                    "also decode steps while further adapters arrive on the device, one after the other");
  command->add_option("--json", options->json_path, "file for the figures");
  return [options] { return run_bench(*options); };
}

}  // namespace shoal
