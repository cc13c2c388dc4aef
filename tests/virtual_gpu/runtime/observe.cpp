/* Accesses of kernels, seen as they happen: the kernels of these tests are compiled with -fsanitize=thread and linked
 * with the functions below instead of its runtime. So every load and store of theirs comes by with its address and
 * size. The same goes, in builds without a sanitizer, for those files of the library that touch pinned memory or order
 * threads by atomics; in all builds memcpy, memmove and memset are seen.
 *
 * A kernel's accesses are gathered while it runs, neighbours put together as they come, and given to the checker when
 * it ends: writes first, so that what a kernel reads of its own writes is not taken for somebody else's. One that has
 * found a word set, which tells it to do nothing, and has stored nothing, may have read whatever was there: its reads
 * are held back until that is known. The host's are gathered until the thread next calls the runtime or orders itself
 * with another thread: nothing can come between. */
#include "machine.hpp"

#include "simt/simt.h"

#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdio>

extern __thread uint3 threadIdx; /* the executor's */

/* This file itself is compiled without instruments in every build. */
#ifdef VG_UNDER_TSAN
#define VG_OBSERVES 0
#else
#define VG_OBSERVES 1
#endif

bool vg_sees_kernels(void) { return VG_OBSERVES; }

namespace vg {

__thread int lock_depth; /* the thread holds the lock: what it touches is the virtual GPU's own doing */

namespace {

struct Run {
  uintptr_t begin, end;
  bool write;
};
/* Two small caches find the run that an access goes to: the one that it continues, by where that ends, and one that it
 * is in, by where that was met before. Tables are read by every thread of a kernel. */
struct Recorder {
  enum { OPEN = 64, MET = 1024 };
  std::vector<Run> runs;
  uint32_t open[OPEN], met[MET]; /* run + 1 */
  Recorder() { clear(); }

  static size_t slot(uintptr_t at, bool write, size_t slots) {
    return ((at >> 2) ^ (at >> 9) ^ (write ? slots / 2 : 0)) & (slots - 1);
  }
  /* The run that the access is in now. */
  const Run &add(uintptr_t at, size_t n, bool write) {
    uint32_t &m = met[slot(at, write, MET)];
    if (m && runs[m - 1].write == write && at >= runs[m - 1].begin && at + n <= runs[m - 1].end)
      return runs[m - 1];
    m = open[slot(at, write, OPEN)];
    if (m && runs[m - 1].end == at && runs[m - 1].write == write) {
      runs[m - 1].end += n;
    } else {
      runs.push_back({at, at + n, write});
      m = (uint32_t)runs.size();
    }
    open[slot(at + n, write, OPEN)] = m;
    return runs[m - 1];
  }
  void clear() {
    runs.clear();
    memset(open, 0, sizeof open);
    memset(met, 0, sizeof met);
  }
};

thread_local Recorder *host_recorder;
Recorder kernel_recorder; /* one kernel runs at a time, under the lock */
struct Span {
  uintptr_t begin;
  size_t bytes;
  bool holds(uintptr_t at, size_t n) const { return at - begin < bytes && n <= bytes - (at - begin); }
};
/* Most accesses that tell nothing new are of the kernel's parameters, and of the last run that was read, or written. */
Span kernel_object, kernel_last[2];
thread_local bool in_kernel; /* on this thread */
int64_t kernel_accesses;
bool kernel_stores; /* beside the arena, or a flag */
bool kernel_closed; /* it has loaded a flag that is not 0 */
enum : int64_t { MOST_ACCESSES = 1 << 25, MOST_RUNS = 1 << 22 };

void sorted(std::vector<Run> &runs) {
  std::sort(runs.begin(), runs.end(),
            [](const Run &a, const Run &b) { return a.write != b.write ? a.write > b.write : a.begin < b.begin; });
  size_t n = 0;
  for (const Run &run : runs)
    if (n && runs[n - 1].write == run.write && run.begin <= runs[n - 1].end)
      runs[n - 1].end = std::max(runs[n - 1].end, run.end);
    else
      runs[n++] = run;
  runs.resize(n);
}

extern "C" char __executable_start[], _end[]; /* the program: constants of kernels are in it */

bool is_mapped(uintptr_t at) {
  unsigned char resident;
  return at >> 47 == 0 && mincore((void *)(at >> 12 << 12), 1, &resident) == 0;
}

/* A kernel that goes by a table which an edge should have kept may go anywhere, or for ever: it is ended. So is one
 * that is given memory of the host as malloc has it. */
void must_be_its_own(uintptr_t at, size_t n, bool write) {
  if (simt_owns((const void *)at, n) ||
      (!write && at - (uintptr_t)__executable_start < (size_t)(_end - __executable_start)))
    return;
  Alloc *alloc = find(at);
  if (alloc && alloc->kind == Kind::Registered) {
    kernel_stores |= write;
    return;
  }
  char text[120];
  snprintf(text, sizeof text,
           is_mapped(at) ? "pageable: %s of %zu bytes at %p, which is memory of the host"
                         : "wild: %s of %zu bytes at %p, where no memory is",
           write ? "write" : "read", n, (void *)at);
  simt_abort(cudaErrorIllegalAddress, text);
}

__attribute__((noinline)) void does_not_end() { simt_abort(cudaErrorLaunchTimeout, "wild: it does not end"); }

__attribute__((noinline)) void seen_elsewhere(uintptr_t at, size_t n, bool write) {
  if (!in_arena(at)) {
    must_be_its_own(at, n, write);
    return;
  }
  const Run &run = kernel_recorder.add(at, n, write);
  kernel_last[write] = {run.begin, run.end - run.begin};
  if (kernel_recorder.runs.size() > MOST_RUNS)
    does_not_end();
}

__attribute__((noinline)) void seen_by_host(uintptr_t at, size_t n, bool write) {
  if (!in_arena(at) || lock_depth)
    return;
  if (!host_recorder)
    host_recorder = new Recorder; /* until the thread ends */
  host_recorder->add(at, n, write);
}

/* A thread's place, or its stack just above the function that asks. The stack may end where the arena begins. */
inline bool is_of_thread(uintptr_t at) {
  return at - (uintptr_t)&threadIdx < sizeof threadIdx ||
         (at - (uintptr_t)__builtin_frame_address(0) < 4096 && !in_arena(at));
}

/* Most of the time of these tests is here: what is rare stays in functions of its own. */
inline void seen(uintptr_t at, size_t n, bool write) {
  if (in_kernel) {
    if (!kernel_object.holds(at, n) && !kernel_last[write].holds(at, n) && !is_of_thread(at))
      seen_elsewhere(at, n, write);
    if (++kernel_accesses > MOST_ACCESSES)
      does_not_end();
  } else {
    seen_by_host(at, n, write);
  }
}

} // namespace

void kernel_seen(const void *at, size_t n, int write) {
  if (in_kernel)
    seen((uintptr_t)at, n, write != 0);
}

static Op *kernel;                      /* that runs */
static bool pauses;                     /* it polls: it is run again */
static std::vector<uintptr_t> acquired; /* flags that it has loaded in this run, in which nobody else stores */

void watch_begin(Op &op) {
  kernel = &op;
  pauses = false;
  acquired.clear();
  kernel_object = kernel_last[0] = kernel_last[1] = Span{};
  kernel_recorder.clear();
  kernel_accesses = 0;
  kernel_stores = kernel_closed = false;
  in_kernel = true;
}

bool watch_end(Op &op) {
  in_kernel = false;
  if (pauses)
    return false;
  sorted(kernel_recorder.runs);
  const std::vector<Run> &runs = kernel_recorder.runs;
  M.notes[op.id].closed = kernel_closed && !kernel_stores && (runs.empty() || !runs[0].write);
  for (const Run &run : runs) {
    if (M.notes[op.id].closed)
      M.counts.closed_bytes += (int64_t)(run.end - run.begin);
    access(op.id, op.clock, op.device, run.begin, run.end - run.begin, run.write);
  }
  return true;
}

void kernel_begins(const void *object, size_t bytes) { kernel_object = {(uintptr_t)object, bytes}; }

void kernel_pauses() { pauses = true; }

/* A store that releases, or a load that acquires, in a kernel: what it stands for comes before what has read it. */
[[maybe_unused]] static void flag_seen(uintptr_t at, size_t n, bool stores, bool set) {
  kernel_stores |= stores;
  kernel_closed |= set && !stores;
  if (!in_arena(at)) {
    must_be_its_own(at, n, stores);
    return;
  }
  if (!stores) { /* all threads of a block may load one */
    if (std::find(acquired.begin(), acquired.end(), at) != acquired.end())
      return;
    acquired.push_back(at);
  }
  access_flag(kernel->id, kernel->clock, kernel->device, at, n);
  auto found = M.flags.find(own_memory(at));
  if (stores)
    M.flags[own_memory(at)].join(kernel->clock);
  else if (found != M.flags.end())
    learn(kernel, found->second);
}

void host_seen(Thread &thread) {
  if (!host_recorder || host_recorder->runs.empty())
    return;
  std::vector<Run> runs;
  runs.swap(host_recorder->runs);
  host_recorder->clear();
  if (!M.on || M.devices.empty())
    return;
  sorted(runs);
  for (const Run &run : runs)
    host_access(thread, run.begin, run.end - run.begin, run.write);
}

bool sees_host() {
#ifdef VG_SEES_HOST
  return true;
#else
  return false;
#endif
}

void host_thread_ends() {
  delete host_recorder;
  host_recorder = nullptr;
}

} // namespace vg

using vg::seen;

/* The functions of the C library that move most bytes, and those that move them to files and from them, in all of the
 * library. */
extern "C" {
void *__real_memcpy(void *to, const void *from, size_t n);
void *__real_memmove(void *to, const void *from, size_t n);
void *__real_memset(void *to, int byte, size_t n);
ssize_t __real_pread(int fd, void *to, size_t n, off_t offset);
ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t offset);

void *__wrap_memcpy(void *to, const void *from, size_t n) {
  if (n && vg::in_arena((uintptr_t)from))
    seen((uintptr_t)from, n, false);
  if (n && vg::in_arena((uintptr_t)to))
    seen((uintptr_t)to, n, true);
  return __real_memcpy(to, from, n);
}

void *__wrap_memmove(void *to, const void *from, size_t n) {
  if (n && vg::in_arena((uintptr_t)from))
    seen((uintptr_t)from, n, false);
  if (n && vg::in_arena((uintptr_t)to))
    seen((uintptr_t)to, n, true);
  return __real_memmove(to, from, n);
}

void *__wrap_memset(void *to, int byte, size_t n) {
  if (n && vg::in_arena((uintptr_t)to))
    seen((uintptr_t)to, n, true);
  return __real_memset(to, byte, n);
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t offset) {
  ssize_t got = __real_pread(fd, to, n, offset);
  if (got > 0 && vg::in_arena((uintptr_t)to))
    seen((uintptr_t)to, (size_t)got, true);
  return got;
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t offset) {
  if (n && vg::in_arena((uintptr_t)from))
    seen((uintptr_t)from, n, false);
  return __real_pwrite(fd, from, n, offset);
}
}

#if VG_OBSERVES
extern "C" {
#define VG_SIZE(n) \
  void __tsan_read##n(void *at) { seen((uintptr_t)at, n, false); } \
  void __tsan_write##n(void *at) { seen((uintptr_t)at, n, true); } \
  void __tsan_unaligned_read##n(void *at) { seen((uintptr_t)at, n, false); } \
  void __tsan_unaligned_write##n(void *at) { seen((uintptr_t)at, n, true); }
VG_SIZE(1)
VG_SIZE(2)
VG_SIZE(4)
VG_SIZE(8)
VG_SIZE(16)
void __tsan_read_range(void *at, size_t n) { seen((uintptr_t)at, n, false); }
void __tsan_write_range(void *at, size_t n) { seen((uintptr_t)at, n, true); }
void *__tsan_memcpy(void *to, const void *from, size_t n) { return memcpy(to, from, n); } /* clang's */
void *__tsan_memmove(void *to, const void *from, size_t n) { return memmove(to, from, n); }
void *__tsan_memset(void *to, int byte, size_t n) { return memset(to, byte, n); }
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}

/* Atomics: in a kernel, a read and a write; on the host they order threads, and need not be more exact than this: what
 * stores comes before what loads. */
namespace {
inline void stores(const volatile void *at, size_t n, int order = __ATOMIC_RELAXED) {
  if (vg::in_kernel) {
    order == __ATOMIC_RELEASE ? vg::flag_seen((uintptr_t)at, n, true, true) : seen((uintptr_t)at, n, true);
    return;
  }
  if (!vg::lock_depth)
    vg::turn();
  vg_host_release((const void *)at);
}
inline void loads(const volatile void *at, size_t n, int order = __ATOMIC_RELAXED, bool set = false) {
  if (vg::in_kernel)
    order == __ATOMIC_ACQUIRE ? vg::flag_seen((uintptr_t)at, n, false, set) : seen((uintptr_t)at, n, false);
  else
    vg_host_acquire((const void *)at);
}
template <typename T> T loaded(const volatile T *at, int order) {
  T v = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  loads(at, sizeof(T), order, v != 0);
  return v;
}
template <typename T> void stored(volatile T *at, T v, int order) {
  stores(at, sizeof(T), order);
  __atomic_store_n(at, v, __ATOMIC_SEQ_CST);
}
/* how(at) changes *at. */
template <typename T, typename F> auto changed(volatile T *at, F how) {
  stores(at, sizeof(T));
  auto v = how(at);
  loads(at, sizeof(T));
  return v;
}
} // namespace

extern "C" {
#define VG_OP(bits, type, op, builtin) \
  type __tsan_atomic##bits##_##op(volatile type *at, type v, int) { \
    return changed(at, [v](volatile type *a) { return builtin(a, v, __ATOMIC_SEQ_CST); }); \
  }
#define VG_EXCHANGE(bits, type, kind) \
  int __tsan_atomic##bits##_compare_exchange_##kind(volatile type *at, type *expected, type v, int, int) { \
    return changed(at, [=](volatile type *a) { \
      return __atomic_compare_exchange_n(a, expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }); \
  }
#define VG_ATOMICS(bits, type) \
  type __tsan_atomic##bits##_load(const volatile type *at, int order) { return loaded(at, order); } \
  void __tsan_atomic##bits##_store(volatile type *at, type v, int order) { stored(at, v, order); } \
  VG_EXCHANGE(bits, type, strong) \
  VG_EXCHANGE(bits, type, weak) \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type expected, type v, int a, int b) { \
    __tsan_atomic##bits##_compare_exchange_strong(at, &expected, v, a, b); \
    return expected; \
  } \
  VG_OP(bits, type, exchange, __atomic_exchange_n) \
  VG_OP(bits, type, fetch_add, __atomic_fetch_add) \
  VG_OP(bits, type, fetch_sub, __atomic_fetch_sub) \
  VG_OP(bits, type, fetch_and, __atomic_fetch_and) \
  VG_OP(bits, type, fetch_or, __atomic_fetch_or) \
  VG_OP(bits, type, fetch_xor, __atomic_fetch_xor)
VG_ATOMICS(8, uint8_t)
VG_ATOMICS(16, uint16_t)
VG_ATOMICS(32, uint32_t)
VG_ATOMICS(64, uint64_t)
}
#endif
