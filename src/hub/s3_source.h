// S3Source: adapters in buckets of S3 or of what speaks its protocol, fetched with the server's own credentials. Made
// by cli/, asked by AdapterSources.
#pragma once

#include <string>

#include "hub/snapshot_fetch.h"
#include "lora/adapter_source.h"

namespace shoal {

struct S3Options {
  RemoteOptions remote;  // patterns of "bucket/folder"; none: what lies in `bucket` below `folder`
  std::string endpoint;  // "": AWS in the region of the credentials; else buckets are steps of its paths
  std::string bucket;    // of ids that name none; may be empty
  std::string folder;    // in that bucket, before the id; may be empty
  AwsCredentials credentials;
};

// Where an adapter lies: "bucket" and "folder/of/it", the folder without slashes at its ends.
struct S3Place {
  std::string bucket;
  std::string folder;
};

// "s3://bucket/folder", else "folder" below the options' bucket, else "bucket/folder".
Result<S3Place> parse_s3_id(const std::string& id, const S3Options& options);

// Safe to use from several threads at once.
class S3Source final : public AdapterSource {
 public:
  // `cache` and `client` outlive this. StartError for an endpoint that is no http or https URL, and where neither a
  // bucket nor patterns say what requests may read.
  S3Source(S3Options options, SnapshotCache& cache, const HttpClient& client);

  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override;

 private:
  struct Ask;
  Status check_allowed(const std::string& id, const S3Place& place) const;
  std::string url_of(const S3Place& place, const std::string& name) const;
  HttpCall call_of(const Ask& ask, HttpMethod method, const std::string& name) const;
  Error explain(const Ask& ask, const HttpReply& reply) const;
  Result<std::filesystem::path> from_cache(const Ask& ask, Error error);

  const S3Options options_;
  SnapshotCache& cache_;
  const HttpClient& client_;
};

}  // namespace shoal
