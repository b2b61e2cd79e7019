// The backends that exist on this machine. Made once, by cli/.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "ops/backend.h"

namespace shoal {

// Plain float loops, one thread: the oracle of every test.
std::unique_ptr<Backend> make_reference_backend();

// CPU kernel sets, slowest first; those after "reference" need the instructions they are named for.
enum class CpuIsa : std::uint8_t { kReference, kAvx2, kAvx512, kAvx512Bf16 };

std::string_view isa_name(CpuIsa isa);  // "reference", "avx2", "avx512", "avx512bf16"
// The sets that this processor can run, slowest first.
std::vector<CpuIsa> available_isas();
// The one to use unless told otherwise: the fastest that was measured on this kind of processor.
CpuIsa default_isa();
// nullopt if `name` is no kernel set.
std::optional<CpuIsa> isa_from_name(std::string_view name);

// Whether this build holds the CUDA backend and the machine has a GPU with a driver for it.
bool cuda_is_present();
// On the first NVIDIA GPU. StartError says in one line what is missing: CUDA in this build, a driver, a GPU, libraries.
std::unique_ptr<Backend> make_cuda_backend();

// `isa` must be available. `pool` must outlive the backend; kReference ignores it.
std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa, ThreadPool& pool);

}  // namespace shoal
