// JSON of the answers of both protocols, key by key. Used by the generate endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/request.h"
#include "server/json.h"
#include "text/tokenizer.h"

namespace shoal {

// --- native ---
// What stands beside tokens that were asked about.
struct NativeExtras {
  const Tokenizer* tokenizer = nullptr;  // set where one of the numbers is not 0
  std::int64_t alternatives = 0;         // return_k_alternatives
  std::int64_t top_tokens = 0;           // top_n_tokens
  OutputJson prefill = OutputJson::array();
};
OutputJson native_token(const TokenEvent& token, const NativeExtras& extras = {});
// GenerateResponse; `tokens` only stand in it with details.
OutputJson native_response(const std::string& generated_text, const FinishEvent& finish,
                           std::optional<std::uint64_t> seed, const std::vector<TokenEvent>* tokens,
                           const NativeExtras& extras = {});
// BestOfSequence: an answer that was not the best.
OutputJson native_other(const std::string& generated_text, const FinishEvent& finish, std::optional<std::uint64_t> seed,
                        const std::vector<TokenEvent>& tokens, const NativeExtras& extras);
// StreamResponse of a token that is not the last.
OutputJson native_stream_token(const TokenEvent& token, const NativeExtras& extras = {});
struct NativeSummary {
  const std::string& generated_text;
  const FinishEvent& finish;
  std::optional<std::uint64_t> seed;
  bool details = false;
};
OutputJson native_stream_last(const TokenEvent& token, const NativeSummary& summary, const NativeExtras& extras = {});

// --- OpenAI ---
// What all objects of one answer repeat.
struct OpenAiHead {
  std::string id;
  std::int64_t created = 0;  // unix seconds
  std::string model;
};
OutputJson openai_usage(const FinishEvent& finish);
const char* openai_finish_reason(FinishReason reason);

OutputJson completion_response(const OpenAiHead& head, const std::string& text, const FinishEvent& finish);
OutputJson chat_response(const OpenAiHead& head, const std::string& fingerprint, const FinishEvent& finish);

// A chunk of a stream; `reason` null: not the last.
OutputJson completion_chunk(const OpenAiHead& head, const std::string& text, const char* reason);
OutputJson chat_chunk(const OpenAiHead& head, OutputJson delta, const char* reason);
// The chunk after the last one that stream_options.include_usage asks for.
OutputJson usage_chunk(const OpenAiHead& head, const char* object, const FinishEvent& finish);

}  // namespace shoal
