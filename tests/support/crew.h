/* Ranks as threads, for tests that are about what several ranks do at the same time. */
#ifndef TESTS_CREW_H
#define TESTS_CREW_H

#include <reshard/status.h>

/* Runs body(user, r) for r in [0, n), each on a thread of its own; returns when all have returned. */
void crew_run(int64_t n, void (*body)(void *user, int64_t rank), void *user);

/* One thread that runs body(user, 0) beside the caller. */
typedef struct crew_thread crew_thread;
crew_thread *crew_start(void (*body)(void *user, int64_t rank), void *user);
void crew_join(crew_thread *thread);

/* What a call of a rank gave: its status and the thread's last error. */
typedef struct crew_result {
  reshard_status status;
  char text[1024];
} crew_result;
void crew_note(crew_result *result, reshard_status status);
/* All n have this status; where it is an error, the same text with `part` in it (NULL: any). Else the test fails,
 * saying what was done (NULL: nothing). */
void crew_assert(int64_t n, const crew_result *results, reshard_status status, const char *part, const char *what);

void crew_sleep_ms(int ms);

/* n times RESHARD_TEST_SCALE (default 1), at least 1. */
int64_t crew_scaled(int64_t n);

#endif
