#include "engine/teacher_forcing.h"

#include <fmt/core.h>

#include <algorithm>

#include "cache/block_table.h"

namespace shoal {
namespace {

struct Progress {
  std::size_t sequence = 0;
  std::int64_t done = 0;
  BlockTable blocks;
};

std::int64_t next_piece(std::int64_t done, std::int64_t total, const TeacherForcingOptions& options) {
  std::int64_t prefill_end = total;
  if (options.decode_from >= 0) {
    if (done >= options.decode_from) return 1;
    prefill_end = std::min(total, options.decode_from);
  }
  const std::int64_t left = prefill_end - done;
  return options.chunk > 0 ? std::min(left, options.chunk) : left;
}

void add_piece(StepPlan& plan, const Progress& progress, const ForcedSequence& forced, std::int64_t piece) {
  const std::span<const std::int32_t> blocks = progress.blocks.block_ids();
  const std::int64_t num_blocks = (progress.done + piece + kBlockSize - 1) / kBlockSize;
  plan.sequences.push_back({.input_begin = static_cast<std::int64_t>(plan.input_ids.size()),
                            .query_length = static_cast<std::int32_t>(piece),
                            .cached_length = static_cast<std::int32_t>(progress.done),
                            .block_begin = static_cast<std::int64_t>(plan.block_ids.size()),
                            .num_blocks = static_cast<std::int32_t>(num_blocks),
                            .adapter = forced.adapter,
                            .logit_rows = static_cast<std::int32_t>(piece)});
  const auto ids = forced.input_ids.begin() + progress.done;
  plan.input_ids.insert(plan.input_ids.end(), ids, ids + piece);
  plan.block_ids.insert(plan.block_ids.end(), blocks.begin(), blocks.begin() + num_blocks);
}

}  // namespace

void run_teacher_forcing(Engine& engine, const std::vector<ForcedSequence>& sequences,
                         const TeacherForcingOptions& options, const LogitsSink& sink) {
  BlockAllocator allocator(engine.info().num_blocks, options.block_order, /*seed=*/1);
  std::vector<Progress> running;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    running.push_back({.sequence = i, .done = 0, .blocks = BlockTable(allocator)});
    if (!running.back().blocks.grow_to_tokens(static_cast<std::int64_t>(sequences[i].input_ids.size()))) {
      throw StartError(
          fmt::format("the cache holds {} blocks of {} tokens, too few for all sequences at once; raise "
                      "--kv-cache-memory",
                      engine.info().num_blocks, kBlockSize));
    }
  }
  StepPlan plan;
  bool first_step = true;
  std::vector<std::pair<std::int64_t, Progress*>> pieces;
  for (;;) {
    pieces.clear();
    for (Progress& progress : running) {
      const auto total = static_cast<std::int64_t>(sequences[progress.sequence].input_ids.size());
      if (progress.done < total) pieces.emplace_back(next_piece(progress.done, total, options), &progress);
    }
    if (pieces.empty()) return;
    // One-token sequences come first.
    std::stable_partition(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.first == 1; });
    plan.clear();
    plan.return_logits = true;
    if (first_step && options.block_order == BlockOrder::kShuffled) {
      // Nothing may read what this run has not written.
      for (std::int32_t block = 0; block < engine.info().num_blocks; ++block) plan.poison_blocks.push_back(block);
    }
    first_step = false;
    for (const auto& [piece, progress] : pieces) add_piece(plan, *progress, sequences[progress->sequence], piece);
    const StepResult& result = engine.step(plan);
    std::int64_t row = 0;
    for (const auto& [piece, progress] : pieces) {
      sink(progress->sequence, progress->done, result.logits.rows(row, piece));
      row += piece;
      progress->done += piece;
    }
  }
}

}  // namespace shoal
