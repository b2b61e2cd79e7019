#include "hub/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <vector>

#include "core/check.h"

namespace shoal {
namespace {

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
  }
  void add(const char* bytes, std::size_t num_bytes) {
    CHECK_EQ(EVP_DigestUpdate(context_.get(), bytes, num_bytes), 1);
  }
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned int num_bytes = 0;
    CHECK_EQ(EVP_DigestFinal_ex(context_.get(), bytes.data(), &num_bytes), 1);
    std::string digits;
    for (unsigned int i = 0; i < num_bytes; ++i) digits += fmt::format("{:02x}", bytes.at(i));
    return digits;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_of(std::string_view text) {
  Digest digest;
  digest.add(text.data(), text.size());
  return digest.finish();
}

std::optional<std::string> sha256_of_file(int fd) {
  Digest digest;
  std::vector<char> buffer(1 << 20);
  if (::lseek(fd, 0, SEEK_SET) != 0) return std::nullopt;
  for (;;) {
    const ssize_t num_read = ::read(fd, buffer.data(), buffer.size());
    if (num_read < 0) return std::nullopt;
    if (num_read == 0) return digest.finish();
    digest.add(buffer.data(), static_cast<std::size_t>(num_read));
  }
}

}  // namespace shoal
