// DrawnCase: a drawn model, its adapters and a batch of sequences, in a temporary folder; LoadedCase: the same in an
// engine. Used by the property test.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/model_engine.h"
#include "engine/teacher_forcing.h"
#include "parity/drawn_adapter.h"
#include "parity/drawn_model.h"

namespace shoal {

constexpr std::int64_t kShortDrawnSequence = 40;

struct DrawnSequence {
  std::vector<std::int64_t> input_ids;
  int adapter = -1;  // index into DrawnCase::adapters, -1 = base
};

struct DrawnCase {
  DrawnCase(DrawnFamily family, std::uint64_t seed);
  ~DrawnCase();
  DrawnCase(const DrawnCase&) = delete;
  DrawnCase& operator=(const DrawnCase&) = delete;

  // Whether one sequence may be longer than kShortDrawnSequence: in one case of ten, since each runs many times.
  bool has_long() const { return seed % 10 == 3; }
  // The model with the first adapter merged, written on the first call.
  std::string merged_folder();
  // Positions in `batch` of the sequences that are not longer than this.
  std::vector<std::size_t> up_to_tokens(std::int64_t tokens) const;
  // Seed, model, adapters and lengths, for failure messages.
  std::string describe() const;

  std::uint64_t seed;
  Draw draw;
  DrawnModel model;
  std::vector<DrawnAdapter> adapters;  // the first is used by the first sequence at least
  std::vector<DrawnSequence> batch;
  std::string folder;  // removed with the case
};

class LoadedCase {
 public:
  // Loads `drawn` from `folder` (its own, or the merged one, which has no adapters). `backend` outlives it.
  LoadedCase(const DrawnCase& drawn, const std::string& folder, const Backend& backend, DType dtype);

  // Logits [tokens, vocab] of each chosen sequence of the batch, all run as one batch.
  std::vector<std::vector<float>> run(const std::vector<std::size_t>& chosen, TeacherForcingOptions options = {});

 private:
  class FolderSource final : public AdapterSource {
   public:
    explicit FolderSource(std::string folder) : folder_(std::move(folder)) {}
    Result<std::filesystem::path> fetch(const AdapterKey& key) override {
      return std::filesystem::path(folder_) / key.id;
    }
    AdapterVersion version(const AdapterKey& key) override {
      return version_of_folder(std::filesystem::path(folder_) / key.id);
    }

   private:
    std::string folder_;
  };

  const DrawnCase& drawn_;
  FolderSource source_;
  Wakeup wakeup_;
  ModelEngine engine_;
  std::vector<std::int32_t> slots_;  // by adapter; empty for the merged model
};

}  // namespace shoal
