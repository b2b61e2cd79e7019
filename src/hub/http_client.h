// HttpClient: HTTP and HTTPS requests over libcurl, one attempt or several. Used by the remote sources.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace shoal {

enum class HttpMethod : std::uint8_t { kGet, kHead };

// For AWS Signature Version 4, which libcurl makes.
struct AwsCredentials {
  std::string access_key_id;  // "": requests are not signed
  std::string secret_access_key;
  std::string session_token;  // may be empty
  std::string region = "us-east-1";
};

struct HttpReply {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // names in lower case; of several, the last
  std::string body;                            // what no sink took: its first 4 KiB
  std::string trouble;                         // what cut the exchange; "": nothing did
  bool worth_retry = false;                    // after such trouble or status it may go better

  bool ok() const { return trouble.empty() && status >= 200 && status < 300; }
  std::string_view header(const std::string& name) const;  // "" for none
};

struct HttpCall {
  HttpMethod method = HttpMethod::kGet;
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  std::string bearer;                // sent to this origin alone; "" for none
  const AwsCredentials* signer = nullptr;
  std::chrono::steady_clock::time_point deadline;  // of this attempt and of those that follow it
  // Takes the body of a 2xx reply, whose `body` is empty so far; false ends the exchange. None: the reply's body has
  // it.
  std::function<bool(const HttpReply& head, std::span<const char> bytes)> sink = {};
};

struct HttpOptions {
  std::string user_agent = "shoal";
  std::string ca_file;  // PEM; "": the system's
  std::chrono::milliseconds connect_limit{10'000};
  std::chrono::seconds stall_limit{30};             // without a byte
  std::chrono::milliseconds first_pause{500};       // before the second attempt; then twice as long each time
  std::chrono::milliseconds longest_pause{20'000};  // a server that asks for more is not waited for
  int max_attempts = 5;
};

// Safe to use from several threads at once.
class HttpClient {
 public:
  // A stop ends pauses and exchanges. StartError where libcurl is missing.
  HttpClient(HttpOptions options, std::stop_token stop);

  // One attempt; redirects are replies like others.
  HttpReply send(const HttpCall& call) const;
  // As send(), again while that is worth it and the deadline is not near.
  HttpReply send_with_retries(const HttpCall& call) const;
  // Sleeps before attempt number `attempt` + 1: longer each time, or as `last` asks. False: no more attempts.
  bool pause(const HttpReply& last, int attempt, std::chrono::steady_clock::time_point deadline) const;

  bool stopped() const { return stop_.stop_requested(); }
  bool sleep(std::chrono::milliseconds duration) const;  // false: stopped
  const HttpOptions& options() const { return options_; }

 private:
  HttpOptions options_;
  std::stop_token stop_;
};

// Each byte that is not unreserved in RFC 3986 as %XX; '/' stays where `keep_slashes`.
enum class Slashes : std::uint8_t { kEscape, kKeep };
std::string escape_url(std::string_view text, Slashes slashes);
// `location` seen from `base`; none unless it is http or https without credentials, and no step from https to http.
std::optional<std::string> resolve_redirect(const std::string& base, const std::string& location);
// "scheme://host:port" in lower case, the port always there; none where `url` is no http or https URL.
std::optional<std::string> origin_of(const std::string& url);

}  // namespace shoal
