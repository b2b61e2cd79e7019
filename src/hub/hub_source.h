// HubSource: adapters of a Hugging Face hub, fetched into a cache that other programs share. Made by cli/, asked by
// AdapterSources.
#pragma once

#include <optional>
#include <string>

#include "hub/snapshot_fetch.h"
#include "lora/adapter_source.h"

namespace shoal {

struct HubOptions {
  RemoteOptions remote;  // no patterns: any repository
  std::string endpoint = "https://huggingface.co";
  std::string token;  // this server's own; ""
  // Adapters that requests without a token read with this server's: what whoever runs it named. Others are read as the
  // public reads them, unless the token is for all.
  std::vector<std::string> token_ids = {};
  bool token_for_all = false;
};

// "org/name" or "org/name@revision"; a revision is a branch, a tag or a commit.
struct HubId {
  std::string repo;
  std::string revision = "main";
  std::string folder() const;  // "models--org--name"
};
Result<HubId> parse_hub_id(const std::string& id);

// Safe to use from several threads at once. Every fetch asks the hub whether the token at hand may read the repository,
// and what its revision stands for now; only while the hub cannot be reached (or offline) does the cache answer alone,
// to those who were allowed before.
class HubSource final : public AdapterSource {
 public:
  // `cache` and `client` outlive this. StartError where the endpoint is no http or https URL.
  HubSource(HubOptions options, SnapshotCache& cache, const HttpClient& client);

  Result<std::filesystem::path> fetch(const AdapterKey& key) override;
  AdapterVersion version(const AdapterKey& key) override;

 private:
  struct Ask;
  std::string own_token(const std::string& id) const;
  HttpReply head(const Ask& ask, const std::string& revision, const std::string& name) const;
  HttpReply get(const Ask& ask, const std::string& commit, const RemoteFile& file,
                const std::vector<std::string>& headers, const DownloadJob::Sink& sink) const;
  std::string url_of(const Ask& ask, const std::string& revision, const std::string& name) const;
  Result<RemoteFile> describe(const Ask& ask, const HttpReply& reply, const std::string& name) const;
  Error explain(const Ask& ask, const HttpReply& reply) const;
  Result<std::filesystem::path> from_cache(const Ask& ask, const std::string& why);

  const HubOptions options_;
  SnapshotCache& cache_;
  const HttpClient& client_;
  std::string origin_;
};

}  // namespace shoal
