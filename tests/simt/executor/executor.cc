/* Executes launches: blocks one after the other, the threads of a block as fibers.
 *
 * A thread runs until it reaches a barrier. Threads that never do share one fiber, one after the other, so a kernel
 * without barriers is a plain loop. When nobody can go on and not all are done, the threads wait for different things:
 * that is the error which a GPU answers with a hang or wrong data, and it is reported with the places in the source.
 *
 * Under ThreadSanitizer each thread of a block is a fiber of its own, whatever it does, and nothing orders two of them
 * but the barriers; blocks are not ordered either. Reads and writes of the executor itself are not instrumented. Memory
 * is allocated and freed where that orders nothing that the kernel does not order: by the caller, before and after.
 * State is per OS thread. */
#include "executor.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim{}, gridDim{};

namespace simt {

__thread executor *self;
static __thread char error_text[512];
static simt_enqueue enqueue;
static void *enqueue_user;
static uint64_t order_seed;
static simt_counts counts;
struct allowance {
  const void *kernel;
  size_t bytes;
};
static allowance allowances[256];
static int nallowances;

static uint64_t next_random(executor *e) {
  e->random += 0x9e3779b97f4a7c15u;
  uint64_t x = e->random;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static void add_count(int64_t *count, int64_t n) { __atomic_fetch_add(count, n, __ATOMIC_RELAXED); }

/* Volatile: no call that a sanitizer intercepts. The memory is aligned to 8, and most of it is written by as many. */
static void poison(void *at, size_t bytes) {
  volatile unsigned char *to = static_cast<volatile unsigned char *>(at);
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8)
    *reinterpret_cast<volatile uint64_t *>(to + i) = POISON * (~uint64_t{0} / 0xff);
  for (; i < bytes; i++)
    to[i] = POISON;
}

void set_error(const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = snprintf(error_text, sizeof error_text, "simt: block (%u,%u,%u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  vsnprintf(error_text + n, sizeof error_text - static_cast<size_t>(n), format, args);
  va_end(args);
  self->failed = true;
}

bool same_site(const site &a, const site &b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

/* --- Threads -----------------------------------------------------------------------------------------------------*/
void make_ready(executor *e, int t) {
  e->threads[t].at = READY;
  e->ready[(e->ready_head + e->nready++) % MOST_THREADS] = t;
}

static void become(executor *e, int t) {
  unsigned x = e->launch->block[0], y = e->launch->block[1], i = static_cast<unsigned>(t);
  if (i < x)
    threadIdx = {i, 0, 0};
  else
    threadIdx = {i % x, i / x % y, i / (x * y)};
  e->now = t;
}

void wait(executor *e) {
  simt_release(&e->end); // it may never go on
  simt_fiber_switch(&e->fibers[e->threads[e->now].fiber], &e->main);
}

void fail(executor *e) {
  e->failed = true;
  wait(e);
}

static void start_next(executor *e) {
  int t = static_cast<int>(e->order_next);
  e->started++;
  e->order_next += e->order_step;
  if (e->order_next >= static_cast<unsigned>(e->n))
    e->order_next -= static_cast<unsigned>(e->n);
  become(e, t);
  thread *begun = &e->threads[t];
  begun->at = READY;
  begun->fiber = e->starting;
  begun->pauses = 0;
  begun->loads = {nullptr, &begun->loads.first, 0};
  begun->stores = {nullptr, &begun->stores.first, 0};
}

/* Under TSan the one that has been free for longest, and a few more than there are threads: so a fiber is a thread of
 * another number in the next block, and no two neighbours are in order by being the same. */
static int take_fiber(executor *e) {
  e->nfree--;
  if (!simt_tsan())
    return e->free_fibers[e->nfree];
  int fiber = e->free_fibers[e->free_head];
  e->free_head = (e->free_head + 1) % MOST_FIBERS;
  return fiber;
}
static void give_fiber(executor *e, int fiber) { e->free_fibers[(e->free_head + e->nfree++) % MOST_FIBERS] = fiber; }

static void finish(executor *e) {
  thread *t = &e->threads[e->now];
  if (t->stores.first != nullptr && !e->failed)
    set_error("thread %d ends before its bulk stores have read shared memory", e->now);
  if (t->loads.first != nullptr)
    drop(&t->loads);
  t->at = DONE;
  e->done++;
  if (e->warps[e->now / 32].n > 0)
    warp_left(e, e->now);
}

static void fiber_main() {
  executor *e = self;
  int fiber = e->starting;
  simt_fiber_entered(&e->fibers[fiber], &e->main);
  for (;;) {
    start_next(e);
    simt_acquire(&e->begin);
    e->launch->body();
    finish(e);
    simt_release(&e->end);
    if (!simt_tsan() && !e->failed && e->nready == 0 && e->started < e->n) {
      e->starting = fiber;
      continue;
    }
    give_fiber(e, fiber);
    simt_fiber_switch(&e->fibers[fiber], &e->main);
  }
}

static void describe_deadlock(executor *e) {
  int at[DONE + 1] = {0}, example[DONE + 1];
  for (int t = 0; t < e->n; t++)
    if (at[e->threads[t].at]++ == 0)
      example[e->threads[t].at] = t;
  char text[400] = "";
  size_t n = 0;
  const char *names[] = {"", "", "__syncthreads", "a warp operation", "an mbarrier"};
  for (int s = AT_BLOCK; s <= AT_MBARRIER; s++)
    if (at[s] > 0 && n < sizeof text) {
      const thread *t = &e->threads[example[s]];
      n += static_cast<size_t>(snprintf(text + n, sizeof text - n, "%s%d threads (first: %d) wait at %s, %s:%d",
                                        n > 0 ? ", " : "", at[s], example[s], names[s], base_name(t->where.file),
                                        t->where.line));
    }
  if (at[DONE] > 0 && n < sizeof text)
    snprintf(text + n, sizeof text - n, ", %d threads (first: %d) have returned", at[DONE], example[DONE]);
  set_error("a barrier that not all reach: %s", text);
}

/* --- Shared memory -----------------------------------------------------------------------------------------------*/
static bool keep_old(executor *e, void *memory) {
  if (e->nold == e->old_cap) {
    int cap = e->old_cap * 2 + 16;
    void **grown = static_cast<void **>(realloc(e->old, static_cast<size_t>(cap) * sizeof *grown));
    if (grown == nullptr)
      return false;
    e->old = grown;
    e->old_cap = cap;
  }
  e->old[e->nold++] = memory;
  return true;
}

static void *allocate(executor *e, size_t bytes, size_t alignment) {
  void *memory = nullptr;
  if (posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes) != 0 ||
      !keep_old(e, memory)) {
    set_error("no memory for %zu bytes of shared memory", bytes);
    free(memory);
    return nullptr;
  }
  poison(memory, bytes);
  return memory;
}

/* On the caller's stack, for a fiber that has come to a declaration first. */
static bool serve_array(executor *e) {
  e->want_array = false;
  e->shared_bytes += e->wanted.bytes;
  if (e->narrays == MOST_ARRAYS || e->shared_bytes > SHARED_STATIC) {
    set_error("%d arrays of %zu bytes in static shared memory, %d of %zu are possible", e->narrays + 1, e->shared_bytes,
              MOST_ARRAYS, SHARED_STATIC);
    return false;
  }
  e->wanted.memory = allocate(e, e->wanted.bytes, e->wanted_alignment);
  e->arrays[e->narrays++] = e->wanted;
  simt_release(&e->arrays[0]);
  return !e->failed;
}

/* The scheduler: on the caller's stack. */
static void run_threads(executor *e) {
  e->running = true;
  while (!e->failed && e->done < e->n) {
    int fiber;
    if (e->nready > (e->started < e->n ? e->npaused : 0)) {
      int t = e->ready[e->ready_head];
      e->ready_head = (e->ready_head + 1) % MOST_THREADS;
      e->nready--;
      fiber = e->threads[t].fiber;
      become(e, t);
    } else if (e->started < e->n) {
      fiber = take_fiber(e);
      e->starting = fiber;
      if (e->fibers[fiber].sp == nullptr)
        simt_fiber_begin(&e->fibers[fiber], fiber_main);
    } else {
      describe_deadlock(e);
      break;
    }
    e->switches++;
    simt_fiber_switch(&e->main, &e->fibers[fiber]);
    while (e->want_array && serve_array(e))
      simt_fiber_switch(&e->main, &e->fibers[fiber]);
  }
  e->running = false;
}

/* --- One launch --------------------------------------------------------------------------------------------------*/
static void destroy(void *executor_of_thread) {
  executor *e = static_cast<executor *>(executor_of_thread);
  if (e == nullptr)
    return;
  for (int i = 0; i < e->nfibers; i++)
    simt_fiber_destroy(&e->fibers[i]);
  free(e->fibers);
  free(e->free_fibers);
  free(e->threads);
  free(e->ready);
  free(e->old);
  free(e);
}

static pthread_key_t at_exit_key;
static pthread_once_t at_exit_once = PTHREAD_ONCE_INIT;

static executor *get_executor() {
  if (self != nullptr)
    return self;
  executor *e = static_cast<executor *>(calloc(1, sizeof *e));
  if (e == nullptr)
    return nullptr;
  e->fibers = static_cast<simt_fiber *>(calloc(MOST_FIBERS, sizeof *e->fibers));
  e->free_fibers = static_cast<int *>(calloc(MOST_FIBERS, sizeof *e->free_fibers));
  e->threads = static_cast<thread *>(calloc(MOST_THREADS, sizeof *e->threads));
  e->ready = static_cast<int *>(calloc(MOST_THREADS, sizeof *e->ready));
  pthread_once(&at_exit_once, [] { pthread_key_create(&at_exit_key, destroy); });
  if (e->fibers == nullptr || e->free_fibers == nullptr || e->threads == nullptr || e->ready == nullptr) {
    destroy(e);
    return nullptr;
  }
  pthread_setspecific(at_exit_key, e);
  return self = e;
}

static unsigned coprime_step(executor *e, unsigned n) {
  for (;;) {
    unsigned a = static_cast<unsigned>(next_random(e) % n), b = n;
    unsigned step = a;
    while (b != 0) {
      unsigned c = a % b;
      a = b;
      b = c;
    }
    if (a == 1)
      return step; // 0 where n is 1
  }
}

static bool run_block(executor *e, unsigned block) {
  const simt_launch *l = e->launch;
  blockIdx = {block % l->grid[0], block / l->grid[0] % l->grid[1], block / (l->grid[0] * l->grid[1])};
  e->done = e->started = e->arrived = e->nready = e->npaused = e->ready_head = e->narrays = e->nmbarriers = 0;
  e->shared_bytes = 0;
  e->order_next = order_seed == 0 ? 0 : static_cast<unsigned>(next_random(e) % static_cast<unsigned>(e->n));
  e->order_step = order_seed == 0 ? 1 : coprime_step(e, static_cast<unsigned>(e->n));
  for (int t = 0; t < e->n; t++)
    e->threads[t].at = IDLE;
  for (int w = 0; w < (e->n + 31) / 32; w++)
    e->warps[w].n = 0;
  e->dynamic = nullptr;
  if (l->shared > 0 && (e->dynamic = allocate(e, l->shared, 128)) == nullptr)
    return false;
  simt_release(&e->begin);
  run_threads(e);
  if (!simt_tsan()) {
    while (e->nold > 0)
      free(e->old[--e->nold]);
  }
  drop_all(e);
  return !e->failed;
}

static size_t allowed_shared(const void *kernel) {
  for (int i = 0; i < nallowances; i++)
    if (allowances[i].kernel == kernel)
      return allowances[i].bytes;
  return SHARED_STATIC;
}

/* As many fibers as threads, and all of them at their beginning where an error left them in the middle. */
static bool prepare_fibers(executor *e) {
  for (; e->nfibers < e->n + SPARE_FIBERS; e->nfibers++)
    if (!simt_fiber_create(&e->fibers[e->nfibers], STACK, static_cast<size_t>(e->nfibers) % 32 * 128))
      return false;
  e->nfree = e->free_head = 0;
  for (int i = 0; i < e->nfibers; i++) {
    if (e->failed)
      e->fibers[i].sp = nullptr;
    give_fiber(e, i);
  }
  e->failed = false;
  e->error = 0;
  return true;
}

/* Refuses what a GPU refuses when it is launched. */
static int check(const simt_launch *l) {
  uint64_t threads = static_cast<uint64_t>(l->block[0]) * l->block[1] * l->block[2];
  if (threads == 0 || threads > MOST_THREADS || l->block[2] > 64 || l->grid[0] > 0x7fffffffu || l->grid[1] > 65535 ||
      l->grid[2] > 65535)
    return cudaErrorInvalidConfiguration;
  return l->shared > allowed_shared(l->kernel) ? cudaErrorInvalidValue : cudaSuccess;
}

int launch(simt_launch *l) {
  int status = check(l);
  if (status == cudaSuccess && enqueue != nullptr) {
    status = enqueue(enqueue_user, l);
    if (status == cudaSuccess)
      return status;
  } else if (status == cudaSuccess)
    status = simt_run(l);
  simt_free(l);
  return status;
}

int allow_shared(const void *kernel, size_t bytes) {
  static char lock;
  if (bytes > SHARED_MOST)
    return cudaErrorInvalidValue;
  while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
  }
  int i = 0;
  while (i < nallowances && allowances[i].kernel != kernel)
    i++;
  bool fits = i < static_cast<int>(sizeof allowances / sizeof *allowances);
  if (fits) {
    allowances[i] = {kernel, bytes < SHARED_STATIC ? SHARED_STATIC : bytes};
    nallowances = i == nallowances ? i + 1 : nallowances;
  }
  __atomic_clear(&lock, __ATOMIC_RELEASE);
  return fits ? cudaSuccess : cudaErrorMemoryAllocation;
}

void *shared_array(const void *key, size_t bytes, size_t alignment) {
  executor *e = self;
  int i = 0;
  while (i < e->narrays && e->arrays[i].key != key)
    i++;
  if (i == e->narrays) {
    e->wanted = {key, nullptr, bytes};
    e->wanted_alignment = alignment;
    e->want_array = true;
    wait(e);
  }
  simt_acquire(&e->arrays[0]);
  return e->arrays[i].memory;
}
void *shared_dynamic(void) { return self->dynamic; }

void misaligned(const void *address, size_t bytes, site at) {
  set_error("thread %d at %s:%d: %zu bytes at %p, which is not aligned to them", self->now, base_name(at.file), at.line,
            bytes, address);
  self->error = cudaErrorMisalignedAddress;
  fail(self);
}

} // namespace simt

/* Kernels are compiled with -fsanitize=alignment, whose runtime this is: plain loads and stores of vectors must be
 * aligned, as on the GPU. The layout is the compiler's. */
struct type_mismatch {
  const char *file;
  uint32_t line, column;
  const void *type;
  unsigned char log_alignment, kind;
};
extern "C" __attribute__((weak)) void __ubsan_handle_type_mismatch_v1(type_mismatch *what, uintptr_t address) {
  size_t bytes = static_cast<size_t>(1) << what->log_alignment;
  if (simt::self != nullptr && simt::self->running)
    simt::misaligned(reinterpret_cast<const void *>(address), bytes, {what->file, static_cast<int>(what->line)});
  fprintf(stderr, "%s:%u: %zu bytes at %#zx, which is not aligned to them\n", what->file, what->line, bytes,
          static_cast<size_t>(address));
  abort();
}

using namespace simt;

int simt_run(simt_launch *launch) {
  executor *e = get_executor();
  if (e == nullptr ||
      (e->n = static_cast<int>(launch->block[0] * launch->block[1] * launch->block[2]), !prepare_fibers(e)))
    return cudaErrorMemoryAllocation;
  e->launch = static_cast<launch_base *>(launch);
  e->random = order_seed;
  blockDim = {launch->block[0], launch->block[1], launch->block[2]};
  gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
  unsigned blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
  unsigned first = order_seed == 0 ? 0 : static_cast<unsigned>(next_random(e) % blocks);
  unsigned step = order_seed == 0 ? 1 : coprime_step(e, blocks);
  for (unsigned i = 0; i < blocks; i++)
    if (!run_block(e, static_cast<unsigned>((first + static_cast<uint64_t>(i) * step) % blocks)))
      break;
  simt_acquire(&e->end);
  while (e->nold > 0)
    free(e->old[--e->nold]);
  add_count(&counts.launches, 1);
  add_count(&counts.blocks, blocks);
  add_count(&counts.switches, e->switches);
  e->switches = 0;
  add_count(&counts.threads, static_cast<int64_t>(blocks) * e->n);
  if (!e->failed)
    return cudaSuccess;
  if (e->error != SIMT_POLLS)
    fprintf(stderr, "%s\n", error_text);
  return e->error != 0 ? e->error : cudaErrorLaunchFailure;
}

static int64_t load_that_fails; // by its number, from 1
static int load_error;

void simt_fail_load(int64_t n, int error) {
  load_that_fails = simt_get_counts().loads + n;
  load_error = error;
}

int simt::load_code() {
  const int64_t number = __atomic_add_fetch(&counts.loads, 1, __ATOMIC_RELAXED);
  return number == load_that_fails ? load_error : static_cast<int>(cudaSuccess);
}

void simt_abort(int error, const char *text) {
  set_error("%s", text);
  self->error = error;
  fail(self);
}

static bool polls_end;

void simt_set_polls(bool end) { polls_end = end; }

/* The other threads of the block go on first: one of them may store what this one, or somebody else, waits for. */
void simt::pause() {
  executor *e = self;
  if (polls_end && e->threads[e->now].pauses++ == MOST_PAUSES) {
    e->error = SIMT_POLLS;
    fail(e);
  }
  make_ready(e, e->now);
  e->npaused++;
  wait(e);
  e->npaused--;
}

static bool is_within(uintptr_t at, size_t bytes, const void *begin, size_t size) {
  uintptr_t from = reinterpret_cast<uintptr_t>(begin);
  return begin != nullptr && at >= from && at - from <= size && bytes <= size - (at - from);
}

bool simt_owns(const void *p, size_t bytes) {
  uintptr_t at = reinterpret_cast<uintptr_t>(p);
  const executor *e = self;
  for (int i = 0; i < e->narrays; i++) // most are asked for
    if (is_within(at, bytes, e->arrays[i].memory, e->arrays[i].bytes))
      return true;
  if (is_within(at, bytes, &threadIdx, sizeof threadIdx) || is_within(at, bytes, &blockIdx, sizeof blockIdx))
    return true;
  const simt_fiber *fiber = &e->fibers[e->threads[e->now].fiber];
  if (is_within(at, bytes, fiber->stack, fiber->bytes) || is_within(at, bytes, e->launch, e->launch->object_bytes) ||
      is_within(at, bytes, e->dynamic, e->launch->shared))
    return true;
  return is_within(at, bytes, &blockDim, sizeof blockDim) || is_within(at, bytes, &gridDim, sizeof gridDim);
}

void simt_free(simt_launch *launch) { delete static_cast<launch_base *>(launch); }
void simt_set_enqueue(simt_enqueue hook, void *user) {
  enqueue = hook;
  enqueue_user = user;
}
const char *simt_error_text(void) { return error_text; }
void simt_set_order(uint64_t seed) { order_seed = seed; }
simt_counts simt_get_counts(void) { return counts; }
