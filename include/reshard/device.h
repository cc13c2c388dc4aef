/* Devices: where tensors are, and the engine that copies them. A handle owns a pool of storage and the means of work:
 * copy threads of the CPU, or a GPU's side streams and staging. Calls that return a status refuse a NULL
 * device (RESHARD_ERROR_INVALID).
 *
 * After fork() the child has the CPU devices of its parent. Copy threads are started again by the first job there. Of
 * shared storage it has a copy, page by page from its first write on; until then it sees what its parent writes. GPUs
 * cannot be used in it. The process is forked while no other thread is in a call, but for waits of the local
 * communicator. */
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

/* Allocator of a host program (PyTorch's, RMM's) from which all memory of the device is taken in place of its own:
 * storage, staging, tables. Called with the lock of the pool held, from any thread; calls nothing of this library.
 * Ranks on other GPUs of the process reach staging: a pool or mapping of the host program is open to them. Words by
 * which GPUs of processes meet, and their mailboxes, come from the driver all the same, as other processes open them:
 * the pool counts them (meeting_bytes). */
typedef struct reshard_allocator {
  /* Returns memory aligned to 256 bytes, usable in the order of stream. NULL: there is none. */
  void *(*alloc)(void *user, size_t bytes, void *stream);
  /* Uses of the memory come before this call in the order of stream. */
  void (*free)(void *user, void *memory, size_t bytes, void *stream);
  void *user;
} reshard_allocator;

/* Begin with RESHARD_DEVICE_OPTIONS_DEFAULTS, or set `size` to RESHARD_DEVICE_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_device_options {
  size_t size;
  int threads;     /* copy threads of the CPU; 0: RESHARD_THREADS, else one per core that the process may use */
  reshard_isa isa; /* AUTO: RESHARD_ISA, else the best of the machine */
  /* Limit of the pool, in use and kept together; 0: none. An allocation that would exceed it is OUT_OF_MEMORY, as are
   * the mailboxes of a node communicator, on all its ranks: these take 64 MiB at most (reshard_comm_create_node). */
  size_t limit_bytes;
  /* Freed storage that is kept for new: -1: none, all of it goes back at once. 0: as much as keeps the pool at the most
   * that was in use at one time. Other values: bytes. A block that shares its piece of memory with storage in use
   * stays, and counts as in use. */
  int64_t keep_bytes;
  const reshard_allocator *allocator; /* borrowed while the device lives; NULL: the device's own */
  /* 1: storage is memory that the other processes of the node can map. Ranks that are processes then read each other's
   * arrays directly (RESHARD_PATH_DIRECT). On a CPU large pieces take their memory when they are allocated, not when
   * they are first written. On a GPU it comes in pieces of 2 MiB and more, which take descriptors only while they are
   * passed on. Giving one back waits for the streams that used it. Others keep its memory until they next bind a
   * transfer that reads others, or make a call of a sharder or sync that does. UNSUPPORTED where the driver has no
   * virtual memory management. 0: the process's own. Not with an allocator. */
  int shared;
  /* Most blocks of a launch of the library's copies and casts on a GPU; 0: as many as there is work for. A GPU that
   * also runs NCCL needs SMs for that: with 4 blocks on an SM, 4 x (its SMs - the communicator's maxCTAs) leave it
   * room. Fewer make pack and unpack slower alone. Casts and selections (index_select) take a launch for each so many
   * tiles. Large contiguous copies are the driver's, and not limited. */
  int64_t max_blocks; /* 64 bits: where a caller's struct ends before it, `size` tells */
} reshard_device_options;
#define RESHARD_DEVICE_OPTIONS_INIT sizeof(reshard_device_options)
#define RESHARD_DEVICE_OPTIONS_DEFAULTS \
  { sizeof(reshard_device_options), 0, RESHARD_ISA_AUTO, 0, 0, NULL, 0, 0 }

/* Opens a device; one reference for the caller. Handles of one device are independent of each other: each has its pool.
 *
 * - name: "cpu"; "cuda" for the current CUDA device of the calling thread; "cuda:1" for the one of that number, as the
 *   process sees them.
 * - options: may be NULL.
 *
 * The current CUDA device stays as it was, here and in every call of the library. A thread that has not set one has
 * none afterwards either, and no context is made on number 0 for it. Streams and memory are of the primary context of
 * their GPU, which the CUDA runtime uses: not of one that cuCtxCreate made.
 *
 * Errors:
 * - RESHARD_ERROR_INVALID: name, options.
 * - RESHARD_ERROR_UNSUPPORTED: no CUDA in this build, no driver, no such GPU. The text says which, and how many GPUs
 *   there are. Shared storage of a GPU, or on a system without memfd_create. */
RESHARD_API reshard_status reshard_device_create(const char *name, const reshard_device_options *options,
                                                 reshard_device *device);
/* One more reference; returns its argument. Tensors and communicators keep their devices. */
RESHARD_API reshard_device reshard_device_retain(reshard_device device);
/* One reference less; the last one gives all memory back. NULL is allowed. */
RESHARD_API void reshard_device_release(reshard_device device);

typedef struct reshard_device_info {
  reshard_device_type type;
  int index; /* of the GPU; 0 for the CPU */
  /* 0: work is done when a call returns, and stream is NULL everywhere (the CPU). 1: work is in the order of the stream
   * given, where NULL is the legacy default stream, as in CUDA. */
  int streams;
  int64_t max_blocks; /* as in the options; 0: no limit, and on the CPU */
} reshard_device_info;
RESHARD_API reshard_status reshard_device_get_info(reshard_device device, reshard_device_info *info);

/* Figures of the pool. Counts are since the device was created. */
typedef struct reshard_memory_stats {
  size_t in_use_bytes;    /* storage and what the library itself uses, with what sizes are rounded up by */
  size_t kept_bytes;      /* freed, kept for new storage and not given back; streams may still use it */
  size_t peak_bytes;      /* most in use at one time */
  size_t peak_held_bytes; /* most in use and kept at one time: the memory that was taken of the device */
  int64_t allocs, frees;  /* requests to the pool */
  int64_t upstream_allocs, upstream_frees; /* requests to the device's allocator */
  int64_t records, waits;                  /* events */
  /* Of those in use: words and mailboxes of node communicators, which come from the driver and are requests neither to
   * the pool nor to the device's allocator. */
  size_t meeting_bytes;
} reshard_memory_stats;
RESHARD_API reshard_status reshard_device_get_memory_stats(reshard_device device, reshard_memory_stats *stats);
/* Gives kept storage back until keep_bytes are left. Storage that streams still use is given back in their order. */
RESHARD_API reshard_status reshard_device_trim(reshard_device device, size_t keep_bytes);
/* Forgets a stream that is about to be destroyed and on which storage was allocated, used or freed. To be called before
 * it is destroyed. The host does not wait. A stream that lives as long as the device does not need it. */
RESHARD_API reshard_status reshard_device_forget_stream(reshard_device device, void *stream);

/* Streams for programs that have none: CUDA's functions without CUDA's headers. On the CPU a stream is NULL, and
 * nothing happens.
 *
 * - create: the stream is not ordered with the legacy default stream.
 * - destroy: forgets the stream (reshard_device_forget_stream). Work that it was given is done all the same. NULL is
 *   allowed.
 * - order: work given to `later` from here on comes after all that `earlier` has been given. The host does not wait.
 * - synchronize: the host waits. */
RESHARD_API reshard_status reshard_stream_create(reshard_device device, void **stream);
RESHARD_API void reshard_stream_destroy(reshard_device device, void *stream);
RESHARD_API reshard_status reshard_stream_order(reshard_device device, void *earlier, void *later);
RESHARD_API reshard_status reshard_stream_synchronize(reshard_device device, void *stream);

#ifdef __cplusplus
}
#endif
#endif
