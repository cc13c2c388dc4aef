/* Where the hardware is strict, the virtual GPU is: each mistake is planted once, with what has to come of it. */
#include "planted.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "expect_reports.h"

#define OK(call) assert_int_equal(call, cudaSuccess)

enum { N = 64 };
typedef struct bench {
  cudaStream_t s;
  int *a, *b, *c;
} bench;

static bench begin(int devices) {
  bench t;
  int data[N];
  vg_quiet(true);
  vg_begin(&(vg_options){.devices = devices, .policy = VG_IN_ORDER});
  OK(cudaStreamCreateWithFlags(&t.s, cudaStreamNonBlocking));
  int **all[] = {&t.a, &t.b, &t.c};
  for (int i = 0; i < N; i++)
    data[i] = i;
  for (int k = 0; k < 3; k++) {
    OK(cudaMalloc((void **)all[k], sizeof data));
    vg_poke(*all[k], data, sizeof data);
  }
  return t;
}

/* Every call but those that free fails with the fault; there are n reports, all with these words. */
static void end_machine(bench *t, cudaError_t fault, int n, const char *words) {
  assert_int_equal(cudaStreamSynchronize(t->s), fault);
  assert_int_equal(cudaFree(t->a), fault);
  assert_int_equal(cudaFree(t->b), fault);
  assert_int_equal(cudaFree(t->c), fault);
  assert_int_equal(cudaStreamDestroy(t->s), fault);
  expect_reports(n, words);
  vg_quiet(false);
}

/* --- Memory of the host ------------------------------------------------------------------------------------------- */

CASE(pageable_memory_is_no_kernels) {
  static int program[N];
  int stack[N] = {0}, *heap = calloc(N, sizeof *heap), *memory[] = {heap, stack};
  for (int i = 0; i < 2; i++) {
    bench t = begin(1);
    OK(planted_add(memory[i], t.b, t.c, N, 1, t.s));
    end_machine(&t, cudaErrorIllegalAddress, 1, "kernel: pageable: read 4 bytes memory of the host");
  }
  bench t = begin(1);
  OK(planted_add(t.a, t.b, program, N, 1, t.s)); /* its constants are a kernel's, to read */
  end_machine(&t, cudaErrorIllegalAddress, 1, "kernel: pageable: write 4 bytes memory of the host");
  free(heap);
}

CASE(pinned_memory_is) {
  bench t = begin(1);
  int *pinned, *heap = calloc(N, sizeof *heap);
  OK(cudaHostAlloc((void **)&pinned, N * sizeof *pinned, cudaHostAllocDefault));
  vg_host_write(pinned, N * sizeof *pinned);
  OK(cudaHostRegister(heap, N * sizeof *heap, cudaHostRegisterDefault));
  OK(planted_add(pinned, heap, t.c, N, 1, t.s));
  OK(cudaStreamSynchronize(t.s));
  OK(cudaHostUnregister(heap));
  OK(cudaFreeHost(pinned));
  free(heap);
  end_machine(&t, cudaSuccess, 0, "");
}

/* --- Alignment ---------------------------------------------------------------------------------------------------- */

CASE(vectors_must_be_aligned) {
  for (int bytes = 0; bytes <= 16; bytes += 4) {
    bench t = begin(1);
    bool right = bytes % 16 == 0;
    OK(planted_vectors(t.c, (char *)t.a + bytes, 4, t.s));
    end_machine(&t, right ? cudaSuccess : cudaErrorMisalignedAddress, !right, "kernel: 16 bytes at not aligned");
    t = begin(1);
    OK(planted_vectors((char *)t.c + bytes, t.a, 4, t.s));
    end_machine(&t, right ? cudaSuccess : cudaErrorMisalignedAddress, !right, "kernel: 16 bytes at not aligned");
  }
}

/* --- Faults that stay --------------------------------------------------------------------------------------------- */

CASE(faults_stay) {
  bench t = begin(2);
  int seen[2] = {0}, device = -1;
  void *p = NULL;
  cudaEvent_t e;
  vg_break_kernel(2);
  OK(cudaEventCreate(&e));
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  OK(planted_add(t.c, t.b, t.a, N, 1, t.s)); /* this one has it, and nobody knows before it has run */
  OK(cudaMemcpyAsync(t.b, t.a, 4, cudaMemcpyDefault, t.s));
  assert_int_equal(cudaStreamSynchronize(t.s), cudaErrorIllegalAddress);
  vg_peek(seen, t.c + 1, sizeof *seen);
  vg_peek(seen + 1, t.a + 1, sizeof *seen);
  assert_int_equal(seen[0], 2);
  assert_int_equal(seen[1], 1); /* what came behind is lost */
  assert_int_equal(cudaMalloc(&p, 8), cudaErrorIllegalAddress);
  assert_null(p);
  assert_int_equal(cudaStreamQuery(t.s), cudaErrorIllegalAddress);
  assert_int_equal(cudaEventRecord(e, t.s), cudaErrorIllegalAddress);
  assert_int_equal(planted_add(t.a, t.b, t.c, N, 1, t.s), cudaErrorIllegalAddress);
  assert_int_equal(cudaMemcpy(t.a, t.b, 4, cudaMemcpyDefault), cudaErrorIllegalAddress);
  for (int i = 0; i < 2; i++) /* asking does not clear it */
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
  assert_int_equal(cudaEventDestroy(e), cudaErrorIllegalAddress);
  OK(cudaGetDevice(&device));
  OK(cudaSetDevice(1)); /* another GPU has none */
  OK(cudaMalloc(&p, 8));
  OK(cudaFree(p));
  OK(cudaGetLastError());
  OK(cudaSetDevice(device));
  end_machine(&t, cudaErrorIllegalAddress, 0, "");
  t = begin(1); /* nor has a new machine */
  OK(planted_add(t.a, t.b, t.c, N, 1, t.s));
  end_machine(&t, cudaSuccess, 0, "");
}

/* --- cudaFree ----------------------------------------------------------------------------------------------------- */

static void ran(void *flag) { *(bool *)flag = true; }

CASE(free_waits_for_the_device) {
  bench t = begin(2);
  bool here = false, there = false;
  cudaStream_t other;
  void *p;
  OK(cudaSetDevice(1));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaLaunchHostFunc(other, ran, &there));
  OK(cudaSetDevice(0));
  OK(cudaMalloc(&p, 8));
  OK(cudaLaunchHostFunc(t.s, ran, &here));
  OK(cudaFree(p)); /* p is nobody's */
  assert_true(here);
  assert_false(there);
  OK(cudaSetDevice(1));
  OK(cudaStreamDestroy(other));
  OK(cudaSetDevice(0));
  end_machine(&t, cudaSuccess, 0, "");
}

/* That it waits is no order that anybody may rely on. */
CASE(free_orders_nothing) {
  bench t = begin(1);
  int *pinned;
  OK(cudaHostAlloc((void **)&pinned, 4, cudaHostAllocDefault));
  OK(cudaMemcpyAsync(pinned, t.a, 4, cudaMemcpyDefault, t.s));
  OK(cudaFree(t.b));
  OK(cudaMalloc((void **)&t.b, 4));
  vg_host_read(pinned, 4);
  OK(cudaStreamSynchronize(t.s));
  OK(cudaFreeHost(pinned));
  end_machine(&t, cudaSuccess, 1, "race: write cudaMemcpyAsync read host");
}

/* --- Size --------------------------------------------------------------------------------------------------------- */

CASE(as_many_multiprocessors_as_asked) {
  for (int wanted = 0; wanted <= 8; wanted += 8) {
    struct cudaDeviceProp properties;
    int n = 0;
    vg_begin(&(vg_options){.multiprocessors = wanted});
    OK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaGetDeviceProperties(&properties, 0));
    assert_int_equal(n, wanted == 0 ? 132 : 8);
    assert_int_equal(properties.multiProcessorCount, n);
    assert_int_equal(vg_end(), 0);
  }
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
