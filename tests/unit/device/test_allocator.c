/* The caller's allocator on the CPU: storage and staging come from it, and all goes back; the device's own allocators
 * are not called beside it. */
#include "device/device.h"
#include "device/handle.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/reshards/tensor_pair.h"

#include <reshard/reshard.h>
#include <reshard/tensor.h>

#include <stdatomic.h>
#include <stdlib.h>

enum { RANKS = 2, ROWS = 64, COLUMNS = 64 };

typedef struct world {
  reshard_device device;
  reshard_comm comm[RANKS];
  rank_result result[RANKS];
  size_t staged[RANKS], grown[RANKS];
} world;

static atomic_size_t given;
static atomic_long beside;

static void *counter_alloc(void *user, size_t bytes, void *stream) {
  (void)user, (void)stream;
  void *memory = NULL;
  if (posix_memalign(&memory, 256, bytes) != 0)
    return NULL;
  atomic_fetch_add(&given, bytes);
  return memory;
}

static void counter_free(void *user, void *memory, size_t bytes, void *stream) {
  (void)user, (void)stream;
  atomic_fetch_sub(&given, bytes);
  free(memory);
}

static reshard_status own_alloc(rs_device *device, size_t bytes, void **memory) {
  (void)device, (void)bytes, (void)memory;
  atomic_fetch_add(&beside, 1);
  return RESHARD_ERROR_OUT_OF_MEMORY;
}

static reshard_status own_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory) {
  return own_alloc(device, bytes, memory);
}

static reshard_status check_columns(const tensor_pair *p, int64_t r) {
  const int64_t columns = COLUMNS / RANKS;
  for (int64_t i = 0; i < p->to.elements; i++)
    if (((float *)p->to.data)[i] != (float)(i / columns * COLUMNS + r * columns + i % columns))
      return rs_error(RESHARD_ERROR_CORRUPT, "element %lld is wrong", (long long)i);
  return RESHARD_SUCCESS;
}

static reshard_status run_rank(world *w, int64_t r) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  tensor_pair p;
  reshard_transfer_info info;
  reshard_status status;
  size_t before;
  RS_TRY_GOTO(status, tensor_pair_make(w->device, shape, RANKS, r, NULL, &p), done);
  for (int64_t i = 0; i < p.from.elements; i++)
    ((float *)p.from.data)[i] = (float)(r * p.from.elements + i);
  RS_TRY_GOTO(status, reshard_comm_barrier(w->comm[r]), done);
  before = atomic_load(&given);
  RS_TRY_GOTO(status, reshard_comm_barrier(w->comm[r]), done);
  RS_TRY_GOTO(status, tensor_pair_bind(&p, w->comm[r]), done);
  RS_TRY_GOTO(status, reshard_comm_barrier(w->comm[r]), done);
  w->grown[r] = atomic_load(&given) - before;
  RS_TRY_GOTO(status, reshard_execute(p.transfer, NULL), done);
  RS_TRY_GOTO(status, reshard_transfer_get_info(p.transfer, &info), done);
  w->staged[r] = info.workspace_bytes;
  RS_TRY_GOTO(status, reshard_comm_barrier(w->comm[r]), done);
  status = check_columns(&p, r);
done:
  tensor_pair_free(&p);
  return status;
}

static void rank_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->result[r], run_rank(w, r));
}

CASE(test_all_is_the_callers) {
  const reshard_allocator allocator = {counter_alloc, counter_free, NULL};
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .allocator = &allocator};
  world w = {.device = NULL};
  assert_int_equal(reshard_device_create("cpu", &options, &w.device), RESHARD_SUCCESS);
  const rs_device_memory *original = w.device->device->memory;
  rs_device_memory recording = *original;
  recording.alloc = own_alloc;
  recording.alloc_async = own_alloc_async;
  w.device->device->memory = &recording;
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &w.device, .ndevices = 1};
  assert_int_equal(reshard_comm_create_local(RANKS, &local, w.comm), RESHARD_SUCCESS);
  rank_threads_run(RANKS, rank_body, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
  assert_true(w.staged[0] > 0);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(w.grown[r], w.staged[0] + w.staged[1]);
  rank_comms_close(RANKS, w.comm);
  w.device->device->memory = original;
  reshard_device_release(w.device);
  assert_int_equal(atomic_load(&beside), 0);
  assert_int_equal(atomic_load(&given), 0);
}

/* The limit of the pool holds for staging, too: the error is all ranks'. */
CASE(limit_of_the_pool_holds_for_staging) {
  const size_t tensors = RANKS * 2 * 4 * ROWS * COLUMNS / RANKS;
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = tensors + 64};
  world w = {.device = NULL};
  assert_int_equal(reshard_device_create("cpu", &options, &w.device), RESHARD_SUCCESS);
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &w.device, .ndevices = 1};
  assert_int_equal(reshard_comm_create_local(RANKS, &local, w.comm), RESHARD_SUCCESS);
  rank_threads_run(RANKS, rank_body, &w);
  rank_results_assert(RANKS, w.result, RESHARD_ERROR_OUT_OF_MEMORY, "the limit is", "a transfer");
  rank_comms_close(RANKS, w.comm);
  reshard_device_release(w.device);
}

RUN_CASES
