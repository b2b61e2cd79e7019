// A preloaded library that stands for a slow disk: opening a file whose path contains $SLOW_PATH takes four seconds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_slowly(const char* symbol, const char* path, int flags, int mode) {
  int (*next)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, symbol);
  const char* slow = getenv("SLOW_PATH");
  if (slow != NULL && strstr(path, slow) != NULL) sleep(4);
  return next(path, flags, mode);
}

static int mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_slowly("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_slowly("open64", path, flags, mode);
}
