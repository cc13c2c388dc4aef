/* Memory of a transfer on a GPU: the workspace that the plan tells, and the tables of its programs. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <reshard/reshard.h>

#include <cuda_runtime_api.h>
#include <stdio.h>

enum { RANKS = 4, SIZE = 1024, BYTES = SIZE * SIZE * 4 / RANKS, TABLES = 96 << 10 };

typedef struct world {
  reshard_path path;
  int64_t limit;
  bool strided; /* rows of the arrays are longer than they are used: nothing goes in place */
  reshard_comm comms[RANKS];
  rank_result result[RANKS];
  size_t promised[RANKS], taken[RANKS], extra[RANKS];
} world;

static reshard_status rank_work(world *w, int64_t rank, reshard_plan plan, void *src, void *dst, cudaStream_t stream) {
  const int64_t rows[2] = {SIZE + 8, 1}, columns[2] = {SIZE / RANKS + 8, 1}, *src_strides = rows,
                *dst_strides = columns;
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  if (w->strided) {
    arrays.src_strides = &src_strides;
    arrays.dst_strides = &dst_strides;
  }
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  reshard_transfer transfer = NULL;
  reshard_transfer_info info = {.workspace_bytes = 0};
  size_t before = vg_memory_used((int)rank);
  reshard_status status = reshard_transfer_create(plan, w->comms[rank], &arrays, &options, &transfer);
  for (int k = 0; k < 2 && status == RESHARD_SUCCESS; k++)
    status = reshard_execute(transfer, stream);
  cudaStreamSynchronize(stream);
  RS_THEN(status, reshard_transfer_get_info(transfer, &info));
  w->taken[rank] = info.workspace_bytes;
  w->extra[rank] = vg_memory_peak((int)rank) - before;
  reshard_transfer_destroy(transfer);
  return status;
}

static void rank_body(void *user, int64_t rank) {
  world *w = user;
  const int64_t shape[2] = {SIZE, SIZE};
  reshard_layout rows = NULL, columns = NULL;
  reshard_plan plan = NULL;
  void *src = NULL, *dst = NULL;
  cudaStream_t stream = NULL;
  cudaSetDevice((int)rank);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc(&src, 2 * BYTES);
  cudaMalloc(&dst, 2 * BYTES);
  cudaMemsetAsync(src, 1, 2 * BYTES, stream);
  vg_reset_peak((int)rank);
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, RANKS, &rows);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &columns));
  const reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit};
  RS_THEN(status, reshard_plan_create(1, &entry, rank, &options, &plan));
  RS_THEN(status, reshard_plan_workspace(plan, &w->promised[rank]));
  RS_THEN(status, rank_work(w, rank, plan, src, dst, stream));
  rank_result_set(&w->result[rank], status);
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  cudaFree(src);
  cudaFree(dst);
  cudaStreamDestroy(stream);
}

static void run_transfer(reshard_path path, int64_t limit, bool strided) {
  world w = {.path = path, .limit = limit, .strided = strided};
  reshard_device devices[RANKS];
  vg_begin(&(vg_options){.devices = RANKS, .seed = (uint64_t)limit});
  for (int r = 0; r < RANKS; r++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", r);
    GOOD(reshard_device_create(name, NULL, &devices[r]));
  }
  reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = devices, .ndevices = RANKS};
  GOOD(reshard_comm_create_local(RANKS, &local, w.comms));
  rank_threads_run(RANKS, rank_body, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
  for (int r = 0; r < RANKS; r++) {
    size_t most = path == RESHARD_PATH_DIRECT ? 0 : w.promised[r];
    if (w.taken[r] > most || w.extra[r] > most + TABLES || w.extra[r] < w.taken[r] ||
        (limit > 0 && most > (size_t)limit))
      fail_msg("rank %d, path %d, limit %lld: %zu bytes of workspace, at most %zu are promised; %zu bytes in all", r,
               (int)path, (long long)limit, w.taken[r], most, w.extra[r]);
    reshard_comm_destroy(w.comms[r]);
    reshard_device_release(devices[r]);
  }
  assert_int_equal(vg_end(), 0);
}

CASE(transfers_take_the_workspace_of_the_plan) {
  for (int strided = 0; strided < 2; strided++) {
    run_transfer(RESHARD_PATH_DIRECT, 0, strided);
    run_transfer(RESHARD_PATH_PACKED, 0, strided);
    run_transfer(RESHARD_PATH_PACKED, 1 << 20, strided);
    run_transfer(RESHARD_PATH_PACKED, 256 << 10, strided);
  }
}

RUN_CASES
