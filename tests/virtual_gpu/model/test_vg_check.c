/* Mistakes that the checker finds: each is planted once, with the report that it has to make. */
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "expect_reports.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

/* Two side streams, an event, two pieces of device memory that are written, and pinned memory. */
typedef struct bench {
  cudaStream_t a, b;
  cudaEvent_t e;
  char *x, *y, *pinned;
} bench;

static bench bench_begin(vg_options options) {
  bench t;
  vg_quiet(true);
  vg_begin(&options);
  OK(cudaStreamCreateWithFlags(&t.a, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&t.b, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&t.e, cudaEventDisableTiming));
  OK(cudaMalloc((void **)&t.x, 100));
  OK(cudaMalloc((void **)&t.y, 100));
  OK(cudaHostAlloc((void **)&t.pinned, 100, cudaHostAllocDefault));
  vg_host_write(t.pinned, 100);
  OK(cudaMemset(t.x, 1, 100));
  OK(cudaMemset(t.y, 2, 100));
  OK(cudaDeviceSynchronize());
  return t;
}

/* Ends the test: `n` reports, all with these words. */
static void end_machine(bench *t, int n, const char *words) {
  OK(cudaDeviceSynchronize());
  if (t->x)
    OK(cudaFree(t->x));
  if (t->y)
    OK(cudaFree(t->y));
  OK(cudaFreeHost(t->pinned));
  OK(cudaEventDestroy(t->e));
  OK(cudaStreamDestroy(t->a));
  OK(cudaStreamDestroy(t->b));
  expect_reports(n, words);
  vg_quiet(false);
}

#define COPY(to, from, n, stream) OK(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream))

CASE(write_and_write) {
  bench t = bench_begin((vg_options){0});
  vg_name_stream(t.a, "pack");
  OK(cudaMemsetAsync(t.x, 1, 60, t.a));
  OK(cudaMemsetAsync(t.x + 50, 1, 50, t.b));
  end_machine(&t, 1, "race: write cudaMemsetAsync pack [50,60)");
}

CASE(read_and_write) {
  bench t = bench_begin((vg_options){0});
  COPY(t.y, t.x, 100, t.a);
  OK(cudaMemsetAsync(t.x, 1, 1, t.b));
  end_machine(&t, 1, "race: read cudaMemcpyAsync write cudaMemsetAsync [0,1)");
}

/* The checker does not need the two to have run in the wrong order. */
CASE(in_any_order) {
  for (int policy = VG_RANDOM; policy <= VG_IN_ORDER; policy++)
    for (uint64_t seed = 0; seed < 10; seed++) {
      bench t = bench_begin((vg_options){.policy = (vg_policy)policy, .seed = seed});
      OK(cudaMemsetAsync(t.x, 1, 100, t.a));
      COPY(t.y, t.x, 100, t.b);
      end_machine(&t, 1, "race");
    }
}

CASE(a_stale_event) {
  bench t = bench_begin((vg_options){0});
  OK(cudaEventRecord(t.e, t.a));
  OK(cudaMemsetAsync(t.x, 1, 100, t.a)); /* after the record */
  OK(cudaStreamWaitEvent(t.b, t.e, 0));
  COPY(t.y, t.x, 100, t.b);
  end_machine(&t, 1, "race: write cudaMemsetAsync read cudaMemcpyAsync");
}

CASE(an_event_never_recorded) {
  bench t = bench_begin((vg_options){0});
  OK(cudaMemsetAsync(t.x, 1, 100, t.a));
  OK(cudaStreamWaitEvent(t.b, t.e, 0));
  COPY(t.y, t.x, 100, t.b);
  end_machine(&t, 1, "race");
}

CASE(reuse_too_early) {
  bench t = bench_begin((vg_options){0});
  for (int i = 0; i < 3; i++) { /* b reads what a writes; a does not wait for b */
    OK(cudaMemsetAsync(t.x, i, 100, t.a));
    OK(cudaEventRecord(t.e, t.a));
    OK(cudaStreamWaitEvent(t.b, t.e, 0));
    COPY(t.y, t.x, 100, t.b);
  }
  end_machine(&t, 1, "race: read cudaMemcpyAsync write cudaMemsetAsync");
}

CASE(host_reads_too_early) {
  bench t = bench_begin((vg_options){0});
  COPY(t.pinned, t.x, 100, t.a);
  vg_drain(); /* it has run, but the host cannot know */
  vg_host_read(t.pinned, 100);
  end_machine(&t, 1, "race: write cudaMemcpyAsync read host");
}

CASE(host_writes_too_early) {
  bench t = bench_begin((vg_options){0});
  vg_host_write(t.pinned, 100);
  COPY(t.x, t.pinned, 100, t.a);
  vg_host_write(t.pinned, 100); /* before it has been read */
  end_machine(&t, 1, "race: read cudaMemcpyAsync write host");
}

CASE(host_waits_for_another_stream) {
  bench t = bench_begin((vg_options){0});
  COPY(t.pinned, t.x, 100, t.a);
  OK(cudaStreamSynchronize(t.b));
  vg_host_read(t.pinned, 100);
  end_machine(&t, 1, "race: write cudaMemcpyAsync read host");
}

/* The C library's copies are seen without being told. */
CASE(host_copies_too_early) {
  bench t = bench_begin((vg_options){0});
  char *volatile pinned = t.pinned;
  volatile size_t n = 100;
  char here[100];
  COPY(t.pinned, t.x, 100, t.a);
  memcpy(here, pinned, n);
  OK(cudaStreamSynchronize(t.a));
  memcpy(here, pinned, n);
  memset(pinned, 1, n);
  end_machine(&t, 1, "race: write cudaMemcpyAsync read host");
}

CASE(host_touches_device_memory) {
  bench t = bench_begin((vg_options){0});
  vg_host_read(t.x, 4);
  end_machine(&t, 1, "host: device");
}

CASE(never_written) {
  bench t = bench_begin((vg_options){0});
  char *z;
  OK(cudaMalloc((void **)&z, 100));
  OK(cudaMemsetAsync(z, 0, 50, t.a));
  COPY(t.x, z, 50, t.a);
  COPY(t.x, z + 40, 20, t.a);
  OK(cudaDeviceSynchronize());
  OK(cudaFree(z));
  end_machine(&t, 1, "undefined: [50,60)");
}

CASE(undefined_again) {
  bench t = bench_begin((vg_options){0});
  vg_undefine(t.x + 10, 10);
  COPY(t.y, t.x, 10, t.a);
  COPY(t.y, t.x, 11, t.a);
  end_machine(&t, 1, "undefined: [10,11)");
}

CASE(use_after_free) {
  bench t = bench_begin((vg_options){0});
  char *z = t.x;
  OK(cudaFree(t.x));
  t.x = NULL;
  COPY(t.y, z, 100, t.a);
  end_machine(&t, 1, "use after free: read cudaMemcpyAsync freed by cudaFree");
}

CASE(use_after_free_in_order) {
  bench t = bench_begin((vg_options){0});
  OK(cudaFreeAsync(t.x, t.a));
  OK(cudaMemsetAsync(t.x, 1, 1, t.a));
  t.x = NULL;
  end_machine(&t, 1, "use after free: write cudaMemsetAsync freed by cudaFreeAsync");
}

CASE(free_in_use) {
  bench t = bench_begin((vg_options){0});
  OK(cudaMemsetAsync(t.x, 1, 100, t.a));
  OK(cudaFree(t.x)); /* nothing has waited for a */
  t.x = NULL;
  end_machine(&t, 1, "free while in use cudaMemsetAsync cudaFree");
}

CASE(free_in_use_elsewhere) {
  for (uint64_t seed = 0; seed < 10; seed++) {
    bench t = bench_begin((vg_options){.seed = seed});
    OK(cudaMemsetAsync(t.x, 1, 100, t.a));
    OK(cudaFreeAsync(t.x, t.b));
    t.x = NULL;
    end_machine(&t, 1, "free while in use cudaMemsetAsync cudaFreeAsync");
  }
}

CASE(used_before_its_allocation) {
  bench t = bench_begin((vg_options){0});
  char *z;
  OK(cudaMallocAsync((void **)&z, 100, t.a));
  OK(cudaMemsetAsync(z, 1, 100, t.b)); /* not in the order of a */
  OK(cudaDeviceSynchronize());
  OK(cudaFreeAsync(z, t.a));
  end_machine(&t, 1, "race: cudaMallocAsync cudaMemsetAsync");
}

CASE(out_of_bounds) {
  bench t = bench_begin((vg_options){0});
  assert_int_equal(cudaMemsetAsync(t.x + 90, 1, 11, t.a), cudaErrorInvalidValue);
  (void)cudaGetLastError();
  end_machine(&t, 1, "out of bounds: cudaMemsetAsync");
}

CASE(no_peer_access) {
  bench t = bench_begin((vg_options){.devices = 2});
  OK(cudaSetDevice(1));
  cudaStream_t s;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  OK(cudaMemcpyAsync(t.y, t.x, 100, cudaMemcpyDeviceToDevice, s)); /* a copy may */
  OK(cudaMemsetAsync(t.x, 1, 100, s));
  OK(cudaDeviceSynchronize());
  OK(cudaStreamDestroy(s));
  OK(cudaSetDevice(0));
  end_machine(&t, 1, "peer: write cudaMemsetAsync");
}

CASE(destroyed_handles) {
  bench t = bench_begin((vg_options){0});
  cudaEvent_t e;
  cudaStream_t s;
  OK(cudaEventCreate(&e));
  OK(cudaEventRecord(e, t.a));
  OK(cudaEventDestroy(e));
  assert_int_equal(cudaStreamWaitEvent(t.b, e, 0), cudaErrorInvalidResourceHandle);
  OK(cudaStreamCreate(&s));
  OK(cudaStreamDestroy(s));
  assert_int_equal(cudaStreamDestroy(s), cudaErrorInvalidResourceHandle);
  assert_int_equal(cudaFreeAsync(t.x + 1, t.a), cudaErrorInvalidValue);
  (void)cudaGetLastError();
  end_machine(&t, 3, "misuse:");
}

CASE(leaked_streams_events_and_memory_are_reported) {
  vg_quiet(true);
  vg_begin(NULL);
  cudaStream_t s;
  cudaEvent_t e;
  void *p;
  OK(cudaStreamCreate(&s));
  OK(cudaEventCreate(&e));
  OK(cudaMalloc(&p, 10));
  OK(cudaMallocAsync(&p, 10, s));
  assert_int_equal(vg_end(), 3);
  assert_int_equal(vg_reports_with("leak: 2 allocations, 20 bytes"), 1);
  assert_int_equal(vg_reports_with("leak: stream"), 1);
  assert_int_equal(vg_reports_with("leak: 1 of 1 events"), 1);
  vg_quiet(false);
}

/* --- Order between threads of the host ---------------------------------------------------------------------------- */
typedef struct pair {
  bench t;
  bool by_mutex;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  bool ready;
} pair;

static void *records(void *argument) {
  pair *p = argument;
  cudaMemsetAsync(p->t.x, 1, 100, p->t.a);
  cudaEventRecord(p->t.e, p->t.a);
  if (p->by_mutex) {
    pthread_mutex_lock(&p->mutex);
    p->ready = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
  } else
    __atomic_store_n(&p->ready, true, __ATOMIC_RELEASE);
  return NULL;
}

static void another_thread_records(bool by_mutex) {
  pair p = {.t = bench_begin((vg_options){0}),
            .by_mutex = by_mutex,
            .mutex = PTHREAD_MUTEX_INITIALIZER,
            .cond = PTHREAD_COND_INITIALIZER};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, records, &p), 0);
  if (by_mutex) {
    pthread_mutex_lock(&p.mutex);
    while (!p.ready)
      pthread_cond_wait(&p.cond, &p.mutex);
    pthread_mutex_unlock(&p.mutex);
  } else
    while (!__atomic_load_n(&p.ready, __ATOMIC_ACQUIRE))
      sched_yield();
  OK(cudaStreamWaitEvent(p.t.b, p.t.e, 0));
  COPY(p.t.y, p.t.x, 100, p.t.b);
  pthread_join(thread, NULL);
  end_machine(&p.t, by_mutex ? 0 : 1, "host: waits for an event");
}

CASE(a_mutex_orders_threads) { another_thread_records(true); }

CASE(what_is_not_seen_does_not) { another_thread_records(false); }

static void *synchronises(void *argument) {
  bench *t = argument;
  COPY(t->pinned, t->x, 100, t->a);
  cudaStreamSynchronize(t->a);
  return NULL;
}

CASE(joining_brings_what_a_thread_knew) {
  bench t = bench_begin((vg_options){0});
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, synchronises, &t), 0);
  pthread_join(thread, NULL);
  vg_host_read(t.pinned, 100);
  end_machine(&t, 0, "");
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
