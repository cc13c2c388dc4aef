/* Three ranks on a virtual NCCL, which one thread drives, as communicators that do not block allow: for tests of the
 * virtual NCCL itself. */
#ifndef VG_NCCL_WORLD_H
#define VG_NCCL_WORLD_H

#include "support/fixtures/case.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#define CUDA(call) assert_int_equal(call, cudaSuccess)
#define OK(call)   assert_int_equal(call, ncclSuccess)

enum { RANKS = 3, BYTES = 64, PART = 8 };

typedef struct world {
  ncclComm_t comm[RANKS];
  cudaStream_t stream[RANKS], other[RANKS];
  unsigned char *send[RANKS], *receive[RANKS];
} world;

/* Waits for a call of communicators that do not block, and checks its result. */
static inline void through(const world *w, ncclResult_t result) {
  assert_true(result == ncclSuccess || result == ncclInProgress);
  for (int r = 0; r < RANKS; r++)
    for (ncclResult_t state = ncclInProgress; w->comm[r] != NULL && state == ncclInProgress;)
      OK(ncclCommGetAsyncError(w->comm[r], &state));
}

static inline void open_world(world *w, uint64_t seed) {
  ncclUniqueId id;
  vg_begin(&(vg_options){.devices = RANKS, .seed = seed, .patience_ms = 50});
  OK(ncclGetUniqueId(&id));
  for (int r = 0; r < RANKS; r++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CUDA(cudaSetDevice(r));
    ncclResult_t result = ncclCommInitRankConfig(&w->comm[r], RANKS, id, r, &config);
    assert_true(result == ncclInProgress || result == ncclSuccess);
    CUDA(cudaStreamCreateWithFlags(&w->stream[r], cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&w->other[r], cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&w->send[r], BYTES));
    CUDA(cudaMalloc((void **)&w->receive[r], BYTES));
    unsigned char numbers[BYTES];
    for (int i = 0; i < BYTES; i++)
      numbers[i] = (unsigned char)(100 * r + i);
    vg_poke(w->send[r], numbers, BYTES);
    memset(numbers, 255, BYTES);
    vg_poke(w->receive[r], numbers, BYTES);
  }
  for (int r = 0; r < RANKS; r++) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError(w->comm[r], &state));
    assert_int_equal(state, ncclSuccess);
  }
}

/* Returns the number of reports. */
static inline int close_world(world *w) {
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(r));
    if (w->comm[r] != NULL)
      (void)ncclCommAbort(w->comm[r]); /* whatever is under way */
  }
  for (int r = 0; r < RANKS; r++) {
    CUDA(cudaSetDevice(r));
    (void)cudaDeviceSynchronize();
    (void)cudaFree(w->send[r]);
    (void)cudaFree(w->receive[r]);
    (void)cudaStreamDestroy(w->stream[r]);
    (void)cudaStreamDestroy(w->other[r]);
  }
  return vg_end();
}

static inline void end_comms(world *w) {
  for (int r = 0; r < RANKS; r++) {
    ncclResult_t result = ncclCommFinalize(w->comm[r]);
    assert_true(result == ncclSuccess || result == ncclInProgress);
  }
  through(w, ncclSuccess);
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommDestroy(w->comm[r]));
    w->comm[r] = NULL;
  }
}

static inline void synchronise(world *w) {
  for (int r = 0; r < RANKS; r++)
    CUDA(cudaStreamSynchronize(w->stream[r]));
}

/* Asserts that rank r has received at `at` the bytes that rank `from` has at `there`. */
static inline void assert_came(const world *w, int r, int at, int from, int there) {
  unsigned char seen[PART];
  vg_peek(seen, w->receive[r] + at, PART);
  for (int i = 0; i < PART; i++)
    assert_int_equal(seen[i], (unsigned char)(100 * from + there + i));
}

#endif
