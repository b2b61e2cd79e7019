// A connection's requests: from received bytes to the call of the handler.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/http_connection.h"
#include "server/http_format.h"

namespace shoal {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

asio::awaitable<HttpConnection::ReadOutcome> HttpConnection::read_request(RequestParser& parser) {
  const HttpServerOptions& options = core_->options;
  auto deadline = Clock::now() + (turned_away_ ? options.header_timeout : options.idle_timeout);
  bool begun = false;
  bool header_done = false;
  for (;;) {
    if (!begun) input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
    if (!input_.empty()) {
      if (!begun) deadline = Clock::now() + options.header_timeout;
      begun = true;
      error_code error;
      const std::size_t used = parser.put(asio::buffer(input_), error);
      input_.erase(0, used);
      resume_read_.cancel();
      if (error && error != http::error::need_more) co_return parse_fault(error);
      if (parser.is_done()) co_return ReadOutcome::kRequest;
      if (!header_done && parser.is_header_done()) {
        header_done = true;
        deadline = Clock::now() + options.body_timeout;
        if (wants_continue(parser) && !co_await write_now("HTTP/1.1 100 Continue\r\n\r\n")) {
          co_return ReadOutcome::kClosed;
        }
        continue;
      }
    }
    if (read_closed_ || broken_ || (!begun && !keep_open_)) co_return ReadOutcome::kClosed;
    const bool woken = co_await wait_until(deadline);
    if (!woken && Clock::now() >= deadline) {
      if (!begun) co_return ReadOutcome::kClosed;
      fault_status_ = 408;
      co_return ReadOutcome::kFault;
    }
  }
}

HttpConnection::ReadOutcome HttpConnection::parse_fault(const error_code& error) {
  if (error == http::error::header_limit) {
    fault_status_ = 431;
  } else if (error == http::error::body_limit) {
    fault_status_ = 413;
  } else if (error == http::error::bad_version) {
    fault_status_ = 505;
  }
  return ReadOutcome::kFault;
}

bool HttpConnection::wants_continue(const RequestParser& parser) const {
  const auto& message = parser.get();
  return input_.empty() && message.version() >= 11 &&
         boost::beast::iequals(message[http::field::expect], "100-continue");
}

HttpRequest HttpConnection::take_request(RequestParser& parser) const {
  auto& message = parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  split_target(std::string_view(message.target().data(), message.target().size()), request.path, request.query);
  for (const auto& field : message) {
    request.headers.emplace_back(lower_case(std::string_view(field.name_string())), std::string(field.value()));
  }
  request.body = std::move(message.body());
  request.peer = peer_;
  return request;
}

asio::awaitable<bool> HttpConnection::wait_for_turn() {
  has_turn_ = core_->large_request_turn.take([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self != nullptr) self->on_turn();
    return self != nullptr;
  });
  const auto client_left = [this] { return broken_ || read_closed_; };
  while (!has_turn_ && !client_left()) co_await wait_until(Clock::time_point::max());
  if (!client_left()) co_return true;
  // Nobody is left to read the answer: the request goes at once, and its turn passes on, now or when it comes.
  if (has_turn_) {
    core_->large_request_turn.give_back();
  } else {
    left_the_queue_ = true;
  }
  co_return false;
}

void HttpConnection::on_turn() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->left_the_queue_) return self->core_->large_request_turn.give_back();
    self->has_turn_ = true;
    self->notify();
  });
}

void HttpConnection::dispatch(RequestParser& parser, bool faulty) {
  HttpRequest request = take_request(parser);
  exchange_ = std::make_shared<ResponseWriter::Exchange>(shared_from_this(), request.method == "HEAD");
  const ResponseWriter writer(exchange_);
  exchange_->report.method = request.method;
  exchange_->report.path = request.path;
  exchange_->report.peer = peer_;
  try {
    if (faulty) {
      core_->fault_handler(fault_status_, request, writer);
    } else {
      core_->handler(std::move(request), writer);
    }
  } catch (const std::exception& error) {
    spdlog::error("handler failed: {}", error.what());
    if (exchange_ && exchange_->begun) {
      abort();
    } else {
      HttpRequest failed;
      if (exchange_) failed.path = exchange_->report.path;
      core_->fault_handler(500, failed, writer);
    }
  }
}

}  // namespace shoal
