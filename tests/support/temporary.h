/* Where tests put files: $TMPDIR, which the guard gives each test, empty, and looks through afterwards. */
#ifndef TESTS_TEMPORARY_H
#define TESTS_TEMPORARY_H

#include <stdlib.h>

enum { TEMPORARY_PATH = 512 }; /* holds a short name in it */
static inline const char *temporary(void) { return getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp"; }

#endif
