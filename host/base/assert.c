/* An assertion that does not end the program: where it is and who called, in one line. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#if defined(__has_include)
#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define HAVE_BACKTRACE
#endif
#endif

#ifdef HAVE_BACKTRACE
enum { DEEPEST = 64 };

/* glibc writes "object(function+offset) [address]": the function where it has a name, else the object's file. */
static void add_caller(rs_text *out, const char *symbol) {
  size_t object = strcspn(symbol, "("), inside = symbol[object] == '(' ? strcspn(symbol + object + 1, ")") : 0;
  const char *at = symbol + object + 1;
  if (inside > 0 && *at != '+') {
    rs_text_add(out, "%.*s", (int)inside, at);
    return;
  }
  while (memchr(symbol, '/', object) != NULL) {
    const char *behind = (const char *)memchr(symbol, '/', object) + 1;
    object -= (size_t)(behind - symbol);
    symbol = behind;
  }
  rs_text_add(out, "%.*s%.*s", (int)object, symbol, (int)inside, at);
}

static __attribute__((noinline)) void add_callers(rs_text *out) {
  void *frames[DEEPEST];
  int n = backtrace(frames, DEEPEST);
  char **symbols = backtrace_symbols(frames, n); /* NULL without memory: addresses are better than nothing */
  for (int i = 2; i < n; i++) {                  /* from the caller of reshard_assert on */
    rs_text_add(out, i == 2 ? "; called by " : " < ");
    if (symbols != NULL)
      add_caller(out, symbols[i]);
    else
      rs_text_add(out, "%p", frames[i]);
  }
  free(symbols);
}
#else
static void add_callers(rs_text *out) { (void)out; }
#endif

reshard_status reshard_assert(int condition, const char *text, const char *file, int line) {
  char buffer[1024]; /* as long as a last error can be */
  rs_text out = {.at = buffer, .size = sizeof buffer};
  if (condition)
    return RESHARD_SUCCESS;
  rs_text_add(&out, "assertion failed: %s, in %s:%d", text != NULL ? text : "no text",
              file != NULL ? file : "a file that is not given", line);
  add_callers(&out);
  return rs_error(RESHARD_ERROR_INTERNAL, "%s", buffer);
}
