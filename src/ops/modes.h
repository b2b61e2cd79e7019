// Small enumerations shared by the op headers and the Backend interface.
#pragma once

#include <cstdint>

namespace shoal {

class Backend;
struct Context;

enum class MatmulOutput : std::uint8_t { kOverwrite, kAccumulate };
enum class EmbeddingOutput : std::uint8_t { kOverwrite, kAccumulate };

// kGeluErf is the exact one; kGeluTanh is the tanh approximation (gelu_new, gelu_fast, gelu_pytorch_tanh).
enum class Activation : std::uint8_t { kSilu, kGeluErf, kGeluTanh, kRelu };

// kHalfSplit pairs (i, i + d/2), as Llama and Falcon; kNeighbours pairs (2i, 2i + 1), as Cohere.
enum class RotaryStyle : std::uint8_t { kHalfSplit, kNeighbours };

}  // namespace shoal
