// The faults of single operations: each function makes the wrong operations over a right backend, which outlives them.
// Used by the list of faults.
#pragma once

#include "parity/fault_backend.h"

namespace shoal {

using OpFaultMaker = OpFaults (*)(const Backend& right);

// --- attention and its cache (fault_attention.cc) ---
OpFaults softmax_scale_without_root(const Backend& right);
OpFaults softmax_scale_of_hidden(const Backend& right);  // hidden / heads of solar-head-128 in place of head_dim
OpFaults kv_head_modulo(const Backend& right);           // query head h reads KV head h % kv_heads
OpFaults sees_next_key(const Backend& right);
OpFaults misses_oldest_key(const Backend& right);
OpFaults reads_whole_block(const Backend& right);
OpFaults forgets_earlier_chunks(const Backend& right);
OpFaults window_on_even_layers(const Backend& right);
OpFaults block_table_of_neighbour(const Backend& right);
OpFaults alibi_after_scaling(const Backend& right);
OpFaults alibi_slopes_of_twice_the_heads(const Backend& right);
OpFaults key_and_value_swapped(const Backend& right);
OpFaults cache_one_slot_late(const Backend& right);
OpFaults cache_rounds_to_bfloat16(const Backend& right);

// --- positions ---
OpFaults rotary_of_the_other_style(const Backend& right);
OpFaults rotary_of_queries_alone(const Backend& right);
OpFaults rotary_queries_one_late(const Backend& right);
OpFaults rotary_restarts_each_step(const Backend& right);
OpFaults learned_position_one_late(const Backend& right);
OpFaults learned_position_restarts_each_step(const Backend& right);

// --- norms ---
OpFaults rms_weight_plus_one(const Backend& right);
OpFaults layer_norm_keeps_mean(const Backend& right);
OpFaults layer_norm_without_bias(const Backend& right);
OpFaults layer_norm_of_sample_variance(const Backend& right);
OpFaults qk_norm_skipped(const Backend& right);
OpFaults qk_norm_of_first_head(const Backend& right);
OpFaults qk_norm_after_rotary(const Backend& right);

// --- products, residual, logits ---
OpFaults dense_bias_dropped(const Backend& right);
OpFaults up_bias_dropped(const Backend& right);
OpFaults query_bias_dropped(const Backend& right);
OpFaults residual_lost(const Backend& right);
OpFaults residual_twice(const Backend& right);
OpFaults parallel_as_sequential(const Backend& right);
OpFaults activations_in_bfloat16(const Backend& right);
OpFaults mix_weight_on_the_other(const Backend& right);
OpFaults mix_before_save(const Backend& right);
OpFaults logit_scale_skipped(const Backend& right);
OpFaults gathers_row_before(const Backend& right);
OpFaults gathers_row_of_neighbour(const Backend& right);

// --- LoRA ---
OpFaults lora_head_missing(const Backend& right);
OpFaults lora_rank_cut_at_64(const Backend& right);
OpFaults lora_key_on_value_columns(const Backend& right);
OpFaults lora_rows_not_grouped(const Backend& right);

}  // namespace shoal
