/* Calls with NULL: see test_null.c. */
#ifndef TEST_NULL_H
#define TEST_NULL_H
#include "support/fixtures/case.h"

#include <reshard/status.h>

#include <string.h>

static _Alignas(16) char room[1 << 16]; /* where others than the handles are not NULL */

static inline void *room_for(int all) { return all ? NULL : memset(room, 0, sizeof room); }

/* First the handles alone are NULL, then all is. */
#define ROOM room_for(all)
#define TEXT (all ? NULL : "")
#define REFUSED(call) \
  do { \
    reshard_assert(0, "a text of its own", __FILE__, __LINE__); \
    reshard_status refused_ = (call); \
    if (refused_ != RESHARD_ERROR_INVALID || strstr(reshard_last_error(), "a text of its own") != NULL) \
      fail_msg("%s: %s, \"%s\"", #call, reshard_status_string(refused_), reshard_last_error()); \
  } while (0)

#endif
