/* Segments of shared memory from process to process. What a rank has passed once is never passed again: its id is known
 * and the mapping stays. So where no rank has a new one, a call is one meeting. */
#include "comm/node/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 32 }; /* descriptors of a message */

/* A message: so many segments, of which the descriptors are with it. */
typedef struct segment_batch {
  int64_t n;
  struct {
    uint64_t id;
    int64_t bytes;
  } segment[BATCH];
} segment_batch;

/* One rank's part of a call. */
typedef struct share_record {
  int64_t status, fresh; /* segments that are new */
  char text[RS_COMM_RECORD - 2 * sizeof(int64_t)];
} share_record;

static void set_record(share_record *mine, reshard_status status, int64_t fresh) {
  *mine = (share_record){.status = status, .fresh = fresh};
  if (status != RESHARD_SUCCESS)
    snprintf(mine->text, sizeof mine->text, "%s", reshard_last_error());
}

/* The same error on all ranks. *batches: messages of the rank that has most of them. */
static reshard_status gather_records(rs_node *c, const share_record *mine, int64_t *fresh, int64_t *batches) {
  const void *gathered;
  RS_TRY(rs_comm_allgather(&c->base, mine, sizeof *mine, &gathered));
  const share_record *all = gathered;
  *batches = 0;
  for (int64_t r = 0; r < c->base.size; r++) {
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
    if (fresh != NULL)
      fresh[r] = all[r].fresh;
    *batches = rs_max(*batches, rs_ceil_div(all[r].fresh, BATCH));
  }
  return RESHARD_SUCCESS;
}

static bool was_passed(const rs_node *c, uint64_t id) {
  for (int64_t i = 0; i < c->passed.n; i++)
    if (c->passed.at[i] == id)
      return true;
  return false;
}

/* Lists this rank's segments that the others lack. */
static reshard_status list_fresh(const rs_node *c, int64_t n, const rs_segment_ref *mine, rs_segment_ref *fresh,
                                 int64_t *count) {
  int64_t made = 0;
  for (int64_t i = 0; i < n; i++) {
    bool twice = was_passed(c, mine[i].id);
    for (int64_t k = 0; k < made && !twice; k++)
      twice = fresh[k].id == mine[i].id;
    if (!twice)
      fresh[made++] = mine[i];
  }
  *count = made;
  return RESHARD_SUCCESS;
}

static reshard_status error_of_peer(const rs_node *c, int64_t rank, int failed) {
  if (failed == ETIMEDOUT)
    return rs_error(RESHARD_ERROR_TIMEOUT, "segments of shared memory: not done within %lld ms; missing: %lld",
                    (long long)c->timeout_ms, (long long)rank);
  if (failed == EPIPE || failed == ECONNRESET)
    return rs_error(RESHARD_ERROR_PEER, "segments of shared memory: rank %lld is gone", (long long)rank);
  return rs_error(RESHARD_ERROR_SYSTEM, "segments of shared memory: rank %lld: %s", (long long)rank, strerror(failed));
}

static int64_t in_batch(int64_t n, int64_t batch) { return rs_max(0, rs_min(BATCH, n - batch * BATCH)); }

static reshard_status send_batch(rs_node *c, const rs_segment_ref *fresh, int64_t n, int64_t end) {
  segment_batch message = {.n = n};
  int fds[BATCH];
  for (int64_t i = 0; i < n; i++) {
    message.segment[i].id = fresh[i].id;
    message.segment[i].bytes = fresh[i].bytes;
    fds[i] = fresh[i].fd;
  }
  for (int64_t i = 1; i < c->base.size; i++) {
    int64_t r = (c->base.rank + i) % c->base.size;
    int failed = rs_node_send(c->sockets[r], &message, sizeof message, fds, (int)n, end);
    if (failed != 0)
      return error_of_peer(c, r, failed);
  }
  return RESHARD_SUCCESS;
}

static reshard_status map_segment(rs_node *c, int64_t rank, uint64_t id, int64_t bytes, int fd) {
  RS_TRY(rs_vec_reserve(&c->mappings, c->mappings.n + 1));
  void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "mapping %lld bytes of rank %lld: %s", (long long)bytes,
                    (long long)rank, strerror(errno));
  c->mappings.at[c->mappings.n++] = (rs_node_mapping){rank, id, at, bytes};
  return RESHARD_SUCCESS;
}

/* Takes a message of a rank, of n segments, whose descriptors are closed in any case. */
static reshard_status receive_batch(rs_node *c, int64_t rank, int64_t n, int64_t end) {
  segment_batch message;
  int fds[BATCH];
  int failed = rs_node_receive(c->sockets[rank], &message, sizeof message, fds, (int)n, end);
  if (failed != 0)
    return error_of_peer(c, rank, failed);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n; i++) {
    RS_THEN(status, map_segment(c, rank, message.segment[i].id, message.segment[i].bytes, fds[i]));
    close(fds[i]);
  }
  return status;
}

/* Every rank goes through all messages, so that none is left in a socket. Returns the first error. */
static reshard_status pass_segments(rs_node *c, const rs_segment_ref *mine, const int64_t *fresh, int64_t batches) {
  int64_t end = rs_node_deadline(c->timeout_ms), me = c->base.rank;
  for (int64_t b = 0; b < batches; b++) {
    reshard_status status = RESHARD_SUCCESS;
    if (in_batch(fresh[me], b) > 0)
      status = send_batch(c, mine + b * BATCH, in_batch(fresh[me], b), end);
    for (int64_t i = 1; i < c->base.size; i++) {
      int64_t r = (me + c->base.size - i) % c->base.size;
      if (in_batch(fresh[r], b) > 0)
        RS_THEN(status, receive_batch(c, r, in_batch(fresh[r], b), end));
    }
    RS_TRY(status);
  }
  return RESHARD_SUCCESS;
}

static reshard_status remember_passed(rs_node *c, int64_t n, const rs_segment_ref *fresh) {
  RS_TRY(rs_vec_reserve(&c->passed, c->passed.n + n));
  for (int64_t i = 0; i < n; i++)
    c->passed.at[c->passed.n++] = fresh[i].id;
  return RESHARD_SUCCESS;
}

reshard_status rs_node_share(reshard_comm comm, reshard_status status, int64_t n, const rs_segment_ref *mine) {
  rs_node *c = rs_node_of(comm);
  rs_segment_ref *fresh = NULL;
  int64_t *counts = NULL, count = 0, batches = 0;
  share_record record;
  RS_THEN(status, rs_alloc(&fresh, n, sizeof *fresh));
  RS_THEN(status, rs_alloc(&counts, comm->size, sizeof *counts));
  RS_THEN(status, list_fresh(c, n, mine, fresh, &count));
  RS_THEN(status, remember_passed(c, count, fresh));
  set_record(&record, status, count);
  status = gather_records(c, &record, counts, &batches);
  if (status != RESHARD_SUCCESS && count > 0)
    c->passed.n -= count; /* they were not passed */
  if (status == RESHARD_SUCCESS && batches > 0) {
    status = pass_segments(c, fresh, counts, batches);
    if (status != RESHARD_SUCCESS) /* a socket may hold what this rank has not taken */
      status = rs_node_give_up(c, status, NULL);
    set_record(&record, status, 0);
    RS_THEN(status, gather_records(c, &record, NULL, &batches));
  }
  free(fresh);
  free(counts);
  return status;
}

char *rs_node_mapped(reshard_comm comm, int64_t rank, uint64_t id) {
  const rs_node *c = rs_node_of(comm);
  for (int64_t i = 0; i < c->mappings.n; i++)
    if (c->mappings.at[i].rank == rank && c->mappings.at[i].id == id)
      return c->mappings.at[i].at;
  return NULL;
}
