#include "server/field_reader.h"

#include <fmt/format.h>

#include <limits>

namespace shoal {

FieldReader::FieldReader(const InputJson& json, std::string prefix, std::optional<ApiError>& error)
    : json_(json), prefix_(std::move(prefix)), error_(error) {
  if (error_ || json_.is_object()) return;
  const std::string name = prefix_.empty() ? "the body" : "`" + prefix_.substr(0, prefix_.size() - 1) + "`";
  error_ = ApiError{.failure = Failure::kWrongType,
                    .message = fmt::format("{}: expected an object, got {}", name, json_.type_name()),
                    .param = {}};
}

void FieldReader::fail(const char* name, std::string_view what) {
  if (error_) return;
  error_ = ApiError{.failure = Failure::kWrongType,
                    .message = fmt::format("`{}{}`: {}", prefix_, name, what),
                    .param = prefix_ + name};
}

std::vector<std::int64_t> FieldReader::token_ids(const char* name, const InputJson& ids) {
  std::vector<std::int64_t> result;
  for (const InputJson& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > std::int64_t{INT32_MAX}) {
      fail(name, fmt::format("`{}` is no token id", id.dump(-1, ' ', true, InputJson::error_handler_t::replace)));
      return {};
    }
    result.push_back(id.get<std::int64_t>());
  }
  return result;
}

const InputJson* FieldReader::find(const char* name) const {
  if (error_) return nullptr;
  return find_set(json_, name);
}

const InputJson* FieldReader::find_typed(const char* name, bool (InputJson::*has_type)() const noexcept,
                                         std::string_view type_name, Presence null_is) {
  if (error_) return nullptr;
  const auto found = json_.find(name);
  if (found == json_.end() || (null_is == Presence::kOptional && found->is_null())) return nullptr;
  if (((*found).*has_type)()) return &*found;
  fail(name, fmt::format("expected {}, got {}", type_name, found->type_name()));
  return nullptr;
}

void FieldReader::read(const char* name, std::string& out, Presence presence) {
  if (presence == Presence::kRequired && !error_ && !json_.contains(name)) fail(name, "missing field");
  const InputJson* value = find_typed(name, &InputJson::is_string, "a string", Presence::kRequired);
  if (value != nullptr) out = value->get<std::string>();
}

void FieldReader::read(const char* name, bool& out) {
  const InputJson* value = find_typed(name, &InputJson::is_boolean, "a boolean", Presence::kRequired);
  if (value != nullptr) out = value->get<bool>();
}

void FieldReader::read(const char* name, std::optional<bool>& out) {
  const InputJson* value = find_typed(name, &InputJson::is_boolean, "a boolean", Presence::kOptional);
  if (value != nullptr) out = value->get<bool>();
}

void FieldReader::read(const char* name, std::optional<float>& out) {
  const InputJson* value = find_typed(name, &InputJson::is_number, "a number", Presence::kOptional);
  if (value != nullptr) out = static_cast<float>(value->get<double>());
}

void FieldReader::read(const char* name, std::optional<std::string>& out) {
  const InputJson* value = find_typed(name, &InputJson::is_string, "a string", Presence::kOptional);
  if (value != nullptr) out = value->get<std::string>();
}

template <typename Integer>
void FieldReader::read_integer(const char* name, std::optional<Integer>& out, std::string_view type_name) {
  const InputJson* value = find_typed(name, &InputJson::is_number_integer, type_name, Presence::kOptional);
  if (value == nullptr) return;
  // JSON integers come as uint64 when they are not negative, else as int64.
  const bool fits = value->is_number_unsigned()
                        ? value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<Integer>::max()}
                        : std::numeric_limits<Integer>::is_signed &&
                              value->get<std::int64_t>() >= std::int64_t{std::numeric_limits<std::int32_t>::min()};
  if (!fits) {
    fail(name, fmt::format("{} is out of range, expected {}", value->dump(), type_name));
    return;
  }
  out = value->get<Integer>();
}

void FieldReader::read(const char* name, std::optional<std::int32_t>& out) {
  read_integer(name, out, "a 32-bit integer");
}

void FieldReader::read(const char* name, std::optional<std::uint32_t>& out) {
  read_integer(name, out, "an unsigned 32-bit integer");
}

void FieldReader::read(const char* name, std::optional<std::uint64_t>& out) {
  read_integer(name, out, "an unsigned 64-bit integer");
}

void FieldReader::read(const char* name, std::vector<std::string>& out) {
  const InputJson* value = find_typed(name, &InputJson::is_array, "an array of strings", Presence::kRequired);
  if (value == nullptr) return;
  std::vector<std::string> texts;
  for (const InputJson& element : *value) {
    if (!element.is_string()) {
      fail(name, fmt::format("expected an array of strings, found {} in it", element.type_name()));
      return;
    }
    texts.push_back(element.get<std::string>());
  }
  out = std::move(texts);
}

void FieldReader::read(const char* name, std::vector<float>& out) {
  const InputJson* value = find_typed(name, &InputJson::is_array, "an array of numbers", Presence::kRequired);
  if (value == nullptr) return;
  std::vector<float> numbers;
  for (const InputJson& element : *value) {
    if (!element.is_number()) {
      fail(name, fmt::format("expected an array of numbers, found {} in it", element.type_name()));
      return;
    }
    numbers.push_back(static_cast<float>(element.get<double>()));
  }
  out = std::move(numbers);
}

FieldReader FieldReader::inside(const char* name, const InputJson& value) const {
  return {value, prefix_ + name + ".", error_};
}

}  // namespace shoal
