/* Transfers on the mixed path over a caller's communicator, whose bindings end late. A rebind fails while a GPU is
 * stuck: what it has bound by then stays with the transfer. A stream holds one for longer than its destroy waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/nccl/nccl.h"
#include "comm/node/node.h"
#include "node_nccl.h"

#include <stdatomic.h>

enum { LATE = 3 };
static atomic_int through;                   /* ranks whose rebind has ended */
static _Thread_local int64_t calls, late_at; /* 0: at none */

static ncclResult_t all_gather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  if (++calls == late_at)
    while (through < RANKS - 1)
      test_sleep_ms(1);
  return ncclAllGather(send, receive, n, type, comm, stream);
}

static size_t bytes_in_use(const moving_rank *me) { return nccl_rank_in_use(rs_nccl_of(me->comm)->handle); }

/* The late rank has bound, too, and is not there when the ranks tell each other that they have. */
static void rebind_twice(moving_rank *me) {
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){me->src}, .dst = (void *[]){me->dst}};
  move_once(me, 0);
  rs_nccl_of(me->comm)->api.ncclAllGather = all_gather;
  calls = 0;
  late_at = 0;
  NEED(me, reshard_transfer_rebind(me->transfer, &arrays) == RESHARD_SUCCESS);
  late_at = me->rank == LATE ? calls : 0;
  calls = 0;
  size_t before = bytes_in_use(me);
  reshard_status status = reshard_transfer_rebind(me->transfer, &arrays);
  NEED(me, me->rank == LATE || status == RESHARD_ERROR_TIMEOUT);
  NEED(me, me->rank == LATE || bytes_in_use(me) > before);
  through++;
  while (through < RANKS)
    test_sleep_ms(1);
  ncclCommAbort(me->nccl);
  cudaDeviceSynchronize();
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  NEED(me, me->rank == LATE || bytes_in_use(me) < before); /* NCCL may have taken up the late call */
  reshard_comm_destroy(me->comm);
  me->comm = NULL;
  me->nccl = NULL;
}

static void test_rebind(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 2; seed++) {
    moving m = {.nodes = NODES, .body = rebind_twice, .timeout_ms = 300, .path = RESHARD_PATH_MIXED, .borrowed = true};
    through = 0;
    assert_lost_once(&m, seed, false); /* memory that NCCL was handed stays */
  }
}

/* --- A stream that is late ---------------------------------------------------------------------------------------- */

static ncclUniqueId pair; /* a communicator of the caller's that ranks 0 and 1 have beside the other */

/* As others see it. */
static uint64_t partings_of(const moving_rank *me) {
  return atomic_load(&rs_node_own_rank(rs_nccl_of(me->comm)->node)->partings);
}

static void destroy_early(moving_rank *me) {
  int64_t limit_ms = me->comm->timeout_ms;
  me->comm->timeout_ms = 20;
  reshard_transfer_destroy(me->transfer);
  me->comm->timeout_ms = limit_ms;
  NEED(me, me->comm->deferred != NULL && partings_of(me) == 0);
}

/* Rank 0's stream waits for rank 1 before its execute, and longer than it waits itself to destroy the transfer. It
 * parts from the others when it makes the next one. */
static void destroy_held(moving_rank *me) {
  ncclComm_t beside = NULL;
  move_once(me, 0);
  NEED(me, me->rank > 0 || ncclGetUniqueId(&pair) == ncclSuccess);
  node_gather_meet(&me->m->gather);
  NEED(me, me->rank > 1 || ncclCommInitRank(&beside, 2, pair, (int)me->rank) == ncclSuccess);
  if (me->rank == 0) {
    NEED(me, ncclRecv(me->dst, 1, ncclChar, 1, beside, me->stream) == ncclSuccess);
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    destroy_early(me);
  }
  node_gather_meet(&me->m->gather);
  if (me->rank == 1)
    NEED(me, ncclSend(me->src, 1, ncclChar, 0, beside, me->stream) == ncclSuccess);
  if (me->rank > 0) {
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    reshard_transfer_destroy(me->transfer);
  }
  me->transfer = NULL;
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  NEED(me, make_transfer(me, me->src, me->dst, me->m->path) == RESHARD_SUCCESS);
  NEED(me, partings_of(me) == 1 && me->comm->deferred == NULL);
  move_once(me, 1);
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  NEED(me, partings_of(me) == 2);
  if (beside != NULL)
    ncclCommDestroy(beside);
}

static void test_late_stream(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 2; seed++) {
    moving m = {
        .nodes = NODES, .body = destroy_held, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED, .borrowed = true};
    assert_moved(&m, seed);
  }
}

#ifdef __SANITIZE_ADDRESS__ /* what stays for ever is a leak */
int main(void) { return 0; }
#else
int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rebind), cmocka_unit_test(test_late_stream)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
