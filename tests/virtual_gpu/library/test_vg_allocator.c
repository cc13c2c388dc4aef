/* The caller's allocator: all memory of a GPU comes from it - storage, staging, tables, uploads, records - and all goes
 * back. The library asks the runtime for none. Staging that a peer's GPU does not reach is an error of all ranks. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/reshards/tensor_pair.h"
#include "virtual_gpu.h"

#include <reshard/dtensor.h>
#include <reshard/mesh.h>
#include <reshard/reshard.h>
#include <reshard/sharded.h>
#include <reshard/tensor.h>

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, ROWS = 96, COLUMNS = 96, CALLS = 4 };
static const int64_t shape[2] = {ROWS, COLUMNS};
static const reshard_properties f32 = {.dtype = RESHARD_F32};

static const float zeros[ROWS * COLUMNS / RANKS];

typedef struct counter {
  atomic_size_t bytes; /* given and not come back */
  atomic_long allocs, frees;
} counter;

static void *counter_alloc(void *user, size_t bytes, void *stream) {
  counter *c = user;
  void *memory = NULL;
  vg_own_calls(true);
  cudaError_t error = cudaMallocAsync(&memory, bytes, stream);
  vg_own_calls(false);
  if (error != cudaSuccess)
    return NULL;
  atomic_fetch_add(&c->bytes, bytes);
  atomic_fetch_add(&c->allocs, 1);
  return memory;
}

static void counter_free(void *user, void *memory, size_t bytes, void *stream) {
  counter *c = user;
  vg_own_calls(true);
  cudaFreeAsync(memory, stream);
  vg_own_calls(false);
  atomic_fetch_sub(&c->bytes, bytes);
  atomic_fetch_add(&c->frees, 1);
}

typedef struct world {
  bool nccl, closed; /* closed: the allocator's pools are not open to peers */
  reshard_sharder_options options;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  counter counters[RANKS];
  reshard_allocator allocators[RANKS];
  reshard_device device[RANKS];
  reshard_comm comm[RANKS];
  reshard_sharder sharder[RANKS];
  reshard_mesh mesh[RANKS];
  reshard_dtensor tensor[RANKS];
  void *stream[RANKS];
  size_t used[RANKS];
  rank_result result[RANKS];
} world;

static void open_device(world *w, int64_t r) {
  char name[32];
  w->allocators[r] = (reshard_allocator){counter_alloc, counter_free, &w->counters[r]};
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .allocator = &w->allocators[r]};
  snprintf(name, sizeof name, "cuda:%d", (int)r);
  GOOD(reshard_device_create(name, &options, &w->device[r]));
}

static void open_pools(void) {
  struct cudaMemAccessDesc access[RANKS];
  for (int g = 0; g < RANKS; g++)
    access[g] = (struct cudaMemAccessDesc){{cudaMemLocationTypeDevice, g}, cudaMemAccessFlagsProtReadWrite};
  for (int g = 0; g < RANKS; g++) {
    cudaMemPool_t pool;
    assert_int_equal(cudaDeviceGetDefaultMemPool(&pool, g), cudaSuccess);
    assert_int_equal(cudaMemPoolSetAccess(pool, access, RANKS), cudaSuccess);
  }
}

/* A transfer with staging, and tables of its own. */
static reshard_status run_transfer(world *w, int64_t r) {
  tensor_pair p;
  reshard_status status = tensor_pair_make(w->device[r], shape, RANKS, r, w->stream[r], &p);
  RS_THEN(status, reshard_stream_synchronize(w->device[r], w->stream[r]));
  if (status == RESHARD_SUCCESS) {
    vg_poke(p.from.data, zeros, sizeof zeros);
    status = tensor_pair_bind(&p, w->comm[r]);
  }
  RS_THEN(status, reshard_execute(p.transfer, w->stream[r]));
  tensor_pair_free(&p);
  return status;
}

static reshard_status run_rank(world *w, int64_t r) {
  static const reshard_placement cuts[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                            {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}};
  const int64_t n = RANKS;
  reshard_sharder_options options = w->options;
  reshard_tensor_info info;
  if (w->nccl)
    RS_TRY(reshard_comm_create_nccl(w->id, RANKS, r, w->device[r], 5000, &w->comm[r]));
  RS_TRY(reshard_stream_create(w->device[r], &w->stream[r]));
  RS_TRY(run_transfer(w, r));
  options.size = RESHARD_SHARDER_OPTIONS_INIT;
  options.device = w->device[r];
  RS_TRY(reshard_sharder_create(w->comm[r], &options, &w->sharder[r]));
  RS_TRY(reshard_mesh_create(w->comm[r], 0, 1, &n, NULL, 0, NULL, &w->mesh[r]));
  reshard_placing placing = {w->mesh[r], &cuts[0], NULL};
  RS_TRY(reshard_dtensor_empty(w->sharder[r], &placing, 2, shape, &f32, w->stream[r], &w->tensor[r]));
  RS_TRY(reshard_stream_synchronize(w->device[r], w->stream[r]));
  RS_TRY(reshard_tensor_get_info(reshard_dtensor_local(w->tensor[r]), &info));
  vg_poke(info.data, zeros, sizeof zeros);
  for (int i = 1; i <= CALLS; i++) {
    reshard_dtensor next;
    placing.placements = &cuts[i % 2];
    RS_TRY(reshard_dtensor_redistribute(1, &w->tensor[r], &placing, w->stream[r], &next));
    reshard_dtensor_release(w->tensor[r]);
    w->tensor[r] = next;
  }
  return reshard_stream_synchronize(w->device[r], w->stream[r]);
}

static void rank_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->result[r], run_rank(w, r));
}

static void close_body(void *user, int64_t r) {
  world *w = user;
  reshard_dtensor_release(w->tensor[r]);
  reshard_mesh_release(w->mesh[r]);
  reshard_sharder_destroy(w->sharder[r]);
  reshard_comm_destroy(w->comm[r]);
  reshard_stream_destroy(w->device[r], w->stream[r]);
}

static void check_bytes(const world *w, const char *name) {
  for (int r = 0; r < RANKS; r++) {
    reshard_memory_stats stats;
    size_t given = atomic_load(&w->counters[r].bytes), counted;
    GOOD(reshard_device_get_memory_stats(w->device[r], &stats));
    counted = stats.in_use_bytes + stats.kept_bytes;
    if (given == 0 || given != vg_memory_used(r) || given != counted)
      fail_msg("%s: rank %d: the allocator has given %zu bytes, %zu are in use on the GPU, the pool counts %zu", name,
               r, given, vg_memory_used(r), counted);
  }
}

static void run_world(const char *name, bool nccl, bool closed, reshard_path path, int64_t limit) {
  world w = {.nccl = nccl, .closed = closed, .options = {.path = path, .workspace_limit = limit}};
  vg_begin(&(vg_options){.devices = RANKS, .seed = 11});
  if (!closed)
    open_pools();
  for (int r = 0; r < RANKS; r++)
    open_device(&w, r);
  if (nccl) {
    GOOD(reshard_nccl_unique_id(w.id));
  } else {
    const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = w.device, .ndevices = RANKS};
    GOOD(reshard_comm_create_local(RANKS, &local, w.comm));
  }
  rank_threads_run(RANKS, rank_body, &w);
  if (closed) {
    rank_results_assert(RANKS, w.result, RESHARD_ERROR_UNSUPPORTED, "is not reached by cuda:", name);
  } else {
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, name);
    check_bytes(&w, name);
  }
  assert_int_equal(vg_calls("cudaMalloc*"), 0);
  rank_threads_run(RANKS, close_body, &w);
  for (int r = 0; r < RANKS; r++) {
    reshard_device_release(w.device[r]);
    assert_int_equal(atomic_load(&w.counters[r].bytes), 0);
    assert_int_equal(atomic_load(&w.counters[r].allocs), atomic_load(&w.counters[r].frees));
  }
  if (vg_end() != 0)
    fail_msg("%s: %s", name, vg_report(0));
}

CASE(local_transfers_take_all_from_the_allocator) {
  run_world("direct", false, false, RESHARD_PATH_AUTO, 0);
  run_world("packed", false, false, RESHARD_PATH_PACKED, 0);
  run_world("rounds", false, false, RESHARD_PATH_PACKED, 16384);
}

CASE(closed_pools_take_the_packed_path) { run_world("closed", false, true, RESHARD_PATH_PACKED, 0); }

static bool has_nccl(void) {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  vg_begin(NULL);
  bool there = reshard_nccl_unique_id(id) == RESHARD_SUCCESS;
  vg_end();
  return there;
}

CASE(transfers_over_nccl_take_all_from_the_allocator) {
  if (!has_nccl())
    skip();
  run_world("NCCL", true, false, RESHARD_PATH_AUTO, 0);
  run_world("NCCL, rounds", true, false, RESHARD_PATH_AUTO, 16384);
}

/* Without an allocator of the caller's, records over NCCL come from the driver. The pool counts them, and keeps its
 * limit. */
static void open_nccl(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->result[r], reshard_comm_create_nccl(w->id, RANKS, r, w->device[r], 5000, &w->comm[r]));
}

static void close_nccl(void *user, int64_t r) { reshard_comm_destroy(((world *)user)->comm[r]); }

static void count_records(size_t limit) {
  world w = {.nccl = true};
  vg_begin(&(vg_options){.devices = RANKS, .seed = 5});
  for (int r = 0; r < RANKS; r++) {
    char name[32];
    const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .limit_bytes = limit};
    snprintf(name, sizeof name, "cuda:%d", r);
    GOOD(reshard_device_create(name, &options, &w.device[r]));
  }
  GOOD(reshard_nccl_unique_id(w.id));
  rank_threads_run(RANKS, open_nccl, &w);
  for (int r = 0; r < RANKS; r++) {
    reshard_memory_stats stats;
    GOOD(reshard_device_get_memory_stats(w.device[r], &stats));
    if (limit > 0)
      assert_int_equal(w.result[r].status, RESHARD_ERROR_OUT_OF_MEMORY);
    else
      GOOD(w.result[r].status);
    assert_int_equal(stats.in_use_bytes, vg_memory_used(r));
    assert_true(limit > 0 ? stats.peak_held_bytes <= limit : stats.in_use_bytes >= (RANKS + 1) * 512);
    assert_int_equal(stats.meeting_bytes, 0);
  }
  rank_threads_run(RANKS, close_nccl, &w);
  for (int r = 0; r < RANKS; r++) {
    reshard_memory_stats stats;
    GOOD(reshard_device_get_memory_stats(w.device[r], &stats));
    assert_int_equal(stats.in_use_bytes, 0);
    reshard_device_release(w.device[r]);
  }
  if (vg_end() != 0)
    fail_msg("records, limit %zu: %s", limit, vg_report(0));
}

CASE(records_count_with_the_pool) {
  if (!has_nccl())
    skip();
  count_records(0);
  count_records(1000);
}

RUN_CASES
