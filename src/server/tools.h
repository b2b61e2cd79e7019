// Tools of a chat: what may be called, the grammar that a call follows, and what the model is told of both. Used by
// openai_chat.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/parse_request.h"

namespace shoal {

struct Tool {
  std::string name;
  std::string parameters;  // JSON schema, as it was sent
};

enum class ToolUse : std::uint8_t {
  kNone,      // the template is told of the tools, and that is all
  kMayCall,   // words or a call
  kMustCall,  // a call
};

struct ToolRequest {
  std::string json;         // the whole list in plain spelling, for the prompt; "" for no tools
  std::vector<Tool> tools;  // that may be called: one alone where the request names it
  ToolUse use = ToolUse::kNone;
  std::optional<std::string> prompt;  // the client's own words in place of ours
};

// `tools`, `tool_choice` (also as LoRAX writes it) and `tool_prompt` of a body that was parsed from `text`.
Parsed<ToolRequest> read_tools(const InputJson& body, std::string_view text);

// A call is {"name": NAME, "arguments": ARGUMENTS}, exactly so, or after a space; words begin with no brace.
std::string tool_grammar(const ToolRequest& request);

// What is put after the last message. `template_lists`: the template shows the tools itself.
std::string tool_instruction(const ToolRequest& request, bool template_lists);

// A call in the history of a chat, for a template that knows none.
std::string call_text(const PastCall& call);

}  // namespace shoal
