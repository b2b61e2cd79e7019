#include "text/chat_template.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "text/bridge.h"
#include "text/model_files.h"

namespace shoal {

using text_bridge::Buffer;
using text_bridge::view_of;

struct ChatTemplate::Compiled {
  ~Compiled() { shoal_template_free(handle); }

  ShoalTemplate* handle = nullptr;
  std::string parse_error;  // why there is no handle
};

namespace {

constexpr std::uintmax_t kMaxTemplateBytes = std::uintmax_t{1} << 20;
constexpr std::size_t kMaxVariableBytes = std::size_t{32} << 20;

using Variables = std::vector<std::pair<std::string, std::string>>;

// As Hugging Face hands them over; a later variable of the same name wins.
Variables template_variables(const std::map<std::string, std::string>& special_tokens, const std::string& messages,
                             const ChatTemplateOptions& options) {
  Variables variables;
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  for (const auto& [name, text] : special_tokens) variables.emplace_back(name, quoted(text));
  if (options.bos_token) variables.emplace_back("bos_token", quoted(*options.bos_token));
  if (options.eos_token) variables.emplace_back("eos_token", quoted(*options.eos_token));
  variables.emplace_back("add_generation_prompt", options.add_generation_prompt ? "true" : "false");
  variables.emplace_back("tools", options.tools_json.value_or("null"));
  variables.emplace_back("documents", options.documents_json.value_or("null"));
  for (const auto& variable : options.extra_variables) variables.push_back(variable);
  variables.emplace_back("messages", messages);
  return variables;
}

Result<std::string> render_with(const ShoalTemplate* handle, const Variables& variables) {
  std::vector<ShoalTextVariable> views;
  for (const auto& [name, json] : variables) {
    if (json.size() > kMaxVariableBytes) {
      return Error{ErrorCode::kValidation, fmt::format("{}: longer than {} bytes", name, kMaxVariableBytes)};
    }
    views.push_back({view_of(name), view_of(json)});
  }
  Buffer text;
  Buffer error;
  const std::int32_t code = shoal_template_render(handle, views.data(), views.size(), text.out(), error.out());
  if (code == SHOAL_TEXT_OK) return text.str();
  if (code == SHOAL_TEXT_INVALID_INPUT) return Error{ErrorCode::kValidation, error.str()};
  if (code == SHOAL_TEXT_RAISED) return Error{ErrorCode::kTemplate, error.str()};
  return Error{ErrorCode::kTemplate, fmt::format("the chat template failed: {}", error.view())};
}

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

void ChatTemplate::add_missing_token(const std::string& name, const std::string& text) {
  if (!text.empty()) special_tokens_.emplace(name, text);
}

ChatTemplate ChatTemplate::load(const std::filesystem::path& model_dir, const std::filesystem::path& tokenizer_config,
                                Named others) {
  ChatTemplate result;
  const TokenizerConfig config =
      tokenizer_config.empty() ? TokenizerConfig::read(model_dir) : TokenizerConfig::read_file(tokenizer_config);
  result.special_tokens_ = config.special_tokens;

  const auto add_stated = [&result](const nlohmann::json& json, const std::string& file) {
    const auto stated = json.find("chat_template");
    if (stated == json.end()) return;
    if (stated->is_string()) result.add("default", stated->get<std::string>(), file);
    if (!stated->is_array()) return;
    for (const auto& named : *stated) {
      if (named.is_object() && named.value("name", nlohmann::json()).is_string() &&
          named.value("template", nlohmann::json()).is_string()) {
        result.add(named["name"].get<std::string>(), named["template"].get<std::string>(), file);
      }
    }
  };
  if (!tokenizer_config.empty()) add_stated(config.json, tokenizer_config.string());
  if (result.has_template()) return result;

  const auto add_file = [&result](const std::string& name, const std::filesystem::path& file) {
    if (const auto source = read_text_file(file, kMaxTemplateBytes)) result.add(name, *source, file.string());
  };
  add_file("default", model_dir / "chat_template.jinja");
  std::filesystem::directory_iterator other_files;
  std::error_code no_folder;
  if (others == Named::kRead) other_files = {model_dir / "additional_chat_templates", no_folder};
  for (const auto& file : other_files) {
    if (file.path().extension() == ".jinja") add_file(file.path().stem().string(), file.path());
  }
  if (result.has_template()) return result;

  add_stated(read_json_object(model_dir / "chat_template.json"), (model_dir / "chat_template.json").string());
  if (!result.has_template()) add_stated(config.json, (model_dir / "tokenizer_config.json").string());
  return result;
}

void ChatTemplate::add(const std::string& name, const std::string& source, const std::string& file) {
  auto compiled = std::make_unique<Compiled>();
  Buffer error;
  if (shoal_template_compile(view_of(source), &compiled->handle, error.out()) != SHOAL_TEXT_OK) {
    compiled->parse_error = error.str();
    spdlog::warn("{}: chat template '{}' does not parse, chat requests will fail: {}", file, name, error.view());
  }
  templates_[name] = std::move(compiled);
}

Result<const ChatTemplate::Compiled*> ChatTemplate::choose(const ChatTemplateOptions& options) const {
  if (templates_.empty()) return Error{ErrorCode::kTemplate, "the model has no chat template"};
  std::string name = options.template_name;
  if (name.empty()) {
    name = "default";
    if (options.documents_json && templates_.contains("rag")) name = "rag";
    if (options.tools_json && templates_.contains("tool_use")) name = "tool_use";
  }
  const auto found = templates_.find(name);
  if (found == templates_.end()) {
    std::string known;
    for (const auto& [known_name, compiled] : templates_) known += (known.empty() ? "" : ", ") + known_name;
    return Error{ErrorCode::kTemplate, fmt::format("no chat template named '{}'; there are: {}", name, known)};
  }
  if (found->second->handle == nullptr) {
    return Error{ErrorCode::kTemplate, fmt::format("the chat template does not parse: {}", found->second->parse_error)};
  }
  return found->second.get();
}

bool ChatTemplate::uses(std::string_view variable, const ChatTemplateOptions& options) const {
  const auto chosen = choose(options);
  if (!chosen.ok()) return false;
  std::int32_t is_used = 0;
  shoal_template_uses(chosen.value()->handle, view_of(variable), &is_used, Buffer().out());
  return is_used != 0;
}

Result<std::string> ChatTemplate::render(const std::string& messages_json, const ChatTemplateOptions& options) const {
  const auto chosen = choose(options);
  if (!chosen.ok()) return chosen.error();
  return render_with(chosen.value()->handle, template_variables(special_tokens_, messages_json, options));
}

Result<RenderedPrompt> ChatTemplate::render_prompt(const std::string& messages_json, const ChatTemplateOptions& options,
                                                   const Tokenizer& tokenizer) const {
  ControlText control_text(tokenizer);
  std::string messages = messages_json;
  ChatTemplateOptions marked = options;
  std::vector<std::string*> documents = {&messages};
  if (marked.tools_json) documents.push_back(&*marked.tools_json);
  if (marked.documents_json) documents.push_back(&*marked.documents_json);
  for (auto& [name, json] : marked.extra_variables) documents.push_back(&json);
  const Status status = control_text.mark(documents);
  if (!status.ok()) return status.error();
  const auto rendered = render(messages, marked);
  if (!rendered.ok()) return rendered.error();
  return control_text.unmark(rendered.value());
}

}  // namespace shoal
