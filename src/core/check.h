// CHECK macros for our own mistakes: they print the expression, its values and the place, then stop.
// Used everywhere; a request can never reach one (its faults are Result values, see result.h).
#pragma once

#include <fmt/core.h>

#include <string>

namespace shoal::check_detail {

[[noreturn]] void fail(const char* expression, const std::string& values, const char* file, int line);

template <typename A, typename B>
[[noreturn]] void fail_compare(const char* expression, const A& a, const B& b, const char* file, int line) {
  fail(expression, fmt::format("{} and {}", a, b), file, line);
}

}  // namespace shoal::check_detail

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::shoal::check_detail::fail(#condition, "", __FILE__, __LINE__))

#define CHECK_COMPARE(a, op, b)                                                                       \
  do {                                                                                                \
    const auto& check_a_ = (a);                                                                       \
    const auto& check_b_ = (b);                                                                       \
    if (!(check_a_ op check_b_)) {                                                                    \
      ::shoal::check_detail::fail_compare(#a " " #op " " #b, check_a_, check_b_, __FILE__, __LINE__); \
    }                                                                                                 \
  } while (false)

#define CHECK_EQ(a, b) CHECK_COMPARE(a, ==, b)
#define CHECK_NE(a, b) CHECK_COMPARE(a, !=, b)
#define CHECK_LT(a, b) CHECK_COMPARE(a, <, b)
#define CHECK_LE(a, b) CHECK_COMPARE(a, <=, b)
#define CHECK_GT(a, b) CHECK_COMPARE(a, >, b)
#define CHECK_GE(a, b) CHECK_COMPARE(a, >=, b)
