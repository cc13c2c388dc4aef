/* Memory files of the processes: each passes its own to the others, once. From then on a rank maps whatever another one
 * has in shared storage, by its offset there. Shared storage of GPUs has a descriptor for each segment instead, which
 * is passed on when a rank is to read it. */
#include "comm/node/create.h"
#include "comm/node/end.h"
#include "comm/node/wait.h"

#include "device/cpu/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static reshard_status error_passing(rs_node *c, int64_t rank, int failed) {
  if (failed == ECANCELED)
    return rs_node_error_look(c);
  return rs_error(failed == ETIMEDOUT                       ? RESHARD_ERROR_TIMEOUT
                  : failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER
                                                            : RESHARD_ERROR_SYSTEM,
                  "memory file to or from rank %lld: %s", (long long)rs_node_name(c, rank), strerror(failed));
}

reshard_status rs_node_pass_files(rs_node *c, int64_t end) {
  int64_t n = c->base.size, me = c->base.rank;
  int own;
  RS_TRY(rs_alloc_zero((void *)&c->base.imports, n, sizeof *c->base.imports));
  reshard_status status = rs_shared_open(&own);
  if (status != RESHARD_SUCCESS) { /* which says that the file is not to be closed */
    free(c->base.imports);
    c->base.imports = NULL;
    return status;
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + i) % n;
    int failed = rs_node_send_to(c, r, &me, sizeof me, &own, 1, end);
    if (failed != 0)
      return error_passing(c, r, failed);
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + n - i) % n, from;
    int fd, failed = rs_node_receive_from(c, r, &from, sizeof from, &fd, 1, end);
    if (failed != 0)
      return error_passing(c, r, failed);
    RS_TRY(rs_import_open(fd, &c->base.imports[r]));
  }
  return RESHARD_SUCCESS;
}

/* --- Descriptors of segments of GPUs ------------------------------------------------------------------------------ */

enum { WAIT_NS = 1000000 };
#define HELD_NS 10000000000 /* and half of the deadline: the system may hold a descriptor back, while nothing moves */

static reshard_status error_of_gpu(const rs_node *c, int64_t rank, int failed) {
  return rs_error(failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER : RESHARD_ERROR_SYSTEM,
                  "memory of a GPU to or from rank %lld: %s", (long long)rs_node_name(c, rank),
                  failed == EPROTO ? "it could not be passed on" : strerror(failed));
}

/* Nothing could be passed on now. A rank that waits here is held up itself: others do not miss it. */
static reshard_status look_at_passing(rs_node *c, int64_t rank, int64_t since) {
  char text[24];
  int64_t name = rs_node_name(c, rank);
  RS_TRY(rs_node_check(c, true));
  memset(c->missing, 0, (size_t)c->base.size * sizeof *c->missing);
  c->missing[rank] = true;
  rs_node_show_wait(c);
  rs_comm_await(rs_node_named(c), 1, &name);
  if (!rs_late(since, c->timeout_ms))
    return RESHARD_SUCCESS;
  snprintf(text, sizeof text, "%lld", (long long)name);
  return rs_node_give_up(c, rs_comm_error_timeout(rs_node_named(c), "memory of GPUs", c->timeout_ms, text), c->missing);
}

/* The system has no room for it now: a user's descriptors that are under way are limited, and there is its memory. */
static bool is_held(const rs_node *c, int failed, bool with_descriptor, int64_t since) {
  if (failed == ETOOMANYREFS)
    return rs_now_ns() - since < HELD_NS && !rs_late(since, (c->timeout_ms + 1) / 2);
  return !with_descriptor && (failed == ENOBUFS || failed == ENOMEM);
}

reshard_status rs_node_pass(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done) {
  rs_node *c = rs_node_of(comm);
  bool with = fd >= 0;
  int refused = 0;
  *done = false;
  for (;;) {
    int failed = rs_node_send(c->sockets[rank], &number, sizeof number, &fd, with, rs_now_ns() + WAIT_NS);
    *done = failed == 0;
    if (*done) {
      rs_node_own_rank(c)->waited = 0;
      return refused == 0 ? RESHARD_SUCCESS : error_of_gpu(c, rank, refused);
    }
    if (is_held(c, failed, with, since))
      nanosleep(&(struct timespec){0, WAIT_NS}, NULL);
    else if (with && failed != ETIMEDOUT && failed != EPIPE && failed != ECONNRESET) {
      refused = failed; /* the other one is told */
      with = false;
      continue;
    } else if (failed != ETIMEDOUT) {
      RS_TRY(rs_node_check(c, true)); /* a peer that has given up says why, and goes */
      return error_of_gpu(c, rank, failed);
    }
    return look_at_passing(c, rank, since);
  }
}

reshard_status rs_node_take(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done) {
  rs_node *c = rs_node_of(comm);
  int failed = rs_node_receive(c->sockets[rank], number, sizeof *number, fd, 1, rs_now_ns() + WAIT_NS);
  *done = failed == 0 || failed == EMFILE || failed == EPROTO; /* without its descriptor, of which there is no room */
  if (failed == ETIMEDOUT)
    return look_at_passing(c, rank, since);
  if (*done)
    rs_node_own_rank(c)->waited = 0;
  else
    RS_TRY(rs_node_check(c, true));
  return failed == 0 ? RESHARD_SUCCESS : error_of_gpu(c, rank, failed);
}
