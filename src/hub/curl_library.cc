#include "hub/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/result.h"

namespace shoal {
namespace {

constexpr const char* kFile = "libcurl.so.4";
constexpr unsigned int kOldestVersion = 0x075700;  // 7.87: signatures cover every header

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw StartError(fmt::format("{} has no {}", kFile, name));
}

CurlLibrary load() {
  void* const library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
  if (library == nullptr) {
    throw StartError(fmt::format("remote adapters need libcurl (Debian's package libcurl4): {}", dlerror()));
  }
  decltype(&curl_version_info) version_info = nullptr;
  find(library, "curl_version_info", version_info);
  const curl_version_info_data* const version = version_info(CURLVERSION_NOW);
  if (version->version_num < kOldestVersion) {
    throw StartError(fmt::format("{} is of version {}, expected 7.87 or later", kFile, version->version));
  }
  decltype(&curl_global_init) global_init = nullptr;
  find(library, "curl_global_init", global_init);
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw StartError("libcurl cannot be initialised");
  CurlLibrary curl;
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  find(library, "curl_url", curl.url);
  find(library, "curl_url_set", curl.url_set);
  find(library, "curl_url_get", curl.url_get);
  find(library, "curl_url_cleanup", curl.url_cleanup);
  find(library, "curl_free", curl.free);
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary library = load();
  return library;
}

}  // namespace shoal
