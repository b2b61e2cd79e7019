// One HTTP/1.1 connection and what the connections of a server share. Used by http_server.cc, and by http_requests.cc
// and http_answers.cc, which hold its two halves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "server/boost.h"
#include "server/http_server.h"
#include "server/http_stream.h"
#include "server/turn.h"

namespace shoal {

class HttpConnection;

class HttpServer::Core {
 public:
  Core(HttpServerOptions server_options, HttpServer::Handler request_handler, HttpServer::FaultHandler on_fault,
       HttpServer::EndHandler on_end)
      : options(std::move(server_options)),
        handler(std::move(request_handler)),
        fault_handler(std::move(on_fault)),
        end_handler(std::move(on_end)),
        acceptor(boost::asio::make_strand(io)) {}

  void remove(const HttpConnection* connection) {
    const std::lock_guard lock(mutex);
    connections.erase(connection);
    all_closed.notify_all();
  }

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  const HttpServer::FaultHandler fault_handler;
  const HttpServer::EndHandler end_handler;  // may be empty
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor acceptor;
  std::int32_t port = 0;
  std::vector<std::jthread> threads;
  std::atomic<bool> stopping{false};
  std::atomic<bool> stopped{false};  // the loop will not run again
  // Parsing and tokenizing a megabyte takes a thread for a while, and the others must stay free for everybody's
  // streams.
  Turn large_request_turn;
  mutable std::mutex mutex;
  std::condition_variable all_closed;
  std::unordered_map<const HttpConnection*, std::weak_ptr<HttpConnection>> connections;  // guarded by mutex
};

// One answer, shared by the connection and the writers of its handler.
class ResponseWriter::Exchange {
 public:
  Exchange(std::shared_ptr<HttpConnection> owner, bool answer_to_head)
      : connection(std::move(owner)), head(answer_to_head) {}

  const std::shared_ptr<HttpConnection> connection;
  const bool head;  // send no body
  HttpHeaders extra_headers;
  bool begun = false;      // a status line was written
  bool streaming = false;  // begun and not ended
  bool done = false;       // ended, or nobody is there to read it
  AnswerReport report;
  const std::chrono::steady_clock::time_point received = std::chrono::steady_clock::now();
  std::function<void()> on_close;
  std::shared_ptr<const void> held;
  std::optional<std::chrono::steady_clock::time_point> send_by;  // of the whole answer
};

// All members run on the strand of `stream_` but on_turn(). Two coroutines: read_loop() alone reads, so that a
// disconnect is seen at any stage; serve() shakes hands first where TLS asks for it, parses, calls the handler and
// writes.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpServer::Core> core, boost::asio::ip::tcp::socket socket);

  // Its first request is answered 503; before start().
  void turn_away() { turned_away_ = true; }
  void start();
  auto executor() { return stream_.executor(); }
  const std::shared_ptr<HttpServer::Core>& core() const { return core_; }

  // No further request after the one under way; a handshake is none.
  void stop();
  // Ends everything now; the handler of an answer under way hears of it.
  void abort();
  // Its turn has come; callable from any thread.
  void on_turn();

  void append(std::string_view bytes);
  std::size_t unsent_bytes() const { return output_.size(); }
  bool client_takes_bytes() { return stream_.takes_bytes(); }
  void notify() { wake_.cancel(); }
  // The status line and headers of the current answer.
  void append_head(const ResponseWriter::Exchange& exchange, int status, const HttpHeaders& headers,
                   std::optional<std::size_t> content_length);
  bool chunked() const { return chunked_; }

 private:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Clock = std::chrono::steady_clock;
  using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class ReadOutcome { kRequest, kClosed, kFault };

  Awaitable<void> read_loop();
  Awaitable<void> serve();
  // Of TLS, within the time for headers; false where it failed.
  Awaitable<bool> shake_hands();
  Awaitable<void> serve_requests();
  // Feeds the parser from input_, within the time limits.
  Awaitable<ReadOutcome> read_request(RequestParser& parser);
  ReadOutcome parse_fault(const boost::system::error_code& error);
  bool wants_continue(const RequestParser& parser) const;
  HttpRequest take_request(RequestParser& parser) const;
  // False when the client went away meanwhile; the turn is then given back.
  Awaitable<bool> wait_for_turn();
  void dispatch(RequestParser& parser, bool faulty);
  // Writes what the handler produces until the answer has ended; false when the client is gone.
  Awaitable<bool> pump_response();
  Awaitable<bool> write_now(std::string_view bytes);
  // Lets the client read the answer to a request that it is still sending: closing at once would reset it away.
  Awaitable<void> linger();
  Awaitable<void> end_output();
  // abort() then, unless `abort_timer_` is cancelled.
  void abort_at(Clock::time_point deadline);
  // Whether something happened before the deadline.
  Awaitable<bool> wait_until(Clock::time_point deadline);
  // Lets go of the answer, sent or not; its handler hears of one that it did not end.
  void drop_exchange();

  const std::shared_ptr<HttpServer::Core> core_;
  HttpStream stream_;
  boost::asio::steady_timer wake_;         // what serve() sleeps on
  boost::asio::steady_timer resume_read_;  // what read_loop() sleeps on while input_ is full
  boost::asio::steady_timer abort_timer_;
  const std::string peer_;
  std::string input_;                                   // received, not yet parsed
  std::string output_;                                  // to be sent
  std::shared_ptr<ResponseWriter::Exchange> exchange_;  // the answer under way; its writers may outlive it
  int fault_status_ = 400;
  bool read_closed_ = false;  // end of input: the client is gone, or as good as
  bool turned_away_ = false;  // one too many
  bool shaking_hands_ = false;
  bool broken_ = false;    // the socket is closed
  bool keep_open_ = true;  // another request may follow
  bool discard_input_ = false;
  bool has_turn_ = false;        // as a large request
  bool left_the_queue_ = false;  // of large requests: the turn that may still come is for the next
  bool http10_ = false;
  bool chunked_ = true;
};

}  // namespace shoal
