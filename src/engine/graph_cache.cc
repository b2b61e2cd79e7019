#include "engine/graph_cache.h"

namespace shoal {

void GraphCache::run(Stream stream, const GraphKey& key, const std::function<void()>& step) {
  // Graphs over an arena that has moved are of no use any more.
  const bool moved = !graphs_.empty() && graphs_.begin()->first.arena_generation != key.arena_generation;
  if (moved || std::ssize(graphs_) >= kMostGraphs) clear();
  const auto [entry, is_new] = graphs_.try_emplace(key);
  if (is_new) {
    step();
    return;
  }
  if (entry->second.handle == nullptr) {
    backend_.begin_capture(stream);
    try {
      step();
    } catch (...) {
      backend_.release(backend_.end_capture(stream));  // or the stream would stay in capture
      throw;
    }
    entry->second = backend_.end_capture(stream);
  }
  if (timed_) {
    device_seconds_ += backend_.timed_launch(entry->second, stream);
  } else {
    backend_.launch(entry->second, stream);
  }
}

void GraphCache::clear() {
  for (const auto& [key, graph] : graphs_) {
    if (graph.handle != nullptr) backend_.release(graph);
  }
  graphs_.clear();
}

}  // namespace shoal
