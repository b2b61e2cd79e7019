#include "hub/local_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace shoal {
namespace {

namespace fs = std::filesystem;

class LocalSourceTest : public testing::Test {
 protected:
  LocalSourceTest() {
    base_ = fs::temp_directory_path() / ("shoal_local_source_" + std::to_string(getpid()));
    fs::remove_all(base_);
    root_ = base_ / "adapters";
    make_adapter(root_ / "alpha");
    make_adapter(root_ / "org" / "beta");
    make_adapter(base_ / "secret");
    fs::create_directories(root_ / "empty");
  }
  ~LocalSourceTest() override { fs::remove_all(base_); }

  static void make_adapter(const fs::path& folder) {
    fs::create_directories(folder);
    std::ofstream(folder / "adapter_config.json") << "{}";
  }

  static Result<fs::path> fetch(LocalSource& source, const std::string& id) {
    return source.fetch({.source = "local", .id = id});
  }

  void expect_error(const std::string& id, ErrorCode code) {
    LocalSource source(root_);
    const auto fetched = fetch(source, id);
    ASSERT_FALSE(fetched.ok()) << id;
    EXPECT_EQ(fetched.error().code, code) << id << ": " << fetched.error().message;
    const bool sent = id.find(base_.string()) != std::string::npos;
    const bool told = fetched.error().message.find(base_.string()) != std::string::npos;
    EXPECT_EQ(told, sent) << fetched.error().message;
  }

  fs::path base_;
  fs::path root_;
};

TEST_F(LocalSourceTest, FindsFoldersOneAndTwoLevelsDeep) {
  LocalSource source(root_);
  EXPECT_EQ(fetch(source, "alpha").value(), fs::canonical(root_ / "alpha"));
  EXPECT_EQ(fetch(source, "org/beta").value(), fs::canonical(root_ / "org/beta"));
  EXPECT_EQ(fetch(source, "alpha/").value(), fs::canonical(root_ / "alpha"));
  EXPECT_EQ(fetch(source, "org/../alpha").value(), fs::canonical(root_ / "alpha"));
}

TEST_F(LocalSourceTest, TakesAnAbsolutePathInsideTheRoot) {
  LocalSource source(root_);
  EXPECT_TRUE(fetch(source, (root_ / "alpha").string()).ok());
}

TEST_F(LocalSourceTest, RefusesWhatLeadsOutsideWhetherItExistsOrNot) {
  for (const std::string id : {"../secret", "../nothing", "alpha/../../secret", "/etc", "/nothing", ".", "..", "/"}) {
    expect_error(id, ErrorCode::kAdapterInvalid);
  }
  expect_error((base_ / "secret").string(), ErrorCode::kAdapterInvalid);
}

TEST_F(LocalSourceTest, DoesNotTakeASiblingWithTheSamePrefixForTheRoot) {
  make_adapter(base_ / "adapters-private");
  expect_error("../adapters-private", ErrorCode::kAdapterInvalid);
}

TEST_F(LocalSourceTest, ResolvesSymbolicLinksFirst) {
  fs::create_directory_symlink(base_ / "secret", root_ / "link-out");
  fs::create_directory_symlink(root_ / "alpha", root_ / "link-in");
  expect_error("link-out", ErrorCode::kAdapterInvalid);
  LocalSource source(root_);
  EXPECT_EQ(fetch(source, "link-in").value(), fs::canonical(root_ / "alpha"));
}

TEST_F(LocalSourceTest, RefusesAFolderWhoseFilesLieOutside) {
  fs::create_symlink("/etc/hostname", root_ / "alpha" / "adapter_model.safetensors");
  expect_error("alpha", ErrorCode::kAdapterInvalid);
}

TEST_F(LocalSourceTest, TellsMissingFromInvalid) {
  expect_error("nothing", ErrorCode::kAdapterNotFound);
  expect_error("empty", ErrorCode::kAdapterNotFound);
  expect_error("", ErrorCode::kAdapterInvalid);
  expect_error(std::string("al\0pha", 6), ErrorCode::kAdapterInvalid);
  expect_error(std::string(513, 'a'), ErrorCode::kAdapterInvalid);
  expect_error("alpha/adapter_config.json", ErrorCode::kAdapterInvalid);
  // A name longer than any file system takes.
  expect_error(std::string(400, 'a'), ErrorCode::kAdapterInvalid);
}

TEST_F(LocalSourceTest, ServesNoOtherSource) {
  LocalSource source(root_);
  EXPECT_EQ(source.fetch({.source = "hub", .id = "alpha"}).error().code, ErrorCode::kAdapterInvalid);
}

TEST_F(LocalSourceTest, WithoutARootServesNothing) {
  LocalSource source("");
  EXPECT_EQ(fetch(source, "alpha").error().code, ErrorCode::kAdapterInvalid);
  EXPECT_TRUE(source.list().empty());
}

TEST_F(LocalSourceTest, ARootThatIsNoFolderCannotStart) {
  EXPECT_THROW(LocalSource source(base_ / "nowhere"), StartError);
  EXPECT_THROW(LocalSource source(root_ / "alpha" / "adapter_config.json"), StartError);
}

TEST_F(LocalSourceTest, ListsAdaptersOfBothLevelsAndNothingElse) {
  fs::create_directory_symlink(base_ / "secret", root_ / "link-out");
  make_adapter(root_ / ".hidden");
  make_adapter(root_ / "a" / "b" / "too-deep");
  const LocalSource source(root_);
  EXPECT_EQ(source.list(), (std::vector<std::string>{"alpha", "org/beta"}));
}

}  // namespace
}  // namespace shoal
