/* The virtual GPU itself: streams of all kinds, copies, memory, host functions, faults, counters. */
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

CASE(no_device) {
  int n = 7;
  void *p;
  assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
  assert_int_equal(cudaMalloc(&p, 1), cudaErrorNoDevice);
  vg_begin(&(vg_options){.devices = -1});
  assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
  OK(cudaDriverGetVersion(&n));
  assert_int_equal(n, 0);
  assert_int_equal(vg_end(), 0);
  vg_begin(&(vg_options){.no_device = true});
  assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
  OK(cudaDriverGetVersion(&n));
  assert_int_equal(n, CUDART_VERSION);
  assert_int_equal(vg_end(), 0);
}

CASE(devices_have_numbers_and_reach_each_other) {
  vg_begin(&(vg_options){.devices = 3});
  int n, device, can;
  OK(cudaGetDeviceCount(&n));
  assert_int_equal(n, 3);
  assert_int_equal(cudaSetDevice(3), cudaErrorInvalidDevice);
  assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_string_equal(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
  OK(cudaSetDevice(2));
  OK(cudaGetDevice(&device));
  assert_int_equal(device, 2);
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  assert_int_equal(can, 1);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  cudaEvent_t e; /* of device 2 */
  cudaStream_t s;
  OK(cudaEventCreate(&e));
  OK(cudaSetDevice(0));
  OK(cudaStreamCreate(&s));
  assert_int_equal(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
  OK(cudaStreamWaitEvent(s, e, 0));
  OK(cudaEventDestroy(e));
  OK(cudaStreamDestroy(s));
  assert_int_equal(vg_end(), 0);
}

CASE(copies_move_data) {
  for (uint64_t seed = 0; seed < 50; seed++) {
    vg_begin(&(vg_options){.seed = seed});
    cudaStream_t a, b;
    cudaEvent_t e;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    char *x, *y, host[100], back[100];
    OK(cudaMalloc((void **)&x, 100));
    OK(cudaMallocAsync((void **)&y, 100, b));
    for (int i = 0; i < 100; i++)
      host[i] = (char)(i * 3 + (int)seed);
    OK(cudaMemcpyAsync(x, host, 100, cudaMemcpyHostToDevice, a));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(cudaMemcpyAsync(y, x, 100, cudaMemcpyDeviceToDevice, b));
    OK(cudaMemcpyAsync(back, y, 100, cudaMemcpyDeviceToHost, b));
    OK(cudaStreamSynchronize(b));
    assert_memory_equal(host, back, 100);
    assert_int_equal(cudaMemcpyAsync(y, x, 100, cudaMemcpyHostToDevice, b), cudaErrorInvalidMemcpyDirection);
    OK(cudaFreeAsync(y, b));
    OK(cudaFree(x));
    OK(cudaEventDestroy(e));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    assert_int_equal(vg_end(), 0);
  }
}

/* Work is late: it runs when the host waits for it, and some seeds leave what nobody waits for. */
CASE(nothing_runs_before_it_has_to) {
  int early = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    vg_begin(&(vg_options){.seed = seed});
    cudaStream_t a, b;
    char *x, *y, seen = 0;
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&x, 1));
    OK(cudaMalloc((void **)&y, 1));
    OK(cudaMemsetAsync(x, 1, 1, a));
    OK(cudaMemsetAsync(y, 1, 1, b));
    vg_peek(&seen, x, 1);
    assert_int_not_equal(seen, 1);
    OK(cudaStreamSynchronize(a));
    vg_peek(&seen, x, 1);
    assert_int_equal(seen, 1);
    vg_peek(&seen, y, 1);
    early += seen == 1;
    while (cudaStreamQuery(b) == cudaErrorNotReady)
      assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    assert_int_equal(vg_end(), 0);
  }
  assert_in_range(early, 1, 39);
}

/* first and second are streams; a write on one and a read on the other, ordered or not by the default stream's rules.
 */
static int races(cudaStream_t first, cudaStream_t second, bool between) {
  char *x;
  OK(cudaMalloc((void **)&x, 16));
  OK(cudaMemsetAsync(x, 1, 16, first));
  if (between) /* work on the default stream, of something else */
    OK(cudaMemsetAsync(x + 8, 1, 1, cudaStreamLegacy));
  OK(cudaMemcpyAsync(x + 12, x, 4, cudaMemcpyDefault, second));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(x));
  static int before;
  int n = vg_reports() - before;
  before = vg_reports();
  return n > 0;
}

CASE(default_streams) {
  if (!vg_sees_kernels())
    skip(); /* nothing is checked */
  vg_quiet(true);
  vg_begin(NULL);
  cudaStream_t blocking, other, side;
  OK(cudaStreamCreate(&blocking));
  OK(cudaStreamCreate(&other));
  OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  assert_int_equal(races(NULL, blocking, false), 0);
  assert_int_equal(races(blocking, NULL, false), 0);
  assert_int_equal(races(cudaStreamLegacy, NULL, false), 0);
  assert_int_equal(races(cudaStreamPerThread, NULL, false), 0);
  assert_int_equal(races(NULL, cudaStreamPerThread, false), 0);
  assert_int_equal(races(blocking, other, true), 0);
  assert_int_equal(races(blocking, other, false), 1);
  assert_int_equal(races(cudaStreamPerThread, blocking, false), 1);
  assert_int_equal(races(NULL, side, false), 1);
  assert_int_equal(races(side, NULL, false), 1);
  OK(cudaStreamDestroy(blocking));
  OK(cudaStreamDestroy(other));
  OK(cudaStreamDestroy(side));
  vg_end();
  vg_quiet(false);
}

static void store(void *at) { *(int *)at += 5; }

CASE(host_functions) {
  vg_begin(NULL);
  cudaStream_t s;
  int value = 1;
  OK(cudaStreamCreate(&s));
  OK(cudaLaunchHostFunc(s, store, &value));
  OK(cudaLaunchHostFunc(s, store, &value));
  assert_int_equal(value, 1);
  OK(cudaStreamSynchronize(s));
  assert_int_equal(value, 11);
  OK(cudaStreamDestroy(s));
  assert_int_equal(vg_end(), 0);
}

CASE(memory_has_a_limit) {
  vg_begin(&(vg_options){.devices = 2, .memory = 1000});
  cudaStream_t s;
  void *a, *b, *c;
  size_t free, total;
  OK(cudaStreamCreate(&s));
  OK(cudaMalloc(&a, 600));
  assert_int_equal(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
  assert_null(b);
  OK(cudaMallocAsync(&b, 400, s));
  OK(cudaMemGetInfo(&free, &total));
  assert_int_equal(free, 0);
  assert_int_equal(total, 1000);
  OK(cudaHostAlloc(&c, 5000, 0));
  OK(cudaFreeHost(c));
  OK(cudaFreeAsync(b, s));
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&c, 1000));
  OK(cudaFree(c));
  OK(cudaSetDevice(0));
  assert_int_equal(vg_memory_used(0), 600);
  assert_int_equal(vg_memory_peak(0), 1000);
  assert_int_equal(vg_memory_peak(1), 1000);
  vg_reset_peak(0);
  assert_int_equal(vg_memory_peak(0), 600);
  OK(cudaFree(a));
  OK(cudaStreamDestroy(s));
  assert_int_equal(vg_end(), 0);
}

CASE(memory_pools_give_memory_by_streams) {
  vg_begin(&(vg_options){.devices = 2});
  cudaMemPool_t pool;
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                   .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
  struct cudaMemAccessDesc access = {.location = {.type = cudaMemLocationTypeDevice, .id = 1},
                                     .flags = cudaMemAccessFlagsProtReadWrite};
  uint64_t threshold = UINT64_MAX, got = 0;
  OK(cudaMemPoolCreate(&pool, &props));
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got));
  assert_true(got == UINT64_MAX);
  OK(cudaMemPoolSetAccess(pool, &access, 1));
  cudaStream_t s, t;
  char *p;
  OK(cudaStreamCreate(&s));
  OK(cudaMallocFromPoolAsync((void **)&p, 100, pool, s));
  OK(cudaStreamSynchronize(s));
  OK(cudaSetDevice(1));
  OK(cudaStreamCreate(&t));
  OK(cudaMemsetAsync(p, 1, 100, t)); /* of the other GPU */
  OK(cudaStreamSynchronize(t));
  OK(cudaSetDevice(0));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &got));
  assert_int_equal(got, 100);
  OK(cudaFreeAsync(p, s));
  OK(cudaMemPoolTrimTo(pool, 0));
  OK(cudaMemPoolDestroy(pool));
  OK(cudaStreamDestroy(s));
  OK(cudaStreamDestroy(t));
  assert_int_equal(vg_end(), 0);
}

CASE(calls_are_counted) {
  vg_begin(NULL);
  cudaStream_t s;
  void *p, *q;
  char pageable[8] = {0};
  vg_counts before = vg_count();
  assert_int_equal(before.calls, 0);
  OK(cudaStreamCreate(&s));
  OK(cudaMalloc(&p, 8));
  OK(cudaMallocAsync(&q, 8, s));
  OK(cudaMemcpyAsync(p, pageable, 8, cudaMemcpyDefault, s));
  OK(cudaStreamSynchronize(s));
  OK(cudaFreeAsync(q, s));
  OK(cudaFree(p));
  OK(cudaStreamDestroy(s));
  (void)cudaGetLastError();
  vg_counts c = vg_count();
  assert_int_equal(c.calls, 8);
  assert_int_equal(c.allocs, 2);
  assert_int_equal(c.frees, 2);
  assert_int_equal(c.host_syncs, 3); /* the copy from pageable memory, the synchronisation, cudaFree */
  assert_int_equal(c.pageable_copies, 1);
  assert_int_equal(vg_calls("cudaMalloc"), 1);
  assert_int_equal(vg_calls("cudaMalloc*"), 2);
  assert_int_equal(vg_end(), 0);
}

static cudaError_t a_few_calls(void) {
  void *p = NULL;
  cudaStream_t s = NULL;
  cudaError_t error = cudaStreamCreate(&s);
  if (error == cudaSuccess)
    error = cudaMalloc(&p, 8);
  if (error == cudaSuccess)
    error = cudaMemsetAsync(p, 1, 8, s);
  if (error == cudaSuccess)
    error = cudaStreamSynchronize(s);
  cudaError_t freed = p ? cudaFree(p) : cudaSuccess;
  cudaError_t destroyed = s ? cudaStreamDestroy(s) : cudaSuccess;
  return error != cudaSuccess ? error : freed != cudaSuccess ? freed : destroyed;
}

CASE(the_kth_call_fails) {
  int k = 1;
  for (;; k++) {
    vg_begin(&(vg_options){.no_check = true});
    vg_fail(NULL, k, false, 0);
    cudaError_t error = a_few_calls();
    bool failed = vg_failed() > 0;
    assert_int_equal(error != cudaSuccess, failed);
    if (k == 2)
      assert_int_equal(error, cudaErrorMemoryAllocation);
    vg_fail(NULL, 0, false, 0);
    assert_int_equal(vg_end(), 0); /* nothing is left behind, and freeing frees */
    if (!failed)
      break;
  }
  assert_int_equal(k, 7);
  vg_begin(NULL);
  void *p;
  vg_fail("cudaMalloc", 2, true, cudaErrorUnknown);
  OK(cudaMalloc(&p, 8));
  OK(cudaFree(p));
  assert_int_equal(cudaMalloc(&p, 8), cudaErrorUnknown);
  assert_int_equal(cudaMalloc(&p, 8), cudaErrorUnknown);
  vg_fail(NULL, 0, false, 0);
  OK(cudaMalloc(&p, 8));
  OK(cudaFree(p));
  assert_int_equal(vg_end(), 0);
}

CASE(pointers_say_where_they_are) {
  vg_begin(&(vg_options){.devices = 2});
  struct cudaPointerAttributes at;
  void *p, *q;
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&p, 8));
  OK(cudaHostAlloc(&q, 8, 0));
  OK(cudaPointerGetAttributes(&at, (char *)p + 7));
  assert_int_equal(at.type, cudaMemoryTypeDevice);
  assert_int_equal(at.device, 1);
  OK(cudaPointerGetAttributes(&at, q));
  assert_int_equal(at.type, cudaMemoryTypeHost);
  OK(cudaPointerGetAttributes(&at, &at));
  assert_int_equal(at.type, cudaMemoryTypeUnregistered);
  OK(cudaFree(p));
  OK(cudaFreeHost(q));
  assert_int_equal(vg_end(), 0);
}

/* One after the other takes the sum, side by side the longer one; whatever the schedule. */
CASE(things_take_time) {
  enum { LONG = 3 << 20, SHORT = 1 << 20 };
  float sum = 0, longer = 0, shorter = 0, beside = 0;
  for (int policy = VG_RANDOM; policy <= VG_IN_ORDER; policy++) {
    vg_begin(&(vg_options){.seed = (uint64_t)policy, .policy = (vg_policy)policy});
    cudaStream_t s[2];
    cudaEvent_t e[5];
    void *p, *q;
    OK(cudaMalloc(&p, LONG));
    OK(cudaMalloc(&q, SHORT));
    for (int i = 0; i < 5; i++)
      OK(cudaEventCreate(&e[i]));
    for (int i = 0; i < 2; i++)
      OK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
    OK(cudaEventRecord(e[0], s[0]));
    OK(cudaMemsetAsync(p, 1, LONG, s[0]));
    OK(cudaEventRecord(e[1], s[0]));
    OK(cudaMemsetAsync(q, 1, SHORT, s[0]));
    OK(cudaEventRecord(e[2], s[0]));
    OK(cudaStreamWaitEvent(s[1], e[2], 0));
    OK(cudaMemsetAsync(p, 1, LONG, s[0]));
    OK(cudaMemsetAsync(q, 1, SHORT, s[1]));
    OK(cudaEventRecord(e[3], s[1]));
    OK(cudaStreamWaitEvent(s[0], e[3], 0));
    OK(cudaEventRecord(e[4], s[0]));
    OK(cudaDeviceSynchronize());
    OK(cudaEventElapsedTime(&longer, e[0], e[1]));
    OK(cudaEventElapsedTime(&shorter, e[1], e[2]));
    OK(cudaEventElapsedTime(&sum, e[0], e[2]));
    OK(cudaEventElapsedTime(&beside, e[2], e[4]));
    assert_true(longer > shorter && shorter > 0);
    assert_float_equal(sum, longer + shorter, 1e-6);
    assert_float_equal(beside, longer, 1e-6);
    OK(cudaEventElapsedTime(&beside, e[2], e[3]));
    assert_float_equal(beside, shorter, 1e-6);
    for (int i = 0; i < 5; i++)
      OK(cudaEventDestroy(e[i]));
    for (int i = 0; i < 2; i++)
      OK(cudaStreamDestroy(s[i]));
    OK(cudaFree(p));
    OK(cudaFree(q));
    assert_int_equal(vg_end(), 0);
  }
}

RUN_CASES
