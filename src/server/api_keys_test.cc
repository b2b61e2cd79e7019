#include "server/api_keys.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/result.h"
#include "core/test_patience.h"
#include "server/test_folder.h"

namespace shoal {
namespace {

using test::eventually;
using test::TestFolder;

bool allows(const std::string& rule, const std::string& id, const std::string& source = "local") {
  return AdapterRules({AdapterRules::parse_rule(rule, "local")}).allow(source, id);
}

TEST(AdapterRules, MatchIdsOfTheirSourceAlone) {
  EXPECT_TRUE(allows("sql", "sql"));
  EXPECT_FALSE(allows("sql", "sql-2"));
  EXPECT_TRUE(allows("acme/*", "acme/sql"));
  EXPECT_TRUE(allows("acme/*", "acme/sql/v2"));
  EXPECT_FALSE(allows("acme/*", "acme"));
  EXPECT_FALSE(allows("acme/*", "acme2/sql"));
  EXPECT_TRUE(allows("v?", "v1"));
  EXPECT_FALSE(allows("acme/*", "acme/sql", "hub")) << "a name of the folder is not the hub's";
  EXPECT_TRUE(allows("hub:acme/*", "acme/sql", "hub"));
  EXPECT_FALSE(allows("hub:acme/*", "acme/sql"));
  EXPECT_TRUE(allows("s3:s3://bucket/*", "s3://bucket/a", "s3"));
  EXPECT_TRUE(allows("s3:bucket/*", "bucket/a", "s3"));
  EXPECT_TRUE(AdapterRules({AdapterRules::parse_rule("s3://bucket/*", "s3")}).allow("s3", "s3://bucket/a"));
  EXPECT_FALSE(AdapterRules({}).allow("local", "sql"));
}

TEST(AdapterRules, AllowNoDetours) {
  for (const char* id : {"acme/../beta/sql", "acme/./sql", "acme//sql", "acme/sql/", "acme/..", "/acme/sql", "",
                         "acme/sql,beta/sql", "s3://acme/../beta"}) {
    EXPECT_FALSE(allows("*", id)) << id;
  }
  EXPECT_FALSE(allows("*", std::string("acme\0x", 6)));
  EXPECT_TRUE(allows("*", "acme/..sql"));
}

// The file's keys, or what is wrong with it.
std::string fault_of(const TestFolder& dir, const std::string& text) {
  dir.write("keys.json", text);
  try {
    read_api_key_file(dir.path() / "keys.json", "local");
  } catch (const StartError& error) {
    EXPECT_EQ(std::string(error.what()).find("s3cr3t"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("keys.json"), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

std::string entry(const std::string& fields) { return R"({"keys":[{"key":"k","tenant":"t"},{)" + fields + "}]}"; }

TEST(ApiKeyFile, NamesWhatIsWrongAndNoKey) {
  const TestFolder dir;
  const std::pair<std::string, std::string> faults[] = {
      {"", "no JSON"},
      {R"({"keys":[{"key":"s3cr3t")", "no JSON"},
      {"[]", R"(expected {"keys": [...]})"},
      {R"({"keys":{}})", R"(expected {"keys": [...]})"},
      {R"({"keys":[],"s3cr3t":1})", "nothing else"},
      {R"({"keys":["s3cr3t"]})", "key 1 is no object"},
      {entry(R"("tenant":"a")"), "key 2 has both or neither of `key` and `sha256`"},
      {entry(R"("tenant":"a","key":"s3cr3t","sha256":"00")"), "both or neither"},
      {entry(R"("tenant":"a","key":5)"), "`key` is no text"},
      {entry(R"("tenant":"a","key":"s3cr3t s3cr3t")"), "`key` must be 1 to 512 visible"},
      {entry(R"("tenant":"a","sha256":"00")"), "`sha256` must be 64 digits"},
      {entry(R"("key":"s3cr3t")"), "`tenant` must be 1 to 128 visible"},
      {entry(R"("key":"s3cr3t","tenant":"a b")"), "`tenant` must be 1 to 128 visible"},
      {entry(R"("key":"s3cr3t","tenant":"a","adapter":["x"])"), "has a field that is none of: key, sha256, tenant"},
      {entry(R"("key":"s3cr3t","tenant":"a","adapters":"x")"), "`adapters` is no array of texts"},
      {entry(R"("key":"s3cr3t","tenant":"a","adapters":[""])"), "`adapters` must hold patterns"},
      {entry(R"("key":"s3cr3t","tenant":"a","adapters":[5])"), "`adapters` is no array of texts"},
      {entry(R"("key":"s3cr3t","tenant":"a","expires":"tomorrow")"), "`expires` must be a time such as"},
      {entry(R"("key":"s3cr3t","tenant":"a","expires":"2027-02-31T00:00:00Z")"), "`expires` must be a time such as"},
      {entry(R"("key":"s3cr3t","tenant":"a","expires":"2027-01-31T00:00:00Zz")"), "`expires` must be a time such as"},
      {entry(R"("key":"k","tenant":"other")"), "key 2 stands there twice"},
  };
  for (const auto& [text, named] : faults) {
    const std::string fault = fault_of(dir, text);
    EXPECT_NE(fault.find(named), std::string::npos) << text << "\n" << fault;
  }
  std::filesystem::remove(dir.path() / "keys.json");
  EXPECT_THROW(read_api_key_file(dir.path() / "keys.json", "local"), StartError);
  EXPECT_THROW(read_api_key_file(dir.path(), "local"), StartError) << "a folder";
}

TEST(ApiKeyFile, HoldsKeysOrTheirDigests) {
  const TestFolder dir;
  dir.write("keys.json", R"({"keys":[
    {"key":"plain-key","tenant":"a","adapters":["sql","hub:acme/*"],"expires":"2027-01-31T12:30:00Z"},
    {"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","tenant":"b"}]})");
  const ApiKeySet keys = read_api_key_file(dir.path() / "keys.json", "local");
  EXPECT_EQ(keys.size(), 2U);
  const ApiKeyGrant* of_a = keys.find(ApiKeySet::digest_of("plain-key"));
  ASSERT_NE(of_a, nullptr);
  EXPECT_EQ(of_a->tenant, "key/a");
  EXPECT_TRUE(of_a->adapters->allow("local", "sql"));
  EXPECT_TRUE(of_a->adapters->allow("hub", "acme/x"));
  EXPECT_FALSE(of_a->adapters->allow("local", "acme/x"));
  EXPECT_EQ(std::chrono::system_clock::to_time_t(of_a->expires.value()), 1801398600);
  const ApiKeyGrant* of_b = keys.find(ApiKeySet::digest_of("abc"));  // FIPS 180-2, B.1
  ASSERT_NE(of_b, nullptr);
  EXPECT_EQ(of_b->tenant, "key/b");
  EXPECT_EQ(of_b->adapters, nullptr);
  EXPECT_FALSE(of_b->expires);
  EXPECT_EQ(keys.find(ApiKeySet::digest_of("")), nullptr);
  EXPECT_EQ(keys.find(ApiKeySet::digest_of("plain-ke")), nullptr);
}

std::string file_of(const std::string& key) { return R"({"keys":[{"key":")" + key + R"(","tenant":"t"}]})"; }

TEST(ApiKeys, FollowTheFileAndKeepWhatTheyHaveWhereItIsBroken) {
  const TestFolder dir;
  const std::filesystem::path path = dir.path() / "keys.json";
  dir.write("keys.json", file_of("first"));
  ApiKeys::Options options{.file = path, .poll_interval = std::chrono::milliseconds(1)};
  options.fixed.add(ApiKeySet::digest_of("of-the-flags"), {});
  const ApiKeys keys(std::move(options));
  EXPECT_TRUE(keys.find("first"));
  EXPECT_FALSE(keys.find("other"));

  dir.write("keys.json", file_of("other"));  // of the same length
  EXPECT_TRUE(eventually([&] { return keys.find("other").has_value(); }));
  EXPECT_FALSE(keys.find("first"));
  EXPECT_TRUE(keys.find("of-the-flags"));

  dir.write("new.json", file_of("third"));  // as Kubernetes and careful people replace files
  std::filesystem::rename(dir.path() / "new.json", path);
  EXPECT_TRUE(eventually([&] { return keys.find("third").has_value(); }));

  const std::int64_t failed_before = keys.num_failed_reads();
  dir.write("keys.json", "{");
  EXPECT_TRUE(eventually([&] { return keys.num_failed_reads() > failed_before; }));
  std::filesystem::remove(path);
  EXPECT_TRUE(eventually([&] { return keys.num_failed_reads() > failed_before + 1; }));
  EXPECT_TRUE(keys.find("third"));
  dir.write("keys.json", R"({"keys":[]})");
  EXPECT_TRUE(eventually([&] { return !keys.find("third"); })) << "all may be taken back";
  EXPECT_TRUE(keys.asked_for());
}

TEST(ApiKeys, AreNotAskedForWhereThereAreNone) { EXPECT_FALSE(ApiKeys({}).asked_for()); }

}  // namespace
}  // namespace shoal
