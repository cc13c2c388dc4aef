/* Order of messages between processes of a node. Each rank begins to send with the rank after it, and to receive with
 * the one before it: not all ask for one rank's mailboxes at once. */
#include "comm/comm.h"
#include "support/fixtures/case.h"
#include "support/processes/processes.h"

#include <reshard/reshard.h>

#include <stdio.h>

enum { MOST = 5, BLOCK = 64, TIMEOUT_MS = 20000 };
#define GOOD(call) CHILD_CHECK((call) == RESHARD_SUCCESS)

/* A rank's blocks, one of each peer, as they lie on either side; and the peers in the order of their copies. */
static char src[MOST * BLOCK], dst[MOST * BLOCK];
static int64_t nsent, nreceived, sent[MOST], received[MOST];
static const rs_device_work *original;

static void note(const char *at, const char *blocks, int64_t *n, int64_t *peers) {
  if (at >= blocks && at < blocks + MOST * BLOCK && *n < MOST)
    peers[(*n)++] = (at - blocks) / BLOCK;
}

static reshard_status record_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes,
                                  void *stream) {
  for (int64_t i = 0; i < n; i++) {
    note(spans[i].src, src, &nsent, sent);
    note(spans[i].dst, dst, &nreceived, received);
  }
  return original->copy(device, n, spans, total_bytes, stream);
}

/* A transpose of blocks, each contiguous on both sides: messages lie in place, and are copied. */
static void run_rank(processes *all, int64_t rank, void *user) {
  const int64_t n = all->n, shape[2] = {n, n * BLOCK};
  const reshard_transfer_options packed = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){dst}};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_U8};
  reshard_comm comm = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  for (int64_t i = 0; i < n * BLOCK; i++)
    src[i] = (char)(rank * n + i / BLOCK);
  GOOD(processes_comm(all, rank, NULL, TIMEOUT_MS, &comm));
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, n, &entry.src));
  GOOD(reshard_layout_parse("chunk(1)", 2, shape, n, &entry.dst));
  GOOD(reshard_plan_create(1, &entry, rank, NULL, &plan));
  GOOD(reshard_transfer_create(plan, comm, &arrays, &packed, &transfer));
  original = comm->device->work;
  rs_device_work recording = *original;
  recording.copy = record_copy;
  comm->device->work = &recording;
  GOOD(reshard_execute(transfer, NULL));
  comm->device->work = original;
  CHILD_CHECK(nsent == n - 1 && nreceived == n - 1);
  for (int64_t i = 0; i < n - 1; i++) {
    CHILD_CHECK(sent[i] == (rank + 1 + i) % n);
    CHILD_CHECK(received[i] == (rank + n - 1 - i) % n);
  }
  for (int64_t i = 0; i < n * BLOCK; i++)
    CHILD_CHECK(dst[i] == (char)(i / BLOCK * n + rank));
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  reshard_comm_destroy(comm);
}

CASE(test_begins_beside_itself) {
  for (int64_t n = 2; n <= MOST; n++)
    assert_int_equal(processes_run(n, 0, run_rank, NULL), 0);
}

RUN_CASES
