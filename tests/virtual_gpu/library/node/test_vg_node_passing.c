/* Descriptors of shared storage that processes of a node pass on to each other: where the system has few of them, where
 * it holds them back, and after a rank has failed. */
#define _GNU_SOURCE
#include "node_gather.h"
#include "reshard/reshard.h"
#include "reshard/tensor.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 120, BYTES = 64, SEGMENT = 2 << 20 };

/* One rank, with storage of a segment each. */
typedef struct node_rank {
  struct world *w;
  int64_t rank;
  reshard_device device;
  reshard_comm comm;
  cudaStream_t stream;
  reshard_tensor tensors[MOST];
  const char *wrong; /* NULL: nothing */
} node_rank;

typedef struct world {
  node_gather gather;
  int64_t timeout_ms; /* 0: a minute */
  void (*body)(node_rank *me);
  rank_result result[NODE_RANKS];
  const char *wrong[NODE_RANKS];
} world;

#define NEED(me, what) \
  do { \
    if (!(what) && (me)->wrong == NULL) \
      (me)->wrong = #what; \
  } while (0)

/* --- The system's part -------------------------------------------------------------------------------------------- */

static atomic_int most_under_way, under_way, held; /* 0: any number; with descriptors; messages that were held back */
static atomic_bool narrow;                         /* few messages fit */
static _Thread_local int truncated;                /* the next so many messages of the rank come without theirs */
static _Thread_local bool first;                   /* of a rank that is stuck: it goes, late */
static _Thread_local reshard_comm stuck;           /* the rank passes on no more than that until it is missed there */

static bool has_descriptors(const struct msghdr *message) {
  return message->msg_controllen > 0 && CMSG_FIRSTHDR(message) != NULL;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  ssize_t (*real)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
  int most = atomic_load(&most_under_way);
  if (atomic_load(&narrow))
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)); /* the least that there is */
  int64_t missed = 0, ranks[NODE_RANKS];
  if (stuck != NULL && has_descriptors(message) && first) {
    test_sleep_ms(300);
    first = false;
  } else {
    while (stuck != NULL && has_descriptors(message) && missed == 0 &&
           reshard_comm_missing(stuck, ranks, &missed) == RESHARD_SUCCESS)
      test_sleep_ms(1);
  }
  if (most == 0 || !has_descriptors(message))
    return real(fd, message, flags);
  if (atomic_fetch_add(&under_way, 1) >= most) {
    atomic_fetch_sub(&under_way, 1);
    atomic_fetch_add(&held, 1);
    errno = ETOOMANYREFS;
    return -1;
  }
  return real(fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  ssize_t (*real)(int, struct msghdr *, int) = dlsym(RTLD_NEXT, "recvmsg");
  ssize_t got = real(fd, message, flags);
  if (got < 0 || !has_descriptors(message))
    return got;
  if (atomic_load(&most_under_way) > 0)
    atomic_fetch_sub(&under_way, 1);
  if (truncated > 0) {
    int came;
    truncated--;
    memcpy(&came, CMSG_DATA(CMSG_FIRSTHDR(message)), sizeof came);
    close(came);
    message->msg_controllen = 0;
    message->msg_flags |= MSG_CTRUNC;
  }
  return got;
}

static int last_descriptor(void) {
  int last = 0;
  DIR *all = opendir("/proc/self/fd");
  for (const struct dirent *d; all != NULL && (d = readdir(all)) != NULL;)
    last = atoi(d->d_name) > last ? atoi(d->d_name) : last;
  closedir(all);
  return last;
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  node_rank me = {.w = w, .rank = rank};
  char name[32];
  node_gatherer gatherer = {&w->gather, rank};
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT,
                                  .timeout_ms = w->timeout_ms > 0 ? w->timeout_ms : 60000};
  const reshard_device_options shared = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = 1, .keep_bytes = -1};
  vg_process((int)rank);
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking);
  snprintf(name, sizeof name, "cuda:%d", (int)rank);
  reshard_status status = reshard_device_create(name, &shared, &me.device);
  options.device = me.device;
  if (status == RESHARD_SUCCESS)
    status = reshard_comm_create_node(NODE_RANKS, rank, node_gather_all, &gatherer, &options, &me.comm);
  rank_result_set(&w->result[rank], status);
  if (status == RESHARD_SUCCESS)
    w->body(&me);
  for (int i = 0; i < MOST; i++)
    reshard_tensor_release(me.tensors[i]);
  reshard_comm_destroy(me.comm);
  reshard_device_release(me.device);
  cudaStreamDestroy(me.stream);
  w->wrong[rank] = me.wrong;
}

static void run_right_for(int64_t timeout_ms, void (*body)(node_rank *me)) {
  world w = {.timeout_ms = timeout_ms, .body = body};
  int reports = node_ranks_run(&w.gather, &(vg_options){.devices = NODE_RANKS, .seed = 3}, run_rank, &w);
  rank_results_assert(NODE_RANKS, w.result, RESHARD_SUCCESS, NULL, "opening");
  for (int r = 0; r < NODE_RANKS; r++)
    if (w.wrong[r] != NULL)
      fail_msg("rank %d: %s", r, w.wrong[r]);
  assert_int_equal(reports, 0);
}

static void run_right(void (*body)(node_rank *me)) { run_right_for(0, body); }

/* New storage in place of the first n, of one byte each. */
static void renew(node_rank *me, int n) {
  const int64_t shape[1] = {SEGMENT};
  for (int i = 0; i < n; i++) {
    reshard_tensor_release(me->tensors[i]);
    me->tensors[i] = NULL;
  }
  for (int i = 0; i < n; i++) {
    reshard_tensor_info info;
    NEED(me,
         reshard_tensor_create_on(me->device, RESHARD_U8, 1, shape, me->stream, &me->tensors[i]) == RESHARD_SUCCESS);
    if (me->tensors[i] == NULL || reshard_tensor_get_info(me->tensors[i], &info) != RESHARD_SUCCESS)
      continue;
    cudaMemsetAsync(info.data, 1 + (int)me->rank + i, BYTES, me->stream);
  }
  cudaStreamSynchronize(me->stream);
}

/* Storage i of rank from[i] goes to rank to[i]. */
typedef struct route {
  int n;
  int64_t from[MOST], to[MOST];
} route;

static reshard_status make_plan(const node_rank *me, const route *route, reshard_plan *plan) {
  const int64_t shape[1] = {BYTES};
  reshard_entry entries[MOST];
  char names[MOST][16];
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < route->n; i++) {
    entries[i] = (reshard_entry){.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_U8, .name = names[i]};
    snprintf(names[i], sizeof names[i], "tensor %d", i);
    (void)reshard_layout_create_single(1, shape, NODE_RANKS, route->from[i], &entries[i].src);
    (void)reshard_layout_create_single(1, shape, NODE_RANKS, route->to[i], &entries[i].dst);
  }
  status = reshard_plan_create(route->n, entries, me->rank, NULL, plan);
  for (int i = 0; i < route->n; i++) {
    reshard_layout_release(entries[i].src);
    reshard_layout_release(entries[i].dst);
  }
  return status;
}

static bool is_moved(const node_rank *me, const route *route, const char *dst) {
  for (int i = 0; i < route->n; i++) {
    char here[BYTES];
    if (route->to[i] != me->rank)
      continue;
    vg_peek(here, dst + i * BYTES, BYTES);
    for (int k = 0; k < BYTES; k++)
      if (here[k] != 1 + route->from[i] + i)
        return false;
  }
  return true;
}

/* Binds, moves and unbinds. */
static reshard_status route_move(node_rank *me, const route *route) {
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  void *src[MOST], *dst[MOST];
  char *all;
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst, .nsrc = route->n, .ndst = route->n};
  cudaMalloc((void **)&all, (size_t)MOST * BYTES);
  for (int i = 0; i < route->n; i++) {
    reshard_tensor_info info;
    (void)reshard_tensor_get_info(me->tensors[i], &info);
    src[i] = route->from[i] == me->rank ? info.data : NULL;
    dst[i] = route->to[i] == me->rank ? all + i * BYTES : NULL;
  }
  NEED(me, make_plan(me, route, &plan) == RESHARD_SUCCESS);
  reshard_status status = reshard_transfer_create(plan, me->comm, &arrays, NULL, &transfer);
  if (status == RESHARD_SUCCESS) {
    NEED(me, reshard_execute(transfer, me->stream) == RESHARD_SUCCESS);
    cudaStreamSynchronize(me->stream);
    NEED(me, is_moved(me, route, all));
  }
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  cudaFree(all);
  return status;
}

static route around(int n) {
  route r = {.n = n};
  for (int i = 0; i < n; i++) {
    r.from[i] = i % NODE_RANKS;
    r.to[i] = (i + 1 + i / NODE_RANKS % 2) % NODE_RANKS;
  }
  return r;
}

static route between(int64_t from, int64_t to, int n) {
  route r = {.n = n};
  for (int i = 0; i < n; i++)
    r.from[i] = from, r.to[i] = to;
  return r;
}

/* --- Tests -------------------------------------------------------------------------------------------------------- */

/* Far more segments than the process may have descriptors, and they stay open. */
static void move_with_few(node_rank *me) {
  static struct rlimit before;
  const route all = around(MOST);
  renew(me, MOST);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    getrlimit(RLIMIT_NOFILE, &before);
    struct rlimit few = {(rlim_t)last_descriptor() + 1 + 8 * NODE_RANKS, before.rlim_max};
    NEED(me, few.rlim_cur < before.rlim_cur && setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  node_gather_meet(&me->w->gather);
  NEED(me, route_move(me, &all) == RESHARD_SUCCESS);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0)
    setrlimit(RLIMIT_NOFILE, &before);
  node_gather_meet(&me->w->gather);
}

CASE(test_few_descriptors) {
  int last = last_descriptor();
  run_right(move_with_few);
  assert_int_equal(last_descriptor(), last);
}

/* The system lets few be under way, of all processes of the user. */
static void move_held(node_rank *me) {
  const route all = around(MOST);
  renew(me, MOST);
  node_gather_meet(&me->w->gather);
  atomic_store(&most_under_way, 2);
  node_gather_meet(&me->w->gather);
  NEED(me, route_move(me, &all) == RESHARD_SUCCESS);
  node_gather_meet(&me->w->gather);
  atomic_store(&most_under_way, 0);
}

CASE(test_held_descriptors) {
  atomic_store(&held, 0);
  run_right(move_held);
  assert_true(atomic_load(&held) > 0);
  assert_int_equal(atomic_load(&under_way), 0);
}

/* A rank has no room for some descriptors, and another one cannot make some. All ranks fail with the first error, and
 * nothing is left for the calls that follow. Few messages fit a connection: a rank waits until they are taken. */
static void move_truncated(node_rank *me) {
  const route all = around(MOST);
  renew(me, MOST);
  truncated = me->rank == 0 ? 3 : 0;
  if (me->rank == 2)
    vg_fail_here("cuMemExportToShareableHandle", 10, false, 0);
  NEED(me, route_move(me, &all) == RESHARD_ERROR_SYSTEM);
  NEED(me, strstr(reshard_last_error(), "Too many open files") != NULL);
  NEED(me, truncated == 0);
  for (int i = 0; i < 2; i++) {
    NEED(me, route_move(me, &all) == RESHARD_SUCCESS);
    renew(me, MOST);
  }
  NEED(me, route_move(me, &all) == RESHARD_SUCCESS);
}

CASE(test_truncated_messages) {
  atomic_store(&narrow, true);
  run_right(move_truncated);
  atomic_store(&narrow, false);
}

/* The k-th such call of a rank fails in a bind, so all do. Storage moves by the next one, and other storage after it.
 * It has been passed on to a third rank before, where it stays open. */
static const char *failing;
static int64_t failing_rank;

static void move_after_failing(node_rank *me) {
  enum { SOURCES = 6 };
  const route first = between(0, 2, SOURCES), then = between(0, 1, SOURCES);
  for (int64_t k = 1; k <= SOURCES; k++) {
    renew(me, SOURCES);
    NEED(me, route_move(me, &first) == RESHARD_SUCCESS);
    if (me->rank == failing_rank)
      vg_fail_here(failing, k, false, 0);
    NEED(me, route_move(me, &then) != RESHARD_SUCCESS);
    NEED(me, strstr(reshard_last_error(), failing) != NULL);
    if (me->rank == failing_rank)
      NEED(me, vg_failed() == 1);
    NEED(me, route_move(me, &then) == RESHARD_SUCCESS);
    renew(me, SOURCES);
    NEED(me, route_move(me, &then) == RESHARD_SUCCESS);
  }
}

CASE(test_failed_exports) {
  failing = "cuMemExportToShareableHandle";
  failing_rank = 0;
  run_right(move_after_failing);
}

CASE(test_failed_openings) {
  failing = "cuMemSetAccess";
  failing_rank = 1;
  run_right(move_after_failing);
}

/* Memory that has come in a bind which failed elsewhere is kept open by no rank. */
static void free_after_failing(node_rank *me) {
  enum { SOURCES = 6 };
  route both = between(0, 1, SOURCES);
  both.to[0] = 2;
  renew(me, SOURCES); /* closed by the next bind; the words of meetings stay */
  NEED(me, route_move(me, &both) == RESHARD_SUCCESS);
  for (int i = 0; i < SOURCES; i++) {
    reshard_tensor_release(me->tensors[i]);
    me->tensors[i] = NULL;
  }
  node_gather_meet(&me->w->gather);
  size_t before = vg_memory_used(0);
  node_gather_meet(&me->w->gather);
  renew(me, SOURCES);
  if (me->rank == 2)
    vg_fail_here("cuMemImportFromShareableHandle", 1, false, 0);
  NEED(me, route_move(me, &both) != RESHARD_SUCCESS);
  for (int i = 0; i < SOURCES; i++) {
    reshard_tensor_release(me->tensors[i]);
    me->tensors[i] = NULL;
  }
  node_gather_meet(&me->w->gather);
  NEED(me, vg_memory_used(0) + SOURCES * SEGMENT < before + SEGMENT);
  node_gather_meet(&me->w->gather);
}

CASE(test_failed_is_closed) { run_right(free_after_failing); }

/* A rank is stuck in passing until after the deadline. The one that takes from it waits since a message came, and the
 * one that is in the meeting already waits for longer. Both miss that rank alone: it hears so itself. */
static void miss_stuck(node_rank *me) {
  const route from_stuck = between(0, 1, 2);
  renew(me, 2);
  stuck = me->rank == 0 ? me->comm : NULL;
  first = true;
  reshard_status status = route_move(me, &from_stuck);
  NEED(me, status == RESHARD_ERROR_TIMEOUT || (me->rank == 0 && status == RESHARD_ERROR_PEER));
  stuck = NULL;
  const char *missing = strstr(reshard_last_error(), "missing: ");
  NEED(me, missing != NULL && strcmp(missing, "missing: 0") == 0);
}

CASE(stuck_passing_ends_at_the_deadline) { run_right_for(2000, miss_stuck); }

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
