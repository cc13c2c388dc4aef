/* Assertions that return a status: text, file, line and callers in the last error, in one line that fits it. */
#include "support/fixtures/case.h"

#include <reshard/status.h>

#include <stdio.h>
#include <string.h>

/* Has a name that a backtrace can find. */
reshard_status caller_of_an_assertion(int condition);
__attribute__((noinline)) reshard_status caller_of_an_assertion(int condition) {
#line 1000
  volatile reshard_status status = RESHARD_ASSERT(condition, "the flat parameter is sharded"); /* no tail call */
  return status;
}

CASE(assertion_that_holds_keeps_the_last_error) {
  assert_int_equal(reshard_assert(0, "before", "file.c", 1), RESHARD_ERROR_INTERNAL);
  char before[1100];
  snprintf(before, sizeof before, "%s", reshard_last_error());
  assert_int_equal(caller_of_an_assertion(1), RESHARD_SUCCESS);
  assert_int_equal(caller_of_an_assertion(-7), RESHARD_SUCCESS);
  assert_string_equal(reshard_last_error(), before);
}

CASE(assertion_that_fails_tells_text_and_place) {
  assert_int_equal(caller_of_an_assertion(0), RESHARD_ERROR_INTERNAL);
  const char *text = reshard_last_error();
  assert_ptr_equal(strstr(text, "assertion failed: the flat parameter is sharded, in "), text);
  const char *place = strstr(text, "test_assert.c:1000");
  assert_non_null(place);
#if defined(__GLIBC__)
  const char *callers = strstr(place, "; called by ");
  assert_non_null(callers);
  const char *second = strstr(callers, " < ");
  assert_non_null(second);
  /* A function of a program that exports no names is file+offset; one with a name has that. Never reshard_assert. */
  assert_null(strstr(text, "reshard_assert"));
  assert_true(strstr(callers, "test_assert+0x") != NULL || strstr(callers, "caller_of_an_assertion+0x") != NULL);
  assert_null(strchr(text, '('));
  assert_null(strchr(callers, '/'));
#endif
  assert_null(strchr(text, '\n'));
}

CASE(test_odd_arguments) {
  char text[3000];
  assert_int_equal(reshard_assert(0, NULL, NULL, -1), RESHARD_ERROR_INTERNAL);
  assert_ptr_equal(strstr(reshard_last_error(), "assertion failed: no text, in a file that is not given:-1"),
                   reshard_last_error());
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  assert_int_equal(reshard_assert(0, text, "f.c", 3), RESHARD_ERROR_INTERNAL);
  assert_int_equal(strlen(reshard_last_error()), 1023);
}

RUN_CASES
