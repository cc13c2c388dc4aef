/* Casts, selections and memset of the CUDA device on the virtual GPU: they do what the CPU device does, in the order of
 * their stream, with a launch or two and nothing else. Long lists of casts upload a table, too. Operations can be
 * captured; what fails says so. */
#include "device/cpu/cpu.h"
#include "device/cuda/cuda.h"
#include "device/handle.h"

#include "support/fixtures/draw.h"
#include "virtual_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define OK(call) assert_int_equal((call), 0)

enum { ROOM = 64 << 10 };

/* The same memory on both devices: from and to. */
typedef struct fixture {
  reshard_device handle;
  rs_device *gpu, *cpu; /* gpu: the handle's */
  char *from, *to, *source, *wanted;
  rs_select_fault *fault;
  void *stream;
} fixture;

static fixture fixture_begin(const vg_options *options) {
  fixture b = {0};
  vg_begin(options);
  OK(reshard_device_create("cuda", NULL, &b.handle));
  b.gpu = b.handle->device;
  OK(rs_device_cpu_create(1, RESHARD_ISA_SCALAR, &b.cpu));
  OK(b.gpu->memory->alloc(b.gpu, ROOM, (void **)&b.from));
  OK(b.gpu->memory->alloc(b.gpu, ROOM, (void **)&b.to));
  OK(b.gpu->memory->alloc(b.gpu, sizeof *b.fault, (void **)&b.fault));
  OK(b.gpu->streams->create(b.gpu, &b.stream));
  b.source = malloc(ROOM);
  b.wanted = malloc(ROOM);
  for (int64_t i = 0; i < ROOM; i++)
    b.source[i] = (char)draw();
  memset(b.wanted, 0x5a, ROOM);
  vg_poke(b.from, b.source, ROOM);
  vg_poke(b.to, b.wanted, ROOM);
  return b;
}

static int fixture_finish(fixture *b) {
  reshard_device_release(b->handle); /* while the stream may still run */
  b->cpu->destroy(b->cpu);
  OK(cudaStreamDestroy((cudaStream_t)b->stream));
  OK(cudaFree(b->from));
  OK(cudaFree(b->to));
  OK(cudaFree(b->fault));
  free(b->source);
  free(b->wanted);
  return vg_end();
}

static void end_machine(fixture *b) { assert_int_equal(fixture_finish(b), 0); }

static void fixture_check(fixture *b) {
  char *got = malloc(ROOM);
  vg_peek(got, b->to, ROOM);
  assert_memory_equal(got, b->wanted, ROOM);
  free(got);
}

enum { SHORT = 40, LONG = 220, LONGER = 1000 }; /* that fit in parameters; not; and not in fewer than 5 launches */

/* A list of n casts into places of `to` that do not overlap. */
static void random_casts(int n, rs_casts *gpu, rs_casts *cpu, const fixture *b) {
  static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                         RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    reshard_dtype from, to;
    do {
      from = dtypes[below(6)];
      to = dtypes[below(6)];
    } while (!rs_cast_supported(from, to));
    int64_t in = (int64_t)reshard_dtype_size(from), out = (int64_t)reshard_dtype_size(to);
    int64_t rows = 1 + below(n == SHORT ? 5 : 2), row = 1 + below(n == SHORT ? 30 : 16), src = below(1000) * in;
    rs_axis axes[2] = {{rows, (row + below(3)) * in, row * out}, {row, in, out}};
    at = (at + out - 1) / out * out;
    OK(rs_casts_add(gpu, b->from + src, b->to + at, from, to, 2, axes));
    OK(rs_casts_add(cpu, b->source + src, b->wanted + at, from, to, 2, axes));
    at += rows * row * out;
  }
  assert_true(at <= ROOM);
}

static vg_counts since(vg_counts before) {
  vg_counts now = vg_count();
  now.launches -= before.launches;
  now.copies -= before.copies;
  now.allocs += now.frees + now.creates - before.allocs - before.frees - before.creates;
  now.host_syncs -= before.host_syncs;
  return now;
}

CASE(casts_are_those_of_the_cpu) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    draw_state = seed;
    fixture b = fixture_begin(&(vg_options){.seed = seed});
    for (int turn = 0; turn < (seed <= 3 ? 4 : 1); turn++) {
      int n = turn == 0 ? SHORT : turn == 1 ? LONGER : LONG;
      rs_casts gpu = {0}, cpu = {0};
      random_casts(n, &gpu, &cpu, &b);
      OK(b.cpu->work->cast(b.cpu, &cpu, NULL));
      vg_counts before = vg_count();
      OK(b.gpu->work->cast(b.gpu, &gpu, b.stream));
      vg_counts did = since(before);
      assert_int_equal(did.launches, 1);
      assert_int_equal(did.copies, n != SHORT);
      assert_in_range(did.host_syncs, 0, turn == 1); /* the first table takes memory, on a stream without other work */
      if (turn != 1)
        assert_int_equal(did.allocs, 0);
      rs_casts_free(&gpu); /* nothing of it is needed any more */
      OK(b.gpu->streams->synchronize(b.gpu, b.stream));
      fixture_check(&b);
      rs_casts_free(&cpu);
    }
    end_machine(&b);
  }
}

/* Captured, the table is in the graph: what is cast is what is in memory when it is launched. */
CASE(captured_casts_take_what_is_there_at_launch) {
  for (int n = SHORT; n <= LONGER; n += LONGER - SHORT) {
    draw_state = (uint64_t)n;
    fixture b = fixture_begin(NULL);
    rs_casts gpu = {0}, cpu = {0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    random_casts(n, &gpu, &cpu, &b);
    vg_counts before = vg_count();
    OK(cudaStreamBeginCapture((cudaStream_t)b.stream, cudaStreamCaptureModeGlobal));
    OK(b.gpu->work->cast(b.gpu, &gpu, b.stream));
    OK(cudaStreamEndCapture((cudaStream_t)b.stream, &graph));
    vg_counts did = since(before);
    assert_true(n == SHORT ? did.launches == 1 : did.launches >= 5 && did.launches <= 9);
    assert_int_equal(did.copies + did.allocs + did.host_syncs, 0);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    memset(gpu.cast.at, 0, (size_t)gpu.cast.n * sizeof *gpu.cast.at);
    for (int turn = 0; turn < 2; turn++) {
      for (int64_t i = 0; i < ROOM; i++)
        b.source[i] = (char)draw();
      vg_poke(b.from, b.source, ROOM);
      OK(b.cpu->work->cast(b.cpu, &cpu, NULL));
      OK(cudaGraphLaunch(exec, (cudaStream_t)b.stream));
      OK(b.gpu->streams->synchronize(b.gpu, b.stream));
      fixture_check(&b);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    rs_casts_free(&gpu);
    rs_casts_free(&cpu);
    end_machine(&b);
  }
}

/* So many lists are on their way that there is no place for another one's table: it goes without, in more launches. */
CASE(casts_without_a_table_take_more_launches) {
  draw_state = 7;
  fixture b = fixture_begin(NULL);
  rs_casts gpu = {0}, cpu = {0};
  random_casts(LONG, &gpu, &cpu, &b);
  OK(b.cpu->work->cast(b.cpu, &cpu, NULL));
  for (int i = 0; i < 1000; i++) /* the stream stays busy */
    OK(cudaMemsetAsync(b.to, 0x5a, 1, (cudaStream_t)b.stream));
  for (int i = 0; i < 9; i++) {
    vg_counts before = vg_count();
    OK(b.gpu->work->cast(b.gpu, &gpu, b.stream));
    vg_counts did = since(before);
    assert_true(i < 8 ? did.launches == 1 : did.launches >= 2);
    assert_int_equal(did.copies, i < 8);
    assert_in_range(did.host_syncs, 0, i == 0);
  }
  OK(b.gpu->streams->synchronize(b.gpu, b.stream));
  fixture_check(&b);
  rs_casts_free(&gpu);
  rs_casts_free(&cpu);
  end_machine(&b);
}

/* Long lists one after the other, on two streams: tables are used again. */
static void long_casts(void *user, const vg_options *options) {
  draw_state = options->seed;
  fixture b = fixture_begin(options);
  cudaStream_t other;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int i = 0; i < 6; i++) {
    rs_casts gpu = {0};
    for (int k = 0; k < 210; k++) { /* each stream has its half of the memory */
      rs_axis axis = {1, 4, 2};
      OK(rs_casts_add(&gpu, b.from + 4 * k, b.to + i % 2 * ROOM / 2 + 2 * k, RESHARD_F32, RESHARD_BF16, 1, &axis));
    }
    OK(b.gpu->work->cast(b.gpu, &gpu, i % 2 ? other : b.stream));
    rs_casts_free(&gpu);
  }
  OK(cudaStreamDestroy(other));
  (void)fixture_finish(&b);
}

CASE(every_edge_of_the_tables_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  vg_edge_result result = vg_for_each_edge(
      &(vg_edge_search){.path = "casts by tables", .run = long_casts, .options = {.seed = 1}, .seeds = 8});
  assert_int_equal(result.false_alarms, 0);
  assert_int_equal(result.edges, 1);
  assert_int_equal(result.uses, 6);
  assert_int_equal(result.found, result.uses);
}

CASE(selections_are_those_of_the_cpu) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    draw_state = seed;
    fixture b = fixture_begin(&(vg_options){.seed = seed});
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
    OK(b.gpu->work->select(b.gpu, &s, b.fault, b.stream));
    OK(b.gpu->streams->synchronize(b.gpu, b.stream));
    for (int64_t i = 0; i < count; i++)
      if (i != bad)
        memcpy(b.wanted + 10 + i * (run + 2), b.source + 6 + index[i] * run, (size_t)run);
    fixture_check(&b);
    rs_select_fault fault;
    vg_peek(&fault, b.fault, sizeof fault);
    assert_int_equal(fault.position, bad);
    assert_int_equal(fault.value, bad < 0 ? 0 : index[bad]);
    vg_counts before = vg_count();
    if (bad < 0) {
      OK(b.gpu->work->select(b.gpu, &s, NULL, b.stream));
      assert_int_equal(vg_count().launches - before.launches, count > 0);
      OK(b.gpu->streams->synchronize(b.gpu, b.stream));
    }
    end_machine(&b);
  }
}

CASE(memory_set) {
  fixture b = fixture_begin(NULL);
  OK(b.gpu->memory->memset(b.gpu, b.to + 3, 0x17, 1000, b.stream));
  OK(b.gpu->memory->memset(b.gpu, NULL, 0x17, 0, b.stream));
  OK(b.gpu->streams->synchronize(b.gpu, b.stream));
  memset(b.wanted + 3, 0x17, 1000);
  fixture_check(&b);
  end_machine(&b);
}

/* Whichever call fails, the status says so, and the next list is cast. */
static void faults_of_long_lists(fixture *b) {
  rs_casts gpu = {0}, cpu = {0};
  int64_t failed = 1;
  random_casts(LONG, &gpu, &cpu, b);
  OK(b->cpu->work->cast(b->cpu, &cpu, NULL));
  for (int64_t k = 1; failed > 0; k++) {
    vg_fail(NULL, k, false, 0);
    reshard_status status = b->gpu->work->cast(b->gpu, &gpu, b->stream);
    failed = vg_failed();
    vg_fail(NULL, 0, false, 0);
    assert_true(failed > 0 || status == RESHARD_SUCCESS);
    assert_true(k < 50);
  }
  OK(b->gpu->work->cast(b->gpu, &gpu, b->stream));
  OK(b->gpu->streams->synchronize(b->gpu, b->stream));
  fixture_check(b);
  rs_casts_free(&gpu);
  rs_casts_free(&cpu);
}

CASE(wrong_casts_and_selections_are_refused) {
  fixture b = fixture_begin(NULL);
  rs_casts list = {0};
  OK(rs_casts_add(&list, b.from + 2, b.to, RESHARD_F32, RESHARD_BF16, 1, &(rs_axis){5, 4, 2}));
  assert_int_equal(b.gpu->work->cast(b.gpu, &list, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "the source is at"));
  list.cast.at[0].src = b.from;
  list.cast.at[0].dst = b.to + 1;
  assert_int_equal(b.gpu->work->cast(b.gpu, &list, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "not a multiple of its 2 bytes"));
  list.cast.at[0].dst = b.to;
  vg_fail("cudaLaunchKernel*", 1, false, 0);
  assert_int_not_equal(b.gpu->work->cast(b.gpu, &list, b.stream), RESHARD_SUCCESS);
  if (vg_failed() == 1)
    assert_non_null(strstr(reshard_last_error(), "rs_cast_launch"));
  vg_fail(NULL, 0, false, 0);
  faults_of_long_lists(&b);
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
  assert_int_equal(b.gpu->work->select(b.gpu, &s, NULL, b.stream), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "the index is at"));
  rs_casts_free(&list);
  end_machine(&b);
}

RUN_CASES
