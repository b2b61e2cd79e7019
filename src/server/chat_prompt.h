// Chats as prompts: messages through a chat template, and to tokens. Used by /v1/chat/completions, and by the native
// routes where `apply_chat_template` asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/parse_request.h"
#include "server/texts.h"
#include "server/tools.h"

namespace shoal {

struct ChatPrompt {
  std::vector<std::int64_t> ids;
  std::int64_t characters = 0;  // of the text, Unicode scalars
};

// kTemplate where there is no template, or it refuses the messages or needs `guideline`.
Parsed<ChatPrompt> chat_prompt(const Texts& texts, std::vector<ChatMessage> messages,
                               const std::optional<std::string>& guideline = {}, const ToolRequest& tools = {});

}  // namespace shoal
