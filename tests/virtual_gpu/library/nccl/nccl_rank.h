/* One rank of the NCCL communicator on a virtual GPU of its own. */
#ifndef VG_NCCL_RANK_H
#define VG_NCCL_RANK_H

#include <reshard/reshard.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes of the device's memory that are in use. */
static inline size_t nccl_rank_in_use(reshard_device device) {
  reshard_memory_stats stats = {0};
  (void)reshard_device_get_memory_stats(device, &stats);
  return stats.in_use_bytes;
}

/* Number of bytes of a GPU's memory that are not this value, when all work of the GPU is done. */
static inline int64_t nccl_rank_overwritten(int64_t rank, const char *memory, size_t bytes, char value) {
  char *now = malloc(bytes);
  int64_t n = 0;
  cudaSetDevice((int)rank);
  cudaDeviceSynchronize();
  cudaMemcpy(now, memory, bytes, cudaMemcpyDeviceToHost);
  for (size_t b = 0; b < bytes; b++)
    n += now[b] != value;
  free(now);
  return n;
}

/* Collective: creates the communicator on the GPU of the rank's number, which it keeps. */
static inline reshard_status nccl_rank_open(const unsigned char *id, int64_t n, int64_t rank, int64_t timeout_ms,
                                            reshard_comm *comm) {
  reshard_device device = NULL;
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", (int)rank);
  reshard_status status = reshard_device_create(name, NULL, &device);
  if (status == RESHARD_SUCCESS)
    status = reshard_comm_create_nccl(id, n, rank, device, timeout_ms, comm);
  reshard_device_release(device);
  return status;
}

/* A rank with memory and a stream of its GPU, and a transfer. */
typedef struct nccl_rank {
  char *memory;
  cudaStream_t stream;
  reshard_comm comm;
  reshard_plan plan; /* plan and transfer: NULL at first */
  reshard_transfer transfer;
} nccl_rank;

/* Collective. All bytes of the memory are value. Is ended also after an error. */
static inline reshard_status nccl_rank_begin(const unsigned char *id, int64_t n, int64_t rank, size_t bytes, int value,
                                             nccl_rank *own) {
  *own = (nccl_rank){.memory = NULL};
  cudaSetDevice((int)rank);
  cudaMalloc((void **)&own->memory, bytes);
  cudaMemset(own->memory, value, bytes);
  cudaDeviceSynchronize();
  cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking);
  return nccl_rank_open(id, n, rank, 0, &own->comm);
}

/* Waits for the work of the stream. */
static inline void nccl_rank_end(nccl_rank *own) {
  cudaStreamSynchronize(own->stream);
  cudaStreamDestroy(own->stream);
  reshard_transfer_destroy(own->transfer);
  reshard_plan_destroy(own->plan);
  reshard_comm_destroy(own->comm);
  cudaFree(own->memory);
}

#endif
