// A temporary model folder and small tokenizers written by hand. Used by the tests of src/text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace shoal::test {

class ModelDir final {
 public:
  ModelDir() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / (std::string("shoal_text_") + info->test_suite_name() + "_" +
                                                      info->name() + "_" + std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ModelDir() { std::filesystem::remove_all(path_); }
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void write_json(const std::string& name, const nlohmann::json& json) const { write(name, json.dump()); }

 private:
  std::filesystem::path path_;
};

inline nlohmann::json added_token(std::int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// UTF-8 of GPT-2's character for a byte.
inline std::string byte_level_char(int byte) {
  int next = 0x100;
  int code = 0;
  for (int b = 0; b <= byte; ++b) {
    const bool is_printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    code = is_printable ? b : next++;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Ids 0..255 are the bytes in order, then the pieces "he", "ll" and " w"; 259 and 260 are special; 261 is not.
inline nlohmann::json byte_level_tokenizer() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[byte_level_char(byte)] = byte;
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab[byte_level_char(' ') + "w"] = 258;
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  return {
      {"version", "1.0"},
      {"truncation", {{"max_length", 4}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}}},
      {"padding", nullptr},
      {"added_tokens",
       {added_token(259, "<|end|>", true), added_token(260, "<|turn|>", true), added_token(261, "<|half|>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"h e", "l l", byte_level_char(' ') + " w"}},
        {"byte_fallback", false},
        {"fuse_unk", false}}}};
}

// SentencePiece style: 0..2 are <unk>, <s>, </s>; 3..258 the bytes; then letters, "▁" and "▁a".
inline nlohmann::json byte_fallback_tokenizer() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    vocab[name] = 3 + byte;
  }
  int next = 259;
  for (const char* piece : {"▁", "a", "b", "c", "é", "▁a"}) vocab[piece] = next++;
  const nlohmann::json replace = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {{"version", "1.0"},
          {"added_tokens", {added_token(0, "<unk>", true), added_token(1, "<s>", true), added_token(2, "</s>", true)}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", nlohmann::json::array()},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {replace,
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", {"▁ a"}},
            {"byte_fallback", true},
            {"fuse_unk", true}}}};
}

inline std::unique_ptr<Tokenizer> load_tokenizer(const nlohmann::json& json) {
  const ModelDir dir;
  dir.write_json("tokenizer.json", json);
  return Tokenizer::load(dir.path());
}

}  // namespace shoal::test
