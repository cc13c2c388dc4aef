/* Handles that are destroyed while a rank's thread is in an execute: a transfer, its communicator, both. The others go
 * on, or hear of it at once; all memory goes back with the execute's return. contract_check_ends has the rest. */
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 60000, SIDE = 8 };

/* Two ranks, each with a transfer from its rows to its columns. */
typedef struct pair {
  reshard_comm comms[2];
  reshard_layout rows, columns;
  reshard_plan plans[2];
  reshard_transfer transfers[2];
  float src[2][SIDE / 2 * SIDE], dst[2][SIDE * SIDE / 2];
  rank_result results[2];
} pair;

static void create_transfer(void *user, int64_t r) {
  pair *p = user;
  void *src = p->src[r], *dst = p->dst[r];
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, &src, &dst, NULL, NULL, 1, 1};
  rank_result_set(&p->results[r], reshard_transfer_create(p->plans[r], p->comms[r], &arrays, NULL, &p->transfers[r]));
}

static void open_pair(pair *p) {
  const int64_t shape[] = {SIDE, SIDE};
  memset(p, 0, sizeof *p);
  rank_comms_open(2, 1, PATIENCE, p->comms);
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, shape, 2, &p->rows), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, shape, 2, &p->columns), RESHARD_SUCCESS);
  const reshard_entry entry = {RESHARD_ENTRY_INIT, .src = p->rows, .dst = p->columns, .dtype = RESHARD_F32};
  for (int r = 0; r < 2; r++) {
    assert_int_equal(reshard_plan_create(1, &entry, r, NULL, &p->plans[r]), RESHARD_SUCCESS);
    for (int i = 0; i < SIDE / 2 * SIDE; i++)
      p->src[r][i] = (float)(r * SIDE / 2 * SIDE + i);
  }
  rank_threads_run(2, create_transfer, p);
  rank_results_assert(2, p->results, RESHARD_SUCCESS, NULL, "create");
}

static void close_pair(pair *p) {
  for (int r = 0; r < 2; r++)
    reshard_plan_destroy(p->plans[r]);
  reshard_layout_release(p->rows);
  reshard_layout_release(p->columns);
}

static void execute_first(void *user, int64_t r) {
  pair *p = user;
  rank_result_set(&p->results[r], reshard_execute(p->transfers[r], NULL));
}

static void assert_right(const pair *p) {
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < SIDE; i++)
      for (int j = 0; j < SIDE / 2; j++)
        assert_true(p->dst[r][i * SIDE / 2 + j] == (float)(i * SIDE + r * SIDE / 2 + j));
}

/* The one who waits in an execute gets its data, and its transfer is freed then. */
CASE(transfer_destroyed_in_an_execute_is_freed_after) {
  pair p;
  open_pair(&p);
  rank_thread *first = rank_thread_start(execute_first, &p);
  rank_comms_await(p.comms[1], 1);
  reshard_transfer_destroy(p.transfers[0]);
  assert_int_equal(reshard_execute(p.transfers[1], NULL), RESHARD_SUCCESS);
  rank_thread_join(first);
  rank_results_assert(1, p.results, RESHARD_SUCCESS, NULL, "execute");
  assert_right(&p);
  reshard_transfer_destroy(p.transfers[1]);
  rank_comms_close(2, p.comms); /* with no transfer on them: nothing is told */
  close_pair(&p);
}

/* Runs destroy with standard error in a file, and gives what it has said there. */
static void destroy_and_hear(reshard_comm comm, char *said, size_t size) {
  FILE *file = tmpfile();
  int before = dup(STDERR_FILENO);
  fflush(stderr);
  assert_true(file != NULL && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  reshard_comm_destroy(comm);
  fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  rewind(file);
  said[fread(said, 1, size - 1, file)] = '\0';
  fclose(file);
}

/* The communicator of one who waits in an execute: it hears so at once, and so does the other rank. */
static void destroy_comm(bool transfer_too) {
  static const char told[] = "reshard: reshard_comm_destroy: rank 0 of 2 has 1 transfers, sharders, meshes or "
                             "allocations on the communicator: it has ended, and is freed with the last of them\n";
  char said[1024];
  pair p;
  open_pair(&p);
  rank_thread *first = rank_thread_start(execute_first, &p);
  rank_comms_await(p.comms[1], 1);
  destroy_and_hear(p.comms[0], said, sizeof said);
  assert_string_equal(said, told);
  if (transfer_too)
    reshard_transfer_destroy(p.transfers[0]);
  rank_thread_join(first);
  rank_results_assert(1, p.results, RESHARD_ERROR_PEER, "rank 0 has destroyed its handle", "execute");
  assert_int_equal(reshard_execute(p.transfers[1], NULL), RESHARD_ERROR_PEER);
  if (!transfer_too) {
    assert_int_equal(reshard_execute(p.transfers[0], NULL), RESHARD_ERROR_PEER);
    reshard_transfer_destroy(p.transfers[0]);
  }
  reshard_transfer_destroy(p.transfers[1]);
  reshard_comm_destroy(p.comms[1]);
  close_pair(&p);
}

CASE(communicator_destroyed_in_an_execute_is_freed_after) { destroy_comm(false); }

/* Both are freed when the execute returns. */
CASE(both_destroyed_in_an_execute_are_freed_after) { destroy_comm(true); }

RUN_CASES
