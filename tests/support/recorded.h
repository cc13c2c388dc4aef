/* Files that were recorded in the source tree ($SOURCE), copied into the scratch directory and changed there. */
#ifndef TESTS_RECORDED_H
#define TESTS_RECORDED_H

#include <stdbool.h>
#include <stddef.h>

typedef struct recorded {
  char *at;
  size_t n;
} recorded;

/* Whether $SOURCE is there, with tests/files/distcp. */
bool recorded_there(void);
/* tests/files/distcp/NAME; freed by recorded_free. */
recorded recorded_read(const char *name);
void recorded_free(recorded *file);
/* Replaces bytes that must be there: the first such, or all. */
void recorded_replace(recorded *file, const void *from, size_t from_n, const void *to, size_t to_n, bool all);
/* Copies tests/files/distcp/sharded to a directory of the scratch directory. */
void recorded_sharded(const char *name);

#endif
