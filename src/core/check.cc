#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace shoal::check_detail {

void fail(const char* expression, const std::string& values, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expression, values.empty() ? "" : ", with ",
               values.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace shoal::check_detail
