// ChatTemplate: messages to one prompt text, as a model's Jinja template states it. Used by server and cli.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "text/control_text.h"

struct ShoalTemplate;

namespace shoal {

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  std::optional<std::string> bos_token{};  // absent: the one of tokenizer_config.json, if it has one
  std::optional<std::string> eos_token{};
  std::optional<std::string> tools_json{};  // a JSON list; absent: `tools` is none
  std::optional<std::string> documents_json{};
  std::string template_name{};                                         // "" chooses; an unknown name is an error
  std::vector<std::pair<std::string, std::string>> extra_variables{};  // name, value as JSON
};

// Safe to use from several threads at once.
class ChatTemplate final {
 public:
  enum class Named : std::uint8_t { kRead, kIgnored };  // whether the folder additional_chat_templates is looked into

  // Reads chat_template.jinja and additional_chat_templates/*.jinja, else chat_template.json, else the `chat_template`
  // of tokenizer_config.json (a text or a list of named ones). A template that does not parse is logged and makes
  // render() fail. `tokenizer_config`: a file to read in place of tokenizer_config.json; its template then wins.
  static ChatTemplate load(const std::filesystem::path& model_dir, const std::filesystem::path& tokenizer_config = {},
                           Named named = Named::kRead);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  bool has_template() const { return !templates_.empty(); }
  // Where the files name no such token ("bos_token"); "" is none.
  void add_missing_token(const std::string& name, const std::string& text);
  // Whether the template that these options choose reads a variable, such as `tools`.
  bool uses(std::string_view variable, const ChatTemplateOptions& options = {}) const;

  // Where the special tokens of a template and those spelled in a message need not be told apart. kTemplate with the
  // template's own words if it calls raise_exception, or with what is missing or wrong; kValidation for bad JSON.
  Result<std::string> render(const std::string& messages_json, const ChatTemplateOptions& options) const;
  // Also says which parts are message text that spells a special token, for Tokenizer::encode.
  Result<RenderedPrompt> render_prompt(const std::string& messages_json, const ChatTemplateOptions& options,
                                       const Tokenizer& tokenizer) const;

 private:
  struct Compiled;

  ChatTemplate();
  void add(const std::string& name, const std::string& source, const std::string& file);
  Result<const Compiled*> choose(const ChatTemplateOptions& options) const;

  std::map<std::string, std::unique_ptr<Compiled>, std::less<>> templates_;
  std::map<std::string, std::string> special_tokens_;  // "bos_token" -> "<s>" and the like
};

}  // namespace shoal
