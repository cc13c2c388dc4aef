/* Memory files of the processes: each passes its own to the others, once, to be read. From then on a rank maps whatever
 * another one has in shared storage, by its offset there. Parts of a communicator have those that it has. Shared
 * storage of GPUs has a descriptor for each segment instead, which is passed on when a rank is to read it. */
#include "comm/node/create.h"
#include "comm/node/end.h"
#include "comm/node/wait.h"

#include "device/cpu/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static reshard_status error_passing(rs_node *c, const char *call, int64_t rank, int failed) {
  long long name = (long long)rs_node_name(c, rank);
  if (failed == ECANCELED)
    return rs_node_error_look(c);
  if (failed == ETIMEDOUT)
    return rs_error(RESHARD_ERROR_TIMEOUT, "%s: memory files: not done within %lld ms; missing: %lld", call,
                    (long long)c->timeout_ms, name);
  if (failed == EPIPE || failed == ECONNRESET)
    return rs_error(RESHARD_ERROR_PEER, "%s: memory files: rank %lld is gone", call, name);
  return rs_error(RESHARD_ERROR_SYSTEM, "%s: memory file to or from rank %lld: %s", call, name, strerror(failed));
}

/* A rank that has failed sends a message without a file: none waits for it. */
static int send_file(rs_node *c, int64_t rank, int fd, int64_t end) {
  int64_t me = c->base.rank;
  int failed = rs_node_send_to(c, rank, RS_NODE_FILE, &me, sizeof me, fd, end);
  if (failed != 0 && fd >= 0)
    (void)rs_node_send(c->sockets[rank], RS_NODE_FILE, &me, sizeof me, -1, rs_now_ns());
  return failed;
}

/* *fd -1: the other one has failed, which it tells all. */
static int take_file(rs_node *c, int64_t rank, int64_t end, int *fd) {
  int64_t from;
  int failed = rs_node_receive_from(c, rank, RS_NODE_FILE, &from, sizeof from, fd, end);
  return failed == ENOMSG ? 0 : failed;
}

reshard_status rs_node_open_files(rs_node *c, int *own) {
  RS_TRY(rs_alloc_zero((void *)&c->base.memory.imports, c->base.size, sizeof *c->base.memory.imports));
  reshard_status status = rs_shared_open(own);
  if (status != RESHARD_SUCCESS) { /* which says that the file is not to be closed */
    free(c->base.memory.imports);
    c->base.memory.imports = NULL;
  }
  return status;
}

/* Ranks with GPUs have none, and are told from those of other nodes alone. */
static reshard_status mark_ranks(rs_node *c) {
  RS_TRY(rs_node_open_files(c, NULL));
  for (int64_t r = 0; r < c->base.size; r++)
    if (r != c->base.rank)
      RS_TRY(rs_import_none(&c->base.memory.imports[r]));
  return RESHARD_SUCCESS;
}

/* All messages are sent and taken, also after an error, of which the first counts. */
reshard_status rs_node_pass_files(rs_node *c, const char *call, int64_t end) {
  int64_t n = c->base.size, me = c->base.rank;
  int fd = -1, failed;
  if (c->base.device->processes != NULL)
    return mark_ranks(c);
  reshard_status status = rs_node_open_files(c, n > 1 ? &fd : NULL);
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + i) % n;
    if ((failed = send_file(c, r, fd, end)) != 0)
      RS_THEN(status, error_passing(c, call, r, failed));
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t r = (me + n - i) % n;
    if ((failed = take_file(c, r, end, &fd)) != 0)
      RS_THEN(status, error_passing(c, call, r, failed));
    else if (fd >= 0 && status == RESHARD_SUCCESS)
      status = rs_import_open(fd, &c->base.memory.imports[r]);
    else if (fd >= 0)
      close(fd);
  }
  return status;
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
  (void)rs_comm_poll(rs_node_named(c), since);
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
    int failed = rs_node_send(c->sockets[rank], RS_NODE_GPU_MEMORY, &number, sizeof number, with ? fd : -1,
                              rs_now_ns() + WAIT_NS);
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
  int failed = rs_node_receive(c->sockets[rank], RS_NODE_GPU_MEMORY, number, sizeof *number, fd, rs_now_ns() + WAIT_NS);
  if (failed == 0 && *fd < 0)
    failed = EPROTO;
  *done = failed == 0 || failed == EMFILE || failed == EPROTO; /* without its descriptor, of which there is no room */
  if (failed == ETIMEDOUT)
    return look_at_passing(c, rank, since);
  if (*done)
    rs_node_own_rank(c)->waited = 0;
  else
    RS_TRY(rs_node_check(c, true));
  return failed == 0 ? RESHARD_SUCCESS : error_of_gpu(c, rank, failed);
}
