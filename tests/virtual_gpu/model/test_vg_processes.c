/* Processes of the virtual GPU, as threads: memory of one that another one has opened by CUDA IPC, kernels that order
 * themselves by words of it, and the mistakes that are reported. */
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "expect_reports.h"
#include "planted.h"

#define OK(call) assert_int_equal(call, cudaSuccess)
enum { BYTES = 5000 };

/* The exporter is the main thread, process 0. */
typedef struct pair {
  cudaIpcMemHandle_t data, word;
  char *raw;
  int wrong; /* 0: nothing is */
  bool waits;
  int way; /* of the host's wait */
} pair;

static char *export_memory(size_t bytes, cudaIpcMemHandle_t *handle) {
  char *at;
  OK(cudaMalloc((void **)&at, bytes));
  OK(cudaMemset(at, 0, bytes));
  OK(cudaDeviceSynchronize());
  OK(cudaIpcGetMemHandle(handle, at));
  return at;
}

static int run(void *(*process)(void *), pair *p) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, process, p), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  return p->wrong;
}

#define NEED(what) \
  do { \
    if (!(what)) { \
      p->wrong = __LINE__; \
      return NULL; \
    } \
  } while (0)

static void *read_import(void *argument) {
  pair *p = argument;
  char *at, *again, *own, here[BYTES];
  cudaStream_t stream;
  struct cudaPointerAttributes attributes;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&at, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&again, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaErrorAlreadyMapped);
  NEED(at != p->raw);
  NEED(cudaPointerGetAttributes(&attributes, at) == cudaSuccess && attributes.type == cudaMemoryTypeDevice);
  NEED(cudaMalloc((void **)&own, BYTES) == cudaSuccess);
  NEED(planted_await(own, at, BYTES, NULL, 0, 0, stream) == cudaSuccess);
  NEED(cudaMemsetAsync(at, 9, 10, stream) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  vg_peek(here, own, BYTES);
  for (int i = 0; i < BYTES; i++)
    NEED(here[i] == (char)(i % 100));
  NEED(cudaIpcCloseMemHandle(at) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&again, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(again) == cudaSuccess);
  NEED(cudaFree(own) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

CASE(memory_of_two_addresses) {
  char here[BYTES];
  pair p = {.wrong = 0};
  for (uint64_t seed = 0; seed < 6; seed++) {
    vg_begin(&(vg_options){.seed = seed});
    p.raw = export_memory(BYTES, &p.data);
    for (int i = 0; i < BYTES; i++)
      here[i] = (char)(i % 100);
    vg_poke(p.raw, here, BYTES);
    assert_int_equal(run(read_import, &p), 0);
    vg_peek(here, p.raw, BYTES);
    assert_int_equal(here[9], 9);
    assert_int_equal(here[10], 10);
    OK(cudaFree(p.raw));
    assert_int_equal(vg_end(), 0);
  }
}

/* Memory of process 0 is exported, misused by another process, and freed. */
static void misuse_exported(void *(*process)(void *)) {
  pair p = {.wrong = 0};
  vg_quiet(true);
  vg_begin(NULL);
  p.raw = export_memory(BYTES, &p.data);
  assert_int_equal(run(process, &p), 0);
  OK(cudaFree(p.raw));
}

static void *use_raw(void *argument) {
  pair *p = argument;
  cudaStream_t stream;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaMemsetAsync(p->raw + 7, 1, 8, stream) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

/* Closed, it stores nothing; its owner may have freed what it reads. */
static void *read_import_late(void *argument) {
  pair *p = argument;
  char *at, *own;
  unsigned *flag, word = 1;
  cudaStream_t stream;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&at, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaMalloc((void **)&own, BYTES) == cudaSuccess && cudaMalloc((void **)&flag, sizeof word) == cudaSuccess);
  vg_poke(flag, &word, sizeof word);
  NEED(planted_late(own, at, BYTES, flag, 0, stream) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(at) == cudaSuccess);
  NEED(cudaFree(own) == cudaSuccess && cudaFree(flag) == cudaSuccess);
  return NULL;
}

CASE(memory_of_another_is_not_read_for_nothing) {
  misuse_exported(read_import_late);
  expect_reports(1, "read after a failed barrier: [0,5000) memory of another process kernel late");
}

CASE(address_of_another) {
  misuse_exported(use_raw);
  expect_reports(1, "another process's address: write cudaMemsetAsync [7,15) process 0");
}

static void *leave_open(void *argument) {
  pair *p = argument;
  char *at;
  vg_process(1);
  NEED(cudaIpcOpenMemHandle((void **)&at, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  return NULL;
}

CASE(free_of_open) {
  misuse_exported(leave_open);
  expect_reports(1, "ipc: cudaFree process 1 has open");
}

static void *close_in_use(void *argument) {
  pair *p = argument;
  char *at;
  cudaStream_t stream;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&at, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaMemsetAsync(at, 1, 8, stream) == cudaSuccess);
  vg_drain(); /* which orders nothing */
  NEED(cudaIpcCloseMemHandle(at) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(at) == cudaErrorInvalidValue);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

CASE(close_while_in_use) {
  misuse_exported(close_in_use);
  assert_int_equal(vg_end(), 2);
  assert_int_equal(vg_reports_with("close while in use: cudaIpcCloseMemHandle cudaMemsetAsync"), 1);
  assert_int_equal(vg_reports_with("misuse: cudaIpcCloseMemHandle nothing open"), 1);
}

static void *use_closed(void *argument) {
  pair *p = argument;
  char *at;
  cudaStream_t stream;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&at, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(at) == cudaSuccess);
  NEED(cudaMemsetAsync(at, 1, 8, stream) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

CASE(use_after_close) {
  misuse_exported(use_closed);
  expect_reports(1, "use after close: write cudaMemsetAsync [0,8)");
}

/* Memory that cannot be exported, and handles that cannot be opened. */
CASE(memory_that_cannot_be_exported_is_refused) {
  char *pooled, *at, *memory;
  cudaIpcMemHandle_t handle;
  vg_begin(NULL);
  OK(cudaMallocAsync((void **)&pooled, 100, NULL));
  assert_int_equal(cudaIpcGetMemHandle(&handle, pooled), cudaErrorInvalidValue);
  memory = export_memory(BYTES, &handle);
  assert_int_equal(cudaIpcGetMemHandle(&handle, memory + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaIpcOpenMemHandle((void **)&at, handle, cudaIpcMemLazyEnablePeerAccess),
                   cudaErrorDeviceUninitialized); /* in the process that has exported it */
  memset(&handle, 1, sizeof handle);
  assert_int_equal(cudaIpcOpenMemHandle((void **)&at, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue);
  assert_int_equal(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
  OK(cudaFree(memory));
  OK(cudaFreeAsync(pooled, NULL));
  OK(cudaDeviceSynchronize());
  vg_quiet(true);
  assert_int_equal(vg_end(), 1);
  assert_int_equal(vg_reports_with("misuse: cudaIpcCloseMemHandle"), 1);
}

/* --- Words by which kernels order themselves ---------------------------------------------------------------------- */

/* Copies what process 0 publishes, when its word says so. */
static void *await_import(void *argument) {
  pair *p = argument;
  char *data, *word, *own, here[BYTES];
  cudaStream_t stream;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaMalloc((void **)&own, BYTES) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&data, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&word, p->word, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(planted_await(own, data, BYTES, (unsigned *)word, 1, p->waits, stream) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  vg_peek(here, own, BYTES);
  for (int i = 0; i < BYTES && p->waits; i++)
    NEED(here[i] == 5);
  NEED(cudaIpcCloseMemHandle(data) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(word) == cudaSuccess);
  NEED(cudaFree(own) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

enum { STREAM, EVENT, DEVICE, WAYS };

/* Awaits the same, waits for that by one call of the host, and writes to what it has read. */
static void *await_and_write(void *argument) {
  pair *p = argument;
  char *data, *word, *own;
  cudaStream_t stream, other;
  cudaEvent_t event;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
  NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  NEED(cudaMalloc((void **)&own, BYTES) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&data, p->data, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(cudaIpcOpenMemHandle((void **)&word, p->word, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
  NEED(planted_await(own, data, BYTES, (unsigned *)word, 1, true, stream) == cudaSuccess);
  NEED(cudaEventRecord(event, stream) == cudaSuccess);
  NEED((p->way == STREAM  ? cudaStreamSynchronize(stream)
        : p->way == EVENT ? cudaEventSynchronize(event)
                          : cudaDeviceSynchronize()) == cudaSuccess);
  NEED(cudaMemsetAsync(data, 1, BYTES, other) == cudaSuccess);
  NEED(cudaStreamSynchronize(other) == cudaSuccess);
  NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(data) == cudaSuccess);
  NEED(cudaIpcCloseMemHandle(word) == cudaSuccess);
  NEED(cudaFree(own) == cudaSuccess);
  NEED(cudaEventDestroy(event) == cudaSuccess);
  NEED(cudaStreamDestroy(other) == cudaSuccess);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

/* Reports under a seed. */
static int publish_for(void *(*process)(void *), uint64_t seed, pair p, bool publishes) {
  char *data, *word, *from;
  cudaStream_t stream;
  pthread_t thread;
  vg_begin(&(vg_options){.seed = seed, .patience_ms = 50});
  data = export_memory(BYTES, &p.data);
  word = export_memory(4, &p.word);
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaMalloc((void **)&from, BYTES));
  OK(cudaMemset(from, 5, BYTES));
  OK(cudaDeviceSynchronize());
  assert_int_equal(pthread_create(&thread, NULL, process, &p), 0);
  if (publishes)
    OK(planted_publish(data, from, BYTES, (unsigned *)word, 1, stream));
  OK(cudaStreamSynchronize(stream));
  assert_int_equal(pthread_join(thread, NULL), 0);
  if (publishes) {
    assert_int_equal(p.wrong, 0);
    OK(cudaFree(data));
    OK(cudaFree(word));
    OK(cudaFree(from));
    OK(cudaStreamDestroy(stream));
  }
  return vg_end();
}

static int publish_and_await(uint64_t seed, bool waits, bool publishes) {
  return publish_for(await_import, seed, (pair){.waits = waits}, publishes);
}

CASE(kernels_that_poll) {
  for (uint64_t seed = 0; seed < 20; seed++)
    assert_int_equal(publish_and_await(seed, true, true), 0);
}

/* The host knows then, too, how a kernel that it waited for was ordered meanwhile. */
CASE(host_that_waits_for_polls) {
  for (int way = 0; way < WAYS; way++)
    for (uint64_t seed = 0; seed < 20; seed++)
      assert_int_equal(publish_for(await_and_write, seed, (pair){.way = way}, true), 0);
}

CASE(kernel_that_does_not_wait) {
  vg_quiet(true);
  for (uint64_t seed = 0; seed < 20; seed++) {
    assert_int_not_equal(publish_and_await(seed, false, true), 0);
    assert_true(vg_reports_with("race: kernel") > 0);
  }
}

CASE(kernel_that_polls_for_ever) {
  vg_quiet(true);
  assert_int_not_equal(publish_and_await(0, true, false), 0);
  assert_true(vg_reports_with("stuck: the host waits kernel await") > 0);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
