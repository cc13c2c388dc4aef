/* The shipped NCCL communicator where one ends, or is not what it should be: what a rank leaves behind that others, or
 * NCCL itself, still use; and GPUs that NCCL refuses. */
#include "comm/nccl/nccl.h"
#include "nccl_rank.h"
#include "reshard/reshard.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

enum { RANKS = 3 };

typedef struct world {
  int64_t timeout_ms;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  ncclComm_t nccl[RANKS]; /* borrowed ones */
  reshard_comm comm[RANKS], sub[RANKS];
  rank_result result[RANKS];
  int device_of[RANKS];
  size_t kept[RANKS]; /* bytes of a transfer that stay when it is destroyed */
  atomic_int next;
} world;

static void world_begin(world *w, int devices, int64_t timeout_ms) {
  *w = (world){.timeout_ms = timeout_ms, .device_of = {0, 1, 2}};
  vg_begin(&(vg_options){.devices = devices, .seed = 5});
  GOOD(reshard_nccl_unique_id(w->id));
}

static void own_rank(void *user, int64_t rank) {
  world *w = user;
  cudaSetDevice(w->device_of[rank]); /* NULL: the current one */
  rank_result_set(&w->result[rank], reshard_comm_create_nccl(w->id, RANKS, rank, NULL, w->timeout_ms, &w->comm[rank]));
}

static void borrowed_rank(void *user, int64_t rank) {
  world *w = user;
  ncclUniqueId id;
  memcpy(&id, w->id, sizeof id);
  cudaSetDevice((int)rank);
  reshard_status status = RESHARD_ERROR_INTERNAL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t state = ncclCommInitRankConfig(&w->nccl[rank], RANKS, id, (int)rank, &config);
  while (state == ncclInProgress)
    ncclCommGetAsyncError(w->nccl[rank], &state);
  if (state == ncclSuccess)
    status = rank == 0 ? reshard_comm_from_nccl(w->nccl[0], NULL, w->timeout_ms, &w->comm[0])
                       : reshard_comm_from_nccl_library(w->nccl[rank], (void (*)(void))ncclGetVersion, NULL,
                                                        w->timeout_ms, &w->comm[rank]);
  rank_result_set(&w->result[rank], status);
}

static void split_rank(void *user, int64_t rank) {
  world *w = user;
  rank_result_set(&w->result[rank], reshard_comm_split(w->comm[rank], rank == 0 ? -1 : 0, 0, &w->sub[rank]));
}

static void close_rank(void *user, int64_t rank) { reshard_comm_destroy(((world *)user)->comm[rank]); }
static void close_sub_rank(void *user, int64_t rank) { reshard_comm_destroy(((world *)user)->sub[rank]); }

/* Rank 0 has no part, and ends at once; the others keep theirs for longer than the communicator. */
CASE(test_parent_first) {
  world w;
  world_begin(&w, RANKS, 0);
  rank_threads_run(RANKS, own_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
  rank_threads_run(RANKS, split_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a split");
  rank_threads_run(RANKS, close_rank, &w);
  rank_threads_run(RANKS, close_sub_rank, &w);
  assert_int_equal(vg_end(), 0);
}

/* Begins with communicators that are the caller's. */
static void world_borrow(world *w, int64_t timeout_ms) {
  world_begin(w, RANKS, timeout_ms);
  rank_threads_run(RANKS, borrowed_rank, w);
  rank_results_assert(RANKS, w->result, RESHARD_SUCCESS, NULL, "a communicator");
}

/* ... and where the caller's has ended, of which they are parts. */
CASE(test_ended_parent_first) {
  world w;
  world_borrow(&w, 0);
  rank_threads_run(RANKS, split_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a split");
  for (int r = 0; r < RANKS; r++)
    GOOD(reshard_comm_abort(w.comm[r]));
  rank_threads_run(RANKS, close_rank, &w);
  rank_threads_run(RANKS, close_sub_rank, &w);
  for (int r = 0; r < RANKS; r++)
    ncclCommAbort(w.nccl[r]);
  assert_int_equal(vg_end(), 0);
}

/* ... while somebody captures a stream that has nothing to do with it. */
CASE(test_end_beside_capture) {
  world w;
  cudaStream_t stream;
  cudaGraph_t graph;
  void *memory;
  world_begin(&w, RANKS, 0);
  rank_threads_run(RANKS, own_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
  assert_int_equal(cudaMalloc(&memory, 8), cudaSuccess);
  assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  assert_int_equal(cudaMemsetAsync(memory, 0, 8, stream), cudaSuccess);
  rank_threads_run(RANKS, close_rank, &w);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFree(memory);
  assert_int_equal(vg_end(), 0);
}

/* --- Shrinking ---------------------------------------------------------------------------------------------------- */

/* Ranks 0 and 2 miss rank 1, which comes to nothing. */
static void miss_rank(void *user, int64_t rank) {
  world *w = user;
  if (rank != 1)
    rank_result_set(&w->result[rank], reshard_comm_barrier(w->comm[rank]));
}

static void shrink_rank(void *user, int64_t rank) {
  world *w = user;
  if (rank == 1 || w->next > rank)
    return;
  int64_t missing[RANKS], n = 0; /* none where no deadline has passed */
  reshard_status status = reshard_comm_missing(w->comm[rank], missing, &n);
  RS_THEN(status, reshard_comm_shrink(w->comm[rank], 1 - n, (int64_t[]){1}, &w->sub[rank]));
  RS_THEN(status, reshard_comm_barrier(w->sub[rank]));
  rank_result_set(&w->result[rank], status);
}

CASE(shrink_ends_the_old_communicator) {
  static const bool late[] = {true, false}; /* a deadline has passed; nothing has happened */
  for (int i = 0; i < 2; i++) {
    world w;
    world_begin(&w, RANKS, 1000);
    rank_threads_run(RANKS, own_rank, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
    if (late[i]) {
      rank_threads_run(RANKS, miss_rank, &w);
      w.result[1] = w.result[0];
      rank_results_assert(RANKS, w.result, RESHARD_ERROR_TIMEOUT,
                          "reshard_comm_barrier, call 1: all-gather of records: not done within 1000 ms; missing: 1",
                          "a barrier");
    }
    rank_threads_run(RANKS, shrink_rank, &w);
    w.result[1] = w.result[0];
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a shrink");
    for (int r = 0; r < RANKS; r += 2) {
      assert_int_equal(reshard_comm_size(w.sub[r]), 2);
      assert_int_equal(reshard_comm_rank(w.sub[r]), r / 2);
      assert_int_equal(reshard_comm_global_ranks(w.sub[r])[1], 2);
      assert_int_equal(reshard_comm_barrier(w.comm[r]), RESHARD_ERROR_PEER);
    }
    rank_threads_run(RANKS, close_rank, &w); /* the new one lives on */
    rank_threads_run(RANKS, close_sub_rank, &w);
    assert_int_equal(vg_end(), 0);
  }
}

/* One more is missing; the caller's communicator; an NCCL that cannot. */
CASE(test_no_shrink) {
  world w;
  world_begin(&w, RANKS, 300);
  rank_threads_run(RANKS, own_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
  w.next = 1; /* rank 0 does not come */
  rank_threads_run(RANKS, shrink_rank, &w);
  assert_int_equal(w.result[2].status, RESHARD_ERROR_TIMEOUT);
  assert_string_equal(w.result[2].text,
                      "reshard_comm_shrink, call 1: ncclCommShrink: not done within 300 ms; missing: 0");
  assert_int_equal(reshard_comm_shrink(w.comm[2], 1, (int64_t[]){1}, &w.sub[2]), RESHARD_ERROR_UNSUPPORTED);
  assert_null(w.sub[2]);
  rank_threads_run(RANKS, close_rank, &w);
  assert_int_equal(vg_end(), 0);

  world_borrow(&w, 300);
  FAILS_WITH(reshard_comm_shrink(w.comm[0], 1, (int64_t[]){1}, &w.sub[0]), RESHARD_ERROR_UNSUPPORTED,
             "the NCCL communicator is the caller's");
  rank_threads_run(RANKS, close_rank, &w);
  for (int r = 0; r < RANKS; r++)
    ncclCommAbort(w.nccl[r]);
  assert_int_equal(vg_end(), 0);

  world_begin(&w, RANKS, 300);
  rank_threads_run(RANKS, own_rank, &w);
  vg_fail_here("ncclCommRevoke", 1, false, 0); /* it is aborted then */
  GOOD(reshard_comm_abort(w.comm[0]));
  FAILS_WITH(reshard_comm_shrink(w.comm[0], 1, (int64_t[]){1}, &w.sub[0]), RESHARD_ERROR_UNSUPPORTED, "was aborted");
  for (int r = 1; r < RANKS; r++)
    reshard_comm_abort(w.comm[r]);
  rank_threads_run(RANKS, close_rank, &w);
  assert_int_equal(vg_end(), 0);
}

/* NCCL 2.27 shrinks, and does not revoke; 2.18 does neither. */
CASE(test_older_nccl) {
  for (int i = 0; i < 2; i++) {
    world w;
    world_begin(&w, RANKS, 300);
    rank_threads_run(RANKS, own_rank, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
    for (int r = 0; r < RANKS; r++) {
      rs_nccl_of(w.comm[r])->api.ncclCommRevoke = NULL;
      rs_nccl_of(w.comm[r])->api.ncclAlltoAll = NULL;
      if (i > 0)
        rs_nccl_of(w.comm[r])->api.ncclCommShrink = NULL;
    }
    rank_threads_run(RANKS, shrink_rank, &w); /* nothing has happened */
    w.result[1] = w.result[0];
    rank_results_assert(RANKS, w.result, i == 0 ? RESHARD_SUCCESS : RESHARD_ERROR_UNSUPPORTED,
                        i == 0 ? NULL : "reshard_comm_shrink: NCCL has ncclCommShrink from 2.27 on", "a shrink");
    if (i == 0) {
      assert_int_equal(reshard_comm_barrier(w.comm[0]), RESHARD_ERROR_PEER);
      rank_threads_run(RANKS, close_sub_rank, &w);
    }
    rank_threads_run(RANKS, close_rank, &w);
    assert_int_equal(vg_end(), 0);
  }
}

/* --- A graph that is launched after the end ----------------------------------------------------------------------- */

static reshard_status transfer_make(reshard_comm comm, void *memory, reshard_plan *plan, reshard_transfer *transfer) {
  const int64_t n = reshard_comm_size(comm), shape[] = {n, n};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                           .src = (void *[]){memory},
                           .dst = (void *[]){(char *)memory + 4 * RANKS},
                           .nsrc = 1,
                           .ndst = 1};
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, n, &entry.src);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, n, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, reshard_comm_rank(comm), NULL, plan));
  RS_THEN(status, reshard_transfer_create(*plan, comm, &arrays, NULL, transfer));
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

/* Rank 0 launches what all have captured, when its communicator has ended: its peers' kernels never come. */
static void late_graph_rank(void *user, int64_t rank) {
  world *w = user;
  void *memory = NULL;
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc(&memory, 8 * RANKS);
  cudaMemset(memory, (int)rank, 8 * RANKS);
  cudaDeviceSynchronize();
  reshard_status status = transfer_make(w->comm[rank], memory, &plan, &transfer);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  RS_THEN(status, reshard_execute(transfer, stream));
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  reshard_comm_abort(w->comm[rank]);
  if (rank == 0)
    cudaGraphLaunch(exec, stream);
  reshard_transfer_destroy(transfer); /* waits for it, and not for ever */
  if (cudaStreamQuery(stream) != cudaSuccess)
    status = RESHARD_ERROR_INTERNAL;
  rank_result_set(&w->result[rank], status);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  reshard_plan_destroy(plan);
  cudaStreamDestroy(stream);
  cudaFree(memory);
}

CASE(test_graph_after_end) {
  static const int64_t timeouts_ms[] = {100, 0};
  for (int i = 0; i < 2; i++) {
    world w;
    world_begin(&w, RANKS, timeouts_ms[i]);
    rank_threads_run(RANKS, own_rank, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a communicator");
    vg_quiet(true);
    rank_threads_run(RANKS, late_graph_rank, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "an end before a graph");
    assert_int_equal(reshard_comm_shrink(w.comm[0], 1, (int64_t[]){1}, &w.sub[0]), RESHARD_ERROR_UNSUPPORTED);
    rank_threads_run(RANKS, close_rank, &w);
    int reports = vg_end();
    vg_quiet(false);
    assert_int_equal(vg_reports_with("NCCL: a graph is launched which was revoked"), 1);
    assert_int_equal(reports, 1 + vg_reports_with("undefined copy_rows")); /* of what was never received */
  }
}

/* --- A rank that comes too late to the caller's communicator ------------------------------------------------------ */

static _Thread_local struct handed {
  const void *send;
  void *receive;
  size_t n;
  ncclComm_t nccl;
  cudaStream_t stream;
} handed;

/* As of an NCCL that connects first: it launches nothing before all ranks have come. */
static ncclResult_t take_all_gather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t nccl,
                                    cudaStream_t stream) {
  handed = (struct handed){send, receive, n, nccl, stream};
  return ncclInProgress;
}

static ncclResult_t tell_progress(ncclComm_t nccl, ncclResult_t *state) {
  ncclResult_t result = ncclCommGetAsyncError(nccl, state);
  if (handed.nccl == nccl && *state == ncclSuccess)
    *state = ncclInProgress;
  return result;
}

/* Rank 1 comes when the others have a timeout, and have destroyed their handles. */
static void late_rank(void *user, int64_t rank) {
  world *w = user;
  char *memory = NULL;
  ncclResult_t result = ncclSuccess;
  cudaSetDevice((int)rank);
  if (rank != 1) {
    rs_nccl_of(w->comm[rank])->api.ncclAllGather = take_all_gather;
    rs_nccl_of(w->comm[rank])->api.ncclCommGetAsyncError = tell_progress;
    rank_result_set(&w->result[rank], reshard_comm_barrier(w->comm[rank]));
  } else {
    cudaMalloc((void **)&memory, (RANKS + 1) * sizeof(rs_nccl_record));
    cudaMemset(memory, 0, (RANKS + 1) * sizeof(rs_nccl_record));
    cudaDeviceSynchronize();
    handed = (struct handed){memory, memory + sizeof(rs_nccl_record), sizeof(rs_nccl_record), w->nccl[1], NULL};
  }
  reshard_comm_destroy(w->comm[rank]);
  w->next++;
  while (w->next < RANKS)
    sched_yield();
  if (handed.nccl != NULL)
    result = ncclAllGather(handed.send, handed.receive, handed.n, ncclInt8, handed.nccl, handed.stream);
  while (result == ncclInProgress)
    ncclCommGetAsyncError(w->nccl[rank], &result);
  if (result != ncclSuccess || cudaDeviceSynchronize() != cudaSuccess)
    rank_result_set(&w->result[rank], RESHARD_ERROR_INTERNAL);
  cudaFree(memory);
}

CASE(test_late_rank) {
  world w;
  world_borrow(&w, 100);
  vg_quiet(true);
  rank_threads_run(RANKS, late_rank, &w);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(w.result[r].status, r == 1 ? RESHARD_SUCCESS : RESHARD_ERROR_TIMEOUT);
    assert_int_equal(ncclCommAbort(w.nccl[r]), ncclSuccess);
  }
  int reports = vg_end();
  vg_quiet(false);
  assert_int_equal(reports, vg_reports_with("leak")); /* what NCCL was handed is never freed */
}

/* A rank ends what it has on a part, while its GPU waits for one that did not come to the whole. */
static void end_part_rank(void *user, int64_t rank) {
  world *w = user;
  void *memory = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaSetDevice((int)rank);
  cudaMalloc(&memory, 8 * RANKS);
  reshard_status status = reshard_comm_barrier(w->comm[rank]);
  size_t before = nccl_rank_in_use(rs_nccl_of(w->comm[rank])->handle);
  if (status == RESHARD_SUCCESS && rank > 0)
    status = transfer_make(w->sub[rank], memory, &plan, &transfer);
  if (status == RESHARD_SUCCESS && rank > 0)
    status = reshard_comm_barrier(w->comm[rank]);
  rank_result_set(&w->result[rank], status);
  reshard_transfer_destroy(transfer);
  w->kept[rank] = nccl_rank_in_use(rs_nccl_of(w->comm[rank])->handle) - before;
  w->next++;
  while (w->next < RANKS)
    sched_yield();
  ncclCommAbort(w->nccl[rank]);
  cudaDeviceSynchronize();
  reshard_comm_destroy(w->sub[rank]);
  reshard_comm_destroy(w->comm[rank]);
  reshard_plan_destroy(plan);
  cudaFree(memory);
}

CASE(test_part_of_stuck) {
  world w;
  world_borrow(&w, 100);
  vg_quiet(true);
  rank_threads_run(RANKS, split_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a split");
  rank_threads_run(RANKS, end_part_rank, &w);
  assert_int_equal(w.result[0].status, RESHARD_SUCCESS);
  for (int r = 1; r < RANKS; r++) {
    assert_int_equal(w.result[r].status, RESHARD_ERROR_TIMEOUT);
    assert_true(w.kept[r] > 0);
  }
  int reports = vg_end();
  vg_quiet(false);
  assert_int_equal(reports, 0);
}

CASE(test_same_gpu) {
  world w;
  world_begin(&w, 2, 0);
  w.device_of[2] = 1;
  rank_threads_run(RANKS, own_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_ERROR_INVALID, "Duplicate GPU detected", "two ranks on a GPU");
  assert_int_equal(vg_end(), 0);
}

/* --- A split that is given up ------------------------------------------------------------------------------------- */

/* NCCL's split of the last rank fails, so that the others give theirs up. */
static void *give_up_split(void *user) {
  world *w = user;
  int64_t rank = w->next++;
  if (rank == RANKS - 1)
    vg_fail_here("ncclCommSplit", 1, false, 0);
  split_rank(w, rank);
  close_rank(w, rank);
  return NULL;
}

/* Last of all cases: what NCCL may still write to is never freed. The splits are on stacks that are gone afterwards,
 * when the last rank comes to the split after all: NCCL makes what the others wanted then, and says where they asked
 * for it. */
CASE(test_split_given_up) {
  enum { STACK = 1 << 20 };
  world w;
  void *stack[RANKS];
  pthread_t thread[RANKS];
  world_borrow(&w, 100);
  vg_quiet(true);
  for (int r = 0; r < RANKS; r++) {
    pthread_attr_t attributes;
    stack[r] = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(stack[r], MAP_FAILED);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack[r], STACK);
    assert_int_equal(pthread_create(&thread[r], &attributes, give_up_split, &w), 0);
    pthread_attr_destroy(&attributes);
  }
  for (int r = 0; r < RANKS; r++)
    pthread_join(thread[r], NULL);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(w.result[r].status, RESHARD_ERROR_TIMEOUT);
    munmap(stack[r], STACK);
  }
  ncclComm_t late;
  cudaSetDevice(RANKS - 1);
  ncclResult_t result = ncclCommSplit(w.nccl[RANKS - 1], 0, 0, &late, NULL);
  while (result == ncclInProgress)
    ncclCommGetAsyncError(w.nccl[RANKS - 1], &result);
  assert_int_equal(result, ncclSuccess);
  ncclCommAbort(late);
  for (int r = 0; r < RANKS; r++)
    ncclCommAbort(w.nccl[r]);
  vg_end();
  vg_quiet(false);
  assert_int_equal(vg_reports_with("leak: rank 0 of communicator 1."), 1); /* nobody is there to end rank 1's part */
  assert_int_equal(vg_reports_with("race"), 0);
}

RUN_CASES
