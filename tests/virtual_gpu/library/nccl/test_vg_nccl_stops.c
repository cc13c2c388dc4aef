/* A rank stops while others have given work to their streams. What the caller does with its memory after an error, and
 * after the call that waits for such work, is not overwritten. */
#include "base/base.h"
#include "nccl_rank.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/stop_counts.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdatomic.h>
#include <string.h>

enum { DEADLINE_MS = 80 };
static const char *const step_names[] = {"first execute", "second execute", "barrier", "within first execute",
                                         "within second execute"};
enum { MOST = 4, ROWS = 24, COLUMNS = 60, BYTES = ROWS * COLUMNS * 4, STEPS = 5, MINE = 0x5a };

typedef struct world {
  int64_t n, stopper;
  int step;      /* the call that the stopper does not make: 1 to 3, or which fails in the middle: 4 and 5 */
  int64_t fault; /* which call of CUDA or NCCL fails then */
  int64_t limit; /* of the workspace: rounds */
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  reshard_comm comm[MOST];
  char *dst[MOST];
  rank_result result[MOST];
  int64_t longest_ns[MOST]; /* call */
} world;

static void open_rank(void *user, int64_t rank) {
  world *w = user;
  rank_result_set(&w->result[rank], nccl_rank_open(w->id, w->n, rank, DEADLINE_MS, &w->comm[rank]));
}

static void close_rank(void *user, int64_t rank) { reshard_comm_destroy(((world *)user)->comm[rank]); }

static reshard_status make_plan(const world *w, int64_t rank, reshard_plan *plan) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, w->n, &entry.src);
  if (status == RESHARD_SUCCESS)
    status = reshard_layout_parse("chunk(1)", 2, shape, w->n, &entry.dst);
  if (status == RESHARD_SUCCESS)
    status = reshard_plan_create(1, &entry, rank, &options, plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

/* Executes twice, and meets the others; the stopper leaves before one of these, or fails in an execute. */
static reshard_status make_calls(world *w, int64_t rank, reshard_transfer transfer, cudaStream_t stream) {
  for (int call = 1; call <= 3; call++) {
    if (rank == w->stopper && call == w->step)
      return RESHARD_ERROR_CANCELLED;
    if (rank == w->stopper && call == w->step - 3)
      vg_fail_here(NULL, w->fault, false, 0);
    int64_t begun = rs_now_ns();
    reshard_status status = call < 3 ? reshard_execute(transfer, stream) : reshard_comm_barrier(w->comm[rank]);
    w->longest_ns[rank] = rs_max(w->longest_ns[rank], rs_now_ns() - begun);
    if (status != RESHARD_SUCCESS)
      return status;
    if (rank == w->stopper) /* the fault of the process is its own */
      vg_fail_here(NULL, 0, false, 0);
  }
  return RESHARD_SUCCESS;
}

static void stop_rank(void *user, int64_t rank) {
  world *w = user;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaStream_t stream = NULL;
  char *src = NULL;
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc((void **)&src, BYTES);
  cudaMalloc((void **)&w->dst[rank], BYTES);
  reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){w->dst[rank]}, .nsrc = 1, .ndst = 1};
  reshard_status status = make_plan(w, rank, &plan);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(plan, w->comm[rank], &arrays, NULL, &transfer);
  if (status == RESHARD_SUCCESS)
    status = make_calls(w, rank, transfer, stream);
  rank_result_set(&w->result[rank], status);
  if (rank == w->stopper)
    reshard_comm_abort(w->comm[rank]);
  reshard_transfer_destroy(transfer); /* waits */
  cudaMemset(w->dst[rank], MINE, BYTES);
  cudaDeviceSynchronize();
  reshard_plan_destroy(plan);
  cudaStreamDestroy(stream);
  cudaFree(src);
}

static int64_t count_overwritten(const world *w) {
  int64_t n = 0;
  for (int64_t r = 0; r < w->n; r++) {
    n += nccl_rank_overwritten(r, w->dst[r], BYTES, MINE);
    cudaFree(w->dst[r]);
  }
  return n;
}

/* Tells whether an error names the rank that stopped, and no other. Time passes here as the ranks do. */
static bool is_named(const world *w, int64_t rank) {
  char name[32];
  snprintf(name, sizeof name, "; missing: %d", (int)w->stopper);
  const char *at = strstr(w->result[rank].text, name);
  return stop_is_named(w->result[rank].text) && at != NULL && strcmp(at, name) == 0;
}

/* The errors of the others. */
static void count_errors(const world *w, stop_counts *counts) {
  counts->stops++;
  for (int64_t r = 0; r < w->n; r++) {
    if (r == w->stopper)
      continue;
    counts->errors++;
    counts->late += w->longest_ns[r] > (DEADLINE_MS + 1000) * INT64_C(1000000);
    counts->unnamed += !is_named(w, r);
    if (!is_named(w, r))
      printf("step %d, rank %d stops: %s\n", w->step, (int)w->stopper, w->result[r].text);
  }
}

CASE(after_a_stop_the_arrays_are_the_callers) {
  stop_counts counts[STEPS] = {0};
  int64_t stops = vg_scaled(15, 240), happened = 0;
  for (int64_t i = 0; i < stops; i++) {
    int64_t seed = (int64_t)vg_first_seed() + i;
    world w = {.n = 2 + seed % 3,
               .step = 1 + (int)(seed % STEPS),
               .fault = 1 + seed / STEPS % 6,
               .limit = seed / 2 % 2 ? 4096 * 4 : 0};
    w.stopper = seed / 3 % w.n;
    vg_begin(&(vg_options){.devices = (int)w.n, .seed = (uint64_t)seed});
    vg_quiet(true); /* of the records that nobody took */
    assert_int_equal(reshard_nccl_unique_id(w.id), RESHARD_SUCCESS);
    rank_threads_run(w.n, open_rank, &w);
    rank_results_assert(w.n, w.result, RESHARD_SUCCESS, NULL, "a communicator");
    rank_threads_run(w.n, stop_rank, &w);
    bool stopped = w.result[w.stopper].status != RESHARD_SUCCESS; /* else the execute makes fewer calls */
    for (int64_t r = 0; r < w.n && stopped; r++)                  /* each has heard of it */
      if (w.result[r].status == RESHARD_SUCCESS)
        fail_msg("seed %d: rank %d of %d has success, rank %d stopped in step %d: %s", (int)seed, (int)r, (int)w.n,
                 (int)w.stopper, w.step, w.result[w.stopper].text);
    happened += stopped;
    if (stopped)
      count_errors(&w, &counts[w.step - 1]);
    rank_threads_run(w.n, close_rank, &w);
    int64_t overwritten = count_overwritten(&w);
    counts[w.step - 1].wrong += overwritten;
    if (overwritten != 0)
      fail_msg("seed %d: %d bytes were written after the error", (int)seed, (int)overwritten);
    vg_end();
    vg_quiet(false);
    assert_int_equal(vg_reports_with("race"), 0);
    assert_int_equal(vg_reports_with("freed"), 0);
  }
  assert_true(happened * 6 >= stops * 5);
  for (int step = 0; step < STEPS; step++)
    stop_counts_print("nccl, virtual GPUs", step < 3 ? "gone" : "fails", step_names[step], &counts[step]);
}

/* --- A communicator of the caller's ------------------------------------------------------------------------------- */

typedef struct held {
  world w;
  bool destroyed_first; /* the handle of the library, before the caller aborts */
  reshard_device device[MOST];
  ncclComm_t nccl[MOST];
  cudaStream_t stream[MOST];
  reshard_plan plan[MOST];
  char *src[MOST], *other[MOST];
  /* Bytes of the communicator; those that a destroyed transfer has; those that are left when both have gone. */
  size_t records[MOST], kept[MOST], left[MOST];
} held;

static reshard_status open_held(held *h, int64_t rank) {
  world *w = &h->w;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  char name[32];
  memcpy(&id, w->id, sizeof id);
  config.blocking = 0;
  snprintf(name, sizeof name, "cuda:%d", (int)rank);
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&h->stream[rank], cudaStreamNonBlocking);
  cudaMalloc((void **)&h->src[rank], BYTES);
  cudaMalloc((void **)&w->dst[rank], BYTES);
  cudaMalloc((void **)&h->other[rank], BYTES);
  cudaMemset(h->src[rank], 1, BYTES);
  cudaDeviceSynchronize();
  ncclResult_t state = ncclCommInitRankConfig(&h->nccl[rank], (int)w->n, id, (int)rank, &config);
  while (state == ncclInProgress)
    ncclCommGetAsyncError(h->nccl[rank], &state);
  RS_TRY(reshard_device_create(name, NULL, &h->device[rank]));
  RS_TRY(reshard_comm_from_nccl(h->nccl[rank], h->device[rank], DEADLINE_MS, &w->comm[rank]));
  return make_plan(w, rank, &h->plan[rank]);
}

/* The stopper makes the first of two executes alone. The others rebind and destroy by the deadline. */
static reshard_status hold_rank(held *h, int64_t rank) {
  world *w = &h->w;
  size_t before = h->records[rank] = nccl_rank_in_use(h->device[rank]);
  reshard_transfer transfer;
  void *src = h->src[rank], *dst = w->dst[rank], *other = h->other[rank];
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  RS_TRY(reshard_transfer_create(h->plan[rank], w->comm[rank], &arrays, NULL, &transfer));
  RS_TRY(reshard_execute(transfer, h->stream[rank]));
  cudaStreamSynchronize(h->stream[rank]);
  if (rank == w->stopper) {
    reshard_transfer_destroy(transfer);
    h->kept[rank] = nccl_rank_in_use(h->device[rank]) - before;
    return RESHARD_SUCCESS;
  }
  RS_TRY(reshard_execute(transfer, h->stream[rank]));
  arrays.dst = &other;
  int64_t begun = rs_now_ns();
  reshard_status status = reshard_transfer_rebind(transfer, &arrays);
  rank_result_set(&w->result[rank], status);
  w->longest_ns[rank] = rs_now_ns() - begun;
  reshard_transfer_destroy(transfer);
  h->kept[rank] = nccl_rank_in_use(h->device[rank]) - before;
  return status;
}

static void open_held_body(void *user, int64_t rank) {
  held *h = user;
  rank_result_set(&h->w.result[rank], open_held(h, rank));
}

static void hold_body(void *user, int64_t rank) {
  held *h = user;
  rank_result_set(&h->w.result[rank], hold_rank(h, rank));
}

static void abort_held(const held *h) {
  for (int64_t r = 0; r < h->w.n; r++)
    assert_int_equal(ncclCommAbort(h->nccl[r]), ncclSuccess);
  for (int64_t r = 0; r < h->w.n; r++)
    assert_int_equal(cudaStreamSynchronize(h->stream[r]), cudaSuccess);
}

static void destroy_held(held *h) {
  for (int64_t r = 0; r < h->w.n; r++) {
    reshard_comm_destroy(h->w.comm[r]);
    h->left[r] = nccl_rank_in_use(h->device[r]);
  }
}

static void close_held(const held *h, int64_t r) {
  cudaSetDevice((int)r);
  cudaMemset(h->w.dst[r], MINE, BYTES);
  cudaDeviceSynchronize();
  reshard_plan_destroy(h->plan[r]);
  reshard_device_release(h->device[r]);
  cudaStreamDestroy(h->stream[r]);
  cudaFree(h->src[r]);
  cudaFree(h->other[r]);
}

static void check_held(bool destroyed_first, int64_t limit, uint64_t seed) {
  held h = {.w = {.n = 3, .stopper = 2, .limit = limit}, .destroyed_first = destroyed_first};
  vg_begin(&(vg_options){.devices = (int)h.w.n, .seed = seed});
  vg_quiet(true);
  assert_int_equal(reshard_nccl_unique_id(h.w.id), RESHARD_SUCCESS);
  rank_threads_run(h.w.n, open_held_body, &h);
  rank_results_assert(h.w.n, h.w.result, RESHARD_SUCCESS, NULL, "a communicator of the caller's");
  rank_threads_run(h.w.n, hold_body, &h);
  for (int64_t r = 0; r < h.w.n; r++) {
    if (r == h.w.stopper) {
      assert_int_equal(h.w.result[r].status, RESHARD_SUCCESS);
      continue;
    }
    assert_int_equal(h.w.result[r].status, RESHARD_ERROR_TIMEOUT);
    assert_non_null(strstr(h.w.result[r].text, "the last execute of the transfer has not ended within 80 ms"));
    assert_in_range(h.w.longest_ns[r] / 1000000, DEADLINE_MS, DEADLINE_MS + 1000);
  }
  for (int64_t r = 0; r < h.w.n; r++)
    assert_int_equal(h.kept[r] > 0, r != h.w.stopper);
  if (destroyed_first)
    destroy_held(&h);
  abort_held(&h);
  if (!destroyed_first)
    destroy_held(&h);
  for (int64_t r = 0; r < h.w.n; r++) {
    assert_true(h.records[r] > 0);
    assert_int_equal(h.left[r], destroyed_first && r != h.w.stopper ? h.kept[r] + h.records[r] : 0);
    close_held(&h, r);
  }
  assert_int_equal(count_overwritten(&h.w), 0);
  int reports = vg_end(), leaks = vg_reports_with("leak");
  vg_quiet(false);
  if (reports != leaks || (leaks > 0) != destroyed_first)
    fail_msg("seed %d: %d reports, %d leaks: %s", (int)seed, reports, leaks, vg_report(0));
}

/* Staging that a rank's stream still uses after the deadline is kept. It is freed with the communicator where the
 * caller has aborted before, else never. */
CASE(staging_that_a_gpu_uses_is_kept) {
#ifdef __SANITIZE_ADDRESS__ /* what stays for ever is a leak */
  const int orders = 1;
#else
  const int orders = 2;
#endif
  for (uint64_t seed = 0; seed < 6; seed++)
    for (int first = 0; first < orders; first++)
      check_held(first, seed % 2 ? 4096 * 4 : 0, seed);
}

RUN_CASES
