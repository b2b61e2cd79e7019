#include "server/adapter_texts.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

#include "core/check.h"
#include "text/model_files.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer = "tokenizer.json";
// All that Tokenizer and ChatTemplate read of an adapter's folder.
constexpr std::array kFiles = {kTokenizer,
                               "tokenizer_config.json",
                               "special_tokens_map.json",
                               "generation_config.json",
                               "chat_template.jinja",
                               "chat_template.json",
                               "config.json"};

// Which of the files are there, by what changes when one is written or replaced. "" where none could bring anything.
std::string looks_of(const fs::path& folder) {
  std::string looks = folder.string();
  bool brings = false;
  for (const char* name : kFiles) {
    struct stat seen{};
    if (::stat((folder / name).c_str(), &seen) != 0) continue;
    brings = brings || std::string_view(name).find("token") != std::string_view::npos ||
             std::string_view(name).starts_with("chat_template");
    looks += fmt::format("\n{} {} {} {}.{} {}.{}", name, seen.st_size, seen.st_ino, seen.st_mtim.tv_sec,
                         seen.st_mtim.tv_nsec, seen.st_ctim.tv_sec, seen.st_ctim.tv_nsec);
  }
  return brings ? looks : "";
}

struct Contents {
  std::string digest;
  std::uintmax_t file_bytes = 0;
};

// Throws StartError for a file that is too large or cannot be read.
Contents contents_of(const fs::path& folder) {
  Contents contents;
  std::string names;
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  CHECK_EQ(EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr), 1);
  for (const char* name : kFiles) {
    const std::optional<std::string> text = read_text_file(folder / name, AdapterTexts::kMaxFileBytes);
    if (!text) continue;
    names += fmt::format("{} {}\n", name, text->size());
    contents.file_bytes += text->size();
    CHECK_EQ(EVP_DigestUpdate(hash.get(), text->data(), text->size()), 1);
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int num_bytes = 0;
  CHECK_EQ(EVP_DigestFinal_ex(hash.get(), digest.data(), &num_bytes), 1);
  contents.digest = names + std::string(digest.begin(), digest.begin() + num_bytes);
  return contents;
}

// Files are named without the folder, which clients need not know.
Error invalid(std::string what, const fs::path& folder) {
  for (const std::string& path : {folder.string() + "/", folder.string()}) {
    for (std::size_t at = what.find(path); at != std::string::npos; at = what.find(path)) what.erase(at, path.size());
  }
  return {ErrorCode::kAdapterInvalid, std::move(what)};
}

}  // namespace

AdapterTexts::Found AdapterTexts::find(const std::optional<AdapterKey>& adapter) {
  if (!adapter) return base_;
  const std::optional<Folder> folder = look(*adapter);
  if (!folder) return base_;
  if (auto kept = find_kept(folder->looks)) return *std::move(kept);
  const std::lock_guard reading(reads_);
  if (auto kept = find_kept(folder->looks)) return *std::move(kept);  // somebody else read it meanwhile
  return read(*folder, adapter->id);
}

bool AdapterTexts::must_read(const AdapterKey& adapter) {
  const std::optional<Folder> folder = look(adapter);
  return folder && !find_kept(folder->looks);
}

std::optional<AdapterTexts::Folder> AdapterTexts::look(const AdapterKey& adapter) const {
  if (!find_folder_ || adapter.merge || adapter.source != "local") return std::nullopt;
  const Result<fs::path> path = find_folder_(adapter);
  if (!path.ok()) return std::nullopt;  // whoever loads it will say why
  Folder folder{.path = path.value(), .looks = looks_of(path.value())};
  if (folder.looks.empty()) return std::nullopt;
  return folder;
}

std::optional<AdapterTexts::Found> AdapterTexts::find_kept(const std::string& looks) {
  const std::lock_guard lock(mutex_);
  const auto seen = seen_.find(looks);
  if (seen == seen_.end()) return std::nullopt;
  const auto kept = kept_.find(seen->second);
  if (kept == kept_.end()) return std::nullopt;
  kept->second.last_use = ++clock_;
  return kept->second.texts;
}

AdapterTexts::Found AdapterTexts::read(const Folder& folder, const std::string& id) {
  Contents contents;
  try {
    contents = contents_of(folder.path);
  } catch (const std::exception& error) {
    return invalid(error.what(), folder.path);
  }
  {
    const std::lock_guard lock(mutex_);
    if (seen_.size() >= kMaxSeen) seen_.clear();
    seen_[folder.looks] = contents.digest;
  }
  if (auto kept = find_kept(folder.looks)) return *std::move(kept);
  Found texts = load(folder.path, id);
  keep(contents.digest, {.texts = texts, .file_bytes = contents.file_bytes});
  return texts;
}

AdapterTexts::Found AdapterTexts::load(const fs::path& folder, const std::string& id) const {
  try {
    std::shared_ptr<const Tokenizer> tokenizer = base_->shared_tokenizer();
    if (fs::exists(folder / kTokenizer)) {
      std::shared_ptr<const Tokenizer> own = Tokenizer::load(folder, &base_->tokenizer());
      const bool fits = own->vocab_size() <= vocab_size_ &&
                        std::all_of(own->eos_ids().begin(), own->eos_ids().end(),
                                    [&](std::int64_t end) { return end >= 0 && end < vocab_size_; });
      if (fits) {
        tokenizer = std::move(own);
      } else {
        // Mostly a token for padding that was added, which no text holds: the ids of all others are the base model's.
        spdlog::warn("adapter {}: its tokenizer has {} ids, the model takes {}: the base model's is used", id,
                     own->vocab_size(), vocab_size_);
      }
    }
    std::shared_ptr<const ChatTemplate> chat_template = base_->shared_chat_template();
    ChatTemplate own = ChatTemplate::load(folder, {}, ChatTemplate::Named::kIgnored);
    const bool has_template = own.has_template();
    if (has_template) {
      own.add_missing_token("bos_token", tokenizer->bos_token());
      own.add_missing_token("eos_token", tokenizer->eos_token());
      chat_template = std::make_shared<const ChatTemplate>(std::move(own));
    }
    if (tokenizer == base_->shared_tokenizer() && !has_template) return base_;
    spdlog::info("adapter {}: {}{}{} of its own", id, tokenizer == base_->shared_tokenizer() ? "" : "tokenizer",
                 tokenizer != base_->shared_tokenizer() && has_template ? " and " : "",
                 has_template ? "chat template" : "");
    return std::make_shared<const Texts>(std::move(tokenizer), std::move(chat_template));
  } catch (const std::exception& error) {
    return invalid(error.what(), folder);
  }
}

void AdapterTexts::keep(const std::string& digest, Kept kept) {
  std::vector<Kept> leaving;  // their memory is freed after the lock
  const std::lock_guard lock(mutex_);
  kept.last_use = ++clock_;
  kept_.insert_or_assign(digest, std::move(kept));
  const auto total_bytes = [this] {
    std::uintmax_t bytes = 0;
    for (const auto& [name, each] : kept_) bytes += each.file_bytes;
    return bytes;
  };
  while (kept_.size() > 1 && (kept_.size() > kMaxKept || total_bytes() > kMaxKeptBytes)) {
    const auto oldest = std::min_element(
        kept_.begin(), kept_.end(), [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
    leaving.push_back(std::move(oldest->second));
    kept_.erase(oldest);
  }
}

}  // namespace shoal
