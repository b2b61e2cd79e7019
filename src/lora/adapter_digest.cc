#include "lora/adapter_digest.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "core/check.h"

namespace shoal {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
  }
  void add(const void* bytes, std::int64_t num_bytes) {
    CHECK_EQ(EVP_DigestUpdate(context_.get(), bytes, static_cast<std::size_t>(num_bytes)), 1);
  }
  AdapterIdentity finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    CHECK_EQ(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr), 1);
    AdapterIdentity identity;
    std::memcpy(&identity.high, digest.data(), sizeof(identity.high));
    std::memcpy(&identity.low, digest.data() + sizeof(identity.high), sizeof(identity.low));
    return identity;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

AdapterIdentity digest_of(std::span<const LoraPair> pairs) {
  Sha256 digest;
  for (std::size_t target = 0; target < pairs.size(); ++target) {
    const LoraPair& pair = pairs[target];
    if (!pair.a.defined()) continue;
    const std::array<std::int64_t, 6> head{static_cast<std::int64_t>(target),
                                           pair.a.dim(0),
                                           pair.a.dim(1),
                                           pair.b.dim(1),
                                           static_cast<std::int64_t>(pair.a.dtype()),
                                           std::bit_cast<std::int32_t>(pair.scale)};
    digest.add(head.data(), sizeof(head));
    digest.add(pair.a.raw(), pair.a.num_bytes());
    digest.add(pair.b.raw(), pair.b.num_bytes());
  }
  return digest.finish();
}

std::uint64_t seed_of(std::string_view text) {
  Sha256 digest;
  digest.add(text.data(), std::ssize(text));
  return digest.finish().high;
}

}  // namespace shoal
