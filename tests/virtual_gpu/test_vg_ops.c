/* Casts, selections and memset of the CUDA device on the virtual GPU: they do what the CPU device does, in the order of
 * their stream, with a launch or two and nothing else; they can be captured; what fails says so. */
#include "device/cpu.h"
#include "device/cuda.h"

#include "virtual_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), 0)

static uint64_t state;
static uint64_t draw(void) { /* splitmix64 */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
static int64_t below(int64_t n) { return (int64_t)(draw() % (uint64_t)n); }

enum { ROOM = 64 << 10 };

/* The same memory on both devices: from and to. */
typedef struct bed {
  rs_device *gpu, *cpu;
  char *from, *to, *source, *wanted;
  rs_select_fault *fault;
  void *stream;
} bed;

static bed begin(const vg_options *options) {
  bed b = {0};
  vg_begin(options);
  OK(rs_device_cuda_create(-1, &b.gpu));
  OK(rs_device_cpu_create(1, RESHARD_ISA_SCALAR, &b.cpu));
  OK(b.gpu->ops->alloc(b.gpu, ROOM, (void **)&b.from));
  OK(b.gpu->ops->alloc(b.gpu, ROOM, (void **)&b.to));
  OK(b.gpu->ops->alloc(b.gpu, sizeof *b.fault, (void **)&b.fault));
  OK(b.gpu->ops->stream_create(b.gpu, &b.stream));
  b.source = malloc(ROOM);
  b.wanted = malloc(ROOM);
  for (int64_t i = 0; i < ROOM; i++)
    b.source[i] = (char)draw();
  memset(b.wanted, 0x5a, ROOM);
  vg_poke(b.from, b.source, ROOM);
  vg_poke(b.to, b.wanted, ROOM);
  return b;
}

static void end(bed *b) {
  b->gpu->ops->stream_destroy(b->gpu, b->stream);
  b->gpu->ops->free(b->gpu, b->from);
  b->gpu->ops->free(b->gpu, b->to);
  b->gpu->ops->free(b->gpu, b->fault);
  b->gpu->ops->destroy(b->gpu);
  b->cpu->ops->destroy(b->cpu);
  free(b->source);
  free(b->wanted);
  assert_int_equal(vg_end(), 0);
}

static void check(bed *b) {
  char *got = malloc(ROOM);
  vg_peek(got, b->to, ROOM);
  assert_memory_equal(got, b->wanted, ROOM);
  free(got);
}

/* A list of casts into places of `to` that do not overlap. */
static void random_casts(rs_casts *gpu, rs_casts *cpu, const bed *b) {
  static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                         RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
  int64_t at = 0;
  for (int i = 0; i < 40; i++) {
    reshard_dtype from, to;
    do {
      from = dtypes[below(6)];
      to = dtypes[below(6)];
    } while (!rs_cast_supported(from, to));
    int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
    int64_t rows = 1 + below(5), row = 1 + below(30), src = below(1000) * in;
    rs_axis axes[2] = {{rows, (row + below(3)) * in, row * out}, {row, in, out}};
    at = (at + out - 1) / out * out;
    OK(rs_casts_add(gpu, b->from + src, b->to + at, from, to, 2, axes));
    OK(rs_casts_add(cpu, b->source + src, b->wanted + at, from, to, 2, axes));
    at += rows * row * out;
  }
  assert_true(at <= ROOM);
}

static void casts(void **test) {
  (void)test;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    state = seed;
    bed b = begin(&(vg_options){.seed = seed});
    rs_casts gpu = {0}, cpu = {0};
    random_casts(&gpu, &cpu, &b);
    OK(b.cpu->ops->cast(b.cpu, &cpu, NULL));
    vg_counts before = vg_count();
    OK(b.gpu->ops->cast(b.gpu, &gpu, b.stream));
    vg_counts after = vg_count();
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.allocs + after.frees + after.copies + after.host_syncs + after.creates,
                     before.allocs + before.frees + before.copies + before.host_syncs + before.creates);
    rs_casts_free(&gpu); /* nothing of it is needed any more */
    OK(b.gpu->ops->synchronize(b.gpu, b.stream));
    check(&b);
    rs_casts_free(&cpu);
    end(&b);
  }
}

/* Captured, the table is in the graph: what is cast is what is in memory when it is launched. */
static void captured(void **test) {
  (void)test;
  bed b = begin(NULL);
  rs_casts gpu = {0}, cpu = {0};
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  random_casts(&gpu, &cpu, &b);
  OK(cudaStreamBeginCapture((cudaStream_t)b.stream, cudaStreamCaptureModeGlobal));
  OK(b.gpu->ops->cast(b.gpu, &gpu, b.stream));
  OK(cudaStreamEndCapture((cudaStream_t)b.stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  memset(gpu.cast.at, 0, (size_t)gpu.cast.n * sizeof *gpu.cast.at);
  for (int turn = 0; turn < 2; turn++) {
    for (int64_t i = 0; i < ROOM; i++)
      b.source[i] = (char)draw();
    vg_poke(b.from, b.source, ROOM);
    OK(b.cpu->ops->cast(b.cpu, &cpu, NULL));
    OK(cudaGraphLaunch(exec, (cudaStream_t)b.stream));
    OK(b.gpu->ops->synchronize(b.gpu, b.stream));
    check(&b);
  }
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  rs_casts_free(&gpu);
  rs_casts_free(&cpu);
  end(&b);
}

static void selections(void **test) {
  (void)test;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    state = seed;
    bed b = begin(&(vg_options){.seed = seed});
    int64_t rows = 1 + below(20), run = 2 * (1 + below(40)), count = below(60),
            bad = seed % 3 == 0 && count > 0 ? below(count) : -1;
    int32_t *index = (int32_t *)(b.source + ROOM / 2);
    for (int64_t i = 0; i < count; i++)
      index[i] = (int32_t)below(rows);
    if (bad >= 0)
      index[bad] = seed % 2 == 0 ? -5 : (int32_t)rows;
    vg_poke(b.from, b.source, ROOM);
    rs_select s = {.src = b.from + 6,
                   .index = b.from + ROOM / 2,
                   .dst = b.to + 10,
                   .count = count,
                   .extent = rows,
                   .index_stride = 4,
                   .src_stride = run,
                   .dst_stride = run + 2,
                   .index_bytes = 4,
                   .element = 2,
                   .run = run};
    OK(b.gpu->ops->select(b.gpu, &s, b.fault, b.stream));
    OK(b.gpu->ops->synchronize(b.gpu, b.stream));
    for (int64_t i = 0; i < count; i++)
      if (i != bad)
        memcpy(b.wanted + 10 + i * (run + 2), b.source + 6 + index[i] * run, (size_t)run);
    check(&b);
    rs_select_fault fault;
    vg_peek(&fault, b.fault, sizeof fault);
    assert_int_equal(fault.position, bad);
    assert_int_equal(fault.value, bad < 0 ? 0 : index[bad]);
    vg_counts before = vg_count();
    if (bad < 0) {
      OK(b.gpu->ops->select(b.gpu, &s, NULL, b.stream));
      assert_int_equal(vg_count().launches - before.launches, count > 0);
      OK(b.gpu->ops->synchronize(b.gpu, b.stream));
    }
    end(&b);
  }
}

static void memory_set(void **test) {
  (void)test;
  bed b = begin(NULL);
  OK(b.gpu->ops->memset(b.gpu, b.to + 3, 0x17, 1000, b.stream));
  OK(b.gpu->ops->memset(b.gpu, NULL, 0x17, 0, b.stream));
  OK(b.gpu->ops->synchronize(b.gpu, b.stream));
  memset(b.wanted + 3, 0x17, 1000);
  check(&b);
  end(&b);
}

static void refused(void **test) {
  (void)test;
  bed b = begin(NULL);
  rs_casts list = {0};
  OK(rs_casts_add(&list, b.from + 2, b.to, RESHARD_F32, RESHARD_BF16, 1, &(rs_axis){5, 4, 2}));
  assert_int_equal(b.gpu->ops->cast(b.gpu, &list, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "the source is at"));
  list.cast.at[0].src = b.from;
  list.cast.at[0].dst = b.to + 1;
  assert_int_equal(b.gpu->ops->cast(b.gpu, &list, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "not a multiple of its 2 bytes"));
  list.cast.at[0].dst = b.to;
  vg_fail("cudaLaunchKernel*", 1, false, 0);
  assert_int_not_equal(b.gpu->ops->cast(b.gpu, &list, b.stream), RESHARD_SUCCESS);
  if (vg_failed() == 1)
    assert_non_null(strstr(reshard_last_error(), "rs_cast_launch"));
  vg_fail(NULL, 0, false, 0);
  rs_select s = {.src = b.from,
                 .index = b.from + 2,
                 .dst = b.to,
                 .count = 1,
                 .extent = 1,
                 .index_stride = 4,
                 .src_stride = 4,
                 .dst_stride = 4,
                 .index_bytes = 4,
                 .element = 4,
                 .run = 4};
  assert_int_equal(b.gpu->ops->select(b.gpu, &s, NULL, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "the index is at"));
  rs_casts_free(&list);
  end(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(casts),      cmocka_unit_test(captured), cmocka_unit_test(selections),
      cmocka_unit_test(memory_set), cmocka_unit_test(refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
