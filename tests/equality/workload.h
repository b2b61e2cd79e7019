// Workload: requests for one trained model that have all to do with each other: shared beginnings, the same adapters
// under several names, tenants, priorities, every way to sample and to stop. Used by the equality test.
#pragma once

#include <string>
#include <vector>

#include "scheduler/request.h"
#include "text/tokenizer.h"

namespace shoal {

// An adapter's folder under one of many names: each is an adapter of its own to the engine, but for its weights.
std::string adapter_name(const std::string& folder, int copy);
std::string folder_of_adapter(const std::string& name);

// After `folder`/reference/prompts.json, so many for the base model and each adapter. None has stop strings yet: they
// are made of what the model answers.
std::vector<Request> draw_requests(const std::string& folder, const Tokenizer& tokenizer, std::size_t num_of_each);

// Whether the request with this index is followed by a second one that goes on where its answer ends. Its text ends
// with a whole cache block, whose last token is never computed.
bool is_followed(std::size_t index);
Request follow_up(const Request& request, const std::vector<std::int64_t>& answer_ids);

// Whether the request with this index is to stop in its answer's text.
bool stops_in_text(std::size_t index);
// Stop strings for a request that answers `text` without any: one that comes in the middle of it, and one that begins
// like it and never comes. None where the text is too short or not ASCII there.
std::vector<std::string> stop_strings_within(const std::string& text);

}  // namespace shoal
