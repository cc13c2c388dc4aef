/* Memory of cudaMalloc that processes open by CUDA IPC, on a driver that opens a handle once in a context: by all
 * transfers of a process together, beside another library, and after ranks that never closed it. */
#include "comm/comm.h"
#include "node_nccl.h"

#include <string.h>

/* A node communicator, or NCCL's over two nodes. */
static moving moving_of(bool node, void (*body)(moving_rank *me)) {
  return (moving){.nodes = node ? 1 : NODES, .apart = node, .timeout_ms = LIMIT_MS, .body = body};
}
static reshard_path explicit_path(const moving *m) { return m->apart ? RESHARD_PATH_DIRECT : RESHARD_PATH_MIXED; }

static void meet(moving_rank *me) { node_gather_meet(&me->m->gather); }

/* All ranks have come, and none goes on before each has counted. */
static bool is_called(moving_rank *me, int64_t opened, int64_t closed) {
  meet(me);
  bool right = vg_calls("cudaIpcOpenMemHandle") == opened && vg_calls("cudaIpcCloseMemHandle") == closed;
  meet(me);
  return right;
}

/* Two transfers of one source, of which the first one ends first; the last user closes. */
static void bind_twice(moving_rank *me) {
  const int64_t each = RANKS * (RANKS / me->m->nodes - 1);
  reshard_transfer one = me->transfer;
  const reshard_arrays same = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){me->src}, .dst = (void *[]){me->dst}};
  NEED(me, is_called(me, each, 0));
  NEED(me, make_transfer(me, me->src, me->dst, explicit_path(me->m)) == RESHARD_SUCCESS);
  NEED(me, reshard_transfer_rebind(me->transfer, &same) == RESHARD_SUCCESS);
  reshard_transfer_destroy(one);
  NEED(me, is_called(me, each, 0));
  move_once(me, 0);
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  NEED(me, is_called(me, each, each));
  NEED(me, make_transfer(me, me->src, me->dst, explicit_path(me->m)) == RESHARD_SUCCESS);
  NEED(me, is_called(me, 2 * each, each));
  move_once(me, 1);
}

CASE(transfers_of_a_process_open_a_source_once) {
  for (uint64_t seed = 0; seed < 4; seed++) {
    moving m = moving_of(seed % 2 == 0, bind_twice);
    m.path = explicit_path(&m);
    assert_moved(&m, seed);
  }
}

/* Another library of rank 2 has the memory of rank 0 open, which is on its node. */
static void open_beside(moving_rank *me) {
  static cudaIpcMemHandle_t handle;
  const reshard_path path = explicit_path(me->m);
  reshard_transfer packed = me->transfer;
  void *at = NULL;
  if (me->rank == 0)
    NEED(me, cudaIpcGetMemHandle(&handle, me->src) == cudaSuccess);
  meet(me);
  if (me->rank == 2)
    NEED(me, cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  meet(me);
  for (int i = 0; i < 2; i++) {
    NEED(me, make_transfer(me, me->src, me->dst, path) == RESHARD_ERROR_UNSUPPORTED);
    NEED(me, strstr(reshard_last_error(), "rank 2: rank 0 has a source of entry 0 'weights': its 144 bytes of "
                                          "cudaMalloc are open beside this library (CUDA error 208)") != NULL);
  }
  move_once(me, 0);
  NEED(me, make_transfer(me, me->src, me->dst, RESHARD_PATH_AUTO) == RESHARD_SUCCESS);
  reshard_transfer_destroy(packed);
  move_once(me, 1);
  packed = me->transfer;
  meet(me);
  if (me->rank == 2)
    NEED(me, cudaIpcCloseMemHandle(at) == cudaSuccess);
  meet(me);
  NEED(me, make_transfer(me, me->src, me->dst, path) == RESHARD_SUCCESS);
  move_once(me, 2);
  reshard_transfer_destroy(packed);
}

CASE(memory_that_another_library_has_open_is_private) {
  for (uint64_t seed = 0; seed < 2; seed++) {
    moving m = moving_of(seed == 0, open_beside); /* AUTO */
    assert_moved(&m, seed);
  }
}

/* Memory of rank 0 at an address where it had other memory, which rank 1 has open still. */
static void open_stale(moving_rank *me) {
  static rs_exported_memory memory;
  rs_device *device = me->comm->device;
  int64_t inside;
  bool found;
  void *first = NULL, *again = NULL, *stale = NULL;
  if (me->rank == 0)
    NEED(me, device->processes->find(device, me->src, me->src + BYTES, &memory, &inside, &found) == RESHARD_SUCCESS);
  meet(me);
  if (me->rank == 1) {
    rs_exported_memory later = memory;
    later.number++;
    NEED(me, device->processes->open(device, &memory, -1, &first) == RESHARD_SUCCESS);
    NEED(me, device->processes->open(device, &later, -1, &stale) == RESHARD_ERROR_UNSUPPORTED && stale == NULL);
    NEED(me, strstr(reshard_last_error(), "freed and open here still") != NULL);
    NEED(me, device->processes->open(device, &memory, -1, &again) == RESHARD_SUCCESS && again == first);
    device->processes->close(device, &memory, again);
    device->processes->close(device, &memory, first);
    NEED(me, device->processes->open(device, &later, -1, &first) == RESHARD_SUCCESS);
    device->processes->close(device, &later, first);
  }
  meet(me);
}

CASE(mapping_of_freed_memory_is_not_taken_for_new_memory) {
  moving m = moving_of(true, open_stale);
  assert_moved(&m, 0);
}

/* The ranks end, and close nothing. */
static void leave_open(moving_rank *me) {
  move_once(me, 0);
  meet(me);
  me->transfer = NULL;
  me->comm = NULL;
}

/* Their contexts come again at the same addresses, with the same handles. */
CASE(what_lost_contexts_had_open_is_never_found) {
  for (uint64_t seed = 0; seed < 4; seed++) {
    moving m = moving_of(seed % 2 == 0, leave_open);
    m.path = explicit_path(&m);
    vg_quiet(true);
    (void)moving_run(&m, seed, run_rank);
    vg_quiet(false);
    m.body = bind_twice;
    assert_moved(&m, seed);
  }
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
