#include "text/control_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace shoal {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 100;

// U+FDD0..U+FDEF are for a program's own use and never for text.
std::string noncharacter(int index) { return std::string("\xEF\xB7") + static_cast<char>(0x90 + index); }

template <typename Function>
Json map_strings(const Json& value, const Function& function) {
  if (value.is_string()) return function(value.get_ref<const std::string&>());
  if (value.is_array()) {
    Json result = Json::array();
    for (const Json& item : value) result.push_back(map_strings(item, function));
    return result;
  }
  if (value.is_object()) {
    Json result = Json::object();
    for (const auto& [key, item] : value.items()) result[function(key)] = map_strings(item, function);
    return result;
  }
  return value;
}

}  // namespace

bool is_nested_too_deeply(std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

ControlText::ControlText(const Tokenizer& tokenizer) {
  for (const std::int64_t id : tokenizer.special_ids()) {
    std::string text = tokenizer.piece(id);
    if (!text.empty()) special_texts_[static_cast<unsigned char>(text[0])].push_back(std::move(text));
  }
  for (auto& texts : special_texts_) {
    std::stable_sort(texts.begin(), texts.end(),
                     [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  }
}

Status ControlText::mark(std::span<std::string* const> documents) {
  std::vector<Json> parsed;
  std::string all_text;
  try {
    for (const std::string* document : documents) {
      if (is_nested_too_deeply(*document)) return Error{ErrorCode::kValidation, "the messages are nested too deeply"};
      parsed.push_back(Json::parse(*document));
      all_text += parsed.back().dump();
    }
  } catch (const Json::parse_error& error) {
    // The library's own words repeat what it read, however long it is and whether or not it is UTF-8.
    return Error{ErrorCode::kValidation, "the messages are not valid JSON at byte " + std::to_string(error.byte)};
  } catch (const Json::out_of_range&) {
    return Error{ErrorCode::kValidation, "the messages hold a number that is too large"};
  }
  if (!choose_marks(all_text)) {
    return Error{ErrorCode::kValidation, "the messages hold too many kinds of noncharacters"};
  }
  for (std::size_t i = 0; i < documents.size(); ++i) {
    *documents[i] = map_strings(parsed[i], [this](const std::string& text) { return mark_text(text); }).dump();
  }
  return Ok{};
}

bool ControlText::choose_marks(std::string_view documents) {
  constexpr int kNumNoncharacters = 32;
  std::vector<std::string> free_marks;
  for (int i = 0; i < kNumNoncharacters && free_marks.size() < 2; ++i) {
    if (documents.find(noncharacter(i)) == std::string_view::npos) free_marks.push_back(noncharacter(i));
  }
  if (free_marks.size() < 2) return false;
  open_ = free_marks[0];
  close_ = free_marks[1];
  return true;
}

std::string ControlText::mark_text(const std::string& text) const {
  std::string marked;
  std::size_t i = 0;
  while (i < text.size()) {
    const auto& texts = special_texts_[static_cast<unsigned char>(text[i])];
    const auto spelled = std::find_if(texts.begin(), texts.end(), [&](const std::string& special) {
      return text.compare(i, special.size(), special) == 0;
    });
    if (spelled == texts.end()) {
      marked += text[i++];
    } else {
      marked += open_ + *spelled + close_;
      i += spelled->size();
    }
  }
  return marked;
}

RenderedPrompt ControlText::unmark(const std::string& rendered) const {
  RenderedPrompt prompt;
  if (open_.empty()) return {rendered, {}};
  // A template may cut a string between its marks: what was opened ends at the next mark of either kind.
  bool is_open = false;
  const auto end_range = [&] {
    if (is_open) prompt.plain_ranges.back().stop = prompt.text.size();
    is_open = false;
  };
  std::size_t i = 0;
  while (i < rendered.size()) {
    if (rendered.compare(i, open_.size(), open_) == 0) {
      end_range();
      prompt.plain_ranges.push_back({prompt.text.size(), prompt.text.size()});
      is_open = true;
      i += open_.size();
    } else if (rendered.compare(i, close_.size(), close_) == 0) {
      end_range();
      i += close_.size();
    } else {
      prompt.text += rendered[i++];
    }
  }
  end_range();
  return prompt;
}

}  // namespace shoal
