/* A square matrix of bytes that goes from rows to columns. */
#ifndef TESTS_VG_NODE_COLUMNS_H
#define TESTS_VG_NODE_COLUMNS_H

#include "base/base.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

/* Notes the first thing that is wrong on a rank. */
#define NEED(me, what) \
  do { \
    if (!(what) && (me)->wrong == NULL) \
      (me)->wrong = #what; \
  } while (0)

/* Each rank's source is of one byte: that of its round and rank. */
static inline int byte_of(int round, int64_t rank) { return 16 * round + (int)rank + 1; }

/* The plan of one of n ranks. */
static inline reshard_status columns_plan(int64_t side, int64_t n, int64_t rank, reshard_plan *plan) {
  const int64_t shape[2] = {side, side};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_U8, .name = "weights"};
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, n, &entry.src);
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, n, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, rank, NULL, plan));
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

/* Moves all columns over the ranks of a communicator, twice, between arrays of their own. */
static inline reshard_status columns_move(int64_t side, reshard_comm comm, reshard_path path, cudaStream_t stream) {
  const int64_t n = reshard_comm_size(comm), rank = reshard_comm_rank(comm), width = side / n;
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  size_t bytes = (size_t)(side * width);
  char *src, *dst, *here = malloc(bytes);
  cudaMalloc((void **)&src, bytes);
  cudaMalloc((void **)&dst, bytes);
  cudaMemsetAsync(src, byte_of(0, rank), bytes, stream);
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){dst}};
  reshard_status status = here != NULL ? RESHARD_SUCCESS : rs_error_memory(bytes);
  RS_THEN(status, columns_plan(side, n, rank, &plan));
  RS_THEN(status, reshard_transfer_create(plan, comm, &arrays, &options, &transfer));
  for (int i = 0; i < 2; i++)
    RS_THEN(status, reshard_execute(transfer, stream));
  cudaStreamSynchronize(stream);
  vg_peek(here, dst, bytes);
  for (int64_t i = 0; i < side * width && status == RESHARD_SUCCESS; i++)
    if (here[i] != byte_of(0, i / width / width))
      status = rs_error(RESHARD_ERROR_INTERNAL, "byte %d is %d", (int)i, here[i]);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  cudaFree(src); /* on a virtual GPU that ranks share it waits for all that they do there */
  cudaFree(dst);
  free(here);
  RS_THEN(status, reshard_comm_barrier(comm));
  return status;
}

#endif
