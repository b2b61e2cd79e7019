// Files for the tests of weights/: temporary folders, hand-made safetensors, and the text of a StartError.
// Used by the unit tests of this room.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "weights/safetensors.h"

namespace shoal {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::path(testing::TempDir()) / "shoal_weights_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary).write(text.data(), std::ssize(text));
    return file(name);
  }

 private:
  std::string path_;
};

// A file with this header text, whatever it says, and `data_bytes` zeros.
inline std::string raw_safetensors(std::string_view header, std::int64_t data_bytes) {
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) text += static_cast<char>((header.size() >> (8 * i)) & 0xffU);
  text += header;
  text.append(static_cast<std::size_t>(data_bytes), '\0');
  return text;
}

inline SafetensorsHeader parse_text(std::string_view text) {
  return parse_safetensors_header(std::as_bytes(std::span(text)), std::ssize(text), "some/model.safetensors");
}

// The message of the StartError that `action` throws, which must be a single line.
inline std::string start_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const StartError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no StartError";
  return "";
}

inline void expect_start_error(const std::function<void()>& action, std::initializer_list<std::string_view> parts) {
  const std::string message = start_error_of(action);
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
}

// A float32 file tensor with these values; keeps them alive with itself.
struct FloatTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

inline void write_floats(const std::string& path, std::vector<FloatTensor> tensors) {
  std::vector<NamedTensor> named;
  for (FloatTensor& tensor : tensors) {
    named.push_back({tensor.name, Tensor(tensor.values.data(), DType::kFloat32, tensor.shape)});
  }
  write_safetensors(path, named);
}

}  // namespace shoal
