#include "ops/cpu/kernels.h"

#include <immintrin.h>

namespace shoal::cpu {
namespace {

// clang-format off: each file needs the ones before it
#include "ops/cpu/vec_avx512.inl"
#include "ops/cpu/common.inl"
#include "ops/cpu/pairs_avx512bf16.inl"
#include "ops/cpu/matmul.inl"
#include "ops/cpu/pack.inl"
#include "ops/cpu/attention.inl"
#include "ops/cpu/lora.inl"
#include "ops/cpu/rows.inl"
// clang-format on

KernelTable make_table() {
  KernelTable table;
  fill_matmul(table);
  fill_pack(table);
  fill_attention(table);
  fill_lora(table);
  fill_rows(table);
  return table;
}

}  // namespace

const KernelTable& avx512bf16_kernels() {
  static const KernelTable kTable = make_table();
  return kTable;
}

}  // namespace shoal::cpu
