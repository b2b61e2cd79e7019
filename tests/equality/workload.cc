#include "equality/workload.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/block_size.h"

namespace shoal {
namespace {

constexpr int kCopies = 4;                                            // of each adapter, under names of their own
constexpr std::array<std::int64_t, 3> kBeginningTokens{20, 130, 20};  // one past a sliding window of 128
constexpr std::int64_t kMostEndTokens = 12;

using Prompts = std::map<std::string, std::vector<std::string>>;  // by run: "base" or an adapter's folder

std::vector<std::int64_t> encode(const Tokenizer& tokenizer, const std::string& text, SpecialTokens add,
                                 std::int64_t most_tokens) {
  std::vector<std::int64_t> ids = tokenizer.encode(text, add).value();
  ids.resize(static_cast<std::size_t>(std::min(std::ssize(ids), most_tokens)));
  return ids;
}

// One for each run, of its prompts.
std::vector<std::vector<std::int64_t>> draw_beginnings(const Prompts& prompts, const Tokenizer& tokenizer) {
  std::vector<std::vector<std::int64_t>> beginnings;
  for (const auto& [run, of_run] : prompts) {
    std::string text;
    for (const std::string& prompt : of_run) text += prompt + " ";
    beginnings.push_back(
        encode(tokenizer, text, SpecialTokens::kAdd, kBeginningTokens.at(beginnings.size() % kBeginningTokens.size())));
  }
  return beginnings;
}

SamplingParams sampling_of(std::size_t index) {
  SamplingParams sampling{.seed = 1000 + index};
  if (index % 3 != 0) {
    sampling.greedy = false;
    sampling.temperature = 0.8F;
    sampling.top_k = 40;
    sampling.top_p = 0.95F;
  }
  if (index % 4 == 2) {
    sampling.repetition_penalty = 1.2F;
    sampling.frequency_penalty = 0.1F;
    sampling.presence_penalty = 0.2F;
  }
  if (index % 5 == 1) {
    sampling.watermark_gamma = 0.4F;
    sampling.watermark_delta = 3.0F;
  }
  return sampling;
}

}  // namespace

std::string adapter_name(const std::string& folder, int copy) { return folder + "@" + std::to_string(copy); }
std::string folder_of_adapter(const std::string& name) { return name.substr(0, name.find('@')); }

std::vector<Request> draw_requests(const std::string& folder, const Tokenizer& tokenizer, std::size_t num_of_each) {
  std::ifstream file(folder + "/reference/prompts.json");
  const auto prompts = nlohmann::json::parse(file).get<Prompts>();
  const std::vector<std::vector<std::int64_t>> beginnings = draw_beginnings(prompts, tokenizer);
  std::vector<Request> requests;
  for (const auto& [run, of_run] : prompts) {
    for (std::size_t i = 0; i < num_of_each; ++i) {
      const std::size_t index = requests.size();
      Request request{.prompt_ids = beginnings[i % beginnings.size()],
                      .max_new_tokens = 60 + static_cast<std::int64_t>(i % 5) * 20,
                      .sampling = sampling_of(index),
                      .adapter = {},
                      .stop = {},
                      .stop_text = i % 8 < 4 ? StopText::kKeep : StopText::kCut,
                      .ignore_eos = i % 6 != 0,
                      .skip_special_tokens = i % 5 != 0,
                      .priority = i % 7 == 0 ? 1 : 0,
                      .tenant = "tenant-" + std::to_string(i % 3)};
      for (const std::int64_t id : encode(tokenizer, of_run[i % of_run.size()], SpecialTokens::kNone, kMostEndTokens)) {
        request.prompt_ids.push_back(id);
      }
      if (i % 8 == 7) request.cache_salt = request.tenant;
      if (run != "base") {
        request.adapter = AdapterKey{.source = "test", .id = adapter_name(run, static_cast<int>(i) / 2 % kCopies)};
      }
      if (is_followed(index)) {
        request.ignore_eos = true;
        request.max_new_tokens = kBlockSize * 5 - std::ssize(request.prompt_ids) % kBlockSize;
      }
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

bool is_followed(std::size_t index) { return index % 8 == 3; }

Request follow_up(const Request& request, const std::vector<std::int64_t>& answer_ids) {
  Request next = request;
  next.prompt_ids.insert(next.prompt_ids.end(), answer_ids.begin(), answer_ids.end());
  next.prompt_ids.insert(next.prompt_ids.end(), request.prompt_ids.begin(), request.prompt_ids.begin() + 5);
  next.max_new_tokens = 20;
  next.priority = 2;  // while the first one's blocks are there
  return next;
}

bool stops_in_text(std::size_t index) { return index % 4 == 1; }

std::vector<std::string> stop_strings_within(const std::string& text) {
  constexpr std::size_t kLength = 5;
  if (text.size() < 4 * kLength) return {};
  const std::string inside = text.substr(text.size() * 2 / 3, kLength);
  if (std::any_of(inside.begin(), inside.end(), [](char byte) { return byte < ' ' || byte > '~'; })) return {};
  return {inside.substr(0, 3) + "\x01", inside};
}

}  // namespace shoal
