/* Devices: where memory is and what copies it.
 *
 * A device is a const table of few functions behind `struct rs_device`. All of them may be called from any thread;
 * those with a stream run in the order of that stream (on the CPU the stream is NULL and they return when done). */
#ifndef RS_DEVICE_H
#define RS_DEVICE_H

#include "base/base.h"

#include <stdatomic.h>

/* One loop of a box copy: n steps, byte strides on both sides (any sign, 0 allowed on the source side). */
typedef struct rs_axis {
  int64_t n, src, dst;
} rs_axis;

/* A box copy: `run` contiguous bytes on both sides (1 or more, not necessarily a power of two), repeated over naxes
 * loops, outermost first. Given in canonical form by rs_copies_add: no axis of n == 1, no two neighbours that merge,
 * no innermost axis that merges into the run; so a run shorter than a cache line means that the innermost axis is
 * strided on at least one side. */
typedef struct rs_copy {
  const char *src;
  char *dst;
  int64_t run;
  int64_t axes; /* index of the first axis in rs_copies.axes */
  int32_t naxes;
  int32_t
      element; /* 1, 2, 4, 8, 16: bytes of an element; run and all strides are multiples of it, addresses need not be */
} rs_copy;

/* A list of copies, to be compiled into a program. Copies of one list may run in any order and at the same time: no
 * destination byte is written twice, nothing that is written is read. */
typedef struct rs_copies {
  RS_VEC(rs_copy) copy;
  RS_VEC(rs_axis) axis;
  int64_t bytes; /* sum over the copies */
  bool staging;  /* the destination is staging that is read again at once: worth keeping in the cache */
} rs_copies;

/* Appends a copy with loops (outermost first), dropping loops of one step, sorting nothing, merging neighbours and the
 * innermost loop into the run where both sides are contiguous. n == 0 in any axis adds nothing. */
reshard_status rs_copies_add(rs_copies *copies, const char *src, char *dst, int32_t element, int naxes,
                             const rs_axis *axes);
/* An empty list, in the memory that it has. */
void rs_copies_clear(rs_copies *copies);
void rs_copies_free(rs_copies *copies);

/* A contiguous copy decided at run time (exchange of staged messages). */
typedef struct rs_span {
  const char *src;
  char *dst;
  int64_t bytes;
  bool staging; /* as in rs_copies */
} rs_span;

typedef struct rs_device rs_device;
typedef struct rs_program rs_program; /* compiled copies; owned by who compiled them */

/* A message from staging to staging, or from or to the user's memory where a program is NULL. */
typedef struct rs_link {
  atomic_bool taken;      /* the device's, while it carries: false before and after */
  const rs_program *pack; /* fills span.src */
  rs_span span;
  const rs_program *unpack; /* empties span.dst */
} rs_link;

typedef struct rs_device_ops {
  const char *name; /* "cpu" */
  /* Memory of the device, aligned to 256 bytes; *memory NULL for 0 bytes. */
  reshard_status (*alloc)(rs_device *device, size_t bytes, void **memory);
  void (*free)(rs_device *device, void *memory);
  /* Chooses each copy's variant, the order for the cache, and the division over threads. Everything that is to be
   * computed or allocated is done here. total_bytes: of all ranks' programs that will run together (cache or memory?).
   */
  reshard_status (*compile)(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
  /* The same for copies that run once: into *program, which is NULL or from an earlier call of this function and stays
   * one that can be released, also after an error. Its memory is used again, and it keeps what compiling needs beside
   * it: where that suffices nothing is allocated. */
  reshard_status (*recompile)(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
  void (*release)(rs_device *device, rs_program *program);
  /* Runs n programs (some may be NULL) as one job, divided over the threads by bytes. Allocates nothing. */
  reshard_status (*run)(rs_device *device, int64_t n, rs_program *const *programs, void *stream);
  /* Runs n contiguous copies as one job, divided likewise. total_bytes: of the whole exchange that they are a round of
   * (streaming stores pay or not), as in compile. Allocates nothing. */
  reshard_status (*copy)(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
  /* Runs n messages as one job: each packed, copied and unpacked by one thread, so that what it stages stays in that
   * thread's cache. total_bytes as in copy. Allocates nothing. */
  reshard_status (*carry)(rs_device *device, int64_t n, rs_link *links, int64_t total_bytes, void *stream);
  /* Number of box copies in a program, after tiling. */
  int64_t (*count)(const rs_program *program);
  void (*destroy)(rs_device *device);
} rs_device_ops;

struct rs_device {
  const rs_device_ops *ops;
};

#endif
