/* Kernels on the virtual GPU: each load and store of theirs is seen. */
#include "planted.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "expect_reports.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { N = 100 };
typedef struct bench {
  cudaStream_t s, t;
  int *a, *b, *c;
} bench;

static bench bench_begin(void) {
  bench t;
  int data[N];
  vg_quiet(true);
  vg_begin(&(vg_options){.policy = VG_IN_ORDER});
  OK(cudaStreamCreateWithFlags(&t.s, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&t.t, cudaStreamNonBlocking));
  int **all[] = {&t.a, &t.b, &t.c};
  for (int k = 0; k < 3; k++) {
    OK(cudaMalloc((void **)all[k], sizeof data));
    for (int i = 0; i < N; i++)
      data[i] = i * (k + 1);
    if (k < 2)
      vg_poke(*all[k], data, sizeof data);
  }
  return t;
}

static void end_machine(bench *t, int n, const char *words) {
  OK(cudaDeviceSynchronize());
  OK(cudaFree(t->a));
  OK(cudaFree(t->b));
  OK(cudaFree(t->c));
  OK(cudaStreamDestroy(t->s));
  OK(cudaStreamDestroy(t->t));
  expect_reports(n, words);
  vg_quiet(false);
}

CASE(they_compute) {
  bench t = bench_begin();
  int c[N], sum = 0;
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  OK(planted_reverse(t.c, 64, t.s));
  OK(cudaStreamSynchronize(t.s));
  vg_peek(c, t.c, sizeof c);
  for (int i = 0; i < N; i++)
    assert_int_equal(c[i], 3 * (i < 64 ? 63 - i : i));
  vg_poke(t.b, &sum, sizeof sum);
  OK(planted_sum(t.c, N, t.b, t.s));
  OK(cudaStreamSynchronize(t.s));
  vg_peek(&sum, t.b, sizeof sum);
  assert_int_equal(sum, 3 * N * (N - 1) / 2);
  end_machine(&t, 0, "");
}

CASE(what_they_leave_out_is_not_written) {
  bench t = bench_begin();
  OK(planted_add(t.a, t.b, t.c, N / 2, 2, t.s)); /* every other number */
  OK(cudaMemcpyAsync(t.b, t.c + 2, 4, cudaMemcpyDefault, t.s));
  OK(cudaMemcpyAsync(t.b, t.c + 3, 4, cudaMemcpyDefault, t.s));
  end_machine(&t, 1, "undefined: [12,16)");
}

CASE(neighbours_do_not_race) {
  bench t = bench_begin();
  OK(planted_add(t.a, t.b, t.c, N / 2, 2, t.s));
  OK(planted_add(t.a, t.b, t.c + 1, N / 2, 2, t.t)); /* between them */
  end_machine(&t, 0, "");
}

CASE(races_of_kernels_are_reported) {
  bench t = bench_begin();
  OK(planted_add(t.a, t.b, t.c, N / 2, 2, t.s));
  OK(planted_add(t.a, t.b, t.c + 98, 1, 1, t.t));
  end_machine(&t, 1, "race: write kernel add [392,396)");
}

CASE(races_of_reads) {
  bench t = bench_begin();
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  OK(cudaMemsetAsync(t.b + 50, 0, 4, t.t));
  end_machine(&t, 1, "race: read kernel add write cudaMemsetAsync [200,204)");
}

CASE(races_of_atomics) {
  bench t = bench_begin();
  OK(planted_sum(t.a, N, t.b, t.s));
  OK(planted_sum(t.a, N, t.b, t.t));
  end_machine(&t, 1, "race: write kernel sum [0,4)");
}

CASE(out_of_bounds) {
  bench t = bench_begin();
  OK(planted_add(t.a, t.b, t.c, N + 2, 1, t.s));
  end_machine(&t, 3, "out of bounds: kernel add [400,408)"); /* two reads and a write */
}

CASE(bulk_copies_are_seen) {
  bench t = bench_begin();
  char *from, *to;
  OK(cudaMalloc((void **)&from, 512));
  OK(cudaMalloc((void **)&to, 512));
  OK(cudaMemsetAsync(from, 7, 512, t.s));
  OK(planted_bulk(to, from, 512, t.s));
  OK(cudaMemcpyAsync(t.a, to, 10, cudaMemcpyDefault, t.t));
  OK(cudaMemsetAsync(from + 300, 1, 1, t.t));
  OK(cudaDeviceSynchronize());
  char now[512];
  vg_peek(now, to, 512);
  assert_int_equal(now[511], 7);
  OK(cudaFree(from));
  OK(cudaFree(to));
  end_machine(&t, 3,
              "race:"); /* with what the kernel has written, with what it has read, and between the two memsets */
}

/* The same after a fault: freeing does what it does, and tells of the fault. */
static void end_broken_machine(bench *t, cudaError_t fault, int n, const char *words) {
  assert_int_equal(cudaDeviceSynchronize(), fault);
  assert_int_equal(cudaFree(t->a), fault);
  assert_int_equal(cudaFree(t->b), fault);
  assert_int_equal(cudaFree(t->c), fault);
  assert_int_equal(cudaStreamDestroy(t->s), fault);
  assert_int_equal(cudaStreamDestroy(t->t), fault);
  expect_reports(n, words);
  vg_quiet(false);
}

CASE(wild_kernels_are_ended) {
  const uintptr_t places[] = {0, 4096, (uintptr_t)0xdbdbdbdbdbdbdbd8, (uintptr_t)1 << 46};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    bench t = bench_begin();
    OK(planted_wild(places[i], t.s));
    OK(planted_add(t.a, t.b, t.c, N, 1, t.s)); /* does not run any more: what it would read is undefined */
    end_broken_machine(&t, cudaErrorIllegalAddress, 1, "kernel: wild: write 4 bytes");
  }
  bench t = bench_begin();
  OK(planted_endless(t.a, t.s));
  end_broken_machine(&t, cudaErrorLaunchTimeout, 1, "kernel: does not end");
}

CASE(launches_fail_when_asked) {
  bench t = bench_begin();
  vg_fail("cudaLaunchKernel", 1, false, 0);
  assert_int_equal(planted_add(t.a, t.b, t.c, N, 1, t.s), cudaErrorLaunchFailure);
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  assert_int_equal(vg_count().launches, 2);
  end_machine(&t, 0, "");
}

CASE(captured_kernels_run_when_the_graph_does) {
  bench t = bench_begin();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  int c[N];
  OK(cudaStreamBeginCapture(t.s, cudaStreamCaptureModeRelaxed));
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  OK(planted_add(t.c, t.c, t.b, N, 1, t.s));
  OK(cudaStreamEndCapture(t.s, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 3; i++)
    OK(cudaGraphLaunch(exec, t.s));
  OK(cudaStreamSynchronize(t.s));
  vg_peek(c, t.b, sizeof c);
  for (int i = 0; i < N; i++)
    assert_int_equal(c[i], (((2 * i + i) * 2 + i) * 2 + i) * 2);
  OK(cudaGraphExecDestroy(exec));
  end_machine(&t, 0, "");
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
