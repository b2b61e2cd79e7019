// Texts: how text becomes tokens and tokens text, for the base model or for an adapter that brings files of its own.
// All that a request needs of them comes from one such object, looked up once. Used by the endpoints and the grammar
// compiler.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace shoal {

// Safe to use from several threads at once. Requests share it with whoever keeps it for the next ones.
class Texts {
 public:
  // `chat_template`: null for none.
  Texts(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat_template)
      : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {}

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::shared_ptr<const Tokenizer>& shared_tokenizer() const { return tokenizer_; }
  const ChatTemplate* chat_template() const { return chat_template_.get(); }
  const std::shared_ptr<const ChatTemplate>& shared_chat_template() const { return chat_template_; }

  // Made by the first call, which takes some 100 ms.
  const GrammarFactory& grammars() const {
    std::call_once(grammars_made_, [this] { grammars_.emplace(*tokenizer_); });
    return *grammars_;
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const ChatTemplate> chat_template_;
  mutable std::once_flag grammars_made_;
  mutable std::optional<GrammarFactory> grammars_;
};

}  // namespace shoal
