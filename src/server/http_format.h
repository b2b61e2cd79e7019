// Text of HTTP messages: response heads, targets, status words. Used by http_server.cc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_server.h"

namespace shoal {

struct ResponseHead {
  int status = 200;
  bool keep_open = true;
  bool http10 = false;
};

// Appends status line and headers, without the empty line. Bytes of a value that may not stand in a header are
// percent-encoded, so that no request can make a header of its own.
void append_response_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                          std::optional<std::size_t> content_length);

void append_headers(std::string& out, const HttpHeaders& headers);

// Cuts a request target (origin or absolute form) at its '?'.
void split_target(std::string_view target, std::string& path, std::string& query);

// ASCII letters only, as in header names.
std::string lower_case(std::string_view text);

// "a%20b" -> "a b"; a '%' without two hex digits stays.
std::string percent_decode(std::string_view text);

}  // namespace shoal
