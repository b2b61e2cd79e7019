// Checks the values of a request in LoRAX's order and makes the scheduler's Request of it. Used by the generate
// endpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/request.h"
#include "server/parse_request.h"
#include "server/runtime_adapters.h"
#include "server/server_options.h"
#include "server/texts.h"

namespace shoal {

// What headers, responses and metrics tell about a request.
struct GenerationInfo {
  std::chrono::steady_clock::time_point received;
  std::chrono::steady_clock::time_point validated;
  std::int64_t prompt_characters = 0;  // Unicode scalars
  std::int64_t prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;
  std::optional<std::uint64_t> seed;  // only of a request that samples
  std::optional<AdapterKey> adapter;
  std::vector<std::int64_t> prompt_ids = {};  // where the answer tells their scores
  bool adapter_has_name = false;              // `adapter` is as it was loaded at run time, not as its source calls it
  std::shared_ptr<const Texts> texts = {};    // that made the prompt's tokens and make the answer's text
};

struct PreparedRequest {
  Request request;
  std::optional<AnswerGrammar> grammar;  // not compiled yet
  GenerationInfo info;
  std::optional<std::string> forbidden_id = {};  // an adapter that whoever asks for it may not use
  std::vector<AdapterLease> leases = {};         // on what names of run-time adapters stand for
};

// What stands for the base model beside its own id, as in LoRAX.
inline constexpr const char* kBaseModelId = "__base_model__";

// Of what names an adapter, in `field`.
std::optional<ApiError> check_adapter_id(const std::string& id, const char* field);
std::optional<ApiError> check_api_token(const std::string& token);
std::optional<ApiError> check_adapter_source(const std::string& source, const ServerOptions& options,
                                             const char* field);

// Everything that needs no tokens: adapter, ranges, counts.
std::optional<ApiError> check_values(const GenerateParameters& parameters, const ServerOptions& options);

// The adapter of a request that names one, or several to be merged, as it names them. `parameters` have passed
// check_values.
std::optional<AdapterKey> adapter_of(const GenerateParameters& parameters, const ServerOptions& options);

// Truncates, checks lengths and fills the request, with its adapter as it is named. `parameters` have passed
// check_values; `random_seed` is used when they name none.
Parsed<PreparedRequest> prepare_request(const GenerateParameters& parameters, std::vector<std::int64_t> prompt_ids,
                                        const ServerOptions& options, std::int64_t vocab_size,
                                        std::uint64_t random_seed);

std::int64_t count_characters(std::string_view utf8);

}  // namespace shoal
