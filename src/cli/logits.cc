// `shoal logits`: teacher-forced logits of given tokens, through the engine that serves.
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "cli/commands.h"
#include "cli/session.h"
#include "cli/token_file.h"
#include "core/log.h"
#include "engine/teacher_forcing.h"
#include "weights/safetensors.h"

namespace shoal {
namespace {

struct LogitsOptions {
  ModelOptions model;
  std::vector<std::string> adapter_ids;
  std::optional<std::string> token_ids;
  std::optional<std::string> input;
  std::string output;
  std::int64_t chunk = 0;
  std::int64_t decode_from = -1;
};

std::vector<NamedIds> read_sequences(const LogitsOptions& options) {
  if (options.token_ids.has_value() == options.input.has_value()) {
    throw UsageError("one of --token-ids and --input is needed, and only one");
  }
  if (options.input) return read_token_file(*options.input);
  return {{.name = "", .ids = parse_numbers("--token-ids", *options.token_ids)}};
}

// One --adapter-id serves all sequences; repeated, one a sequence in their order, `base` for none.
std::vector<std::int32_t> keep_adapters(Session& session, const std::vector<std::string>& adapter_ids,
                                        std::size_t num_sequences) {
  if (adapter_ids.empty()) return std::vector<std::int32_t>(num_sequences, -1);
  if (adapter_ids.size() != 1 && adapter_ids.size() != num_sequences) {
    throw UsageError(
        fmt::format("{} --adapter-id for {} sequences, expected 1 or as many", adapter_ids.size(), num_sequences));
  }
  std::vector<std::int32_t> slots;
  slots.reserve(num_sequences);
  for (const std::string& id : adapter_ids) {
    slots.push_back(id == "base" ? -1 : session.keep_adapter({.id = id}).slot);
  }
  if (slots.size() == 1) slots.resize(num_sequences, slots.front());
  return slots;
}

void check_ids(const std::vector<NamedIds>& sequences, std::int64_t vocab) {
  for (const NamedIds& sequence : sequences) {
    for (const std::int64_t id : sequence.ids) {
      if (id >= 0 && id < vocab) continue;
      throw StartError(fmt::format("{}input_ids holds {}, expected ids below {}", sequence.name, id, vocab));
    }
  }
}

int run_logits(const LogitsOptions& options) {
  init_logging(options.model.log_level, LogFormat::kText);
  const std::vector<NamedIds> named = read_sequences(options);
  const ModelInfo model = read_model(options.model);
  std::int64_t longest = 0;
  std::int64_t total = 0;
  std::int64_t cached = 0;
  for (const NamedIds& sequence : named) {
    const auto tokens = static_cast<std::int64_t>(sequence.ids.size());
    longest = std::max(longest, tokens);
    total += tokens;
    cached += blocks_for_tokens(tokens) * kBlockSize;
  }
  check_positions(options.input ? "--input" : "--token-ids", longest, model);
  PathSource source(options.model.adapter_dir);
  EngineOptions sizes;
  sizes.min_served_positions = longest;
  sizes.min_cache_tokens = cached;
  sizes.max_step_tokens = total;
  Session session(options.model, source, sizes);
  const std::int64_t vocab = session.engine().model_info().vocab;
  check_ids(named, vocab);
  const std::vector<std::int32_t> adapters = keep_adapters(session, options.adapter_ids, named.size());

  std::vector<ForcedSequence> forced;
  std::vector<Buffer> outputs;
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const auto tokens = static_cast<std::int64_t>(named[i].ids.size());
    forced.push_back({.input_ids = named[i].ids, .adapter = adapters[i]});
    outputs.emplace_back(host_allocator(), tokens * vocab * dtype_bytes(DType::kFloat32));
    tensors.push_back(
        {.name = named[i].name + "logits", .tensor = outputs.back().view(DType::kFloat32, {tokens, vocab})});
  }
  const TeacherForcingOptions forcing{
      .chunk = options.chunk, .decode_from = options.decode_from, .block_order = block_order_from_environment()};
  run_teacher_forcing(session.engine(), forced, forcing,
                      [&](std::size_t sequence, std::int64_t first_position, const Tensor& logits) {
                        const Tensor rows = tensors[sequence].tensor.rows(first_position, logits.dim(0));
                        std::memcpy(rows.raw(), logits.raw(), static_cast<std::size_t>(logits.num_bytes()));
                      });
  write_safetensors(options.output, tensors);
  spdlog::info("{} sequences of {} tokens in all written to {}", named.size(), total, options.output);
  return 0;
}

}  // namespace

Command add_logits_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("logits", "teacher-forced logits of given tokens");
  auto options = std::make_shared<LogitsOptions>();
  options->model.add_to(*command);
  command->add_option("--adapter-id", options->adapter_ids, "adapter folder, for all sequences or one each; base");
  command->add_option("--token-ids", options->token_ids, "one sequence: 1,2,3");
  command->add_option("--input", options->input, "safetensors with tensors named *.input_ids")
      ->check(CLI::ExistingFile);
  command->add_option("--output", options->output, "safetensors with tensors named *.logits")->required();
  command->add_option("--chunk", options->chunk, "prefill in chunks of this many tokens; 0: whole")->check(at_least(0));
  command->add_option("--decode-from", options->decode_from, "prefill this many tokens, then one at a time")
      ->check(at_least(0));
  return [options] { return run_logits(*options); };
}

}  // namespace shoal
