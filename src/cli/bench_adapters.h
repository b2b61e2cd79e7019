// BenchAdapters: random adapters for `shoal bench`, written as PEFT folders and loaded by the road that serves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"

namespace shoal {

struct BenchAdapterOptions {
  std::int64_t count = 0;
  std::int64_t rank = 16;
  std::string targets = "all";  // all linear layers but the head, or qkv
  std::int64_t spares = 0;      // more of them, which no row uses
};

// A folder of its own, gone with this.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class BenchAdapters {
 public:
  // Throws StartError when a folder cannot be written or loaded.
  BenchAdapters(Session& session, const BenchAdapterOptions& options);

  const std::vector<std::int32_t>& slots() const { return slots_; }
  // Bytes of adapters that a decode step of this many rows reads: each adapter in the batch once.
  double bytes_read(std::int64_t batch) const;
  double bytes_each() const { return bytes_each_; }
  const std::vector<AdapterKey>& spares() const { return spares_; }

 private:
  TemporaryFolder folder_;
  std::vector<AdapterKey> spares_;
  std::vector<std::int32_t> slots_;
  double bytes_each_ = 0.0;
};

// Brings spare adapters to the device, one after the other, while steps go on. With room for one of them each is a new
// upload from host memory.
class AdapterExchange {
 public:
  AdapterExchange(ModelEngine& engine, const std::vector<AdapterKey>& spares) : engine_(engine), spares_(spares) {}
  ~AdapterExchange();
  AdapterExchange(const AdapterExchange&) = delete;
  AdapterExchange& operator=(const AdapterExchange&) = delete;

  // Between steps: asks for the next one when the last is there. Throws StartError where one is refused.
  void turn();

 private:
  ModelEngine& engine_;
  const std::vector<AdapterKey>& spares_;
  std::optional<AdapterTicket> ticket_;
  std::int64_t next_ = 0;
};

}  // namespace shoal
