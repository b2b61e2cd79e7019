#include "engine/adapter_store.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace shoal {

AdapterStore::AdapterStore(AdapterSource& source, const LoraTargets& targets, const Backend& backend, Wakeup& wakeup,
                           AdapterStoreOptions options)
    : source_(source), targets_(targets), backend_(backend), wakeup_(wakeup), options_(options) {
  for (int i = 0; i < options.num_loader_threads; ++i) {
    loaders_.emplace_back([this](const std::stop_token& stop) { loader_loop(stop); });
  }
}

AdapterStore::~AdapterStore() {
  for (std::jthread& loader : loaders_) loader.request_stop();
  loaders_.clear();
}

AdapterHandle AdapterStore::acquire(const AdapterKey& key) {
  collect_finished();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    // A failed load is kept for those who still wait for it; the next request tries again in a slot of its own.
    const bool failed = slot.status.state == AdapterState::kFailed;
    if (slot.key != key || slot.key.id.empty() || failed) continue;
    ++slot.pins;
    slot.last_use = ++clock_;
    return {.slot = static_cast<std::int32_t>(i)};
  }
  const std::int32_t index = free_slot();
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  slot = Slot{.key = key, .pins = 1, .last_use = ++clock_, .status = {}, .weights = nullptr};
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({.slot = index, .key = key, .result = std::nullopt});
  }
  work_.notify_one();
  return {.slot = index};
}

std::int32_t AdapterStore::free_slot() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].key.id.empty()) return static_cast<std::int32_t>(i);
  }
  slots_.emplace_back();
  weights_by_slot_.push_back(nullptr);
  return static_cast<std::int32_t>(slots_.size()) - 1;
}

AdapterStatus AdapterStore::status(AdapterHandle handle) {
  collect_finished();
  return slots_.at(static_cast<std::size_t>(handle.slot)).status;
}

void AdapterStore::release(AdapterHandle handle) {
  collect_finished();
  const auto index = static_cast<std::size_t>(handle.slot);
  Slot& slot = slots_.at(index);
  CHECK_GT(slot.pins, 0);
  --slot.pins;
  if (slot.pins == 0 && slot.status.state == AdapterState::kFailed) clear_slot(index);
  evict_for(0);
}

void AdapterStore::collect_finished() {
  std::vector<Load> finished;
  {
    const std::lock_guard lock(mutex_);
    if (finished_.empty()) return;
    finished.swap(finished_);
  }
  for (Load& load : finished) {
    const auto index = static_cast<std::size_t>(load.slot);
    Slot& slot = slots_[index];
    if (load.result->ok() && load.result->value().num_bytes() > options_.budget_bytes) {
      load.result = Error{.code = ErrorCode::kAdapterInvalid,
                          .message = fmt::format("adapter {} needs {} bytes, the whole budget is {}", load.key.id,
                                                 load.result->value().num_bytes(), options_.budget_bytes)};
    }
    if (!load.result->ok()) {
      slot.status = {.state = AdapterState::kFailed, .error = load.result->error(), .modules = 0};
      if (slot.pins == 0) clear_slot(index);
      continue;
    }
    evict_for(load.result->value().num_bytes());
    slot.weights = std::make_unique<AdapterWeights>(std::move(load.result->value()));
    // Each load is another identity: the files may have changed since the last one.
    slot.status = {.state = AdapterState::kReady,
                   .error = std::nullopt,
                   .modules = slot.weights->num_modules(),
                   .identity = {.high = 0, .low = ++num_loads_}};
    weights_by_slot_[index] = slot.weights.get();
    used_bytes_ += slot.weights->num_bytes();
    num_loaded_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Pinned adapters stay whatever they weigh: they are in use, and admission is what bounds them.
void AdapterStore::evict_for(std::int64_t wanted_bytes) {
  while (used_bytes() + wanted_bytes > options_.budget_bytes || num_loaded() > options_.max_adapters) {
    std::size_t oldest = slots_.size();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].weights == nullptr || slots_[i].pins > 0) continue;
      if (oldest == slots_.size() || slots_[i].last_use < slots_[oldest].last_use) oldest = i;
    }
    if (oldest == slots_.size()) return;
    spdlog::debug("adapter {} leaves memory", slots_[oldest].key.id);
    clear_slot(oldest);
  }
}

void AdapterStore::clear_slot(std::size_t index) {
  if (slots_[index].weights != nullptr) {
    used_bytes_ -= slots_[index].weights->num_bytes();
    num_loaded_.fetch_sub(1, std::memory_order_relaxed);
  }
  slots_[index] = Slot();
  weights_by_slot_[index] = nullptr;
}

Result<AdapterWeights> AdapterStore::fetch_and_load(const AdapterKey& key) {
  try {
    const Result<std::filesystem::path> folder = source_.fetch(key);
    if (!folder.ok()) return folder.error();
    Result<AdapterWeights> loaded = load_adapter(folder.value(), targets_, host_allocator());
    if (!loaded.ok()) return loaded.error();
    return std::move(loaded.value()).on_device(backend_);
  } catch (const std::exception& error) {
    // Want of memory, a folder that vanishes while it is listed: the trouble of one request. An exception that left
    // the loader's thread would end the process.
    return Error{.code = ErrorCode::kAdapterInvalid,
                 .message = fmt::format("adapter {} cannot be loaded: {}", key.id, error.what())};
  }
}

void AdapterStore::loader_loop(const std::stop_token& stop) {
  for (;;) {
    Load load;
    {
      std::unique_lock lock(mutex_);
      if (!work_.wait(lock, stop, [this] { return !waiting_.empty(); })) return;
      load = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const auto start = std::chrono::steady_clock::now();
    load.result = fetch_and_load(load.key);
    const std::chrono::duration<double, std::milli> elapsed_ms = std::chrono::steady_clock::now() - start;
    if (load.result->ok()) {
      const std::int64_t modules = load.result->value().num_modules();
      spdlog::info("adapter {}: {} of {} modules matched, {} bytes, {:.1f} ms", load.key.id, modules, modules,
                   load.result->value().num_bytes(), elapsed_ms.count());
    } else {
      spdlog::warn("adapter {} refused: {}", load.key.id, load.result->error().message);
    }
    {
      const std::lock_guard lock(mutex_);
      finished_.push_back(std::move(load));
    }
    wakeup_.notify();
  }
}

}  // namespace shoal
