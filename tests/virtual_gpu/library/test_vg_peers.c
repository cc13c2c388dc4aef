/* GPUs fetch their messages beginning with the rank after their own, so that not all begin with the same one; and on
 * streams whose work goes ahead of packing and unpacking. */
#include "comm/comm.h"
#include "exec/transfer.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 4, ROWS = RANKS, COLUMNS = 16 * RANKS, BYTES = ROWS * COLUMNS * 4 };

typedef struct world {
  reshard_comm comm[RANKS];
  char *src[RANKS], *dst[RANKS];
  rank_result result[RANKS];
} world;

static const rs_device_work *original;
static world *seen_by;
static int nfetched[RANKS], fetched[RANKS][RANKS]; /* by GPU */

static int owner_of(const void *at) {
  for (int r = 0; r < RANKS; r++)
    if ((const char *)at >= seen_by->src[r] && (const char *)at < seen_by->src[r] + BYTES)
      return r;
  return -1;
}

static reshard_status spans_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes,
                                 void *stream) {
  for (int64_t i = 0; i < n && nfetched[device->index] < RANKS; i++)
    fetched[device->index][nfetched[device->index]++] = owner_of(spans[i].src);
  return original->copy(device, n, spans, total_bytes, stream);
}

/* Priority of each side stream that the rank's transfer has; 1: it has none. */
static int priorities[RANKS][RS_STEPS];

static void note_priorities(const struct reshard_transfer_s *t, int64_t r) {
  for (int s = 0; s < RS_STEPS; s++) {
    priorities[r][s] = 1;
    if (t->streams.lane.side[s] != NULL)
      cudaStreamGetPriority(t->streams.lane.side[s], &priorities[r][s]);
  }
}

static void run_rank(void *user, int64_t r) {
  world *w = user;
  const int64_t shape[2] = {ROWS, COLUMNS};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaStream_t stream;
  cudaSetDevice((int)r);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc((void **)&w->src[r], BYTES);
  cudaMalloc((void **)&w->dst[r], BYTES);
  cudaMemset(w->src[r], 1, BYTES);
  cudaDeviceSynchronize();
  reshard_arrays arrays = {
      .size = RESHARD_ARRAYS_INIT, .src = (void *[]){w->src[r]}, .dst = (void *[]){w->dst[r]}, .nsrc = 1, .ndst = 1};
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, RANKS, &entry.src);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, r, NULL, &plan));
  RS_THEN(status, reshard_transfer_create(plan, w->comm[r], &arrays, &options, &transfer));
  RS_THEN(status, reshard_execute(transfer, stream));
  if (status == RESHARD_SUCCESS)
    note_priorities(transfer, r);
  cudaStreamSynchronize(stream);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  cudaStreamDestroy(stream);
  rank_result_set(&w->result[r], status);
}

CASE(test_begins_after_itself) {
  world w = {.comm = {NULL}};
  reshard_device device[RANKS];
  rs_device_work recording;
  vg_begin(&(vg_options){.devices = RANKS, .seed = 3});
  for (int r = 0; r < RANKS; r++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", r);
    GOOD(reshard_device_create(name, NULL, &device[r]));
  }
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, 0, device, RANKS};
  GOOD(reshard_comm_create_local(RANKS, &options, w.comm));
  seen_by = &w;
  original = w.comm[0]->device->work;
  recording = *original;
  recording.copy = spans_copy;
  for (int r = 0; r < RANKS; r++)
    w.comm[r]->device->work = &recording;
  rank_threads_run(RANKS, run_rank, &w);
  rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "a transfer");
  int least, greatest;
  assert_int_equal(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(priorities[r][RS_MOVE], greatest);
    for (int s = 0; s < RS_STEPS; s++)
      assert_true(s == RS_MOVE || priorities[r][s] == 1 || priorities[r][s] == least);
    assert_int_equal(nfetched[r], RANKS - 1);
    for (int i = 0; i < RANKS - 1; i++)
      assert_int_equal(fetched[r][i], (r + 1 + i) % RANKS);
    w.comm[r]->device->work = original;
    cudaFree(w.src[r]);
    cudaFree(w.dst[r]);
  }
  for (int r = 0; r < RANKS; r++) {
    reshard_comm_destroy(w.comm[r]);
    reshard_device_release(device[r]);
  }
  assert_int_equal(vg_end(), 0);
}

RUN_CASES
