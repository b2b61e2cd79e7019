#include <array>

#include "ops/backends.h"
#include "ops/cpu/cpu_backend.h"

namespace shoal {
namespace {

constexpr std::array kIsas{CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16};

bool runs_here(CpuIsa isa) {
  if (isa == CpuIsa::kReference) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (isa == CpuIsa::kAvx2) return avx2;
  if (isa == CpuIsa::kAvx512) return avx512;
  return avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace

std::string_view isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return "reference";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
  }
  CHECK(false);
  return {};
}

std::vector<CpuIsa> available_isas() {
  std::vector<CpuIsa> available;
  for (const CpuIsa isa : kIsas) {
    if (runs_here(isa)) available.push_back(isa);
  }
  return available;
}

CpuIsa default_isa() {
  const CpuIsa last = available_isas().back();
#if defined(__x86_64__)
  // Keeping 16 bits of x takes two vdpbf16ps for what one line of weights takes in four float multiply-adds. Intel's
  // processors start one of the former a cycle and two of the latter: a batch of 8 took 1.6 to 1.8 times as long with
  // the pairs, a prompt 2.7 times.
  if (last == CpuIsa::kAvx512Bf16 && __builtin_cpu_is("intel")) return CpuIsa::kAvx512;
#endif
  return last;
}

std::optional<CpuIsa> isa_from_name(std::string_view name) {
  for (const CpuIsa isa : kIsas) {
    if (isa_name(isa) == name) return isa;
  }
  return std::nullopt;
}

std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa, ThreadPool& pool) {
  CHECK(runs_here(isa));
  switch (isa) {
    case CpuIsa::kReference:
      return make_reference_backend();
    case CpuIsa::kAvx2:
      return std::make_unique<cpu::CpuBackend>(isa_name(isa), cpu::avx2_kernels(), pool);
    case CpuIsa::kAvx512:
      return std::make_unique<cpu::CpuBackend>(isa_name(isa), cpu::avx512_kernels(), pool);
    case CpuIsa::kAvx512Bf16:
      return std::make_unique<cpu::CpuBackend>(isa_name(isa), cpu::avx512bf16_kernels(), pool);
  }
  CHECK(false);
  return nullptr;
}

}  // namespace shoal
