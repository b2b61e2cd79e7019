#include "server/answer_grammar.h"

#include <fmt/format.h>

#include <utility>

#include "server/field_reader.h"

namespace shoal {

namespace {

constexpr const char* kAnyObject = R"({"type":"object"})";

// Collects the one grammar of a request.
class GrammarReader {
 public:
  GrammarReader(GenerateParameters& parameters, std::string prefix)
      : parameters_(parameters), prefix_(std::move(prefix)) {}

  void add(GrammarKind kind, std::string_view text, const std::string& field) {
    if (parameters_.grammar) {
      fail(field, fmt::format("cannot stand beside `{}`", parameters_.grammar->field));
      return;
    }
    parameters_.grammar = AnswerGrammar{.spec = {.kind = kind, .text = std::string(text)}, .field = prefix_ + field};
  }
  void fail(const std::string& field, std::string_view what) {
    if (error_) return;
    error_ = ApiError{.failure = Failure::kWrongType,
                      .message = fmt::format("`{}{}`: {}", prefix_, field, what),
                      .param = prefix_ + field};
  }
  // A schema as an object, or as its text.
  void add_schema(const InputJson& schema, std::string_view text, const std::string& field) {
    if (schema.is_string()) {
      add(GrammarKind::kJsonSchema, schema.get_ref<const std::string&>(), field);
    } else if (schema.is_object() || schema.is_boolean()) {
      add(GrammarKind::kJsonSchema, text, field);
    } else {
      fail(field, fmt::format("expected a JSON schema, got {}", schema.type_name()));
    }
  }
  void add_text(GrammarKind kind, const InputJson& value, const std::string& field) {
    if (value.is_string()) {
      add(kind, value.get_ref<const std::string&>(), field);
    } else {
      fail(field, fmt::format("expected a string, got {}", value.type_name()));
    }
  }
  void add_choice(const InputJson& value, const std::string& field) {
    bool is_list = value.is_array() && !value.empty();
    for (const InputJson& choice : value) is_list = is_list && choice.is_string();
    if (is_list) {
      add(GrammarKind::kChoice, value.dump(-1, ' ', false, InputJson::error_handler_t::replace), field);
    } else {
      fail(field, "expected an array of strings, one at least");
    }
  }

  std::optional<ApiError> take_error() { return std::move(error_); }

 private:
  GenerateParameters& parameters_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

std::string snake_form(std::string_view type) {
  if (type == "JsonObject") return "json_object";
  if (type == "JsonSchema") return "json_schema";
  return type == "Text" ? "text" : std::string(type);
}

// The schema of `holder`, or any object. `text` is that of `holder`.
void add_schema_of(GrammarReader& reader, const InputJson& holder, std::string_view text) {
  const InputJson* schema = find_set(holder, "schema");
  if (schema == nullptr) {
    reader.add(GrammarKind::kJsonSchema, kAnyObject, "response_format");
  } else if (schema->is_string()) {
    reader.fail("response_format", "`schema` must be an object, got string");
  } else {
    reader.add_schema(*schema, member_text(text, "schema").value_or(kAnyObject), "response_format");
  }
}

// Its type, with LoRAX's other spelling of it; "" after a fault.
std::string format_type(GrammarReader& reader, const InputJson& format) {
  const InputJson* type = format.is_object() ? find_set(format, "type") : nullptr;
  std::string name = type != nullptr && type->is_string() ? snake_form(type->get<std::string>()) : "";
  if (name == "text" || name == "json_object" || name == "json_schema") return name;
  reader.fail("response_format", "expected an object whose `type` is text, json_object or json_schema");
  return "";
}

void read_structured_outputs(GrammarReader& reader, const InputJson& options, std::string_view text) {
  if (!options.is_object()) {
    reader.fail("structured_outputs", fmt::format("expected an object, got {}", options.type_name()));
    return;
  }
  for (const auto& [name, value] : options.items()) {
    const std::string field = "structured_outputs." + name;
    if (value.is_null() || value == false) continue;
    if (name == "json") {
      reader.add_schema(value, member_text(text, name).value_or(""), field);
    } else if (name == "regex") {
      reader.add_text(GrammarKind::kRegex, value, field);
    } else if (name == "grammar") {
      reader.add_text(GrammarKind::kLark, value, field);
    } else if (name == "choice") {
      reader.add_choice(value, field);
    } else if (name == "json_object" && value == true) {
      reader.add(GrammarKind::kJsonSchema, kAnyObject, field);
    } else {
      reader.fail(field, "is not served");
    }
  }
}

}  // namespace

// LoRAX: the schema stands in the format itself, whatever its type. Where none does, OpenAI's place is looked at.
std::optional<ApiError> read_native_grammar(const InputJson& body, std::string_view text,
                                            GenerateParameters& parameters) {
  const InputJson* fields = find_set(body, "parameters");
  const InputJson* format = fields == nullptr ? nullptr : find_set(*fields, "response_format");
  if (format == nullptr) return std::nullopt;
  GrammarReader reader(parameters, "parameters.");
  const std::string type = format_type(reader, *format);
  if (type == "json_object" || type == "json_schema") {
    const std::string_view fields_text = member_text(text, "parameters").value_or("");
    const std::string_view format_text = member_text(fields_text, "response_format").value_or("");
    const InputJson* named = find_set(*format, "json_schema");
    if (find_set(*format, "schema") == nullptr && named != nullptr && named->is_object()) {
      add_schema_of(reader, *named, member_text(format_text, "json_schema").value_or(""));
    } else {
      add_schema_of(reader, *format, format_text);
    }
  }
  return reader.take_error();
}

std::optional<ApiError> read_openai_grammar(const InputJson& body, std::string_view text,
                                            GenerateParameters& parameters) {
  GrammarReader reader(parameters, "");
  if (const InputJson* format = find_set(body, "response_format")) {
    const std::string_view format_text = member_text(text, "response_format").value_or("");
    const std::string type = format_type(reader, *format);
    const InputJson* named = type == "json_schema" ? find_set(*format, "json_schema") : nullptr;
    if (type == "json_schema" && (named == nullptr || !named->is_object())) {
      reader.fail("response_format", "`json_schema` must be an object");
    } else if (type == "json_schema") {
      add_schema_of(reader, *named, member_text(format_text, "json_schema").value_or(""));
    } else if (type == "json_object") {
      add_schema_of(reader, *format, format_text);
    }
  }
  if (const InputJson* schema = find_set(body, "guided_json")) {
    reader.add_schema(*schema, member_text(text, "guided_json").value_or(""), "guided_json");
  }
  if (const InputJson* regex = find_set(body, "guided_regex")) {
    reader.add_text(GrammarKind::kRegex, *regex, "guided_regex");
  }
  if (const InputJson* choice = find_set(body, "guided_choice")) reader.add_choice(*choice, "guided_choice");
  if (const InputJson* grammar = find_set(body, "guided_grammar")) {
    reader.add_text(GrammarKind::kLark, *grammar, "guided_grammar");
  }
  if (const InputJson* options = find_set(body, "structured_outputs")) {
    read_structured_outputs(reader, *options, member_text(text, "structured_outputs").value_or(""));
  }
  return reader.take_error();
}

}  // namespace shoal
