// What a request's adapter stands for: names that were loaded at run time become what they were loaded from. Used by
// generation.cc, info.cc and load_adapter.cc.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/context.h"
#include "server/validate.h"

namespace shoal {

// The adapter of a request, or the base model.
struct ChosenAdapter {
  std::optional<AdapterKey> key;            // what is loaded, names replaced, with the token
  std::optional<AdapterKey> shown;          // as the request names it
  bool has_name = false;                    // some of it was loaded at run time
  std::vector<AdapterLease> leases;         // on that
  std::optional<std::string> forbidden_id;  // that the caller may not use: a name, or what it stands for
  std::shared_ptr<const Texts> texts;       // never null
};

// `parameters` have passed check_values. Names stand beside the ids of the default source, for those who loaded them
// alone. Errors: a merge of adapters from several sources, an adapter's tokenizer that cannot be read.
Parsed<ChosenAdapter> choose_adapter(ServerContext& context, const JsonCall& call,
                                     const GenerateParameters& parameters);

// An adapter whose texts the request is going to need and that are not in memory. It goes by the fields alone that name
// adapters, before anything is checked: whoever handles the request looks its adapter up for itself.
std::optional<AdapterKey> texts_to_read(ServerContext& context, const Caller& caller, const InputJson& body);

// The texts that `model`, or `adapter_id` with `adapter_source`, asks for; of the base model where neither is there.
// For routes that load no adapter. Errors: also of a local one that is not there.
Parsed<std::shared_ptr<const Texts>> texts_of(ServerContext& context, const JsonCall& call);

// The name as an adapter's key: what rules of API keys look at.
AdapterKey key_of_name(const ServerContext& context, const std::string& name);

// What a `lora_path` stands for: an id of the default source, or of the one that it begins with. `s3://bucket/folder`
// is S3's and `/folder` of this machine, whatever the default is.
AdapterKey key_of_path(const ServerContext& context, const std::string& path);
// The other way round.
std::string path_of(const ServerContext& context, const AdapterKey& target);

// Whether the default source may have an adapter `id` that `caller` may use, or one was loaded under that name.
bool may_name_adapter(const ServerContext& context, const Caller& caller, const std::string& id);

// Names that `caller` may use, and what they stand for.
std::vector<std::pair<std::string, AdapterKey>> usable_names(const ServerContext& context, const Caller& caller);

}  // namespace shoal
