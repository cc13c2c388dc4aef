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

/* --- Reads from which nothing is stored --- */

typedef struct held_back {
  unsigned word;
  bool written, anyway;        /* what it reads; it stores a byte although it is closed */
  int before, behind, reports; /* uses of what it reads by another stream: before it, behind it */
  const char *words;
} held_back;
enum { NO_USE, WRITE, READ };

static void use_elsewhere(bench *t, int use, cudaStream_t stream) {
  if (use == WRITE)
    OK(cudaMemsetAsync(t->b, 1, N, stream));
  else if (use == READ)
    OK(cudaMemcpyAsync(t->a, t->b, N, cudaMemcpyDefault, stream));
}

CASE(reads_matter_where_something_is_stored) {
  const held_back all[] = {
      {0, true, false, NO_USE, NO_USE, 0, ""},
      {0, false, false, NO_USE, NO_USE, 1, "undefined: kernel late [0,100)"},
      {1, false, false, NO_USE, NO_USE, 0, ""},
      {1, false, true, NO_USE, NO_USE, 1, "undefined: kernel late [0,100)"},
      {0, true, false, WRITE, NO_USE, 1, "race: read kernel late write cudaMemsetAsync"},
      {0, true, false, NO_USE, WRITE, 1, "race: read kernel late write cudaMemsetAsync"},
      {1, true, false, WRITE, NO_USE, 0, ""},
      {1, true, false, NO_USE, WRITE, 0, ""},
      {1, true, true, WRITE, NO_USE, 1, "race: read kernel late write cudaMemsetAsync"},
      {1, true, true, NO_USE, WRITE, 1, "race: read kernel late write cudaMemsetAsync"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const held_back *h = &all[i];
    bench t = bench_begin();
    unsigned *flag;
    char mine[N] = {0};
    OK(cudaMalloc((void **)&flag, sizeof *flag));
    vg_poke(flag, &h->word, sizeof h->word);
    vg_poke(t.a, mine, N);
    if (h->written)
      vg_poke(t.b, mine, N);
    char *from = h->written ? (char *)t.b : (char *)t.c;
    use_elsewhere(&t, h->before, t.t);
    OK(planted_late((char *)t.a, from, N, flag, h->anyway, t.s));
    use_elsewhere(&t, h->behind, t.t);
    OK(cudaDeviceSynchronize());
    assert_int_equal(vg_count().closed_bytes, h->word && !h->anyway ? N : 0);
    OK(cudaFree(flag));
    end_machine(&t, h->reports, h->words);
  }
}

/* A read that matters is found behind one that does not, which came after it. */
CASE(held_back_reads_hide_no_others) {
  bench t = bench_begin();
  unsigned *flag, word = 1;
  OK(cudaMalloc((void **)&flag, sizeof *flag));
  vg_poke(flag, &word, sizeof word);
  use_elsewhere(&t, READ, t.s);
  OK(planted_late((char *)t.a, (char *)t.b, N, flag, 0, t.s));
  use_elsewhere(&t, WRITE, t.t);
  OK(cudaDeviceSynchronize());
  OK(cudaFree(flag));
  end_machine(&t, 1, "race: read cudaMemcpyAsync write cudaMemsetAsync");
}

/* Memory is there as long as somebody reads it, for nothing or not; and what is beside it is never read. */
CASE(held_back_reads_are_of_memory) {
  bench t = bench_begin();
  unsigned *flag, word = 1;
  char *freed;
  OK(cudaMalloc((void **)&flag, sizeof *flag));
  OK(cudaMallocAsync((void **)&freed, N, t.t));
  OK(cudaStreamSynchronize(t.t));
  vg_poke(flag, &word, sizeof word);
  OK(planted_late((char *)t.a, freed, N, flag, 0, t.s));
  OK(cudaFreeAsync(freed, t.t));
  OK(planted_late((char *)t.a, (char *)t.c, (N + 1) * (int64_t)sizeof(int), flag, 0, t.s));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(flag));
  assert_int_equal(vg_reports_with("free while in use: kernel late"), 1);
  assert_int_equal(vg_reports_with("out of bounds: kernel late [400,404)"), 1);
  end_machine(&t, 2, "kernel late");
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
