// Panels: the sizes of a packed matrix. Used by the packing, the products and the look-ups of this folder.
#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"

namespace shoal::cpu {

struct Panels {
  Panels(Element kind, std::int64_t rows, std::int64_t cols)
      : element(kind),
        count((rows + kPanelRows - 1) / kPanelRows),
        steps(kind == Element::kBFloat16 ? (cols + 1) / 2 : cols),
        step_bytes(kind == Element::kFloat16 ? 32 : 64),
        panel_bytes(steps * step_bytes) {}

  Element element;
  std::int64_t count;       // panels
  std::int64_t steps;       // k, or pairs of k for bf16
  std::int64_t step_bytes;  // of one panel
  std::int64_t panel_bytes;
};

}  // namespace shoal::cpu
