// Memory of the GPU and pinned memory of the host. Used by the files of this folder.
#pragma once

#include "core/buffer.h"

namespace shoal::cuda {

const Allocator& device_allocator();
const Allocator& pinned_allocator();

}  // namespace shoal::cuda
