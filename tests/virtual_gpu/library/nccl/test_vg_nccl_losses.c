/* A rank over NCCL is lost in the middle of a call: gone, late, or late by less than the deadline
 * (support/losses/losses.h). The communicator is the library's, or the caller's, which is the caller's to end and to
 * shrink. Ranks are threads with a virtual GPU each, and time is the virtual GPU's.
 *
 * usage: test_vg_nccl_losses [RANKS TRIALS SEED [STEP [gone|late|in-time|fails [own|borrowed|streams]]]]. Without them
 * a few of each are lost, of 4 ranks and of 16. streams: steps whose streams the host does not wait for. */
#include "base/base.h"
#include "comm/nccl/nccl.h"
#include "nccl_rank.h"
#include "support/fixtures/rank_threads.h"
#include "support/losses/losses.h"
#include "support/processes/children.h"
#include "virtual_gpu.h"

#include <nccl.h>
#include <string.h>

enum { MOST = 16, DELAYED_MS = 3000, DELAYED_NCCL_MS = 1200 }; /* 1500 + 1200 + 1500 is a second too late */

/* Whose the communicator is. STREAMS, DELAYED: own, with other steps; the victim of a creation comes when half of the
 * deadline is over, and is lost later. */
enum { OWN, BORROWED, STREAMS, DELAYED };
static const char *const whose_names[] = {"own", "borrowed", "streams"};

/* Of one trial. */
static unsigned char ids[LOSS_COMMS][RESHARD_NCCL_ID_BYTES];
static reshard_device devices[MOST];
static ncclComm_t lent[MOST]; /* of the caller's */
static atomic_int begun;

/* --- Calls that count --------------------------------------------------------------------------------------------- */

static ncclResult_t all_gather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  loss_pass(LOSS_CALLS);
  return ncclAllGather(send, receive, n, type, comm, stream);
}

static ncclResult_t group_start(void) {
  loss_pass(LOSS_CALLS);
  return ncclGroupStart();
}

static ncclResult_t group_end(void) {
  loss_pass(LOSS_CALLS);
  return ncclGroupEnd();
}

static ncclResult_t split_nccl(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  loss_pass(LOSS_CALLS);
  return ncclCommSplit(comm, color, key, made, config);
}

static ncclResult_t finalize(ncclComm_t comm) {
  loss_pass(LOSS_CALLS);
  return ncclCommFinalize(comm);
}

static void count_comm(reshard_comm comm) {
  rs_nccl_api *api = &rs_nccl_of(comm)->api;
  api->ncclAllGather = all_gather;
  api->ncclGroupStart = group_start;
  api->ncclGroupEnd = group_end;
  api->ncclCommSplit = split_nccl;
  api->ncclCommFinalize = finalize;
}

/* --- Communicators ------------------------------------------------------------------------------------------------ */

static reshard_status settle(ncclComm_t nccl) {
  ncclResult_t state = ncclInProgress;
  for (; state == ncclInProgress; test_sleep_ms(1))
    if (ncclCommGetAsyncError(nccl, &state) != ncclSuccess)
      state = ncclInternalError;
  return state == ncclSuccess ? RESHARD_SUCCESS : RESHARD_ERROR_INTERNAL;
}

static reshard_status borrow_comm(loss_rank *me, int64_t timeout_ms, reshard_comm *comm) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId name;
  memcpy(&name, ids[LOSS_ALL], sizeof name);
  config.blocking = 0;
  (void)ncclCommInitRankConfig(&lent[me->number], me->t->n, name, me->number, &config);
  RS_TRY(settle(lent[me->number]));
  return reshard_comm_from_nccl(lent[me->number], me->device, timeout_ms, comm);
}

static void delay(const loss_rank *me) {
  if (me->number != me->t->victim)
    begun++;
  while (me->number == me->t->victim && begun < me->t->n - 1)
    test_sleep_ms(1);
  if (me->number == me->t->victim)
    test_sleep_ms((int)me->t->deadline_ms / 2);
}

static reshard_status make_comm(loss_rank *me, loss_which which, int64_t timeout_ms, reshard_comm *comm) {
  bool rest = which == LOSS_REST;
  if (me->t->step == LOSS_DELAYED && which == LOSS_ALL)
    delay(me);
  me->since = rs_now_ns();
  RS_TRY(me->t->transport->borrowed
             ? borrow_comm(me, timeout_ms, comm)
             : reshard_comm_create_nccl(ids[which], me->t->n - rest, me->number - (rest && me->number > me->t->victim),
                                        me->device, timeout_ms, comm));
  if (!rest)
    count_comm(*comm);
  return RESHARD_SUCCESS;
}

/* The caller's is NCCL's to shrink. */
static reshard_status shrink_lent(loss_rank *me, reshard_comm *rest) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t left = NULL, nccl = lent[me->number];
  int victim = me->t->victim;
  int64_t lost = victim;
  config.blocking = 0;
  LOSS_CHECK(me, reshard_comm_shrink(me->comm, 1, &lost, rest) == RESHARD_ERROR_UNSUPPORTED, "it is the caller's");
  (void)ncclCommShrink(nccl, &victim, 1, &left, &config, NCCL_SHRINK_ABORT);
  me->own = left;
  RS_TRY(settle(nccl));
  RS_TRY(settle(left));
  return reshard_comm_from_nccl(left, me->device, me->t->deadline_ms, rest);
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

static char *alloc(loss_rank *me, size_t bytes, bool source) {
  void *at = NULL;
  (void)me, (void)source;
  return cudaMalloc(&at, bytes) == cudaSuccess ? at : NULL;
}

static void release(loss_rank *me, char *at, size_t bytes, bool source) {
  (void)me, (void)bytes, (void)source;
  cudaFree(at);
}

static void copy(loss_rank *me, void *dst, const void *src, size_t bytes) {
  (void)me;
  cudaMemcpy(dst, src, bytes, cudaMemcpyDefault);
  cudaDeviceSynchronize();
}

static void begin_rank(loss_rank *me) {
  cudaStream_t stream = NULL;
  cudaSetDevice(me->number);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  me->stream = stream;
  me->device = devices[me->number];
  lent[me->number] = NULL;
}

/* The caller ends NCCL's before, where a GPU may wait for a peer: else what that holds stays for ever. */
static void end_rank(loss_rank *me) {
  ncclComm_t nccl = lent[me->number], left = me->own;
  bool aborts = me->t->way != LOSS_IN_TIME;
  if (left != NULL) {
    ncclCommFinalize(left);
    (void)settle(left);
    ncclCommDestroy(left);
  }
  if (nccl != NULL && aborts) {
    ncclCommAbort(nccl);
    cudaDeviceSynchronize();
  }
  loss_rank_drop(me);
  if (nccl != NULL && !aborts)
    ncclCommAbort(nccl);
  cudaStreamSynchronize(me->stream);
  reshard_device_forget_stream(me->device, me->stream);
  cudaStreamDestroy(me->stream);
  cudaDeviceSynchronize();
}

static void fail_here(int64_t call) { vg_fail_here(NULL, call, false, 0); }

static void wait_some(const loss_rank *me) {
  (void)me;
  test_sleep_ms(1);
}

static void run_rank(void *user, int64_t number) { loss_rank_run(user, (int)number); }

static void run_ranks(loss_trial *t) {
  vg_begin(
      &(vg_options){.devices = t->n, .seed = t->seed, .nccl_us = t->step == LOSS_DELAYED ? DELAYED_NCCL_MS * 1000 : 0});
  vg_quiet(true); /* of what nobody took */
  begun = 0;
  for (int r = 0; r < t->n; r++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", r);
    (void)reshard_device_create(name, NULL, &devices[r]);
    loss_count_device(devices[r]);
  }
  for (int i = 0; i < LOSS_COMMS; i++)
    (void)reshard_nccl_unique_id(ids[i]);
  rank_threads_run(t->n, run_rank, t);
  for (int r = 0; r < t->n; r++)
    reshard_device_release(devices[r]);
  int reports = vg_end(), bad = vg_reports_with("race") + vg_reports_with("freed") + vg_reports_with("misuse");
  vg_quiet(false);
  bad = t->way == LOSS_IN_TIME ? reports : bad;
  for (int i = 0; i < reports && bad > 0; i++)
    printf("seed %d: %s\n", (int)t->seed, vg_report(i));
  t->board->failures += bad;
}

/* The ranks come to a creation each by itself, and its deadline is one for all of it: the machine may be busy. */
static int64_t deadline_of(const loss_trial *t) {
  return t->step == LOSS_DELAYED ? DELAYED_MS : (t->n > 4 ? 400 : 200) * (t->step == LOSS_CREATE ? 10 : 1);
}

/* Creation and end are local where the communicator is the caller's. */
static int lose_ranks(int n, int64_t trials, uint64_t seed, const char *steps, const char *ways, int whose, int of) {
  const uint32_t both = 1u << LOSS_TRANSFER | 1u << LOSS_REBIND | 1u << LOSS_PACK | 1u << LOSS_EXCHANGE |
                        1u << LOSS_UNPACK | 1u << LOSS_REDISTRIBUTE | 1u << LOSS_SPLIT | 1u << LOSS_DESTROY;
  const uint32_t sets[] = {both | 1u << LOSS_CREATE | 1u << LOSS_END, both,
                           1u << LOSS_FIRST_EXECUTE | 1u << LOSS_SECOND_EXECUTE | 1u << LOSS_BARRIER |
                               1u << LOSS_WITHIN_FIRST_EXECUTE | 1u << LOSS_WITHIN_SECOND_EXECUTE,
                           1u << LOSS_DELAYED};
  const bool borrowed = whose == BORROWED, streams = whose == STREAMS;
  char where[64];
  snprintf(where, sizeof where, streams ? "nccl, virtual GPUs" : "nccl%s, virtual GPUs, %d ranks",
           borrowed ? " of the caller's" : "", n);
  const loss_transport nccl = {.where = where,
                               .steps = sets[whose],
                               .ways = 1u << LOSS_GONE |
                                       (streams ? 1u << LOSS_FAILS : 1u << LOSS_LATE | 1u << LOSS_IN_TIME),
                               .rows = 64,
                               .columns = 320,
                               .limit = 4096 * n,
                               .spare_ms = 1000,
                               .asynchronous = true,
                               .borrowed = borrowed,
                               .deadline = deadline_of,
                               .run = run_ranks,
                               .begin = begin_rank,
                               .end = end_rank,
                               .fail = fail_here,
                               .wait = wait_some,
                               .make = make_comm,
                               .shrink = borrowed ? shrink_lent : NULL,
                               .alloc = alloc,
                               .release = release,
                               .copy = copy};
  loss_board *board = loss_board_make();
  loss_run(&nccl, board, n, trials, seed, steps, ways, of);
  loss_report(&nccl, board);
  return board->failures;
}

int main(int argc, char **argv) {
  int failures = 0;
  bool all = vg_proving();
  uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : vg_first_seed();
  if (argc > 3) {
    for (int whose = OWN; whose <= STREAMS; whose++)
      if (argc <= 6 || strcmp(argv[6], whose_names[whose]) == 0)
        failures += lose_ranks(atoi(argv[1]), atoll(argv[2]), seed, argc > 4 ? argv[4] : NULL,
                               argc > 5 ? argv[5] : NULL, whose, 1);
  } else {
    for (int whose = OWN; whose <= BORROWED; whose++) /* take turns */
      failures += lose_ranks(4, vg_scaled(1, 20), seed + (uint64_t)whose, NULL, NULL, whose, all ? 1 : 2);
    for (int n = 2; n <= 4; n++)
      failures += lose_ranks(n, vg_scaled(1, 16), seed + (uint64_t)n, NULL, NULL, STREAMS, 1);
    int descriptors = count_descriptors();
    failures += lose_ranks(4, 1, seed, NULL, "gone", DELAYED, 1);
    if (count_descriptors() != descriptors)
      failures += printf("%d descriptors, %d before\n", count_descriptors(), descriptors) > 0;
    failures += lose_ranks(MOST, vg_scaled(1, 4), seed + 1, all ? NULL : "create,destroy", "gone", OWN, 1);
    failures += lose_ranks(MOST, vg_scaled(1, 4), seed + 1, all ? NULL : "exchange", "late", OWN, 1);
  }
  printf("%d checks failed\n", failures);
  return failures > 0;
}
