/* The CUDA device, over the CUDA runtime: its state, the current device, errors. */
#ifndef RS_DEVICE_CUDA_H
#define RS_DEVICE_CUDA_H

#include "device/cuda/upload.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

typedef struct rs_cuda {
  rs_device base;
  int multiprocessors;
  int64_t tile, bulk_from, leap; /* of programs compiled from now on: rs_box_policy; 0: as it sees fit */
  int64_t loads; /* of a thread before its first store, in copies of rows from now on; 0: RS_BOX_ROW_LOADS */
  bool pools;    /* has stream-ordered allocation */
  /* The primary context of the GPU, which stays until the process ends, as the runtime's own use of it does; and the
   * driver's functions for the current one. They return a cudaError_t. */
  struct CUctx_st *context;
  unsigned long long context_id; /* that no other context of the process has, before or after */
  int (*get_current)(struct CUctx_st **context);
  int (*set_current)(struct CUctx_st *context);
  int (*get_attribute)(void *value, int attribute, unsigned long long pointer);
  int (*get_attributes)(unsigned n, int *attributes, void **values, unsigned long long pointer);
  struct rs_cuda *next;           /* handle of the process (memory.c, whose lock is of this and of the pool) */
  cudaMemPool_t pool;             /* NULL: not made yet */
  pthread_mutex_t mutex;          /* of the following */
  struct rs_cuda_vmm *vmm;        /* the driver's functions for virtual memory (segments.c); NULL: not found yet */
  void *upload;                   /* stream of the tables of programs; NULL: not made yet */
  rs_upload_buffers cast_buffers; /* for lists of casts */
} rs_cuda;

static inline rs_cuda *rs_cuda_of(rs_device *device) { return (rs_cuda *)device; }

/* context.c: finds them, and makes the context. */
reshard_status rs_cuda_context_open(rs_cuda *cuda);
/* Finds a function of the driver; RESHARD_ERROR_UNSUPPORTED where that has none of the name. */
reshard_status rs_cuda_find_function(const char *name, void **function);

/* The context that was current before a function entered; `left` NULL: the device's context was, or entering failed. */
typedef struct rs_cuda_before {
  const rs_cuda *left;
  struct CUctx_st *context; /* NULL: none */
} rs_cuda_before;
/* Bracket every function of the tables: calls of the runtime go to the device, and the thread's current device is
 * afterwards what it was; a thread without a context has none. enter changes nothing when it fails. Calls outside of
 * the brackets are only those that need no context. */
reshard_status rs_cuda_enter(const rs_device *device, rs_cuda_before *before);
/* Enters for cleaning up, where a failure is not reported: the last error stays what it is. */
rs_cuda_before rs_cuda_try_enter(const rs_device *device);
void rs_cuda_leave(rs_cuda_before before);

/* RESHARD_SUCCESS, or a status with the call's name, CUDA's text and number. The runtime's last error is cleared, so
 * that other code does not take it for its own. RESHARD_ERROR_OUT_OF_MEMORY, _UNSUPPORTED (no driver, no device, no
 * code for it), _INVALID, else _SYSTEM. */
reshard_status rs_cuda_check(cudaError_t error, const char *call);
#define RS_CUDA_TRY(call) RS_TRY(rs_cuda_check((call), #call))
/* Checks a CUresult: the driver numbers its errors as the runtime does. */
static inline reshard_status rs_cuda_check_driver(int result, const char *call) {
  return rs_cuda_check((cudaError_t)result, call);
}
/* Clears an error that changes nothing for the caller. */
void rs_cuda_ignore(cudaError_t error);

/* A function of the tables that is one call of the runtime. The second kind frees something, whichever GPU is the
 * current one. */
#define RS_ON_DEVICE(device, call) \
  do { \
    rs_cuda_before before_; \
    RS_TRY(rs_cuda_enter(device, &before_)); \
    reshard_status status_ = rs_cuda_check((call), #call); \
    rs_cuda_leave(before_); \
    return status_; \
  } while (0)
#define RS_ON_DEVICE_VOID(device, call) \
  do { \
    rs_cuda_before before_ = rs_cuda_try_enter(device); \
    rs_cuda_ignore(call); \
    rs_cuda_leave(before_); \
  } while (0)

/* Between these, calls are allowed that otherwise are not while any thread captures a stream; restore returns error.
 */
enum cudaStreamCaptureMode rs_cuda_relax(void);
cudaError_t rs_cuda_restore(enum cudaStreamCaptureMode mode, cudaError_t error);
#define RS_ON_DEVICE_RELAXED(device, call) \
  do { \
    rs_cuda_before before_; \
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
/* The same by kernels alone. closed: in memory of the device; nothing is copied when it is not 0. */
reshard_status rs_cuda_copy_unless(rs_device *device, int64_t n, const rs_span *spans, const uint32_t *closed,
                                   void *stream);
reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
int64_t rs_cuda_count(const rs_program *program);
/* Brings the code of all programs and spans to the device. A launch that had to would wait for the kernels that run. */
reshard_status rs_cuda_load_copies(rs_device *device);
/* Sets the word that closes a program: rs_box_batch.closed. */
void rs_cuda_program_close(rs_program *program, const uint32_t *closed);

#endif
