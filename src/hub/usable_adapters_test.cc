#include "hub/usable_adapters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::string>;

class UsableAdaptersTest : public testing::Test {
 protected:
  UsableAdaptersTest() {
    root_ = fs::temp_directory_path() / ("shoal_usable_adapters_" + std::to_string(getpid()));
    fs::remove_all(root_);
    for (const char* id : {"alpha", "bad", "org/beta"}) {
      fs::create_directories(root_ / id);
      std::ofstream(root_ / id / "adapter_config.json") << "{}";
    }
  }
  ~UsableAdaptersTest() override { fs::remove_all(root_); }

  UsableAdapters::Check refuse_bad() {
    return [this](const fs::path& folder) -> Status {
      ++num_checks_;
      if (folder.filename() == "bad" && !fs::exists(folder / "adapter_model.safetensors")) {
        return Error{ErrorCode::kAdapterInvalid, "no weights"};
      }
      return Ok{};
    };
  }

  fs::path root_;
  int num_checks_ = 0;
};

TEST_F(UsableAdaptersTest, LeavesOutWhatTheCheckRefusesUntilItsFilesChange) {
  LocalSource source(root_);
  UsableAdapters adapters(source, refuse_bad());
  EXPECT_EQ(adapters.list(), (Ids{"alpha", "org/beta"}));
  EXPECT_EQ(adapters.list(), (Ids{"alpha", "org/beta"}));
  EXPECT_EQ(num_checks_, 3) << "what has not changed is not checked again";
  std::ofstream(root_ / "bad" / "adapter_model.safetensors") << "weights";
  EXPECT_EQ(adapters.list(), (Ids{"alpha", "bad", "org/beta"}));
  EXPECT_EQ(num_checks_, 4);
  fs::remove_all(root_ / "alpha");
  EXPECT_EQ(adapters.list(), (Ids{"bad", "org/beta"}));
}

TEST_F(UsableAdaptersTest, WhatIsNotReachedInTimeIsListedUntilItIs) {
  LocalSource source(root_);
  UsableAdapters hurried(source, refuse_bad(), std::chrono::milliseconds(0));
  EXPECT_EQ(hurried.list(), (Ids{"alpha", "bad", "org/beta"}));
  EXPECT_EQ(num_checks_, 0);
}

TEST_F(UsableAdaptersTest, LeavesOutAFolderWhoseFilesLieOutside) {
  fs::create_symlink("/etc/hostname", root_ / "alpha" / "adapter_model.safetensors");
  LocalSource source(root_);
  UsableAdapters adapters(source, refuse_bad());
  EXPECT_EQ(adapters.list(), (Ids{"org/beta"}));
}

}  // namespace
}  // namespace shoal
