// AdapterKey: how a request names an adapter. Travels from server/ through scheduler/ and engine/ to its AdapterSource.
#pragma once

#include <string>

namespace shoal {

// What a request names. Equal keys are the same adapter.
struct AdapterKey {
  std::string source = "local";  // "local", later "hub", "s3"
  std::string id;

  bool operator==(const AdapterKey&) const = default;
};

}  // namespace shoal
