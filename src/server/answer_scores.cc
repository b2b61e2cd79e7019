#include "server/answer_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/validate.h"

namespace shoal {

namespace {

// OpenAI's number for what is as good as impossible: its clients take no null.
constexpr float kLeastLogprob = -9999.0F;

float finite_logprob(float logprob) { return std::isnan(logprob) ? kLeastLogprob : std::max(logprob, kLeastLogprob); }

std::string readable(const std::string& bytes) {
  Utf8Stream stream;
  std::string text;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

// As a key: half a character is told by its bytes, or it could not be told from others.
std::string completion_token(const std::string& bytes) {
  std::string text = readable(bytes);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

OutputJson chat_token(const std::string& bytes, float logprob) {
  OutputJson json;
  json["token"] = readable(bytes);
  json["logprob"] = finite_logprob(logprob);
  OutputJson list = OutputJson::array();
  for (const char byte : bytes) list.push_back(static_cast<std::int64_t>(static_cast<unsigned char>(byte)));
  json["bytes"] = std::move(list);
  return json;
}

// 1 where `bytes` do not go on with the character that `text` has begun: that one is broken, and stands before them.
std::int64_t num_broken_before(Utf8Stream text, const std::string& bytes) {
  const bool goes_on = !bytes.empty() && (static_cast<unsigned char>(bytes.front()) & 0xC0) == 0x80;
  std::string rest;
  text.finish(rest);
  return goes_on || rest.empty() ? 0 : 1;
}

OutputJson native_scored(const Tokenizer& tokenizer, std::int64_t id, float logprob) {
  OutputJson json;
  json["id"] = id;
  json["text"] = readable(tokenizer.token_bytes(id, /*is_first=*/false));
  json["logprob"] = logprob;  // written null where it is not finite
  return json;
}

}  // namespace

OutputJson native_prefill(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt_ids,
                          const std::vector<TokenScore>& scores) {
  OutputJson list = OutputJson::array();
  for (std::size_t i = 0; i < prompt_ids.size(); ++i) {
    OutputJson json = native_scored(tokenizer, prompt_ids[i], 0.0F);
    json["logprob"] = i == 0 || i > scores.size() ? OutputJson() : OutputJson(scores[i - 1].logprob);
    list.push_back(std::move(json));
  }
  return list;
}

OutputJson native_alternatives(const Tokenizer& tokenizer, const TokenScore& score, std::int64_t count) {
  OutputJson list = OutputJson::array();
  for (const TokenLogprob& token : score.top) {
    if (std::ssize(list) < count && std::isfinite(token.logprob))
      list.push_back(native_scored(tokenizer, token.id, token.logprob));
  }
  return list;
}

OutputJson native_top_tokens(const Tokenizer& tokenizer, const TokenScore& score, std::int64_t count) {
  OutputJson list = native_alternatives(tokenizer, score, count);
  for (OutputJson& token : list) token["special"] = tokenizer.is_special(token["id"].get<std::int64_t>());
  return list;
}

void AnswerScores::add_prompt(const std::vector<std::int64_t>& prompt_ids, const std::vector<TokenScore>& scores) {
  for (std::size_t i = 0; i < prompt_ids.size(); ++i) {
    Entry entry{.id = prompt_ids[i], .bytes = tokenizer_.token_bytes(prompt_ids[i], i == 0), .score = std::nullopt};
    if (i > 0 && i <= scores.size()) entry.score = scores[i - 1];
    entries_.push_back(std::move(entry));
  }
}

void AnswerScores::add(const TokenEvent& token) {
  entries_.push_back({.id = token.id, .bytes = tokenizer_.token_bytes(token.id, false), .score = token.score});
}

OutputJson AnswerScores::take() {
  OutputJson json = form_ == LogprobsForm::kCompletion ? completion_json() : chat_json();
  entries_.clear();
  return json;
}

OutputJson AnswerScores::completion_json() {
  OutputJson offsets = OutputJson::array();
  OutputJson logprobs = OutputJson::array();
  OutputJson tokens = OutputJson::array();
  OutputJson tops = OutputJson::array();
  for (const Entry& entry : entries_) {
    offsets.push_back(num_characters_ + num_broken_before(text_, entry.bytes));
    std::string text;
    text_.push(entry.bytes, text);
    num_characters_ += count_characters(text);
    tokens.push_back(completion_token(entry.bytes));
    if (!entry.score) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(finite_logprob(entry.score->logprob));
    OutputJson top = OutputJson::object();
    for (const TokenLogprob& each : entry.score->top) {
      if (std::ssize(top) >= num_top_) break;
      top[completion_token(tokenizer_.token_bytes(each.id, false))] = finite_logprob(each.logprob);
    }
    top[completion_token(entry.bytes)] = finite_logprob(entry.score->logprob);
    tops.push_back(std::move(top));
  }
  OutputJson json;
  json["text_offset"] = std::move(offsets);
  json["token_logprobs"] = std::move(logprobs);
  json["tokens"] = std::move(tokens);
  json["top_logprobs"] = std::move(tops);
  return json;
}

OutputJson AnswerScores::chat_json() const {
  OutputJson content = OutputJson::array();
  for (const Entry& entry : entries_) {
    OutputJson json = chat_token(entry.bytes, entry.score ? entry.score->logprob : kLeastLogprob);
    OutputJson top = OutputJson::array();
    if (entry.score) {
      for (const TokenLogprob& each : entry.score->top) {
        if (std::ssize(top) >= num_top_) break;
        top.push_back(chat_token(tokenizer_.token_bytes(each.id, false), each.logprob));
      }
    }
    json["top_logprobs"] = std::move(top);
    content.push_back(std::move(json));
  }
  OutputJson json;
  json["content"] = std::move(content);
  json["refusal"] = nullptr;
  return json;
}

OutputJson prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt_ids,
                                const std::vector<TokenScore>& scores, std::int64_t count) {
  OutputJson list = OutputJson::array({nullptr});
  for (std::size_t i = 1; i < prompt_ids.size() && i <= scores.size(); ++i) {
    const TokenScore& score = scores[i - 1];
    OutputJson tokens = OutputJson::object();
    const auto put = [&](std::int64_t id, float logprob, std::int64_t rank) {
      OutputJson json;
      json["logprob"] = finite_logprob(logprob);
      json["rank"] = rank;
      json["decoded_token"] = readable(tokenizer.token_bytes(id, false));
      tokens[std::to_string(id)] = std::move(json);
    };
    for (std::int64_t rank = 0; rank < std::min(count, std::ssize(score.top)); ++rank) {
      const TokenLogprob& top = score.top[static_cast<std::size_t>(rank)];
      put(top.id, top.logprob, rank + 1);
    }
    put(prompt_ids[i], score.logprob, score.rank);
    list.push_back(std::move(tokens));
  }
  return list;
}

}  // namespace shoal
