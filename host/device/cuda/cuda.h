/* The CUDA device, over the CUDA runtime: its state, the current device, errors. */
#ifndef RS_DEVICE_CUDA_H
#define RS_DEVICE_CUDA_H

#include "device/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* An upload buffer: a table is written at `host`, which is pinned, and uploaded to `memory`. */
typedef struct rs_upload_buffer {
  char *host, *memory; /* parts of all buffers' */
  rs_event *event;
  void *stream; /* of the last use */
  bool used;    /* the event behind the last use has not been seen to have happened */
  bool lost;    /* no event could be recorded, nor the stream be waited for */
} rs_upload_buffer;
enum { RS_UPLOAD_BUFFERS = 8 };
typedef struct rs_upload_buffers {
  int n, last;         /* how many have an event; index of the one taken last */
  char *host, *memory; /* of all */
  size_t bytes;        /* of each buffer */
  rs_upload_buffer buffer[RS_UPLOAD_BUFFERS];
} rs_upload_buffers;

/* Called by one thread at a time. Takes a buffer of `bytes` or more that nothing uses. Where all are in use, the
 * host waits for the oldest, or *buffer is NULL (wait false). Where no buffer was as large before it waits for all, and
 * allocates. */
reshard_status rs_upload_buffers_take(rs_device *device, rs_upload_buffers *buffers, size_t bytes, bool wait,
                                      rs_upload_buffer **buffer);
/* Records the last use: stream has been given all that reads the buffer. Also to be called after a part failed. */
reshard_status rs_upload_buffer_used(rs_device *device, rs_upload_buffer *buffer, void *stream);
/* Frees the buffers; waits until nothing uses them. */
void rs_upload_buffers_free(rs_device *device, rs_upload_buffers *buffers);

typedef struct rs_cuda {
  rs_device base;
  int multiprocessors;
  int64_t l2_bytes;
  int64_t tile, bulk_from;        /* of programs compiled from now on: rs_box_policy; 0: as it sees fit */
  bool pools;                     /* has stream-ordered allocation */
  atomic_int bulk_arch;           /* rs_box_bulk_arch; 0: not asked yet */
  pthread_mutex_t mutex;          /* of the following */
  cudaMemPool_t pool;             /* NULL: not made yet */
  void *upload;                   /* stream of the tables of programs; NULL: not made yet */
  rs_upload_buffers cast_buffers; /* for lists of casts */
} rs_cuda;

static inline rs_cuda *rs_cuda_of(rs_device *device) { return (rs_cuda *)device; }

/* Bracket every function of the tables: calls of the runtime go to the device, and the thread's current device is
 * afterwards what it was. enter changes nothing when it fails. */
reshard_status rs_cuda_enter(const rs_device *device, int *before);
/* Enters for cleaning up, where a failure is not reported: the last error stays what it is. */
int rs_cuda_try_enter(const rs_device *device);
void rs_cuda_leave(int before);

/* RESHARD_SUCCESS, or a status with the call's name, CUDA's text and number. The runtime's last error is cleared, so
 * that other code does not take it for its own. RESHARD_ERROR_OUT_OF_MEMORY, _UNSUPPORTED (no driver, no device, no
 * code for it), _INVALID, else _SYSTEM. */
reshard_status rs_cuda_check(cudaError_t error, const char *call);
#define RS_CUDA_TRY(call)                     RS_TRY(rs_cuda_check((call), #call))
#define RS_CUDA_TRY_GOTO(status, call, label) RS_TRY_GOTO(status, rs_cuda_check((call), #call), label)
/* Clears an error that changes nothing for the caller. */
void rs_cuda_ignore(cudaError_t error);

/* A function of the tables that is one call of the runtime. The second kind frees something, whichever GPU is the
 * current one. */
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

/* Between these, calls are allowed that otherwise are not while any thread captures a stream; restore returns error.
 */
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

/* Casts, selection and memset of a CUDA device. */
reshard_status rs_cuda_cast(rs_device *device, const rs_casts *casts, void *stream);
reshard_status rs_cuda_select(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);
reshard_status rs_cuda_memset(rs_device *device, void *dst, int byte, size_t bytes, void *stream);

/* Programs and spans of a CUDA device: the box copies of its table of work. */
reshard_status rs_cuda_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
reshard_status rs_cuda_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
void rs_cuda_release(rs_device *device, rs_program *program);
reshard_status rs_cuda_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream);
reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
int64_t rs_cuda_count(const rs_program *program);

/* Memory of a CUDA device, and of the host for it. */
reshard_status rs_cuda_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_free(rs_device *device, void *memory);
reshard_status rs_cuda_alloc_async(rs_device *device, size_t bytes, void *stream, void **memory);
void rs_cuda_free_async(rs_device *device, void *memory, void *stream);
reshard_status rs_cuda_host_alloc(rs_device *device, size_t bytes, void **memory);
void rs_cuda_host_free(rs_device *device, void *memory);
reshard_status rs_cuda_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *stream);
/* Lets kernels of GPU `by`, of this process, reach storage of device from now on, where GPUs can. For preparing. */
reshard_status rs_cuda_open(rs_device *device, int by);
reshard_status rs_cuda_reach(rs_device *device, rs_device *other, bool *can);

/* Other processes of the node: ipc.c, and meeting.c. */
extern const rs_device_processes rs_cuda_processes;
reshard_status rs_cuda_find_exported(rs_device *device, const void *begin, const void *end, rs_exported_memory *memory,
                                     int64_t *inside, bool *found);
reshard_status rs_cuda_open_exported(rs_device *device, const rs_exported_memory *memory, void **at);
void rs_cuda_close_exported(rs_device *device, void *at);
/* Sets the word that closes a program: rs_box_batch.closed. */
void rs_cuda_program_close(rs_program *program, const uint32_t *closed);

#endif
