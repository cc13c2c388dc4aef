/* Stream capture and graphs on the virtual GPU: data, order between branches and launches, and what capture forbids. */
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "expect_reports.h"

#define OK(call)                  assert_int_equal(call, cudaSuccess)
#define COPY(to, from, n, stream) OK(cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, stream))

typedef struct bench {
  cudaStream_t a, b;
  cudaEvent_t forks, joins;
  char *x, *y, *z;
} bench;

static bench bench_begin(uint64_t seed) {
  bench t;
  vg_begin(&(vg_options){.seed = seed});
  OK(cudaStreamCreateWithFlags(&t.a, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&t.b, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&t.forks, cudaEventDisableTiming));
  OK(cudaEventCreateWithFlags(&t.joins, cudaEventDisableTiming));
  OK(cudaMalloc((void **)&t.x, 100));
  OK(cudaMalloc((void **)&t.y, 100));
  OK(cudaMalloc((void **)&t.z, 100));
  OK(cudaMemset(t.x, 1, 100));
  OK(cudaMemset(t.y, 2, 100));
  OK(cudaMemset(t.z, 3, 100));
  OK(cudaDeviceSynchronize());
  return t;
}

static void end_machine(bench *t, int n, const char *words) {
  (void)cudaGetLastError();
  OK(cudaDeviceSynchronize());
  OK(cudaFree(t->x));
  OK(cudaFree(t->y));
  OK(cudaFree(t->z));
  OK(cudaEventDestroy(t->forks));
  OK(cudaEventDestroy(t->joins));
  OK(cudaStreamDestroy(t->a));
  OK(cudaStreamDestroy(t->b));
  expect_reports(n, words);
}

static void bytes_check(const char *at, char value, int n) {
  char now[100];
  vg_peek(now, at, (size_t)n);
  for (int i = 0; i < n; i++)
    assert_int_equal(now[i], value);
}

/* x to y on a; y to z in two halves, the second one on b. */
static cudaGraphExec_t forked(bench *t, bool fork, bool join) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(t->a, cudaStreamCaptureModeGlobal));
  if (!fork) {
    OK(cudaEventRecord(t->forks, t->a));
    OK(cudaStreamWaitEvent(t->b, t->forks, 0));
  }
  COPY(t->y, t->x, 100, t->a);
  if (fork) {
    OK(cudaEventRecord(t->forks, t->a));
    OK(cudaStreamWaitEvent(t->b, t->forks, 0));
  }
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(t->b, &status));
  assert_int_equal(status, cudaStreamCaptureStatusActive);
  COPY(t->z, t->y, 50, t->a);
  COPY(t->z + 50, t->y + 50, 50, t->b);
  OK(cudaEventRecord(t->joins, t->b));
  OK(cudaStreamWaitEvent(t->a, t->joins, 0));
  if (join)
    OK(cudaMemsetAsync(t->y, 9, 100, t->a));
  OK(cudaStreamEndCapture(t->a, &graph));
  OK(cudaStreamIsCapturing(t->b, &status));
  assert_int_equal(status, cudaStreamCaptureStatusNone);
  size_t nodes;
  OK(cudaGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, join ? 4 : 3);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  return exec;
}

CASE(replayed_with_other_data) {
  for (uint64_t seed = 0; seed < 40; seed++) {
    bench t = bench_begin(seed);
    cudaGraphExec_t exec = forked(&t, true, true);
    bytes_check(t.z, 3, 100); /* nothing has run yet */
    for (int i = 0; i < 3; i++) {
      OK(cudaMemsetAsync(t.x, 10 + i, 100, t.a));
      OK(cudaGraphLaunch(exec, t.a));
      COPY(t.x, t.z, 100, t.a);
    }
    OK(cudaStreamSynchronize(t.a));
    bytes_check(t.z, 12, 100);
    bytes_check(t.y, 9, 100);
    OK(cudaGraphExecDestroy(exec));
    end_machine(&t, 0, "");
  }
}

/* The host sees by the event how far the last launch is, and may then use what the graph has used. */
CASE(launches_record_external_events) {
  for (uint64_t seed = 0; seed < 40; seed++) {
    bench t = bench_begin(seed);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_not_equal(cudaEventRecordWithFlags(t.joins, t.a, cudaEventRecordExternal), cudaSuccess);
    OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
    COPY(t.y, t.x, 100, t.a);
    OK(cudaEventRecordWithFlags(t.joins, t.a, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(t.a, &graph));
    OK(cudaEventQuery(t.joins)); /* it was never recorded */
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++) {
      OK(cudaMemsetAsync(t.x, 20 + i, 100, t.a));
      OK(cudaGraphLaunch(exec, t.a));
      while (cudaEventQuery(t.joins) == cudaErrorNotReady)
        (void)cudaGetLastError();
      bytes_check(t.y, 20 + i, 100);
    }
    OK(cudaGraphExecDestroy(exec));
    end_machine(&t, 0, "");
  }
}

CASE(launches_of_one_graph_follow_one_another) {
  bench t = bench_begin(3);
  cudaGraphExec_t exec = forked(&t, true, true);
  OK(cudaGraphLaunch(exec, t.a));
  OK(cudaGraphLaunch(exec, t.b)); /* another stream, with no event between */
  OK(cudaGraphExecDestroy(exec));
  end_machine(&t, 0, "");
}

CASE(what_follows_does_not_wait_for_others) {
  vg_quiet(true);
  bench t = bench_begin(3);
  cudaGraphExec_t exec = forked(&t, true, true);
  OK(cudaGraphLaunch(exec, t.a));
  OK(cudaMemsetAsync(t.z, 1, 100, t.b));
  OK(cudaGraphExecDestroy(exec));
  end_machine(&t, 2, "race: write cudaMemcpyAsync graph cudaMemsetAsync");
  vg_quiet(false);
}

CASE(a_race_between_branches) {
  vg_quiet(true);
  bench t = bench_begin(3);
  cudaGraphExec_t exec = forked(&t, false, true); /* b does not wait for the copy to y */
  OK(cudaGraphLaunch(exec, t.a));
  OK(cudaGraphExecDestroy(exec));
  end_machine(&t, 1, "race: write read cudaMemcpyAsync branch");
  vg_quiet(false);
}

CASE(work_that_is_not_joined) {
  vg_quiet(true);
  bench t = bench_begin(0);
  cudaGraph_t graph = (cudaGraph_t)&t;
  OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(t.forks, t.a));
  OK(cudaStreamWaitEvent(t.b, t.forks, 0));
  OK(cudaMemsetAsync(t.x, 1, 1, t.b));
  assert_int_equal(cudaStreamEndCapture(t.a, &graph), cudaErrorStreamCaptureUnjoined);
  assert_null(graph);
  end_machine(&t, 1, "misuse: capture joined");
  vg_quiet(false);
}

CASE(events_from_outside) {
  vg_quiet(true);
  bench t = bench_begin(0);
  cudaGraph_t graph;
  OK(cudaEventRecord(t.forks, t.b));
  OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
  assert_int_equal(cudaStreamWaitEvent(t.a, t.forks, 0), cudaErrorStreamCaptureIsolation);
  assert_int_equal(cudaStreamEndCapture(t.a, &graph), cudaErrorStreamCaptureInvalidated);
  end_machine(&t, 1, "misuse: outside capture");
  vg_quiet(false);
}

CASE(calls_that_capture_forbids) {
  vg_quiet(true);
  cudaGraph_t graph;
  void *p;
  for (int call = 0; call < 6; call++) {
    bench t = bench_begin(0);
    OK(cudaEventRecord(t.joins, t.b));
    OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
    cudaError_t error = call == 0   ? cudaMalloc(&p, 10)
                        : call == 1 ? cudaEventQuery(t.joins)
                        : call == 2 ? cudaStreamSynchronize(t.b)
                        : call == 3 ? cudaMallocAsync(&p, 10, t.a)
                        : call == 4 ? cudaDeviceSynchronize()
                                    : cudaMemcpy(t.x, t.y, 10, cudaMemcpyDefault);
    assert_true(error == cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaMemsetAsync(t.x, 1, 1, t.a), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(t.a, &graph), cudaErrorStreamCaptureInvalidated);
    end_machine(&t, 1, "misuse: capture");
  }
  vg_quiet(false);
}

CASE(relaxed_captures_forbid_less) {
  bench t = bench_begin(0);
  cudaGraph_t graph;
  void *p;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
  OK(cudaMemsetAsync(t.x, 1, 1, t.a));
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  assert_int_equal(mode, cudaStreamCaptureModeGlobal);
  OK(cudaMalloc(&p, 10));
  OK(cudaFree(p));
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaStreamEndCapture(t.a, &graph));
  OK(cudaGraphDestroy(graph));
  end_machine(&t, 0, "");
}

CASE(captured_events_cannot_be_asked) {
  bench t = bench_begin(0);
  cudaGraph_t graph;
  OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeRelaxed));
  OK(cudaMemsetAsync(t.x, 1, 1, t.a));
  OK(cudaEventRecord(t.joins, t.a));
  OK(cudaStreamEndCapture(t.a, &graph));
  assert_int_equal(cudaEventQuery(t.joins), cudaErrorCapturedEvent);
  OK(cudaEventRecord(t.joins, t.a)); /* an event like any other again */
  OK(cudaEventSynchronize(t.joins));
  OK(cudaGraphDestroy(graph));
  end_machine(&t, 0, "");
}

/* The default stream would wait for a blocking one: whether that is captured may be asked. */
CASE(asking_harms_no_capture) {
  bench t = bench_begin(0);
  cudaGraph_t graph;
  cudaStream_t blocking;
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamCreate(&blocking));
  OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
  OK(cudaMemsetAsync(t.x, 1, 1, blocking));
  assert_int_equal(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
  assert_int_equal(cudaStreamIsCapturing(cudaStreamLegacy, &status), cudaErrorStreamCaptureImplicit);
  OK(cudaStreamEndCapture(blocking, &graph));
  OK(cudaStreamIsCapturing(NULL, &status));
  assert_int_equal(status, cudaStreamCaptureStatusNone);
  OK(cudaGraphDestroy(graph));
  OK(cudaStreamDestroy(blocking));
  end_machine(&t, 0, "");
}

/* 0: the stream is not captured. */
static unsigned long long capture_of(cudaStream_t stream) {
  enum cudaStreamCaptureStatus status;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL));
#else
  OK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
#endif
  return id;
}

CASE(branches_have_the_number_of_their_capture) {
  bench t = bench_begin(0);
  cudaGraph_t graph;
  unsigned long long last = 0;
  for (int i = 0; i < 2; i++) {
    OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeGlobal));
    assert_true(capture_of(t.a) != last && capture_of(t.a) != 0 && capture_of(t.b) == 0);
    last = capture_of(t.a);
    OK(cudaEventRecord(t.forks, t.a));
    OK(cudaStreamWaitEvent(t.b, t.forks, 0));
    assert_true(capture_of(t.b) == last);
    OK(cudaStreamEndCapture(t.a, &graph));
    assert_true(capture_of(t.a) == 0 && capture_of(t.b) == 0);
    OK(cudaGraphDestroy(graph));
  }
  end_machine(&t, 0, "");
}

/* In any mode: the device has the stream. */
CASE(a_device_that_captures_cannot_be_waited_for) {
  bench t = bench_begin(0);
  cudaGraph_t graph;
  OK(cudaStreamBeginCapture(t.a, cudaStreamCaptureModeRelaxed));
  OK(cudaStreamSynchronize(t.b));
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  assert_int_equal(cudaStreamEndCapture(t.a, &graph), cudaErrorStreamCaptureInvalidated);
  end_machine(&t, 0, "");
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
