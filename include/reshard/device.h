/* Devices: where tensors are, and who copies them. A handle owns what work on a device needs - copy threads of the CPU,
 * or a GPU's side streams and staging - and a pool of storage. Calls that return a status refuse a NULL device
 * (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_DEVICE_H
#define RESHARD_DEVICE_H

#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_device_s *reshard_device;

typedef enum reshard_device_type { RESHARD_DEVICE_CPU = 0, RESHARD_DEVICE_CUDA } reshard_device_type;

/* Instruction sets of the CPU copies. AUTO takes the best that the machine has. */
typedef enum reshard_isa {
  RESHARD_ISA_AUTO = 0,
  RESHARD_ISA_SCALAR,
  RESHARD_ISA_SSE2,
  RESHARD_ISA_AVX2,
  RESHARD_ISA_AVX512,
  RESHARD_ISA_NEON,
  RESHARD_ISA_COUNT
} reshard_isa;
/* "auto", "scalar", "sse2", "avx2", "avx512", "neon"; "unknown" else. */
RESHARD_API const char *reshard_isa_string(reshard_isa isa);
/* 1 when this build and this machine can run it, else 0. AUTO and SCALAR always can. */
RESHARD_API int reshard_isa_available(reshard_isa isa);

/* Where a pool gets its memory, in place of the device's own allocator: a host program's (PyTorch's, RMM's). Called
 * with the lock of the pool held, from whatever thread needs memory; they call nothing of this library. */
typedef struct reshard_allocator {
  /* NULL when there is no memory; aligned to 256 bytes. Usable in the order of stream. */
  void *(*alloc)(void *user, size_t bytes, void *stream);
  /* What uses the memory is before this in the order of stream. */
  void (*free)(void *user, void *memory, size_t bytes, void *stream);
  void *user;
} reshard_allocator;

/* Set `size` through RESHARD_DEVICE_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_device_options {
  size_t size;
  int threads;        /* the CPU's copy threads; 0: RESHARD_THREADS, else one per core that the process may use */
  reshard_isa isa;    /* AUTO: RESHARD_ISA, else the best of the machine */
  size_t limit_bytes; /* of the pool, in use and kept together; 0: none. What it would exceed is OUT_OF_MEMORY. */
  /* Freed storage that is kept for new: -1: none, all of it goes back at once; 0: as much as keeps the pool at the most
   * that was in use at one time; else bytes. What lies in one piece with storage in use stays, and counts as in use. */
  int64_t keep_bytes;
  const reshard_allocator *allocator; /* borrowed while the device lives; NULL: the device's own */
} reshard_device_options;
#define RESHARD_DEVICE_OPTIONS_INIT sizeof(reshard_device_options)
#define RESHARD_DEVICE_OPTIONS_DEFAULTS {sizeof(reshard_device_options), 0, RESHARD_ISA_AUTO, 0, 0, NULL}

/* "cpu"; "cuda" is the current CUDA device of the calling thread, "cuda:1" is the one of that number (as the process
 * sees them). options may be NULL. One reference for the caller. Handles of one device are independent of each other:
 * each has its pool. The current CUDA device stays what it was, here and in every call of the library: a thread that has
 * not set one has number 0, where CUDA then makes a context (cudaSetDevice first, or CUDA_VISIBLE_DEVICES, avoids that).
 * Errors: RESHARD_ERROR_INVALID (name, options), RESHARD_ERROR_UNSUPPORTED (no CUDA in this build, no driver, no such
 * GPU: the text says which and how many there are). */
RESHARD_API reshard_status reshard_device_create(const char *name, const reshard_device_options *options,
                                                 reshard_device *device);
/* One more reference; returns its argument. Tensors and communicators keep their devices. */
RESHARD_API reshard_device reshard_device_retain(reshard_device device);
/* One reference less; the last one gives all memory back. NULL is allowed. */
RESHARD_API void reshard_device_release(reshard_device device);

typedef struct reshard_device_info {
  reshard_device_type type;
  int index;   /* of the GPU; 0 for the CPU */
  int streams; /* 0: work is done when a call returns, and stream is NULL everywhere (the CPU); 1: work is in the order
                  of the stream given; NULL is then the legacy default stream, as in CUDA */
} reshard_device_info;
RESHARD_API reshard_status reshard_device_get_info(reshard_device device, reshard_device_info *info);

/* Of the pool. Counts since the device was created. */
typedef struct reshard_memory_stats {
  size_t in_use_bytes;    /* handed out and not freed yet, with what sizes are rounded up by */
  size_t kept_bytes;      /* freed, and not given back: for new storage. Streams may still be using it. */
  size_t peak_bytes;      /* most in use at one time */
  size_t peak_held_bytes; /* most in use and kept at one time: what the device's allocator had given */
  int64_t allocs, frees;  /* asked of the pool */
  int64_t upstream_allocs, upstream_frees; /* asked of the device's allocator */
  int64_t records, waits;                  /* events */
} reshard_memory_stats;
RESHARD_API reshard_status reshard_device_get_memory_stats(reshard_device device, reshard_memory_stats *stats);
/* Gives kept storage back until keep_bytes are left. What streams still use is given back in their order. */
RESHARD_API reshard_status reshard_device_trim(reshard_device device, size_t keep_bytes);
/* A stream that storage was allocated, used or freed on is about to be destroyed: to be called before that. (A stream
 * that lives as long as the device does not need it.) The host does not wait. */
RESHARD_API reshard_status reshard_device_forget_stream(reshard_device device, void *stream);

/* Streams for programs that have none: what CUDA's functions do, without CUDA's headers. On the CPU a stream is NULL,
 * and nothing happens. Created ones are not ordered with the legacy default stream. Destroying one forgets it
 * (reshard_device_forget_stream); what it was given is done all the same; NULL is allowed. order: what `later` is given
 * from here on comes after all that `earlier` has been given; the host does not wait. synchronize: it does. */
RESHARD_API reshard_status reshard_stream_create(reshard_device device, void **stream);
RESHARD_API void reshard_stream_destroy(reshard_device device, void *stream);
RESHARD_API reshard_status reshard_stream_order(reshard_device device, void *earlier, void *later);
RESHARD_API reshard_status reshard_stream_synchronize(reshard_device device, void *stream);

#ifdef __cplusplus
}
#endif
#endif
