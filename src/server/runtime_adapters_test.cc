#include "server/runtime_adapters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace shoal {
namespace {

using Added = RuntimeAdapters::Added;
using Replace = RuntimeAdapters::Replace;

struct Names {
  explicit Names(std::int64_t max_of_tenant = 3)
      : adapters(max_of_tenant, [this](const AdapterKey& key) { forgotten.push_back(key.id); }) {}

  Added add(const std::string& tenant, const std::string& name, const std::string& id, Replace replace = Replace::kNo) {
    const AdapterKey target{.id = id};
    return adapters.add(tenant, name, {.target = target, .lease = adapters.lease(target)}, replace);
  }
  std::string target_of(const std::string& tenant, const std::string& name) const {
    const auto found = adapters.find(tenant, name);
    return found ? found->target.id : "";
  }

  std::vector<std::string> forgotten;
  RuntimeAdapters adapters;
};

TEST(RuntimeAdapters, ANameIsItsTenantsOwn) {
  Names names;
  EXPECT_EQ(names.add("key/a", "x", "one"), Added::kAdded);
  EXPECT_EQ(names.add("key/b", "x", "two"), Added::kAdded);
  EXPECT_EQ(names.target_of("key/a", "x"), "one");
  EXPECT_EQ(names.target_of("key/b", "x"), "two");
  EXPECT_EQ(names.target_of("", "x"), "");
  EXPECT_FALSE(names.adapters.remove("header/a", "x"));
  EXPECT_TRUE(names.adapters.remove("key/b", "x"));
  EXPECT_FALSE(names.adapters.remove("key/b", "x"));
  EXPECT_EQ(names.target_of("key/a", "x"), "one");
  EXPECT_EQ(names.adapters.list("key/a").size(), 1U);
  EXPECT_TRUE(names.adapters.list("key/b").empty());
}

TEST(RuntimeAdapters, ATakenNameIsReplacedOnlyWhereThatIsAskedFor) {
  Names names;
  names.add("t", "x", "one");
  EXPECT_EQ(names.adapters.would_add("t", "x", Replace::kNo), Added::kNameTaken);
  EXPECT_EQ(names.add("t", "x", "two"), Added::kNameTaken);
  EXPECT_EQ(names.target_of("t", "x"), "one");
  EXPECT_EQ(names.add("t", "x", "two", Replace::kYes), Added::kAdded);
  EXPECT_EQ(names.target_of("t", "x"), "two");
  EXPECT_EQ(names.add("t", "new", "two", Replace::kYes), Added::kAdded) << "there is nothing to replace";
}

TEST(RuntimeAdapters, ATenantHasSoManyNamesAndOthersHaveTheirs) {
  Names names(2);
  EXPECT_EQ(names.add("key/a", "1", "one"), Added::kAdded);
  EXPECT_EQ(names.add("key/a", "2", "one"), Added::kAdded);
  EXPECT_EQ(names.add("key/a", "3", "one"), Added::kTooMany);
  EXPECT_EQ(names.add("key/a", "2", "two", Replace::kYes), Added::kAdded) << "no name more";
  EXPECT_EQ(names.add("key/b", "3", "one"), Added::kAdded);
  EXPECT_TRUE(names.adapters.remove("key/a", "1"));
  EXPECT_EQ(names.add("key/a", "3", "one"), Added::kAdded);
}

TEST(RuntimeAdapters, TenantsThatAnybodyCanMakeUpShareALimit) {
  Names names(1);
  for (std::int64_t i = 0; i < RuntimeAdapters::kMaxOfOpenTenants; ++i) {
    ASSERT_EQ(names.add("header/" + std::to_string(i), "x", "one"), Added::kAdded);
  }
  EXPECT_EQ(names.add("header/other", "x", "one"), Added::kTooMany);
  EXPECT_EQ(names.add("", "x", "one"), Added::kTooMany);
  EXPECT_EQ(names.add("key/a", "x", "one"), Added::kAdded);
  EXPECT_TRUE(names.adapters.remove("header/0", "x"));
  EXPECT_EQ(names.add("", "x", "one"), Added::kAdded);
}

TEST(RuntimeAdapters, MemoryIsGivenBackWithTheLastUse) {
  Names names;
  names.add("a", "x", "one");
  names.add("b", "y", "one");
  AdapterLease request = names.adapters.find("a", "x")->lease;
  names.adapters.remove("a", "x");
  names.adapters.remove("b", "y");
  EXPECT_TRUE(names.forgotten.empty()) << "a request runs";
  request.reset();
  EXPECT_EQ(names.forgotten, (std::vector<std::string>{"one"}));
  names.add("a", "x", "one");
  names.add("a", "x", "two", Replace::kYes);
  EXPECT_EQ(names.forgotten, (std::vector<std::string>{"one", "one"}));
}

TEST(RuntimeAdapters, WhatOthersUseByItsIdIsNotForgotten) {
  Names names;
  names.adapters.note_direct_use({.id = "one"});
  names.add("a", "x", "one");
  names.add("a", "y", "two");
  names.adapters.note_direct_use({.id = "one"});
  names.adapters.remove("a", "x");
  names.adapters.remove("a", "y");
  EXPECT_EQ(names.forgotten, (std::vector<std::string>{"two"}));
}

TEST(RuntimeAdapters, ALeaseMayOutliveThem) {
  AdapterLease lease;
  int forgotten = 0;
  {
    RuntimeAdapters adapters(1, [&](const AdapterKey&) { ++forgotten; });
    lease = adapters.lease({.id = "one"});
  }
  EXPECT_EQ(forgotten, 0);
  lease.reset();
  EXPECT_EQ(forgotten, 1);
}

TEST(RuntimeAdapters, ServesSeveralThreads) {
  std::atomic<int> forgotten{0};
  RuntimeAdapters adapters(1000, [&](const AdapterKey&) { ++forgotten; });
  const auto work = [&](int thread) {
    for (int i = 0; i < 300; ++i) {
      const std::string name = std::to_string(i % 7);
      const AdapterKey target{.id = std::to_string((i + thread) % 5)};
      adapters.add("t", name, {.target = target, .lease = adapters.lease(target)}, Replace::kYes);
      const auto found = adapters.find("t", name);
      EXPECT_TRUE(!found || found->lease != nullptr);
      adapters.note_direct_use({.id = "other"});
      adapters.remove("t", std::to_string((i + 3) % 7));
      adapters.list("t");
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
  }
  for (const auto& [name, target] : adapters.list("t")) EXPECT_TRUE(adapters.remove("t", name));
  EXPECT_GE(forgotten.load(), 5);
  EXPECT_EQ(adapters.would_add("t", "0", Replace::kNo), Added::kAdded);
}

}  // namespace
}  // namespace shoal
