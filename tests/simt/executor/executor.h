/* Shared by the parts of the executor: executor.cc (threads, blocks, launches), barriers.cc, async.cc. */
#ifndef SIMT_EXECUTOR_H
#define SIMT_EXECUTOR_H

#include "include/cuda_runtime.h"

#include "fiber.h"

namespace simt {

enum {
  MOST_THREADS = 1024,
  MOST_PAUSES = 16, /* as often as kernels/barrier.cu polls before it looks at the host's words */
  POISON = 0xdb,
  SPARE_FIBERS = 5,
  MOST_FIBERS = MOST_THREADS + SPARE_FIBERS
};
constexpr size_t SHARED_STATIC = 48 << 10, SHARED_MOST = 227 << 10, STACK = 256 << 10;
enum state : char { IDLE, READY, AT_BLOCK, AT_WARP, AT_MBARRIER, DONE };

struct pending { /* an asynchronous copy */
  void *dst;
  const void *src;
  size_t bytes;
  int group;
  pending *next;
};
struct queue {
  pending *first, **end;
  int group; /* that is open now */
};
struct thread {
  state at;
  int fiber;
  site where;
  unsigned mask;  /* AT_WARP */
  unsigned phase; /* of the block's or the warp's operation that it waits in */
  uint64_t *mbarrier;
  unsigned parity;
  queue loads, stores; /* cp.async, bulk stores */
  int pauses;          /* of a thread that polls */
};
struct warp_operation { /* of one mask; its two rounds of values are used in turn */
  unsigned mask, arrived, phase;
  site where;
  uint64_t lanes[2][32];
  char order[2]; /* for TSan */
};
enum { WARP_MASKS = 8 };
struct warp {
  warp_operation operations[WARP_MASKS];
  int n;
};
struct array {
  const void *key;
  void *memory;
  size_t bytes;
};
struct mbarrier {
  uint64_t *key;
  unsigned count, arrived, phase;
  int64_t announced, loaded;
  bool fenced; /* the engine may see it */
  queue copies;
};
enum { MOST_ARRAYS = 64, MOST_MBARRIERS = 64 };

struct executor {
  simt_fiber main, *fibers;
  int nfibers, *free_fibers, free_head, nfree; /* a ring of those that no thread is on */
  thread *threads;
  warp warps[MOST_THREADS / 32];
  const launch_base *launch;
  int n, done, started, now, starting;
  unsigned order_next, order_step;         /* of starting threads */
  int *ready, ready_head, nready, npaused; /* of those that are ready, how many poll */
  /* block barrier */
  int arrived;
  unsigned phase;
  site where;
  char kind;
  int votes[2];
  char order[2], begin, end; /* for TSan */
  array arrays[MOST_ARRAYS];
  int narrays;
  mbarrier mbarriers[MOST_MBARRIERS];
  int nmbarriers;
  size_t shared_bytes;
  void **old; /* shared memory of earlier blocks, under TSan */
  int nold, old_cap;
  void *dynamic;
  bool running; /* on the fibers */
  bool failed, want_array;
  int error; /* what simt_run is to return; 0: cudaErrorLaunchFailure */
  array wanted;
  size_t wanted_alignment;
  uint64_t random;
  int64_t switches;
};

extern __thread executor *self; /* of the OS thread */

/* Ends the launch with a text, once the thread that runs now leaves its fiber: fail. */
void set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Leaves the fiber for good. */
void fail(executor *e);
/* Leaves the fiber to the scheduler; returns when it is this thread's turn again, never after an error. */
void wait(executor *e);
/* A thread that waits goes on, when it is its turn. */
void make_ready(executor *e, int t);

bool same_site(const site &a, const site &b);
const char *base_name(const char *path);

/* barriers.cc: thread t has returned. */
void warp_left(executor *e, int t);
/* async.cc: forgets copies; those that no thread has waited for, at the end of a block. */
void drop(queue *q);
void drop_all(executor *e);

} // namespace simt

#endif
