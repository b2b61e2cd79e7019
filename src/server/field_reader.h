// FieldReader: reads typed fields of a JSON object and keeps the first fault, named by field. Used by the request
// parsers; values are checked later, in validate.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/errors.h"
#include "server/json.h"

namespace shoal {

enum class Presence : std::uint8_t { kOptional, kRequired };

class FieldReader {
 public:
  // `prefix` stands before field names in faults ("parameters."). `json` and `error` outlive the reader; once `error`
  // is set, reads do nothing. A `json` that is no object is a fault itself.
  FieldReader(const InputJson& json, std::string prefix, std::optional<ApiError>& error);

  // An absent field leaves `out` as it is. null: the same for std::optional, a fault for others.
  void read(const char* name, std::string& out, Presence presence);
  void read(const char* name, bool& out);
  void read(const char* name, std::optional<bool>& out);
  void read(const char* name, std::optional<float>& out);
  void read(const char* name, std::optional<std::string>& out);
  void read(const char* name, std::optional<std::int32_t>& out);
  void read(const char* name, std::optional<std::uint32_t>& out);
  void read(const char* name, std::optional<std::uint64_t>& out);
  void read(const char* name, std::vector<std::string>& out);
  void read(const char* name, std::vector<float>& out);

  // For the fields of `value`, which stands in the field `name`.
  FieldReader inside(const char* name, const InputJson& value) const;

  // Array `ids` stands in the field `name`; below 2^31 each.
  std::vector<std::int64_t> token_ids(const char* name, const InputJson& ids);

  // The value of a field, null when absent or null.
  const InputJson* find(const char* name) const;

  void fail(const char* name, std::string_view what);

 private:
  const InputJson* find_typed(const char* name, bool (InputJson::*has_type)() const noexcept,
                              std::string_view type_name, Presence null_is);
  template <typename Integer>
  void read_integer(const char* name, std::optional<Integer>& out, std::string_view type_name);

  const InputJson& json_;
  const std::string prefix_;
  std::optional<ApiError>& error_;
};

}  // namespace shoal
