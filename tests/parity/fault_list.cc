#include "parity/fault_list.h"

#include <array>
#include <utility>

#include "weights/row_order.h"

namespace shoal {
namespace {

using enum FaultMode;

// Solar and Llama.
constexpr auto kSolarFaults = std::to_array<Fault>({
    {.name = "rms_eps_1e6",
     .wrong = "rms_norm_eps fixed at 1e-6",
     .golden = "solar-pro-overlap",
     .config = R"({"rms_norm_eps": 1e-6})"},
    {.name = "rms_eps_times_ten",
     .wrong = "rms_norm_eps ten times too large",
     .golden = "solar-10.7b-like",
     .config = R"({"rms_norm_eps": 1e-4})"},
    {.name = "rms_weight_plus_one",
     .wrong = "RMSNorm multiplies by 1 + weight, as Gemma does",
     .golden = "solar-10.7b-like",
     .ops = rms_weight_plus_one},
    {.name = "norms_swapped",
     .wrong = "input and post-attention norm of a layer swapped",
     .golden = "solar-10.7b-like",
     .files =
         [](const FaultyFolder& folder) {
           folder.swap("model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight");
         }},
    {.name = "gate_and_up_swapped",
     .wrong = "the activation is applied to up, not to gate",
     .golden = "solar-10.7b-like",
     .files =
         [](const FaultyFolder& folder) {
           folder.swap("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight");
         }},
    {.name = "gelu_for_silu",
     .wrong = "GELU in the gated MLP",
     .golden = "solar-10.7b-like",
     .config = R"({"hidden_act": "gelu"})"},
    {.name = "head_tied",
     .wrong = "tie_word_embeddings taken as true although the file has a head",
     .golden = "solar-10.7b-like",
     .config = R"({"tie_word_embeddings": true})"},
    {.name = "rotary_neighbours",
     .wrong = "rotary turns neighbouring pairs in place of halves",
     .golden = "solar-10.7b-like",
     .ops = rotary_of_the_other_style},
    {.name = "rotary_of_queries_alone",
     .wrong = "keys are cached without rotary",
     .golden = "solar-10.7b-like",
     .ops = rotary_of_queries_alone},
    {.name = "rotary_queries_one_late",
     .wrong = "queries are turned by the next position",
     .golden = "solar-10.7b-like",
     .ops = rotary_queries_one_late},
    {.name = "rotary_restarts",
     .wrong = "rotary positions count from the start of each chunk",
     .golden = "solar-10.7b-like",
     .mode = kChunks,
     .ops = rotary_restarts_each_step},
    {.name = "rope_theta_of_code_llama",
     .wrong = "rope_theta 1e6 in place of 1e4",
     .golden = "solar-10.7b-like",
     .config = R"({"rope_theta": 1000000.0})"},
    {.name = "rope_linear_ignored",
     .wrong = "linear rope_scaling ignored",
     .golden = "solar-rope-linear",
     .config = R"({"rope_scaling": null})"},
    {.name = "rope_dynamic_ignored",
     .wrong = "dynamic rope_scaling ignored past the trained length",
     .golden = "solar-rope-dynamic",
     .config = R"({"rope_scaling": null})"},
    {.name = "rope_yarn_unscaled_attention",
     .wrong = "yarn without its attention factor",
     .golden = "solar-rope-yarn",
     .config = R"({"rope_scaling": {"attention_factor": 1.0}})"},
    {.name = "rope_yarn_not_truncated",
     .wrong = "yarn's ramp between fractional pairs",
     .golden = "solar-rope-yarn",
     .config = R"({"rope_scaling": {"truncate": false}})"},
    {.name = "rope_llama3_length",
     .wrong = "llama3 scaling from max_position_embeddings, not from the original length",
     .golden = "solar-rope-llama3",
     .config = R"({"rope_scaling": {"original_max_position_embeddings": 64}})"},
    {.name = "softmax_scale_without_root",
     .wrong = "scores over head_dim, not over its root",
     .golden = "solar-10.7b-like",
     .ops = softmax_scale_without_root},
    {.name = "softmax_scale_of_hidden",
     .wrong = "scores over the root of hidden / heads where head_dim is another",
     .golden = "solar-head-128",
     .ops = softmax_scale_of_hidden},
    {.name = "kv_head_modulo",
     .wrong = "query heads read K and V of the wrong group",
     .golden = "solar-10.7b-like",
     .ops = kv_head_modulo},
    {.name = "sees_next_key",
     .wrong = "the causal mask is one key too wide",
     .golden = "solar-10.7b-like",
     .ops = sees_next_key},
    {.name = "misses_oldest_key",
     .wrong = "a query does not see the key at position 0",
     .golden = "solar-10.7b-like",
     .ops = misses_oldest_key},
    {.name = "reads_whole_block",
     .wrong = "keys that were never written are read up to the end of the block",
     .golden = "solar-10.7b-like",
     .mode = kTokenByToken,
     .ops = reads_whole_block},
    {.name = "forgets_earlier_chunks",
     .wrong = "a chunk does not see the keys of the chunk before",
     .golden = "solar-10.7b-like",
     .mode = kChunks,
     .ops = forgets_earlier_chunks},
    {.name = "block_table_of_neighbour",
     .wrong = "attention reads the block table of the next sequence",
     .golden = "solar-10.7b-like",
     .ops = block_table_of_neighbour},
    {.name = "key_and_value_swapped",
     .wrong = "keys go to the cache of values and back",
     .golden = "solar-10.7b-like",
     .ops = key_and_value_swapped},
    {.name = "cache_one_slot_late",
     .wrong = "keys and values are written one slot late",
     .golden = "solar-10.7b-like",
     .ops = cache_one_slot_late},
    {.name = "cache_rounds_to_bfloat16",
     .wrong = "the float32 cache holds bfloat16 values",
     .golden = "solar-10.7b-like",
     .mode = kTokenByToken,
     .ops = cache_rounds_to_bfloat16},
    {.name = "activations_in_bfloat16",
     .wrong = "inputs of products are rounded to bfloat16",
     .golden = "solar-10.7b-like",
     .ops = activations_in_bfloat16},
    {.name = "residual_lost",
     .wrong = "attention and MLP overwrite the residual stream",
     .golden = "solar-10.7b-like",
     .ops = residual_lost},
    {.name = "attention_bias_dropped",
     .wrong = "the bias of o_proj is not added",
     .golden = "solar-biases",
     .ops = dense_bias_dropped},
    {.name = "window_plus_one",
     .wrong = "the sliding window does not count the query itself",
     .golden = "solar-pro-like",
     .config = R"({"sliding_window": 9})"},
    {.name = "window_ignored",
     .wrong = "sliding_window ignored",
     .golden = "solar-pro-like",
     .config = R"({"sliding_window": null})"},
    {.name = "window_on_even_layers",
     .wrong = "the window on every other layer, as Gemma has it",
     .golden = "solar-pro-like",
     .ops = window_on_even_layers},
    {.name = "bskcn_first_weight",
     .wrong = "the first bskcn_tv, for training, in place of the second",
     .golden = "solar-pro-like",
     .config = R"({"bskcn_tv": [0.9, 0.9]})"},
    {.name = "bskcn_weight_on_the_other",
     .wrong = "bskcn_tv weighs the current stream, not the saved one",
     .golden = "solar-pro-like",
     .ops = mix_weight_on_the_other},
    {.name = "bskcn_second_pair_ignored",
     .wrong = "bskcn_2 and bskcn_4 ignored",
     .golden = "solar-pro-like",
     .config = R"({"bskcn_2": [], "bskcn_4": []})"},
    {.name = "bskcn_saved_after_the_layer",
     .wrong = "streams are saved after their layer, not before it",
     .golden = "solar-pro-like",
     .config = R"({"bskcn_1": [2, 5, 8], "bskcn_2": [4]})"},
    {.name = "bskcn_mix_before_save",
     .wrong = "a layer that saves and mixes does the mix first",
     .golden = "solar-pro-overlap",
     .ops = mix_before_save},
});

// RefinedWeb and Falcon.
constexpr auto kRwFaults = std::to_array<Fault>({
    {.name = "falcon_eps_times_ten",
     .wrong = "layer_norm_epsilon ten times too large",
     .golden = "falcon-7b-like",
     .config = R"({"layer_norm_epsilon": 1e-4})"},
    {.name = "layer_norm_of_sample_variance",
     .wrong = "the variance is divided by n - 1",
     .golden = "falcon-7b-like",
     .ops = layer_norm_of_sample_variance},
    {.name = "layer_norm_without_bias",
     .wrong = "LayerNorm without its bias",
     .golden = "falcon-7b-like",
     .ops = layer_norm_without_bias},
    {.name = "falcon_gelu_tanh",
     .wrong = "tanh approximation in place of the exact GELU",
     .golden = "falcon-7b-like",
     .config = R"({"activation": "gelu_pytorch_tanh"})"},
    {.name = "parallel_as_sequential",
     .wrong = "the MLP of a parallel block reads what attention wrote",
     .golden = "falcon-7b-like",
     .ops = parallel_as_sequential},
    {.name = "parallel_residual_twice",
     .wrong = "attention and MLP of a parallel block both bring the residual",
     .golden = "falcon-7b-like",
     .ops = residual_twice},
    {.name = "parallel_norms_swapped",
     .wrong = "ln_attn and ln_mlp swapped",
     .golden = "falcon-40b-like",
     .files =
         [](const FaultyFolder& folder) {
           folder.swap("transformer.h.0.ln_attn.weight", "transformer.h.0.ln_mlp.weight");
           folder.swap("transformer.h.0.ln_attn.bias", "transformer.h.0.ln_mlp.bias");
         }},
    {.name = "one_norm_for_both",
     .wrong = "ln_attn feeds the MLP too",
     .golden = "falcon-40b-like",
     .files =
         [](const FaultyFolder& folder) {
           folder.copy("transformer.h.1.ln_attn.weight", "transformer.h.1.ln_mlp.weight");
           folder.copy("transformer.h.1.ln_attn.bias", "transformer.h.1.ln_mlp.bias");
         }},
    {.name = "grouped_rows_as_they_are",
     .wrong = "the grouped rows of query_key_value read as Q | K | V",
     .golden = "falcon-40b-like",
     .files =
         [](const FaultyFolder& folder) {
           folder.undo_row_order("transformer.h.0.self_attention.query_key_value.weight", grouped_qkv_rows(4, 2, 32));
         }},
    {.name = "rope_theta_default",
     .wrong = "rope_theta inside rope_parameters not found",
     .golden = "falcon-11b-like",
     .config = R"({"rope_parameters": null})"},
    {.name = "alibi_after_scaling",
     .wrong = "ALiBi added after the scores are scaled",
     .golden = "falcon-rw-like",
     .ops = alibi_after_scaling},
    {.name = "alibi_slopes_of_twice_the_heads",
     .wrong = "ALiBi slopes for a wrong number of heads",
     .golden = "falcon-rw-16-heads",
     .ops = alibi_slopes_of_twice_the_heads},
    {.name = "query_bias_dropped",
     .wrong = "the bias of query_key_value is not added",
     .golden = "falcon-rw-like",
     .ops = query_bias_dropped},
});

// SantaCoder and StarCoder.
constexpr auto kSantaCoderFaults = std::to_array<Fault>({
    {.name = "santacoder_eps_times_ten",
     .wrong = "layer_norm_epsilon ten times too large",
     .golden = "santacoder-mqa",
     .config = R"({"layer_norm_epsilon": 1e-4})"},
    {.name = "learned_position_one_late",
     .wrong = "learned positions count from 1",
     .golden = "santacoder-mqa",
     .ops = learned_position_one_late},
    {.name = "learned_position_restarts",
     .wrong = "learned positions count from the start of each chunk",
     .golden = "santacoder-mqa",
     .mode = kChunks,
     .ops = learned_position_restarts_each_step},
    {.name = "santacoder_gelu_erf",
     .wrong = "the exact GELU in place of the tanh approximation",
     .golden = "santacoder-mqa",
     .config = R"({"activation_function": "gelu"})"},
    {.name = "up_bias_dropped",
     .wrong = "the bias of c_fc is not added",
     .golden = "santacoder-mqa",
     .ops = up_bias_dropped},
    {.name = "interleaved_rows_as_they_are",
     .wrong = "rows interleaved by head read as Q | K | V",
     .golden = "bigcode-mha",
     .files =
         [](const FaultyFolder& folder) {
           folder.undo_row_order("transformer.h.0.attn.c_attn.weight", interleaved_qkv_rows(3, 32));
         }},
    {.name = "interleaved_bias_as_it_is",
     .wrong = "the weight's rows are reordered and the bias's are not",
     .golden = "bigcode-mha",
     .files =
         [](const FaultyFolder& folder) {
           folder.undo_row_order("transformer.h.1.attn.c_attn.bias", interleaved_qkv_rows(3, 32));
         }},
    {.name = "conv1d_not_transposed",
     .wrong = "a square Conv1D weight read as [out, in]",
     .golden = "santacoder-conv1d-fused",
     .files = [](const FaultyFolder& folder) { folder.transpose("transformer.h.1.mlp.c_fc.weight"); }},
    {.name = "prompt_row_before",
     .wrong = "the logits of the prompt's last token but one are sampled",
     .golden = "santacoder-mqa",
     .mode = kGreedy,
     .ops = gathers_row_before},
    {.name = "prompt_row_of_neighbour",
     .wrong = "each sequence of a batch samples from the logits of the next",
     .golden = "santacoder-mqa",
     .mode = kGreedy,
     .ops = gathers_row_of_neighbour},
});

// Cohere Command.
constexpr auto kCohereFaults = std::to_array<Fault>({
    {.name = "rotary_halves",
     .wrong = "rotary turns halves in place of neighbouring pairs",
     .golden = "command-r-like",
     .ops = rotary_of_the_other_style},
    {.name = "layer_norm_keeps_mean",
     .wrong = "RMSNorm in place of the LayerNorm without bias",
     .golden = "command-r-like",
     .ops = layer_norm_keeps_mean},
    {.name = "cohere_eps_times_ten",
     .wrong = "layer_norm_eps ten times too large",
     .golden = "command-r-plus-like",
     .config = R"({"layer_norm_eps": 1e-4})"},
    {.name = "logit_scale_skipped",
     .wrong = "logit_scale not applied",
     .golden = "command-r-like",
     .ops = logit_scale_skipped},
    {.name = "logit_scale_default",
     .wrong = "the default logit_scale in place of the config's",
     .golden = "command-r-plus-like",
     .config = R"({"logit_scale": null})"},
    {.name = "qk_norm_skipped",
     .wrong = "use_qk_norm ignored",
     .golden = "command-r-plus-like",
     .ops = qk_norm_skipped},
    {.name = "qk_norm_of_first_head",
     .wrong = "every head normed by the weight of the first",
     .golden = "command-r-plus-like",
     .ops = qk_norm_of_first_head},
    {.name = "qk_norm_after_rotary",
     .wrong = "queries and keys normed after rotary",
     .golden = "command-r-plus-like",
     .ops = qk_norm_after_rotary},
    {.name = "cohere_bias_dropped",
     .wrong = "the bias of o_proj is not added",
     .golden = "cohere-attention-bias",
     .ops = dense_bias_dropped},
});

// LoRA.
constexpr auto kLoraFaults = std::to_array<Fault>({
    {.name = "lora_alpha_ignored",
     .wrong = "a scale of 1 in place of alpha / r",
     .golden = "falcon-rotary-sequential",
     .adapter = "mha",
     .files =
         [](const FaultyFolder& folder) { folder.patch("adapter_mha/adapter_config.json", R"({"lora_alpha": 5})"); }},
    {.name = "rslora_lost",
     .wrong = "alpha / r in place of alpha / sqrt(r)",
     .golden = "command-r-like",
     .adapter = "all",
     .files =
         [](const FaultyFolder& folder) {
           folder.patch("adapter_all/adapter_config.json", R"({"use_rslora": false})");
         }},
    {.name = "alpha_pattern_lost",
     .wrong = "alpha_pattern ignored",
     .golden = "solar-10.7b-like",
     .adapter = "pattern",
     .files =
         [](const FaultyFolder& folder) {
           folder.patch("adapter_pattern/adapter_config.json", R"({"alpha_pattern": null})");
         }},
    {.name = "rank_pattern_not_in_scale",
     .wrong = "alpha over the adapter's rank where rank_pattern gives another",
     .golden = "solar-10.7b-like",
     .adapter = "pattern",
     .files =
         [](const FaultyFolder& folder) {
           // The rank is 4 in place of 8, so half of alpha 64 over it.
           folder.patch("adapter_pattern/adapter_config.json",
                        R"({"alpha_pattern": {"layers.1.self_attn.q_proj": 32}})");
         }},
    {.name = "lora_on_another_layer",
     .wrong = "the pair of layer 1 is added in layer 0",
     .golden = "solar-10.7b-like",
     .adapter = "layer1",
     .files =
         [](const FaultyFolder& folder) {
           folder.patch("adapter_layer1/adapter_config.json", R"({"layers_to_transform": [0]})");
           for (const char* part :
                {"self_attn.q_proj.lora_A", "self_attn.q_proj.lora_B", "mlp.up_proj.lora_A", "mlp.up_proj.lora_B"}) {
             const std::string end = std::string(part) + ".weight";
             folder.rename("base_model.model.model.layers.1." + end, "base_model.model.model.layers.0." + end);
           }
         }},
    {.name = "lora_rank_cut_at_64",
     .wrong = "only the first 64 of 256 ranks are used",
     .golden = "solar-10.7b-like",
     .adapter = "r256",
     .ops = lora_rank_cut_at_64},
    {.name = "lora_key_on_value_columns",
     .wrong = "the delta of K is added to V",
     .golden = "solar-10.7b-like",
     .adapter = "k_only",
     .ops = lora_key_on_value_columns},
    {.name = "lora_head_missing",
     .wrong = "the pair of lm_head is not added",
     .golden = "solar-tied",
     .adapter = "head",
     .ops = lora_head_missing},
    {.name = "lora_grouped_rows_as_they_are",
     .wrong = "the weight's grouped rows are reordered and those of B are not",
     .golden = "falcon-40b-like",
     .adapter = "all",
     .files =
         [](const FaultyFolder& folder) {
           folder.undo_row_order("base_model.model.transformer.h.0.self_attention.query_key_value.lora_B.weight",
                                 grouped_qkv_rows(4, 2, 32));
         }},
    {.name = "lora_rows_not_grouped",
     .wrong = "adapters are applied to the first rows of the batch, not to their own",
     .golden = "solar-10.7b-like",
     .mode = kMixed,
     .ops = lora_rows_not_grouped},
    {.name = "adapter_of_neighbour",
     .wrong = "each sequence gets the adapter of the next",
     .golden = "command-r-plus-like",
     .mode = kMixed,
     .plan =
         [](StepPlan& plan, std::int64_t /*index*/) {
           const std::int32_t first = plan.sequences.front().adapter;
           for (std::size_t i = 0; i + 1 < plan.sequences.size(); ++i) {
             plan.sequences[i].adapter = plan.sequences[i + 1].adapter;
           }
           plan.sequences.back().adapter = first;
         }},
    {.name = "adapter_lost_in_decode",
     .wrong = "the adapter is used for the prompt alone",
     .golden = "falcon-7b-like",
     .adapter = "qkv",
     .mode = kTokenByToken,
     .plan =
         [](StepPlan& plan, std::int64_t index) {
           if (index == 0) return;
           for (PlanSequence& sequence : plan.sequences) sequence.adapter = -1;
         }},
});

// Step plans of the base model.
constexpr auto kPlanFaults = std::to_array<Fault>({
    {.name = "block_table_entries_swapped",
     .wrong = "a sequence's first two blocks change places after its first chunk",
     .golden = "solar-10.7b-like",
     .mode = kChunks,
     .plan =
         [](StepPlan& plan, std::int64_t index) {
           if (index == 0) return;
           for (const PlanSequence& sequence : plan.sequences) {
             const auto begin = static_cast<std::size_t>(sequence.block_begin);
             if (sequence.num_blocks > 1) std::swap(plan.block_ids[begin], plan.block_ids[begin + 1]);
           }
         }},
    {.name = "prompt_ends_a_token_early",
     .wrong = "the last token of a prompt is the one before it",
     .golden = "santacoder-mqa",
     .mode = kGreedy,
     .plan =
         [](StepPlan& plan, std::int64_t /*index*/) {
           const std::size_t tokens = plan.input_ids.size();
           if (tokens > 1) plan.input_ids[tokens - 1] = plan.input_ids[tokens - 2];
         }},
});

}  // namespace

std::vector<Fault> fault_list() {
  std::vector<Fault> faults;
  for (const std::span<const Fault> part :
       {std::span<const Fault>(kSolarFaults), std::span<const Fault>(kRwFaults),
        std::span<const Fault>(kSantaCoderFaults), std::span<const Fault>(kCohereFaults),
        std::span<const Fault>(kLoraFaults), std::span<const Fault>(kPlanFaults)}) {
    faults.insert(faults.end(), part.begin(), part.end());
  }
  return faults;
}

}  // namespace shoal
