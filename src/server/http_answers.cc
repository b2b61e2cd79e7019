// A connection's answers: from the calls of a ResponseWriter to sent bytes.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/http_connection.h"
#include "server/http_format.h"

namespace shoal {

namespace asio = boost::asio;
using Exchange = ResponseWriter::Exchange;

namespace {

template <typename Value>
void set_named(std::vector<std::pair<std::string, Value>>& list, const std::string& name, Value value) {
  const auto known = std::find_if(list.begin(), list.end(), [&](const auto& each) { return each.first == name; });
  if (known == list.end()) {
    list.emplace_back(name, std::move(value));
  } else {
    known->second = std::move(value);
  }
}

}  // namespace

void HttpConnection::append(std::string_view bytes) {
  output_.append(bytes);
  notify();
}

void HttpConnection::append_head(const Exchange& exchange, int status, const HttpHeaders& headers,
                                 std::optional<std::size_t> content_length) {
  if (core_->stopping) keep_open_ = false;
  if (!content_length && !chunked_) keep_open_ = false;  // HTTP/1.0: the end of the stream is the close
  append_response_head(output_, {.status = status, .keep_open = keep_open_, .http10 = http10_}, headers,
                       content_length);
  append_headers(output_, exchange.extra_headers);
  if (!content_length && chunked_ && !exchange.head) output_ += "transfer-encoding: chunked\r\n";
  output_ += "\r\n";
}

asio::awaitable<bool> HttpConnection::pump_response() {
  auto last_write = Clock::now();
  for (;;) {
    if (broken_) co_return false;
    if (!output_.empty()) {
      std::string sending;
      sending.swap(output_);
      if (!co_await write_now(sending)) co_return false;
      last_write = Clock::now();
      continue;
    }
    if (!exchange_ || exchange_->done) {
      if (exchange_) exchange_->report.complete = true;
      drop_exchange();
      co_return true;
    }
    if (read_closed_) {
      abort();
      co_return false;
    }
    const bool streaming = exchange_->streaming;
    const auto comment_due = last_write + core_->options.keep_alive_comment;
    if (streaming && Clock::now() >= comment_due) {
      ResponseWriter(exchange_).write(":\n\n");
      continue;
    }
    co_await wait_until(streaming ? comment_due : Clock::time_point::max());
  }
}

asio::awaitable<bool> HttpConnection::write_now(std::string_view bytes) {
  while (!bytes.empty()) {
    auto deadline = Clock::now() + core_->options.write_timeout;
    if (exchange_ && exchange_->send_by) deadline = std::min(deadline, *exchange_->send_by);
    abort_at(deadline);
    const auto [error, count] = co_await stream_.write_some(asio::buffer(bytes.data(), bytes.size()));
    abort_timer_.cancel();
    if (error) {
      abort();
      co_return false;
    }
    bytes.remove_prefix(count);
  }
  co_return !broken_;
}

ResponseWriter::ResponseWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

void ResponseWriter::add_headers(const HttpHeaders& headers) const {
  exchange_->extra_headers.insert(exchange_->extra_headers.end(), headers.begin(), headers.end());
}

void ResponseWriter::note(const std::string& name, std::string value) const {
  set_named(exchange_->report.notes, name, std::move(value));
}

void ResponseWriter::note(const std::string& name, std::int64_t count) const {
  set_named(exchange_->report.counts, name, count);
}

void ResponseWriter::send(int status, const HttpHeaders& headers, std::string_view body) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->done = true;
  exchange_->on_close = nullptr;
  exchange_->report.status = status;
  exchange_->report.body_bytes = static_cast<std::int64_t>(body.size());
  HttpConnection& connection = *exchange_->connection;
  connection.append_head(*exchange_, status, headers, body.size());
  connection.append(exchange_->head ? std::string_view() : body);
}

void ResponseWriter::begin_stream(const HttpHeaders& headers) const {
  if (exchange_->done || exchange_->begun) return;
  exchange_->begun = true;
  exchange_->streaming = true;
  exchange_->report.status = 200;
  exchange_->connection->append_head(*exchange_, 200, headers, std::nullopt);
  exchange_->connection->notify();
}

void ResponseWriter::write(std::string_view text) const {
  if (exchange_->done || !exchange_->streaming || text.empty()) return;
  HttpConnection& connection = *exchange_->connection;
  // A burst, or one event that is larger than the limit, is no fault of a client that reads.
  const bool too_many = connection.unsent_bytes() + text.size() > connection.core()->options.max_stream_buffer_bytes;
  if (too_many && !connection.client_takes_bytes()) {
    spdlog::warn("a client reads its stream too slowly: closed");
    connection.abort();
    return;
  }
  exchange_->report.body_bytes += static_cast<std::int64_t>(text.size());
  connection.append(connection.chunked() ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::string(text));
}

void ResponseWriter::end() const {
  if (exchange_->done || !exchange_->streaming) return;
  exchange_->streaming = false;
  exchange_->done = true;
  exchange_->on_close = nullptr;
  exchange_->connection->append(exchange_->connection->chunked() ? "0\r\n\r\n" : "");
}

bool ResponseWriter::closed() const { return exchange_->done; }

void ResponseWriter::on_close(std::function<void()> callback) const {
  if (!exchange_->done) exchange_->on_close = std::move(callback);
}

void ResponseWriter::hold(std::shared_ptr<const void> resource) const {
  if (!exchange_->done) exchange_->held = std::move(resource);
}

void ResponseWriter::send_within(std::chrono::milliseconds limit) const {
  exchange_->send_by = std::chrono::steady_clock::now() + limit;
}

void ResponseWriter::post(std::function<void()> function) const {
  if (exchange_->connection->core()->stopped) return;
  asio::post(exchange_->connection->executor(), [exchange = exchange_, function = std::move(function)] {
    try {
      function();
    } catch (const std::exception& error) {
      spdlog::error("answer failed: {}", error.what());
      exchange->connection->abort();
    }
  });
}

}  // namespace shoal
