/* Transfers on the mixed path over a caller's communicator: a rebind fails while a GPU is stuck, and what it has bound
 * by then stays with the transfer. */
#include "comm/nccl/nccl.h"
#include "comm/node/node.h"
#include "node_nccl.h"
#include "support/fixtures/case.h"

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

CASE(failed_rebind_beside_a_stuck_gpu_keeps_its_memory) {
  for (uint64_t seed = 0; seed < 2; seed++) {
    moving m = {.nodes = NODES, .body = rebind_twice, .timeout_ms = 300, .path = RESHARD_PATH_MIXED, .borrowed = true};
    through = 0;
    assert_lost_once(&m, seed, false); /* memory that NCCL was handed stays */
  }
}

#ifdef __SANITIZE_ADDRESS__ /* what stays for ever is a leak */
int main(void) { return 0; }
#else
RUN_CASES
#endif
