/* What a call of the library gave, in the test's own thread: its status, and the text of the last error. */
#ifndef TESTS_EXPECT_H
#define TESTS_EXPECT_H

#include <reshard/status.h>

/* The call succeeds. */
#define GOOD(call) expect_status(call, RESHARD_SUCCESS, __FILE__, __LINE__)
/* The call fails with this status and exactly this text; BAD: as invalid. */
#define FAILS(call, status, text) expect_error(call, status, text, __FILE__, __LINE__)
#define BAD(call, text)           FAILS(call, RESHARD_ERROR_INVALID, text)
/* The call fails with this status, and this is part of its text. */
#define FAILS_WITH(call, status, part) expect_part(call, status, part, __FILE__, __LINE__)

void expect_status(reshard_status is, reshard_status wanted, const char *file, int line);
void expect_error(reshard_status is, reshard_status wanted, const char *text, const char *file, int line);
void expect_part(reshard_status is, reshard_status wanted, const char *part, const char *file, int line);

#endif
