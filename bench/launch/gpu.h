/* GPUs, beside what the library does with them: what there is, events that know their time, graphs. cuda.c; no_cuda.c
 * in a build without CUDA, where there are none. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "device/device.h"

typedef struct gpu_machine {
  bool cuda, nccl;     /* of this build */
  int driver, runtime; /* 13000 is 13.0; 0: none */
  int nccl_version;    /* 22809 is 2.28.9; 0: none */
  int gpus;            /* that this process sees */
} gpu_machine;
void gpu_machine_read(gpu_machine *m);
/* Why there is no GPU: the library's own words. NULL where there is one. */
const char *gpu_why_none(void);

typedef struct gpu_info {
  char name[256], bus[32];
  int major, minor; /* compute capability */
  int multiprocessors;
  int64_t memory, l2; /* bytes */
} gpu_info;
reshard_status gpu_info_read(int index, gpu_info *info);
/* Bytes of a device's memory that can be taken now. */
reshard_status gpu_available(rs_device *device, int64_t *bytes);
bool gpu_peer_access(int from, int to); /* peer access */

/* What is timed finds nothing of its own in the caches: before it so much is written elsewhere as GPU_CACHES times the
 * L2 cache, which also holds the stream until the host has given all of it; and it is not one piece of work but as
 * many, each with buffers of its own, as have so much together: the time is the mean, of work in a row. More than
 * GPU_MOST_SETS are never needed, as no set is used twice before memory is written again. */
enum { GPU_CACHES = 4, GPU_MOST_SETS = 16 };
static inline int64_t gpu_flushed(int64_t l2) { return l2 > 0 ? GPU_CACHES * l2 : (int64_t)1 << 28; }
/* Sets, of so many bytes each. */
static inline int64_t gpu_sets(int64_t l2, int64_t bytes) {
  int64_t n = bytes > 0 ? (gpu_flushed(l2) + bytes - 1) / bytes : 1;
  return n < GPU_MOST_SETS ? n : GPU_MOST_SETS;
}

/* An event with timing; all else with it goes through the device's table. */
reshard_status gpu_time_create(rs_device *device, rs_event **event);
/* From one that has happened to another, on one GPU. */
reshard_status gpu_elapsed(rs_event *from, rs_event *to, double *seconds);

/* What `give` gives to stream, as a graph. */
typedef struct gpu_graph gpu_graph;
reshard_status gpu_capture(rs_device *device, void *stream, reshard_status (*give)(void *user, void *stream),
                           void *user, gpu_graph **graph);
reshard_status gpu_launch(rs_device *device, gpu_graph *graph, void *stream);
void gpu_graph_destroy(gpu_graph *graph); /* NULL is allowed */

/* n contiguous copies by cudaMemcpyBatchAsync; RESHARD_ERROR_UNSUPPORTED where the runtime or the driver has none. */
reshard_status gpu_memcpy_batch(rs_device *device, int64_t n, const rs_span *spans, void *stream);

#endif
