/* Memory files of the processes: each passes its own to the others, once. From then on a rank maps whatever another one
 * has in shared storage, by its offset there. Shared storage of GPUs has a descriptor for each segment instead, which
 * is passed on when a rank is to read it. */
#include "comm/node/create.h"
#include "comm/node/end.h"

#include "device/cpu/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static reshard_status error_passing(int64_t rank, int failed) {
  return rs_error(failed == ETIMEDOUT                       ? RESHARD_ERROR_TIMEOUT
                  : failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER
                                                            : RESHARD_ERROR_SYSTEM,
                  "memory file to or from rank %lld: %s", (long long)rank, strerror(failed));
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
    int failed = rs_node_send(c->sockets[r], &me, sizeof me, &own, 1, end);
    if (failed != 0)
      return error_passing(r, failed);
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + n - i) % n, from;
    int fd, failed = rs_node_receive(c->sockets[r], &from, sizeof from, &fd, 1, end);
    if (failed != 0)
      return error_passing(r, failed);
    RS_TRY(rs_import_open(fd, &c->base.imports[r]));
  }
  return RESHARD_SUCCESS;
}

/* --- Descriptors of segments of GPUs ------------------------------------------------------------------------------ */

enum { LOOK_NS = 50000000 };

/* A step of passing has not been possible for a while, or has failed. */
static reshard_status look_at_passing(rs_node *c, int64_t rank, int failed, int64_t since) {
  char text[24];
  if (failed != ETIMEDOUT)
    return rs_error(failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER : RESHARD_ERROR_SYSTEM,
                    "memory of a GPU to or from rank %lld: %s", (long long)rank,
                    failed == EPROTO ? "it could not be passed on" : strerror(failed));
  RS_TRY(rs_node_check(c, true));
  if (!rs_late(since, c->timeout_ms))
    return RESHARD_SUCCESS;
  memset(c->missing, 0, (size_t)c->base.size * sizeof *c->missing);
  c->missing[rank] = true;
  snprintf(text, sizeof text, "%lld", (long long)rank);
  return rs_node_give_up(c, rs_comm_error_timeout(&c->base, "memory of GPUs", c->timeout_ms, text), c->missing);
}

reshard_status rs_node_pass(reshard_comm comm, int64_t rank, uint64_t number, int fd) {
  rs_node *c = rs_node_of(comm);
  int64_t since = rs_now_ns();
  int failed, refused = fd >= 0 ? 0 : EBADF, fds = fd >= 0;
  for (;;) {
    failed = rs_node_send(c->sockets[rank], &number, sizeof number, &fd, fds, rs_now_ns() + LOOK_NS);
    if (failed == 0)
      return refused == 0 ? RESHARD_SUCCESS : look_at_passing(c, rank, refused, since);
    if (fds == 1 && failed != ETIMEDOUT && failed != EPIPE && failed != ECONNRESET) { /* the other one is told */
      refused = failed;
      fds = 0;
      continue;
    }
    RS_TRY(look_at_passing(c, rank, failed, since));
  }
}

reshard_status rs_node_take(reshard_comm comm, int64_t rank, uint64_t *number, int *fd) {
  rs_node *c = rs_node_of(comm);
  for (int64_t since = rs_now_ns();;) {
    int failed = rs_node_receive(c->sockets[rank], number, sizeof *number, fd, 1, rs_now_ns() + LOOK_NS);
    if (failed == 0)
      return RESHARD_SUCCESS;
    RS_TRY(look_at_passing(c, rank, failed, since));
  }
}

void rs_node_close_files(rs_node *c) {
  if (c->base.imports == NULL)
    return;
  for (int64_t r = 0; r < c->base.size; r++)
    rs_import_close(c->base.imports[r]);
  free(c->base.imports);
  c->base.imports = NULL;
  rs_shared_close();
}
