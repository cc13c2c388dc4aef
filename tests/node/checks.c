/* Promises of a communicator of processes of a node beside those of all communicators of processes: calls and
 * statuses that differ, handles that are destroyed early, forked processes, creations that do not agree, and to which a
 * rank does not come.
 *
 * usage: node_checks RANKS, 3 or more */
#define _GNU_SOURCE
#include "comm/node/node.h"
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <reshard/reshard.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* An error with this status, whose text has the part. */
#define CHECK_ERROR(call, wanted, part) \
  do { \
    reshard_status status_ = (call); \
    CHECK(status_ == (wanted), "%s", reshard_status_string(status_)); \
    CHECK(strstr(reshard_last_error(), (part)) != NULL, "'%s' is not in the text", (part)); \
  } while (0)

static reshard_comm open_comm(int64_t timeout_ms) {
  reshard_comm comm = NULL;
  CHECK(world_connect(timeout_ms, &comm) == RESHARD_SUCCESS, "a communicator");
  if (comm == NULL)
    exit(1);
  return comm;
}

/* --- Calls and statuses ------------------------------------------------------------------------------------------- */

typedef struct pair {
  reshard_plan plan;
  reshard_transfer transfer;
  int32_t src[64], dst[64];
} pair;

static void make_transfer(reshard_comm comm, pair *p) {
  int64_t shape[] = {size, size};
  reshard_layout from = NULL, to = NULL;
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &from) == RESHARD_SUCCESS, "from");
  CHECK(reshard_layout_parse("chunk(1)", 2, shape, size, &to) == RESHARD_SUCCESS, "to");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_I32};
  CHECK(reshard_plan_create(1, &entry, rank, NULL, &p->plan) == RESHARD_SUCCESS, "plan");
  for (int i = 0; i < size; i++) {
    p->src[i] = 100 * rank + i;
    p->dst[i] = -1;
  }
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){p->src}, (void *[]){p->dst}, NULL, NULL, 0, 0};
  CHECK(reshard_transfer_create(p->plan, comm, &arrays, NULL, &p->transfer) == RESHARD_SUCCESS, "transfer");
  reshard_layout_release(from);
  reshard_layout_release(to);
}

static int64_t count_wrong(const pair *p) {
  int64_t wrong = 0;
  for (int i = 0; i < size; i++)
    wrong += p->dst[i] != 100 * i + rank;
  return wrong;
}

static void free_transfer(pair *p) {
  reshard_transfer_destroy(p->transfer);
  reshard_plan_destroy(p->plan);
}

static reshard_status execute_as_list(reshard_transfer transfer, void *stream) {
  return reshard_execute_all(1, &transfer, stream);
}

/* Ranks that make different calls hear it in the call, all with one text, and go on. */
static void different_calls(void) {
  reshard_comm comm = open_comm(60000), sub = NULL;
  pair p = {0};
  make_transfer(comm, &p);
  CHECK_ERROR(rank == 1 ? reshard_comm_split(comm, 0, 0, &sub) : reshard_comm_barrier(comm), RESHARD_ERROR_MISMATCH,
              "ranks 0 and 1 make different collective calls at once: reshard_comm_barrier, call 2, and "
              "reshard_comm_split, call 2");
  CHECK_ERROR(rank == 2 ? reshard_comm_barrier(comm) : reshard_execute(p.transfer, NULL), RESHARD_ERROR_MISMATCH,
              "ranks 0 and 2 make different collective calls at once: reshard_execute, call 3, and "
              "reshard_comm_barrier, call 3");
  for (int i = 0; i < size; i++)
    CHECK(i == rank || p.dst[i] == -1, "%d was written", i);
  for (int i = 0; i < 3; i++) {
    CHECK(reshard_execute(p.transfer, NULL) == RESHARD_SUCCESS, "what was in the mail is gone");
    CHECK(count_wrong(&p) == 0, "right data");
  }
  free_transfer(&p);
  reshard_comm_destroy(comm);
}

/* Ranks that execute two transfers at once hear it in the call, whatever their path and call. */
static void different_transfers(void) {
  reshard_comm comm = open_comm(60000);
  pair p[2] = {{0}};
  reshard_status (*const calls[])(reshard_transfer, void *) = {reshard_execute, execute_as_list};
  make_transfer(comm, &p[0]);
  make_transfer(comm, &p[1]);
  for (int odd = 1; odd < size; odd++)
    for (int c = 0; c < 2; c++) {
      CHECK_ERROR(calls[c](p[rank == odd].transfer, NULL), RESHARD_ERROR_MISMATCH, " execute different transfers");
      for (int i = 0; i < size; i++)
        CHECK(i == rank || (p[0].dst[i] == -1 && p[1].dst[i] == -1), "%d was written", i);
    }
  for (int i = 0; i < 4; i++) {
    CHECK(calls[i / 2](p[i % 2].transfer, NULL) == RESHARD_SUCCESS, "it goes on");
    CHECK(count_wrong(&p[i % 2]) == 0, "right data");
  }
  free_transfer(&p[0]);
  free_transfer(&p[1]);
  reshard_comm_destroy(comm);
}

/* A list of one transfer is executed as that alone: a rank that makes another call is found. */
static void lists(void) {
  reshard_comm comm = open_comm(60000);
  pair p = {0};
  make_transfer(comm, &p);
  CHECK_ERROR(rank == 1 ? reshard_comm_barrier(comm) : execute_as_list(p.transfer, NULL), RESHARD_ERROR_MISMATCH,
              "ranks 0 and 1 make different collective calls at once: reshard_execute_all, call 2, and "
              "reshard_comm_barrier, call 2");
  for (int i = 0; i < size; i++)
    CHECK(i == rank || p.dst[i] == -1, "%d was written", i);
  CHECK(execute_as_list(p.transfer, NULL) == RESHARD_SUCCESS, "it goes on");
  CHECK(count_wrong(&p) == 0, "right data");
  free_transfer(&p);
  reshard_comm_destroy(comm);
}

static reshard_status fail_here(int64_t n, void **all) {
  (void)n, (void)all;
  return rank == 1 ? rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "no room for %d", rank) : RESHARD_SUCCESS;
}

static void statuses(void) {
  reshard_comm comm = open_comm(60000);
  const void *all;
  CHECK_ERROR(rs_comm_combine(comm, fail_here, NULL), RESHARD_ERROR_OUT_OF_MEMORY, "rank 1: no room for 1");
  CHECK(rs_comm_allgather(comm, &rank, sizeof rank, &all) == RESHARD_SUCCESS, "it goes on");
  for (int r = 0; r < size; r++)
    CHECK(((const int *)all)[r] == r, "%d", ((const int *)all)[r]);
  reshard_comm_destroy(comm);
}

/* A rank destroys its handle; another ends in the middle of nothing. */
static void early_ends(void) {
  reshard_comm comm = open_comm(60000);
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "all are there");
  if (rank == 1) {
    reshard_comm_destroy(comm);
  } else {
    CHECK_ERROR(reshard_comm_barrier(comm), RESHARD_ERROR_PEER, "rank 1 has destroyed its handle");
    CHECK_ERROR(reshard_comm_barrier(comm), RESHARD_ERROR_PEER, "the communicator has ended: ");
    reshard_comm_destroy(comm);
  }
  world_barrier();
}

/* --- Memory and forks --------------------------------------------------------------------------------------------- */

/* Messages of several slots, to rank 0 from all and back: as they lie, and packed. */
static void long_messages(void) {
  static const char *const cuts[] = {"chunk(0)", "chunk(1)"};
  reshard_comm comm = open_comm(60000);
  int64_t columns = 64 * size, rows = (3 * comm->messages.mailbox / (64 * 4) / size + 1) * size,
          shape[] = {rows, columns};
  int32_t *whole = malloc((size_t)(rows * columns) * 4), *part = malloc((size_t)(rows * 64) * 4);
  for (int back = 0; back < 4; back++) {
    bool by_columns = back / 2 == 1;
    reshard_layout one = NULL, all = NULL;
    reshard_plan plan = NULL;
    reshard_transfer transfer = NULL;
    CHECK(reshard_layout_parse("rank(0)", 2, shape, size, &one) == RESHARD_SUCCESS, "one");
    CHECK(reshard_layout_parse(cuts[by_columns], 2, shape, size, &all) == RESHARD_SUCCESS, "all");
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = back % 2 ? one : all, .dst = back % 2 ? all : one,
                           .dtype = RESHARD_I32};
    CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS, "plan");
    void *whole_list[] = {rank == 0 ? whole : NULL}, *part_list[] = {part};
    reshard_arrays arrays = {
        RESHARD_ARRAYS_INIT, back % 2 ? whole_list : part_list, back % 2 ? part_list : whole_list, NULL, NULL, 1, 1};
    CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS, "transfer");
    for (int64_t i = 0; i < rows * columns; i++)
      whole[i] = back % 2 ? (int32_t)i : -1;
    for (int64_t i = 0; i < rows * 64; i++)
      part[i] = back % 2 ? -1 : (int32_t)(by_columns ? i / 64 * columns + rank * 64 + i % 64 : rank * rows * 64 + i);
    CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS, "execute");
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows * columns && rank == 0; i++)
      wrong += whole[i] != i;
    for (int64_t i = 0; i < rows * 64; i++)
      wrong += part[i] != (by_columns ? i / 64 * columns + rank * 64 + i % 64 : rank * rows * 64 + i);
    CHECK(wrong == 0, "%lld wrong", (long long)wrong);
    reshard_transfer_destroy(transfer);
    reshard_plan_destroy(plan);
    reshard_layout_release(one);
    reshard_layout_release(all);
  }
  free(whole);
  free(part);
  reshard_comm_destroy(comm);
}

/* The block of all ranks stays small: mailboxes of 64 MiB, or of 128 KiB a pair, and what ranks show. */
static void memory(void) {
  reshard_comm comm = open_comm(60000);
  const rs_node *c = rs_node_of(comm);
  int64_t shown = size * 8192 + (int64_t)size * size * 512 + 8192;
  int64_t slots = (int64_t)2 * size * size, most = rs_max(64 << 20, slots * (64 << 10));
  CHECK(c->block_bytes <= rs_min(slots * (512 << 10), most) + shown, "%lld bytes", (long long)c->block_bytes);
  CHECK(comm->messages.mailbox >= most / slots / 2 || comm->messages.mailbox == 512 << 10, "slots of %lld bytes",
        (long long)comm->messages.mailbox);
  reshard_comm_destroy(comm);
}

static void forks(void) {
  reshard_comm comm = open_comm(60000);
  int status = 0;
  pid_t child = fork();
  if (child == 0) {
    failures = 0;
    CHECK_ERROR(reshard_comm_barrier(comm), RESHARD_ERROR_PEER, "is the process that was forked");
    CHECK(reshard_comm_abort(comm) == RESHARD_ERROR_PEER, "ends nothing");
    reshard_comm rest = NULL;
    CHECK_ERROR(reshard_comm_shrink(comm, 1, (int64_t[]){rank == 0}, &rest), RESHARD_ERROR_PEER,
                "is the process that was forked");
    CHECK(rest == NULL, "makes nothing");
    reshard_comm_destroy(comm);
    _exit(failures > 0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %x", status);
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "the parents go on");
  reshard_comm_destroy(comm);
  world_barrier();
}

/* A part goes on beyond a deadline of the whole, until a rank aborts that. */
static void aborts_of_ended(void) {
  reshard_comm comm = open_comm(60000), part = NULL;
  CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "a part");
  comm->timeout_ms = 300;
  if (rank != 0)
    CHECK(reshard_comm_barrier(comm) != RESHARD_SUCCESS, "a deadline");
  world_barrier();
  CHECK(reshard_comm_barrier(part) == RESHARD_SUCCESS, "the part goes on");
  world_barrier();
  if (rank == 1)
    CHECK(reshard_comm_abort(comm) == RESHARD_SUCCESS, "abort");
  CHECK_ERROR(reshard_comm_barrier(part), RESHARD_ERROR_PEER, "rank 1 aborted the communicator");
  world_barrier();
  reshard_comm_destroy(part);
  reshard_comm_destroy(comm);
}

/* --- Creations ---------------------------------------------------------------------------------------------------- */

static reshard_status allgather(void *user, const void *mine, size_t bytes, void *all) {
  (void)user;
  for (int r = 0; r < size; r++) {
    char *place = (char *)all + (size_t)r * bytes;
    memcpy(place, mine, bytes);
    world_broadcast(place, bytes, r);
  }
  return RESHARD_SUCCESS;
}

enum { LATE_MS = 120 };

/* A rank that all others know of by now comes late, ... */
static reshard_status allgather_late(void *late, const void *mine, size_t bytes, void *all) {
  reshard_status status = allgather(NULL, mine, bytes, all);
  if (rank == *(const int *)late)
    nanosleep(&(struct timespec){0, LATE_MS * 1000000}, NULL);
  return status;
}

/* ... or not at all. */
static reshard_status allgather_gone(void *gone, const void *mine, size_t bytes, void *all) {
  reshard_status status = allgather(NULL, mine, bytes, all);
  return rank == *(const int *)gone ? rs_error(RESHARD_ERROR_SYSTEM, "no way to the others") : status;
}

/* The others wait for one that is late, and hear at once of one that does not come, without their deadline. */
static void absent_ranks(void) {
  const int odd[] = {0, 1, size - 1};
  reshard_node_options options = RESHARD_NODE_OPTIONS_DEFAULTS;
  options.timeout_ms = 60000;
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    reshard_comm comm = NULL;
    char text[64];
    int other = odd[i];
    snprintf(text, sizeof text, "rank %d is gone", other);
    CHECK_ERROR(reshard_comm_create_node(size, rank, allgather_gone, &other, &options, &comm),
                rank == other ? RESHARD_ERROR_SYSTEM : RESHARD_ERROR_PEER,
                rank == other ? "no way to the others" : text);
    CHECK(comm == NULL, "nothing was made");
    CHECK(reshard_comm_create_node(size, rank, allgather_late, &other, &options, &comm) == RESHARD_SUCCESS, "late");
    CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "barrier");
    reshard_comm_destroy(comm);
  }
}

static void creations(void) {
  reshard_comm comm = NULL;
  reshard_node_options options = RESHARD_NODE_OPTIONS_DEFAULTS;
  CHECK_ERROR(reshard_comm_create_node(size, size, allgather, NULL, NULL, &comm), RESHARD_ERROR_INVALID,
              "all-gather given");
  CHECK_ERROR(reshard_comm_create_node(size, rank, NULL, NULL, NULL, &comm), RESHARD_ERROR_INVALID, "all-gather NULL");
  options.job = rank == 1 ? "this" : "that";
  CHECK_ERROR(reshard_comm_create_node(size, rank, allgather, NULL, &options, &comm), RESHARD_ERROR_MISMATCH,
              "ranks 0 and 1 give different names of the job");
  options.job = "the same";
  options.size = rank == 2 ? 1 : sizeof options;
  CHECK_ERROR(reshard_comm_create_node(size, rank, allgather, NULL, &options, &comm), RESHARD_ERROR_INVALID,
              "rank 2: ");
  options.size = sizeof options;
  CHECK_ERROR(reshard_comm_create_node(rank == 1 ? size + 1 : size, rank, allgather, NULL, &options, &comm),
              RESHARD_ERROR_MISMATCH, " of the all-gather has rank ");
  CHECK(comm == NULL, "nothing was made");
  CHECK(reshard_comm_create_node(size, rank, allgather, NULL, &options, &comm) == RESHARD_SUCCESS, "made");
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "barrier");
  reshard_comm_destroy(comm);
}

/* A thread whose cancellation is pending makes a communicator, meets and destroys it. */
static void *cancelled_calls(void *returned) {
  reshard_comm comm = NULL;
  pthread_cancel(pthread_self());
  bool good = reshard_comm_create_node(size, rank, allgather, NULL, NULL, &comm) == RESHARD_SUCCESS &&
              reshard_comm_barrier(comm) == RESHARD_SUCCESS;
  reshard_comm_destroy(comm);
  *(bool *)returned = good;
  pthread_testcancel();
  return NULL;
}

static void cancelled_threads(void) {
  pthread_t thread;
  bool returned = false;
  void *result = NULL;
  CHECK(pthread_create(&thread, NULL, cancelled_calls, &returned) == 0 && pthread_join(thread, &result) == 0,
        "a thread");
  CHECK(returned && result == PTHREAD_CANCELED, "calls return before the thread is cancelled");
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  different_calls();
  different_transfers();
  lists();
  statuses();
  early_ends();
  memory();
  long_messages();
  forks();
  aborts_of_ended();
  creations();
  cancelled_threads();
  absent_ranks();
  int64_t all = world_close(failures);
  if (rank == 0)
    printf("%d ranks: %lld checks failed\n", size, (long long)all);
  return all > 0;
}
