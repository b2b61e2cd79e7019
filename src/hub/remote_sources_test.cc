// What remote sources do without a server: ids, addresses, and who is asked. The rest is in tests/e2e.
#include <gtest/gtest.h>
#include <unistd.h>

#include "hub/adapter_sources.h"
#include "hub/http_client.h"
#include "hub/hub_source.h"
#include "hub/s3_source.h"
#include "hub/sha256.h"

namespace shoal {
namespace {

TEST(EscapeUrl, KeepsWhatRfc3986DoesNotReserve) {
  EXPECT_EQ(escape_url("aZ09-._~", Slashes::kEscape), "aZ09-._~");
  EXPECT_EQ(escape_url("a/b c+d%", Slashes::kKeep), "a/b%20c%2Bd%25");
  EXPECT_EQ(escape_url("refs/pr/1", Slashes::kEscape), "refs%2Fpr%2F1");
  EXPECT_EQ(escape_url("\xC3\xBC?#&=:@", Slashes::kKeep), "%C3%BC%3F%23%26%3D%3A%40");
}

TEST(OriginOf, NamesSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Hub.Example/a?b"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://hub.example:8080"), "http://hub.example:8080");
  EXPECT_EQ(origin_of("http://hub.example"), "http://hub.example:80");
  for (const char* none : {"", "hub", "ftp://hub.example", "file:///etc/passwd", "https://"}) {
    EXPECT_FALSE(origin_of(none)) << none;
  }
}

TEST(ResolveRedirect, FollowsWhereHttpMayLead) {
  const std::string base = "https://hub.example/org/name/resolve/main/x";
  EXPECT_EQ(resolve_redirect(base, "/org/new/resolve/main/x"), "https://hub.example/org/new/resolve/main/x");
  EXPECT_EQ(resolve_redirect(base, "https://cdn.example/x?Signature=a%2Fb"), "https://cdn.example/x?Signature=a%2Fb");
  EXPECT_EQ(resolve_redirect(base, "//cdn.example/x"), "https://cdn.example/x");
  EXPECT_EQ(resolve_redirect("http://a/x", "http://b/y"), "http://b/y");
  for (const char* none :
       {"http://cdn.example/x", "file:///etc/passwd", "ftp://a/b", "https://user:secret@cdn.example/x"}) {
    EXPECT_FALSE(resolve_redirect(base, none)) << none;
  }
}

// FIPS 180-4's examples.
TEST(Sha256, OfKnownTexts) {
  EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HubId, IsOrganisationNameAndRevision) {
  const HubId plain = parse_hub_id("Org-1/my.adapter_2").value();
  EXPECT_EQ(plain.repo, "Org-1/my.adapter_2");
  EXPECT_EQ(plain.revision, "main");
  EXPECT_EQ(plain.folder(), "models--Org-1--my.adapter_2");
  EXPECT_EQ(parse_hub_id("a/b@refs/pr/1").value().revision, "refs/pr/1");
  EXPECT_EQ(parse_hub_id("a/b@v1.0").value().repo, "a/b");
  for (const char* bad :
       {"",       "a",        "/",      "a/",         "/b",      "a/b/c",  "../b", "a/..", "a/.b", "a b/c", "a/b@",
        "a/b@..", "a/b@x//y", "a/b@/x", "a/b@x/../y", "a/b@x@y", "a--b/c", "-a/b", "a/b-", "a/b.", "a/b?c", "a/b\n"}) {
    EXPECT_EQ(parse_hub_id(bad).error().code, ErrorCode::kAdapterInvalid) << bad;
  }
  EXPECT_FALSE(parse_hub_id(std::string(97, 'a') + "/b").ok());
}

TEST(S3Id, NamesABucketAndAFolder) {
  const S3Options none;
  EXPECT_EQ(parse_s3_id("s3://bucket/a/b", none).value().folder, "a/b");
  EXPECT_EQ(parse_s3_id("bucket/a/", none).value().bucket, "bucket");
  EXPECT_EQ(parse_s3_id("bucket/a/", none).value().folder, "a");
  S3Options own;
  own.bucket = "own-bucket";
  own.folder = "lora/";
  EXPECT_EQ(parse_s3_id("a/b", own).value().bucket, "own-bucket");
  EXPECT_EQ(parse_s3_id("a/b", own).value().folder, "lora/a/b");
  EXPECT_EQ(parse_s3_id("s3://bucket/a", own).value().bucket, "bucket");
  for (const char* bad :
       {"", "bucket", "bucket/", "s3://", "s3://bucket", "s3:///a", "BUCKET/a", "bu/a", "b..t/a", ".bu/a",
        "bucket/../a", "bucket/a/./b", "bucket/a//b", "bucket//a", "bucket/..", "bucket/a\n"}) {
    EXPECT_EQ(parse_s3_id(bad, none).error().code, ErrorCode::kAdapterInvalid) << bad;
  }
  EXPECT_FALSE(parse_s3_id("../a", own).ok());
  EXPECT_FALSE(parse_s3_id("", own).ok());
}

TEST(S3Source, DoesNotBeginWithoutLimits) {
  SnapshotCache cache("unused", 0);
  const HttpClient client({}, {});
  EXPECT_THROW(S3Source({}, cache, client), StartError);
  S3Options wrong;
  wrong.bucket = "bucket";
  wrong.endpoint = "minio:9000";
  EXPECT_THROW(S3Source(wrong, cache, client), StartError);
}

TEST(HubSource, DoesNotBeginWithAWrongAddressOrToken) {
  SnapshotCache cache("unused", 0);
  const HttpClient client({}, {});
  HubOptions wrong;
  wrong.endpoint = "hub.example";
  EXPECT_THROW(HubSource(wrong, cache, client), StartError);
  HubOptions injected;
  injected.token = "hf_x\r\nEvil: 1";
  EXPECT_THROW(HubSource(injected, cache, client), StartError);
}

// Counts what it is asked for.
class CountingSource final : public AdapterSource {
 public:
  explicit CountingSource(int& num_asked) : num_asked_(num_asked) {}
  Result<std::filesystem::path> fetch(const AdapterKey& key) override {
    ++num_asked_;
    if (key.id == "absent") return Error{ErrorCode::kAdapterNotFound, "absent"};
    return std::filesystem::path(key.source) / key.id / key.api_token;
  }
  AdapterVersion version(const AdapterKey& key) override { return {.signature = key.id.size()}; }

 private:
  int& num_asked_;
};

class AdapterSourcesTest : public testing::Test {
 protected:
  AdapterSourcesTest() { sources_.add_remote("hub", std::make_unique<CountingSource>(asked_hub_)); }
  int asked_local_ = 0;
  int asked_hub_ = 0;
  CountingSource local_{asked_local_};
  AdapterSources sources_{local_, {.folder = std::chrono::hours(1), .error = std::chrono::hours(1)}};
};

TEST_F(AdapterSourcesTest, AsksTheSourceThatTheKeyNames) {
  EXPECT_EQ(sources_.fetch({.source = "local", .id = "a"}).value(), "local/a/");
  EXPECT_EQ(sources_.fetch({.source = "hub", .id = "abc"}).value(), "hub/abc/");
  EXPECT_EQ(sources_.version({.source = "hub", .id = "abc"}).signature, 3U);
  EXPECT_EQ(sources_.fetch({.source = "s3", .id = "a"}).error().code, ErrorCode::kAdapterInvalid);
  EXPECT_EQ(sources_.version({.source = "s3", .id = "a"}), AdapterVersion());
}

TEST_F(AdapterSourcesTest, AReplyHoldsForThatTokenAlone) {
  const auto fetch = [&](const char* id, const char* token) {
    return sources_.fetch({.source = "hub", .id = id, .api_token = token});
  };
  EXPECT_EQ(fetch("a", "one").value(), fetch("a", "one").value());
  EXPECT_EQ(asked_hub_, 1);
  EXPECT_EQ(fetch("a", "two").value(), "hub/a/two");
  EXPECT_EQ(fetch("a", "").value(), "hub/a/");
  EXPECT_EQ(asked_hub_, 3);
  EXPECT_FALSE(fetch("absent", "").ok());
  EXPECT_FALSE(fetch("absent", "").ok());
  EXPECT_EQ(asked_hub_, 4) << "what is not there is not asked for again at once";
  sources_.fetch({.source = "local", .id = "a"}).value();
  sources_.fetch({.source = "local", .id = "a"}).value();
  EXPECT_EQ(asked_local_, 2) << "a disk is asked each time";
}

}  // namespace
}  // namespace shoal
