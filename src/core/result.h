// Result<T>: the request's fault as a value. server/ maps each ErrorCode to HTTP statuses in one table.
// What cannot start is a StartError exception, caught once in cli/.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "core/check.h"

namespace shoal {

enum class ErrorCode {
  kValidation,       // a field of the request is wrong; the message names it
  kAdapterNotFound,  // no such adapter at its source
  kAdapterInvalid,   // the adapter does not fit the base model, or needs what is not supported
  kOverloaded,       // no permit, or the queue is full
  kGeneration,       // this request failed inside the engine
  kIncomplete,       // the stream ended without its last token
  kTemplate,         // chat template missing or failed to render
  kUnavailable,      // draining or not ready
  kTimeout,          // the request's deadline passed
};

struct Error {
  ErrorCode code = ErrorCode::kGeneration;
  std::string message;
};

// Holds a T or an Error. Reading the wrong one is our mistake.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor): reads as the value
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor): reads as the error

  bool ok() const { return std::holds_alternative<T>(state_); }
  T& value() & {
    CHECK(ok());
    return std::get<T>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<T>(state_);
  }
  const Error& error() const& {
    CHECK(!ok());
    return std::get<Error>(state_);
  }
  // Of a temporary: by value, so that `for (auto& x : make().value())` does not read what is gone.
  T value() && {
    CHECK(ok());
    return std::get<T>(std::move(state_));
  }
  Error error() && {
    CHECK(!ok());
    return std::get<Error>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

struct Ok {};
using Status = Result<Ok>;

// Thrown while starting: a file, weight or config that does not fit. The text names the file and the thing,
// what was found and what was expected. cli/ prints it as one line and exits with 1.
class StartError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace shoal
