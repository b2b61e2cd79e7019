#include "server/http_format.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <iterator>

namespace shoal {

namespace {

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      fmt::format_to(std::back_inserter(out), "%{:02X}", byte);
    } else {
      out += c;
    }
  }
  out += "\r\n";
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return std::nullopt;
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Entity";
    case 424:
      return "Failed Dependency";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

void append_headers(std::string& out, const HttpHeaders& headers) {
  for (const auto& [name, value] : headers) append_header(out, name, value);
}

void append_response_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                          std::optional<std::size_t> content_length) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", head.status, status_text(head.status));
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  fmt::format_to(std::back_inserter(out), "date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(now));
  append_headers(out, headers);
  // A 204 has no body, and no length of one.
  if (content_length && head.status != 204) append_header(out, "content-length", std::to_string(*content_length));
  if (!head.keep_open) {
    append_header(out, "connection", "close");
  } else if (head.http10) {
    append_header(out, "connection", "keep-alive");
  }
}

void split_target(std::string_view target, std::string& path, std::string& query) {
  if (!target.empty() && target.front() != '/') {
    const std::size_t scheme = target.find("://");
    const std::size_t begin = scheme == std::string_view::npos ? scheme : target.find('/', scheme + 3);
    if (begin != std::string_view::npos) target.remove_prefix(begin);
  }
  const std::size_t mark = target.find('?');
  path = std::string(target.substr(0, mark));
  query = mark == std::string_view::npos ? std::string() : std::string(target.substr(mark + 1));
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : hex_digit(text[i + 2]);
    if (low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace shoal
