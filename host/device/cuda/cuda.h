/* The CUDA device, over the CUDA runtime. cuda.c has its table, streams, events and errors; cuda_memory.c memory;
 * cuda_program.c the box copies, by tables from cuda_tiles.c and cuda_batch.c; cuda_ops.c casts, selection and memset;
 * cuda_lots.c memory for tables that are used once. */
#ifndef RS_DEVICE_CUDA_H
#define RS_DEVICE_CUDA_H

#include "device/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* Memory for the tables of one use: written at `host`, which is pinned, and uploaded to `memory`. */
typedef struct rs_cuda_lot {
  char *host, *memory;
  size_t bytes; /* of each */
  rs_event *event;
  void *stream; /* of the last use */
  bool used;    /* it has not been seen to be over, by the event that was recorded behind it */
  bool lost;    /* no event could be recorded, nor the stream be waited for */
} rs_cuda_lot;
enum { RS_CUDA_LOTS = 8 };
typedef struct rs_cuda_lots {
  int n, last; /* there are; taken last */
  rs_cuda_lot lot[RS_CUDA_LOTS];
} rs_cuda_lots;

typedef struct rs_cuda {
  rs_device base;
  int multiprocessors;
  int64_t l2_bytes;
  bool pools;            /* has stream-ordered allocation */
  atomic_int bulk_arch;  /* rs_box_bulk_arch; 0: not asked yet */
  pthread_mutex_t mutex; /* of the following */
  cudaMemPool_t pool;    /* NULL: not made yet */
  void *upload;          /* stream of the tables of programs; NULL: not made yet */
  rs_cuda_lots casts;    /* for lists of casts */
} rs_cuda;

static inline rs_cuda *rs_cuda_of(rs_device *device) { return (rs_cuda *)device; }

/* Every entry from the table is between these two: calls of the runtime go to the device, and the thread's current
 * device is afterwards what it was. enter changes nothing when it fails. */
reshard_status rs_cuda_enter(const rs_device *device, int *before);
/* The same for cleaning up, where nobody hears of a failure: the last error stays what it is. */
int rs_cuda_try_enter(const rs_device *device);
void rs_cuda_leave(int before);

/* RESHARD_SUCCESS, or a status with the call's name, CUDA's text and number; the runtime's last error is cleared, so
 * that nobody else takes it for his. RESHARD_ERROR_OUT_OF_MEMORY, _UNSUPPORTED (no driver, no device, no code for
 * it), _INVALID, else _SYSTEM. */
reshard_status rs_cuda_check(cudaError_t error, const char *call);
#define RS_CUDA_TRY(call)                     RS_TRY(rs_cuda_check((call), #call))
#define RS_CUDA_TRY_GOTO(status, call, label) RS_TRY_GOTO(status, rs_cuda_check((call), #call), label)
/* An error that changes nothing for the caller: cleared. */
void rs_cuda_ignore(cudaError_t error);

/* A function of the table that is one call of the runtime; the second kind takes something back, and does so whichever
 * GPU is the current one. */
#define RS_ON_DEVICE(device, call) \
  do { \
    int before_; \
    RS_TRY(rs_cuda_enter(device, &before_)); \
    reshard_status status_ = rs_cuda_check((call), #call); \
    rs_cuda_leave(before_); \
    return status_; \
  } while (0)
#define RS_ON_DEVICE_VOID(device, call) \
  do { \
    int before_ = rs_cuda_try_enter(device); \
    rs_cuda_ignore(call); \
    rs_cuda_leave(before_); \
  } while (0)

/* Between these, calls are allowed that otherwise are not while any thread captures a stream; restore returns error. */
enum cudaStreamCaptureMode rs_cuda_relax(void);
cudaError_t rs_cuda_restore(enum cudaStreamCaptureMode mode, cudaError_t error);
#define RS_ON_DEVICE_RELAXED(device, call) \
  do { \
    int before_; \
    RS_TRY(rs_cuda_enter(device, &before_)); \
    enum cudaStreamCaptureMode mode_ = rs_cuda_relax(); \
    reshard_status status_ = rs_cuda_check(rs_cuda_restore(mode_, (cudaError_t)(call)), #call); \
    rs_cuda_leave(before_); \
    return status_; \
  } while (0)

/* cuda_memory.c */
reshard_status rs_cuda_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_free(rs_device *device, void *memory);
reshard_status rs_cuda_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cuda_free_async(rs_device *device, void *memory, void *stream);
reshard_status rs_cuda_host_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_host_free(rs_device *device, void *memory);
reshard_status rs_cuda_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream);
/* Kernels of GPU `by`, of this process, reach storage of device from now on, where GPUs can. For preparing. */
reshard_status rs_cuda_open(rs_device *device, int by);
reshard_status rs_cuda_reach(rs_device *device, rs_device *other, bool *can);

/* cuda_lots.c: by one thread at a time. A lot of `bytes` or more that nothing uses; where all are in use, the host
 * waits for the oldest, or *lot is NULL (wait false). Allocates where no lot was as large before. */
reshard_status rs_cuda_lots_take(rs_device *device, rs_cuda_lots *lots, size_t bytes, bool wait, rs_cuda_lot **lot);
/* stream has been given all that reads the lot; to be called also after a part of that failed. */
reshard_status rs_cuda_lot_used(rs_device *device, rs_cuda_lot *lot, void *stream);
/* Waits until nothing uses them. */
void rs_cuda_lots_free(rs_device *device, rs_cuda_lots *lots);

/* cuda_program.c */
reshard_status rs_cuda_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
reshard_status rs_cuda_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
void rs_cuda_release(rs_device *device, rs_program *program);
reshard_status rs_cuda_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream);
reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
int64_t rs_cuda_count(const rs_program *program);

/* cuda_ops.c */
reshard_status rs_cuda_cast(rs_device *device, const rs_casts *casts, void *stream);
reshard_status rs_cuda_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);
reshard_status rs_cuda_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream);

#endif
