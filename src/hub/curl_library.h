// CurlLibrary: libcurl, loaded when a remote source is turned on: a server of local adapters starts without it and the
// two dozen libraries that it brings. Used by http_client.
#pragma once

// The checks of arguments are macros in C, where functions are meant here.
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace shoal {

struct CurlLibrary {
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_url) url = nullptr;
  decltype(&curl_url_set) url_set = nullptr;
  decltype(&curl_url_get) url_get = nullptr;
  decltype(&curl_url_cleanup) url_cleanup = nullptr;
  decltype(&curl_free) free = nullptr;
};

// Loads and initialises it at the first call. StartError where it is not installed, or too old to sign requests.
const CurlLibrary& curl_library();

}  // namespace shoal
