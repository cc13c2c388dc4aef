/* Ranges of the host's time, for a profiler: a name, and what the work is of. A thread's ranges are inside of one
 * another. Where no tool listens a range costs a load and a branch. device/trace.c gives ranges to NVTX.
 *
 * rs_ranges is the one word of the process that ranges need, since a tool is attached to a process. It is set before
 * main, and to NULL by the first range where there is no tool. It is NULL in what links without device. */
#ifndef RS_BASE_RANGE_H
#define RS_BASE_RANGE_H

#include "base/base.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The work of a range; -1: not known, or none. */
typedef struct rs_range_of {
  int64_t bytes, peers, round, tensors;
} rs_range_of;

typedef struct rs_range_tool {
  /* Begins a range of the calling thread. name: static. False: there is no tool, and nothing to end. */
  bool (*begin)(const char *name, const rs_range_of *of);
  void (*end)(void); /* the one that the thread began last */
} rs_range_tool;

RS_PRIVATE_API extern _Atomic(const rs_range_tool *) rs_ranges;

static inline bool rs_range_begin(const char *name, int64_t bytes, int64_t peers, int64_t round, int64_t tensors) {
  const rs_range_tool *tool = atomic_load_explicit(&rs_ranges, memory_order_acquire);
  return tool != NULL && tool->begin(name, &(rs_range_of){bytes, peers, round, tensors});
}
static inline void rs_range_end(bool begun) {
  if (begun)
    atomic_load_explicit(&rs_ranges, memory_order_acquire)->end();
}
static inline void rs_range_close(const bool *begun) { rs_range_end(*begun); }

/* A range from here to the end of the scope, however that is left. */
#define RS_RANGE(name, bytes, peers, round, tensors) \
  bool rs_range_scope_ __attribute__((cleanup(rs_range_close))) = \
      rs_range_begin((name), (bytes), (peers), (round), (tensors)); \
  (void)rs_range_scope_

#endif
