/* Memory of the processes, of which descriptors are passed on when a rank is to read it (exec/direct): the memory file
 * of a process with CPUs, segments of GPUs. Ranks are told from those of other nodes by imports of no file. */
#include "comm/node/create.h"
#include "comm/node/wait.h"

#include "device/cpu/segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

reshard_status rs_node_mark_ranks(rs_node *c) {
  rs_comm_memory *memory = &c->base.memory;
  RS_TRY(rs_alloc_zero((void *)&memory->imports, c->base.size, sizeof *memory->imports));
  reshard_status status = rs_shared_open(NULL);
  if (status != RESHARD_SUCCESS) { /* the file is not to be closed */
    free(memory->imports);
    memory->imports = NULL;
    return status;
  }
  if (c->base.device->processes == NULL)
    RS_TRY(rs_alloc_zero(&memory->passed, c->base.size, sizeof *memory->passed));
  for (int64_t r = 0; r < c->base.size; r++)
    if (r != c->base.rank)
      RS_TRY(rs_import_none(&memory->imports[r]));
  return RESHARD_SUCCESS;
}

enum { WAIT_NS = 1000000 };
#define HELD_NS 10000000000 /* and half of the deadline: the system may hold a descriptor back, while nothing moves */

static bool of_gpus(const rs_node *c) { return c->base.device->processes != NULL; }

static reshard_status error_passing(const rs_node *c, int64_t rank, int failed) {
  return rs_error(failed == EPIPE || failed == ECONNRESET ? RESHARD_ERROR_PEER : RESHARD_ERROR_SYSTEM,
                  "%s to or from rank %lld: %s", of_gpus(c) ? "memory of a GPU" : "memory file",
                  (long long)rs_node_name(c, rank), failed == EPROTO ? "it could not be passed on" : strerror(failed));
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
  if (!rs_late(since, c->base.timeout_ms))
    return RESHARD_SUCCESS;
  snprintf(text, sizeof text, "%lld", (long long)name);
  const char *step = of_gpus(c) ? "memory of GPUs" : "memory files";
  return rs_node_give_up(c, rs_comm_error_timeout(rs_node_named(c), step, c->base.timeout_ms, text), c->missing);
}

/* The system has no room for it now: a user's descriptors that are under way are limited, and there is its memory. */
static bool is_held(const rs_node *c, int failed, bool with_descriptor, int64_t since) {
  if (failed == ETOOMANYREFS)
    return rs_now_ns() - since < HELD_NS && !rs_late(since, (c->base.timeout_ms + 1) / 2);
  return !with_descriptor && (failed == ENOBUFS || failed == ENOMEM);
}

reshard_status rs_node_pass(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done) {
  rs_node *c = rs_node_of(comm);
  bool with = fd >= 0;
  int refused = 0;
  *done = false;
  for (;;) {
    int failed =
        rs_node_send(c->sockets[rank], RS_NODE_MEMORY, &number, sizeof number, with ? fd : -1, rs_now_ns() + WAIT_NS);
    *done = failed == 0;
    if (*done) {
      rs_node_own_rank(c)->waited = 0;
      return refused == 0 ? RESHARD_SUCCESS : error_passing(c, rank, refused);
    }
    if (is_held(c, failed, with, since))
      nanosleep(&(struct timespec){0, WAIT_NS}, NULL);
    else if (with && failed != ETIMEDOUT && failed != EPIPE && failed != ECONNRESET) {
      refused = failed; /* the other one is told */
      with = false;
      continue;
    } else if (failed != ETIMEDOUT) {
      RS_TRY(rs_node_check(c, true)); /* a peer that has given up says why, and goes */
      return error_passing(c, rank, failed);
    }
    return look_at_passing(c, rank, since);
  }
}

reshard_status rs_node_take(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done) {
  rs_node *c = rs_node_of(comm);
  int failed = rs_node_receive(c->sockets[rank], RS_NODE_MEMORY, number, sizeof *number, fd, rs_now_ns() + WAIT_NS);
  if (failed == 0 && *fd < 0)
    failed = EPROTO;
  *done = failed == 0 || failed == EMFILE || failed == EPROTO; /* without its descriptor, of which there is no room */
  if (failed == ETIMEDOUT)
    return look_at_passing(c, rank, since);
  if (*done)
    rs_node_own_rank(c)->waited = 0;
  else
    RS_TRY(rs_node_check(c, true));
  return failed == 0 ? RESHARD_SUCCESS : error_passing(c, rank, failed);
}
