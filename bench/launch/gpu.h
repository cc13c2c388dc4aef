/* Calls of the CUDA runtime that the library does not need: properties, events with timing, graphs. Implemented by
 * cuda.c, or by no_cuda.c in a build without CUDA. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "device/device.h"

#include <reshard/comm.h>

typedef struct gpu_machine {
  bool cuda, nccl;     /* of this build */
  int driver, runtime; /* 13000 is 13.0; 0: none */
  int nccl_version;    /* 22809 is 2.28.9; 0: none */
  int gpus;            /* that this process sees */
} gpu_machine;
void gpu_machine_read(gpu_machine *m);
/* The library's own error where there is no GPU; NULL where there is one. */
const char *gpu_why_none(void);

typedef struct gpu_info {
  char name[256], bus[32];
  int major, minor; /* compute capability */
  int multiprocessors;
  int64_t memory, l2; /* bytes */
} gpu_info;
reshard_status gpu_info_read(int index, gpu_info *info);
/* Bytes of a device's memory that are available now. */
reshard_status gpu_available(rs_device *device, int64_t *bytes);
bool gpu_peer_access(int from, int to); /* peer access */

/* Timed work finds none of its data in the caches: before it, memory of GPU_CACHES times the L2 cache is written. That
 * also holds the stream until the host has launched the work. The work is repeated on so many sets of buffers as have
 * that size together, one after the other; the time is the mean. GPU_MOST_SETS suffice, as no set is used twice between
 * two such writes. */
enum { GPU_CACHES = 4, GPU_MOST_SETS = 16 };
static inline int64_t gpu_flushed(int64_t l2) { return l2 > 0 ? GPU_CACHES * l2 : (int64_t)1 << 28; }
/* Number of sets of so many bytes each. */
static inline int64_t gpu_sets(int64_t l2, int64_t bytes) {
  int64_t n = bytes > 0 ? (gpu_flushed(l2) + bytes - 1) / bytes : 1;
  return n < GPU_MOST_SETS ? n : GPU_MOST_SETS;
}

/* Policy of a device's copies from now on: bytes of a tile, bytes of a program from which on the bulk kernel is
 * used, and bytes from a tiny row to the next from which on tiles follow the source. Loads are those of a thread before
 * its first store. RESHARD_CUDA_TILE, _BULK_FROM, _LEAP, _LOADS; 0: as the library sees fit. */
typedef struct gpu_policy {
  int64_t tile, bulk_from, leap, loads;
} gpu_policy;
void gpu_set_policy(rs_device *device, gpu_policy policy);

/* Creates an event with timing; the device's table does the rest. */
reshard_status gpu_time_create(rs_device *device, rs_event **event);
/* Time between two events of one GPU that have happened. */
reshard_status gpu_elapsed(rs_event *from, rs_event *to, double *seconds);

/* The work that `launch` launches on stream, as a graph. */
typedef struct gpu_graph {
  rs_device *device;
  void *exec; /* NULL: none */
} gpu_graph;
reshard_status gpu_capture(rs_device *device, void *stream, reshard_status (*launch)(void *user, void *stream),
                           void *user, gpu_graph *graph);
reshard_status gpu_launch(void *graph, void *stream); /* of a gpu_graph; as work that is timed has it */
void gpu_graph_destroy(gpu_graph *graph);             /* leaves it none */

/* A communicator as a caller of NCCL has, `nccl`, which blocks, of the ranks of an own one; and its wrapper.
 * Collective. RESHARD_ERROR_UNSUPPORTED in a build without NCCL. */
reshard_status gpu_nccl_create(reshard_comm own, void **nccl, reshard_comm *wrapper);
void gpu_nccl_destroy(void *nccl, reshard_comm wrapper);

/* n contiguous copies by cudaMemcpyBatchAsync; RESHARD_ERROR_UNSUPPORTED where the runtime or the driver has none. */
reshard_status gpu_memcpy_batch(rs_device *device, int64_t n, const rs_span *spans, void *stream);

#endif
