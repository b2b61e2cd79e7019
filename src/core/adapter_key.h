// AdapterKey: how a request names an adapter. Travels from server/ through scheduler/ and engine/ to its AdapterSource.
// AdapterVersion: what its files looked like when they were asked for. AdapterIdentity: which weights they turned out
// to be. Both made by lora/; the identity is part of the prefix cache's key.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/adapter_merge.h"

namespace shoal {

// What a request names. Equal keys are the same adapter.
struct AdapterKey {
  std::string source = "local";  // "local", "hub" or "s3"
  std::string id;                // of a merge: those of its members, joined by commas
  std::string api_token = {};    // a secret: what the request may read is the hub's to say; "" with other sources
  std::optional<AdapterMerge> merge = {};

  bool operator==(const AdapterKey&) const = default;
};

// Equal names are equal keys, and no others. Holds the token: for maps in memory, never for logs.
std::string name_of(const AdapterKey& key);

// A merge that takes far longer than a load.
bool is_slow(const AdapterKey& key);

// The key of a merge's member, found where the merge's is.
AdapterKey member_key(const AdapterKey& key, std::size_t index);

// Another signature of one key means that its files were replaced.
struct AdapterVersion {
  std::uint64_t signature = 0;
  std::int64_t file_bytes = 0;  // at least what the adapter takes in memory; 0: not known

  bool operator==(const AdapterVersion&) const = default;
};

// Equal identities are the same weights, bit for bit; all zeros is the base model. One key may stand for several in
// turn, when its files are replaced.
struct AdapterIdentity {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  std::strong_ordering operator<=>(const AdapterIdentity&) const = default;
};

}  // namespace shoal
