#include "hub/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "core/check.h"
#include "hub/curl_library.h"

namespace shoal {
namespace {

constexpr std::size_t kKeptBodyBytes = 4096;
constexpr std::size_t kMaxHeaderBytes = std::size_t{64} << 10;
// Of no body.
constexpr const char* kEmptySha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string lower(std::string_view text) {
  std::string lowered(text);
  std::transform(lowered.begin(), lowered.end(), lowered.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return lowered;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.front()) != std::string_view::npos)
    text.remove_prefix(1);
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  return text;
}

// What libcurl's callbacks see of one exchange.
struct Exchange {
  const HttpCall& call;
  const std::stop_token& stop;
  HttpReply reply;
  std::size_t header_bytes = 0;
  bool sink_refused = false;
};

std::size_t on_header(const char* bytes, std::size_t /*one*/, std::size_t num_bytes, void* state) {
  auto& exchange = *static_cast<Exchange*>(state);
  exchange.header_bytes += num_bytes;
  if (exchange.header_bytes > kMaxHeaderBytes) return 0;
  const std::string_view line = trim({bytes, num_bytes});
  if (line.starts_with("HTTP/")) {  // a new head: what came before was a 100, or of a proxy
    exchange.reply.headers.clear();
    const std::size_t space = line.find(' ');
    exchange.reply.status = 0;
    if (space != std::string_view::npos) {
      std::from_chars(line.data() + space + 1, line.data() + line.size(), exchange.reply.status);
    }
    return num_bytes;
  }
  const std::size_t colon = line.find(':');
  if (colon != std::string_view::npos) {
    exchange.reply.headers[lower(line.substr(0, colon))] = trim(line.substr(colon + 1));
  }
  return num_bytes;
}

std::size_t on_body(const char* bytes, std::size_t /*one*/, std::size_t num_bytes, void* state) {
  auto& exchange = *static_cast<Exchange*>(state);
  HttpReply& reply = exchange.reply;
  if (exchange.call.sink && reply.status >= 200 && reply.status < 300) {
    if (exchange.call.sink(reply, {bytes, num_bytes})) return num_bytes;
    exchange.sink_refused = true;
    return 0;
  }
  const std::size_t room = kKeptBodyBytes - std::min(kKeptBodyBytes, reply.body.size());
  reply.body.append(bytes, std::min(room, num_bytes));
  return num_bytes;
}

int on_progress(void* state, curl_off_t /*down_total*/, curl_off_t /*down*/, curl_off_t /*up_total*/,
                curl_off_t /*up*/) {
  return static_cast<const Exchange*>(state)->stop.stop_requested() ? 1 : 0;
}

bool is_lasting(CURLcode code) {
  constexpr std::array kLasting = {CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT,
                                   CURLE_WRITE_ERROR,          CURLE_ABORTED_BY_CALLBACK,
                                   CURLE_OUT_OF_MEMORY,        CURLE_PEER_FAILED_VERIFICATION,
                                   CURLE_SSL_CACERT_BADFILE,   CURLE_BAD_FUNCTION_ARGUMENT};
  return std::find(kLasting.begin(), kLasting.end(), code) != kLasting.end();
}

bool is_passing(int status) {
  constexpr std::array kPassing = {408, 429, 500, 502, 503, 504};
  return std::find(kPassing.begin(), kPassing.end(), status) != kPassing.end();
}

// Seconds of a Retry-After header; its other form, a date, is rare and taken for none.
std::optional<std::int64_t> retry_after_s(const HttpReply& reply) {
  const std::string_view text = reply.header("retry-after");
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return std::nullopt;
  return seconds;
}

using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using HeaderList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

// Options are set on a fresh handle: wrong ones are our mistake.
template <typename Value>
void set(CURL* handle, CURLoption option, Value value) {
  CHECK_EQ(static_cast<int>(curl_library().easy_setopt(handle, option, value)), static_cast<int>(CURLE_OK));
}

bool signs(const HttpCall& call) { return call.signer != nullptr && !call.signer->access_key_id.empty(); }

HeaderList make_headers(const HttpCall& call) {
  const CurlLibrary& curl = curl_library();
  HeaderList list(nullptr, curl.slist_free_all);
  const auto add = [&](const std::string& line) {
    curl_slist* const longer = curl.slist_append(list.get(), line.c_str());
    CHECK(longer != nullptr);
    if (longer != list.get()) list.reset(longer);  // the head stays, but for the first line
  };
  for (const std::string& line : call.headers) add(line);
  if (!call.bearer.empty()) add("Authorization: Bearer " + call.bearer);
  if (signs(call)) {
    add(fmt::format("x-amz-content-sha256: {}",
                    kEmptySha256));  // S3 asks for it; only later versions add it themselves
    if (!call.signer->session_token.empty()) add("x-amz-security-token: " + call.signer->session_token);
  }
  return list;
}

void set_limits(CURL* handle, const HttpOptions& options) {
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  set(handle, CURLOPT_FOLLOWLOCATION, 0L);
  set(handle, CURLOPT_PATH_AS_IS, 1L);  // what was escaped stays as it is, and is what was signed
  set(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_limit.count()));
  set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_limit.count()));
  set(handle, CURLOPT_USERAGENT, options.user_agent.c_str());
  if (!options.ca_file.empty()) set(handle, CURLOPT_CAINFO, options.ca_file.c_str());
}

void set_signer(CURL* handle, const AwsCredentials& signer) {
  const std::string provider = fmt::format("aws:amz:{}:s3", signer.region);  // copied by libcurl, as all texts
  set(handle, CURLOPT_AWS_SIGV4, provider.c_str());
  set(handle, CURLOPT_USERNAME, signer.access_key_id.c_str());
  set(handle, CURLOPT_PASSWORD, signer.secret_access_key.c_str());
}

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~").find(c) != std::string_view::npos;
}

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::optional<std::string> part_of(const Url& url, CURLUPart part, unsigned int flags = 0) {
  const CurlLibrary& curl = curl_library();
  char* text = nullptr;
  if (curl.url_get(url.get(), part, &text, flags) != CURLUE_OK) return std::nullopt;
  std::string copy(text);
  curl.free(text);
  return copy;
}

}  // namespace

std::string_view HttpReply::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

HttpClient::HttpClient(HttpOptions options, std::stop_token stop)
    : options_(std::move(options)), stop_(std::move(stop)) {
  curl_library();
}

HttpReply HttpClient::send(const HttpCall& call) const {
  const CurlLibrary& curl = curl_library();
  Exchange exchange{.call = call, .stop = stop_, .reply = {}};
  const Handle handle(curl.easy_init(), curl.easy_cleanup);
  CHECK(handle != nullptr);
  std::array<char, CURL_ERROR_SIZE> text{};
  const HeaderList headers = make_headers(call);
  set_limits(handle.get(), options_);
  set(handle.get(), CURLOPT_URL, call.url.c_str());
  set(handle.get(), CURLOPT_NOBODY, call.method == HttpMethod::kHead ? 1L : 0L);
  set(handle.get(), CURLOPT_HTTPHEADER, headers.get());
  if (signs(call)) set_signer(handle.get(), *call.signer);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(call.deadline - std::chrono::steady_clock::now());
  set(handle.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(left.count(), 1)));
  set(handle.get(), CURLOPT_ERRORBUFFER, text.data());
  set(handle.get(), CURLOPT_HEADERFUNCTION, &on_header);
  set(handle.get(), CURLOPT_HEADERDATA, &exchange);
  set(handle.get(), CURLOPT_WRITEFUNCTION, &on_body);
  set(handle.get(), CURLOPT_WRITEDATA, &exchange);
  set(handle.get(), CURLOPT_NOPROGRESS, 0L);
  set(handle.get(), CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(handle.get(), CURLOPT_XFERINFODATA, &exchange);
  const CURLcode code = curl.easy_perform(handle.get());
  HttpReply reply = std::move(exchange.reply);
  if (code != CURLE_OK) {
    reply.trouble = text[0] == '\0' ? curl.easy_strerror(code) : text.data();
    if (stopped()) reply.trouble = "the server is stopping";
  }
  reply.worth_retry = code == CURLE_OK ? is_passing(reply.status) : !is_lasting(code) && !exchange.sink_refused;
  return reply;
}

HttpReply HttpClient::send_with_retries(const HttpCall& call) const {
  for (int attempt = 1;; ++attempt) {
    HttpReply reply = send(call);
    if (!reply.worth_retry || !pause(reply, attempt, call.deadline)) return reply;
  }
}

bool HttpClient::pause(const HttpReply& last, int attempt, std::chrono::steady_clock::time_point deadline) const {
  using std::chrono::milliseconds;
  if (attempt >= options_.max_attempts) return false;
  milliseconds duration = std::min(options_.first_pause * (1 << std::min(attempt - 1, 10)), options_.longest_pause);
  if (const auto seconds = retry_after_s(last)) {
    if (*seconds > options_.longest_pause.count() / 1000) return false;
    duration = std::max(duration, milliseconds(*seconds * 1000));
  }
  if (std::chrono::steady_clock::now() + duration >= deadline) return false;
  return sleep(duration);
}

bool HttpClient::sleep(std::chrono::milliseconds duration) const {
  std::mutex mutex;
  std::condition_variable_any nobody_rings;
  std::unique_lock lock(mutex);
  nobody_rings.wait_for(lock, stop_, duration, [] { return false; });
  return !stopped();
}

std::string escape_url(std::string_view text, Slashes slashes) {
  std::string escaped;
  for (const char c : text) {
    if (is_unreserved(c) || (c == '/' && slashes == Slashes::kKeep)) {
      escaped.push_back(c);
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

std::optional<std::string> origin_of(const std::string& url) {
  const CurlLibrary& curl = curl_library();
  const Url parsed(curl.url(), curl.url_cleanup);
  if (curl.url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return std::nullopt;
  const auto scheme = part_of(parsed, CURLUPART_SCHEME);
  const auto host = part_of(parsed, CURLUPART_HOST);
  const auto port = part_of(parsed, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  if (!scheme || !host || !port || (*scheme != "http" && *scheme != "https")) return std::nullopt;
  return lower(fmt::format("{}://{}:{}", *scheme, *host, *port));
}

std::optional<std::string> resolve_redirect(const std::string& base, const std::string& location) {
  const CurlLibrary& curl = curl_library();
  const Url parsed(curl.url(), curl.url_cleanup);
  if (curl.url_set(parsed.get(), CURLUPART_URL, base.c_str(), CURLU_PATH_AS_IS) != CURLUE_OK) return std::nullopt;
  if (curl.url_set(parsed.get(), CURLUPART_URL, location.c_str(), CURLU_PATH_AS_IS) != CURLUE_OK) return std::nullopt;
  if (part_of(parsed, CURLUPART_USER) || part_of(parsed, CURLUPART_PASSWORD)) return std::nullopt;
  auto url = part_of(parsed, CURLUPART_URL);
  if (!url || !origin_of(*url)) return std::nullopt;
  if (base.starts_with("https:") && !url->starts_with("https:")) return std::nullopt;
  return url;
}

}  // namespace shoal
