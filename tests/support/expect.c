#include "support/expect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

static void wrong(reshard_status is, const char *wanted, const char *file, int line) {
  print_error("%s: '%s'; expected '%s'\n", reshard_status_string(is), reshard_last_error(), wanted);
  _fail(file, line);
}

void expect_status(reshard_status is, reshard_status wanted, const char *file, int line) {
  if (is != wanted)
    wrong(is, reshard_status_string(wanted), file, line);
}

void expect_error(reshard_status is, reshard_status wanted, const char *text, const char *file, int line) {
  if (is != wanted || strcmp(reshard_last_error(), text) != 0)
    wrong(is, text, file, line);
}

void expect_part(reshard_status is, reshard_status wanted, const char *part, const char *file, int line) {
  if (is != wanted || strstr(reshard_last_error(), part) == NULL)
    wrong(is, part, file, line);
}
