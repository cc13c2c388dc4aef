/* The CPU device against loops that move one byte at a time: every instruction set, every kernel, any shape of copy. */
#include "device/cpu/cpu.h"
#include "support/oracles/box_copy.h"

#include "device/cpu/copy/kernels.h"
#include "support/fixtures/draw.h"
#include "support/fixtures/rank_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define INSTRUMENTED
#endif
#endif

#if defined(INSTRUMENTED)
enum { CASES = 30 };
#else
enum { CASES = 500 };
#endif
enum { MAX_AXES = 5, ROOM = 3 << 20, GUARD = 128, HUGE_TOTAL = 1 << 30 };

static uint64_t seed;

/* Arenas: what is copied from, what is copied to, and what the naive loops made of the same. */
static char *source, *wanted, *got;

static int setup(void **test) {
  source = malloc(ROOM);
  wanted = malloc(ROOM);
  got = malloc(ROOM);
  if (source == NULL || wanted == NULL || got == NULL)
    return -1;
  const char *given = getenv("RESHARD_TEST_SEED");
  seed = given != NULL ? strtoull(given, NULL, 0) : 20250601;
  draw_state = 1;
  for (int64_t i = 0; i < ROOM; i += 8) {
    uint64_t word = draw();
    memcpy(source + i, &word, 8);
  }
  return 0;
}

static int teardown(void **test) {
  free(source);
  free(wanted);
  free(got);
  return 0;
}

static rs_device *device_of(int threads, reshard_isa isa) {
  rs_device *device = NULL;
  assert_int_equal(rs_device_cpu_create(threads, isa, &device), RESHARD_SUCCESS);
  return device;
}

/* Adds to the list, and does it naively into `wanted`. src and dst are offsets into the arenas. */
static void copies_add(rs_copies *copies, int64_t src, int64_t dst, int32_t element, int naxes, const rs_axis *axes) {
  assert_int_equal(rs_copies_add(copies, source + src, got + dst, element, naxes, axes), RESHARD_SUCCESS);
  oracle_box_copy(source + src, wanted + dst, element, naxes, axes);
}

static void clear_memory(int64_t bytes) {
  memset(wanted, 0x5a, (size_t)bytes);
  memset(got, 0x5a, (size_t)bytes);
}

static void check_copies(const char *what, reshard_isa isa, int64_t bytes) {
  if (memcmp(wanted, got, (size_t)bytes) == 0)
    return;
  int64_t at = 0;
  while (wanted[at] == got[at])
    at++;
  fail_msg("%s, %s, seed %llu: byte %lld is %02x, not %02x", what, reshard_isa_string(isa), (unsigned long long)seed,
           (long long)at, got[at] & 255, wanted[at] & 255);
}

/* Every second time in the memory of the time before that. */
static void run_and_check(rs_device *device, const rs_copies *copies, int64_t total, const char *what, int64_t bytes) {
  static rs_program *kept;
  static int times;
  bool again = ++times % 2 == 0;
  rs_program *program = again ? kept : NULL;
  if (again)
    assert_int_equal(device->work->recompile(device, copies, total, &program), RESHARD_SUCCESS);
  else
    assert_int_equal(device->work->compile(device, copies, total, &program), RESHARD_SUCCESS);
  assert_true(copies->copy.n == 0 || device->work->count(program) >= 1);
  assert_int_equal(device->work->run(device, 1, &program, NULL), RESHARD_SUCCESS);
  kept = again ? program : kept;
  if (!again)
    device->work->release(device, program);
  else if (times % 16 == 0) {
    device->work->release(device, kept);
    kept = NULL;
  }
  check_copies(what, rs_device_cpu_isa(device), bytes);
}

#define FOR_EACH_ISA(isa) \
  for (reshard_isa isa = RESHARD_ISA_SCALAR; isa < RESHARD_ISA_COUNT; isa++) \
    if (reshard_isa_available(isa))

/* --- Kernels by themselves --- */

#if defined(__SANITIZE_THREAD__) /* tells nothing about one thread */
#define CASE_OF_ONE_THREAD(name) __attribute__((unused)) static void name(void **state)
#else
#define CASE_OF_ONE_THREAD CASE
#endif

CASE_OF_ONE_THREAD(walks_of_any_run_copy_every_byte) {
  draw_state = seed;
  const int64_t bytes = 64 << 10;
  FOR_EACH_ISA(isa) {
    const rs_kernels *kernels = rs_kernels_of(isa);
    for (int64_t run = 1; run <= 320; run = run < 140 ? run + 1 : run + 37) {
      for (int k = 0; k < 6; k++) {
        int64_t n0 = between(1, 21), n1 = between(1, 5), gap = k % 2 == 0 ? 0 : below(40);
        rs_run_loops loops = {.run = run, .n1 = n1, .n0 = n0, .dst0 = run + gap, .src0 = between(-400, 400)};
        loops.dst1 = loops.dst0 * n0 + below(3) * 5;
        loops.src1 = between(-900, 900);
        int64_t src = 40 << 10, dst = GUARD + below(70);
        if (k == 5) { /* whole lines */
          loops.run = run = (run + 63) / 64 * 64;
          loops.dst0 = run * between(1, 2);
          loops.dst1 = loops.dst0 * n0;
          dst = (int64_t)(-(uintptr_t)got & 63) + 256;
        }
        rs_axis axes[3] = {{n1, loops.src1, loops.dst1}, {n0, loops.src0, loops.dst0}, {run, 1, 1}};
        clear_memory(bytes);
        oracle_box_copy(source + src, wanted + dst, 1, 3, axes);
        kernels->runs[rs_run_class(run)](got + dst, source + src, &loops);
        check_copies("runs", isa, bytes);
        if (run < 64)
          continue;
        rs_cursor cursors[2] = {{got + dst, source + src, run, loops.dst0, loops.src0, NULL},
                                {got + dst + loops.dst1, source + src + loops.src1, run, loops.dst0, loops.src0, NULL}};
        clear_memory(bytes);
        axes[0].n = rs_min(n1, 2);
        oracle_box_copy(source + src, wanted + dst, 1, 3, axes);
        kernels->stream_runs(cursors, (int)rs_min(n1, 2), n0);
        kernels->fence();
        check_copies("stream_runs", isa, bytes);
      }
    }
  }
}

/* Long runs that are far from each other in the source: any number, length, direction and place. */
CASE_OF_ONE_THREAD(far_runs) {
  draw_state = seed;
  const int64_t bytes = 160 << 10;
  FOR_EACH_ISA(isa) {
    const rs_kernels *kernels = rs_kernels_of(isa);
    for (int k = 0; k < 120; k++) {
      int64_t run = between(1024, 6000), n = between(1, 20), step = run + between(2048, 9000);
      int64_t dst_step = run + (k % 3 == 0 ? 0 : k % 3 == 1 ? below(200) : (-run & 63));
      int64_t src = k % 2 == 0 ? below(70) : step * n, dst = GUARD + (k % 4 == 0 ? 0 : below(70));
      step = k % 2 == 0 ? step : -step;
      rs_axis axes[2] = {{n, step, dst_step}, {run, 1, 1}};
      rs_cursor cursor = {got + dst, source + src, run, dst_step, step, NULL};
      clear_memory(bytes);
      oracle_box_copy(source + src, wanted + dst, 1, 2, axes);
      kernels->stream_runs(&cursor, 1, n);
      kernels->fence();
      check_copies("far runs", isa, bytes);
      assert_ptr_equal(cursor.dst, got + dst + n * dst_step);
      assert_ptr_equal(cursor.src, source + src + n * step);
    }
  }
}

CASE_OF_ONE_THREAD(streamed_copies_of_any_length_are_whole) {
  draw_state = seed;
  const int64_t room = 4096;
  FOR_EACH_ISA(isa) {
    const rs_kernels *kernels = rs_kernels_of(isa);
    for (int64_t bytes = 0; bytes < 700; bytes++) {
      int64_t src = below(70), dst = GUARD + below(70);
      clear_memory(room);
      memcpy(wanted + dst, source + src, (size_t)bytes);
      kernels->stream(got + dst, source + src, bytes);
      kernels->fence();
      check_copies("stream", isa, room);
    }
  }
}

CASE_OF_ONE_THREAD(transposes_of_any_width_are_right) {
  draw_state = seed;
  const int64_t room = 512 << 10;
  FOR_EACH_ISA(isa) {
    for (int w = 0; w < 5; w++) {
      int64_t width = 1 << w;
      for (int k = 0; k < 60; k++) {
        int64_t ni = between(1, 140), nj = between(1, 140), lines = k % 3 == 0;
        int64_t pitch = nj * width + below(9) * (k % 2), stride = (ni * width + below(50)) * (k % 4 == 0 ? -1 : 1);
        int64_t dst = GUARD + below(70), src = ROOM / 2;
        if (lines) {
          pitch = (pitch + 63) / 64 * 64;
          dst -= (int64_t)((uintptr_t)(got + dst) % (uintptr_t)width);
        }
        rs_axis axes[3] = {{ni, width, pitch}, {nj, stride, width}, {width, 1, 1}};
        clear_memory(room);
        oracle_box_copy(source + src, wanted + dst, 1, 3, axes);
        rs_kernels_of(isa)->transpose[w](got + dst, source + src, ni, nj, pitch, stride, k % 5 != 0);
        rs_kernels_of(isa)->fence();
        check_copies("transpose", isa, room);
      }
    }
  }
}

/* --- Canonical form --- */

CASE_OF_ONE_THREAD(canonical_form) {
  rs_copies copies = {0};
  rs_axis contiguous[3] = {{3, 40, 40}, {1, 999, -7}, {10, 4, 4}};
  assert_int_equal(rs_copies_add(&copies, source, got, 4, 3, contiguous), RESHARD_SUCCESS);
  assert_int_equal(copies.copy.at[0].naxes, 0);
  assert_int_equal(copies.copy.at[0].run, 120);
  rs_axis columns[3] = {{5, 800, 80}, {10, 80, 8}, {2, 4, 4}};
  assert_int_equal(rs_copies_add(&copies, source, got, 4, 3, columns), RESHARD_SUCCESS);
  assert_int_equal(copies.copy.at[1].naxes, 1);
  assert_int_equal(copies.copy.at[1].run, 8);
  assert_int_equal(copies.axis.at[copies.copy.at[1].axes].n, 50);
  rs_axis apart[2] = {{5, 900, 80}, {10, 80, 8}};
  assert_int_equal(rs_copies_add(&copies, source, got, 8, 2, apart), RESHARD_SUCCESS);
  assert_int_equal(copies.copy.at[2].naxes, 2);
  assert_int_equal(copies.axis.at[copies.copy.at[2].axes].n, 5);
  rs_axis empty[2] = {{1 << 20, 0, 8}, {0, 8, 8}};
  assert_int_equal(rs_copies_add(&copies, source, got, 8, 2, empty), RESHARD_SUCCESS);
  assert_int_equal(copies.copy.n, 3);
  assert_int_equal(copies.bytes, 120 + 400 + 400);
  rs_axis vast[2] = {{INT64_MAX / 4, 0, 8}, {INT64_MAX / 4, 8, 8}};
  assert_int_equal(rs_copies_add(&copies, source, got, 8, 2, vast), RESHARD_ERROR_INVALID);
  assert_int_equal(rs_copies_add(&copies, source, got, 16, 0, NULL), RESHARD_SUCCESS);
  assert_int_equal(copies.copy.at[3].run, 16);
  rs_copies_free(&copies);
  assert_int_equal(copies.copy.n, 0);
}

/* --- Whole programs --- */

/* A random box copy into [*dst, ...): nested destination strides with random gaps, loops in random order and direction,
 * any source strides. The box is cut into `parts` copies along one axis, by blocks or cyclically. Moves *dst behind. */
static void add_random(rs_copies *copies, int64_t *dst, int64_t most) {
  int32_t element = 1 << below(5);
  int naxes = (int)below(MAX_AXES + 1);
  rs_axis axes[MAX_AXES];
  int64_t extent = element, reach = element;
  for (int i = naxes - 1; i >= 0; i--) { /* innermost first */
    int64_t limit = rs_max(rs_min(most / extent, below(3) == 0 ? 200 : 12), 1);
    axes[i].n = between(1, limit);
    axes[i].dst = extent + (below(3) == 0 ? below(9) * element : 0);
    extent = (axes[i].n - 1) * axes[i].dst + extent;
  }
  /* The source: another order of the axes, so that transposes occur, or any stride at all. */
  int order[MAX_AXES];
  for (int i = 0; i < naxes; i++)
    order[i] = i;
  for (int i = naxes - 1; i > 0 && below(2) == 0; i--) {
    int j = (int)below(i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  for (int k = naxes - 1; k >= 0; k--) {
    rs_axis *axis = &axes[order[k]];
    axis->src = below(12) == 0 ? 0 : reach + (below(4) == 0 ? below(40) * element : 0);
    if (axis->n * axis->src > ROOM / 16)
      axis->src = element;
    reach = rs_max(axis->n * axis->src, reach);
  }
  int64_t src = below(64), at = *dst + below(2) * below(64);
  *dst = at + extent;
  for (int i = 0; i < naxes; i++)
    if (below(4) == 0) { /* turned round: the first step is where the last was */
      src += (axes[i].n - 1) * axes[i].src;
      axes[i].src = -axes[i].src;
      if (below(2) == 0) {
        at += (axes[i].n - 1) * axes[i].dst;
        axes[i].dst = -axes[i].dst;
      }
    }
  for (int i = naxes - 1; i > 0; i--) {
    int j = (int)below(i + 1);
    rs_axis swap = axes[i];
    axes[i] = axes[j];
    axes[j] = swap;
  }
  int axis = naxes > 0 ? (int)below(naxes) : 0;
  int64_t parts = naxes > 0 ? rs_min(between(1, 5), axes[axis].n) : 1;
  bool cyclic = below(2) == 0;
  for (int64_t p = 0; p < parts; p++) {
    rs_axis mine[MAX_AXES];
    memcpy(mine, axes, sizeof mine);
    int64_t first = 0;
    if (naxes > 0) {
      first = cyclic ? p : axes[axis].n * p / parts;
      mine[axis].n = cyclic ? (axes[axis].n - p + parts - 1) / parts : axes[axis].n * (p + 1) / parts - first;
      mine[axis].src *= cyclic ? parts : 1;
      mine[axis].dst *= cyclic ? parts : 1;
    }
    int64_t from = src + (naxes > 0 ? first * axes[axis].src : 0), to = at + (naxes > 0 ? first * axes[axis].dst : 0);
    assert_true(from >= 0 && from < ROOM);
    copies_add(copies, from, to, element, naxes, mine);
  }
}

CASE(random_programs) {
  const int64_t most = 24 << 10;
  FOR_EACH_ISA(isa) {
    for (int threads = 1; threads <= 3; threads += 2) {
      rs_device *device = device_of(threads, isa);
      for (uint64_t k = 0; k < CASES; k++) {
        draw_state = seed = 20250601 + k;
        rs_copies copies = {.staging = below(4) == 0};
        int64_t n = between(1, 12), dst = GUARD, bytes = (n + 1) * 2 * most + 2 * GUARD + 8192;
        clear_memory(rs_min(bytes, ROOM));
        for (int64_t i = 0; i < n; i++)
          add_random(&copies, &dst, below(4) == 0 ? most : most / 16);
        assert_true(dst + GUARD <= ROOM);
        run_and_check(device, &copies, below(3) == 0 ? 0 : HUGE_TOTAL, "random", rs_max(dst + GUARD, 0));
        rs_copies_free(&copies);
      }
      device->destroy(device);
    }
  }
  seed = 20250601;
}

/* Copies that plans mostly have, large enough for several tiles and tasks: rows to columns and back, cyclic to cyclic,
 * a transpose, and a gap between rows; with each alignment. */
CASE(regular_programs) {
  draw_state = seed;
  FOR_EACH_ISA(isa) {
    rs_device *device = device_of(3, isa);
    for (int k = 0; k < 40; k++) {
      const int64_t ranks = between(2, 5), element = 1 << below(5), half = ROOM / 2;
      int64_t width = below(2) == 0 ? element * between(1, 6) : element * between(1, 700);
      int64_t rows = rs_min(half / (width * ranks) / 2, 30000);
      int64_t shift = below(3) == 0 ? below(64) : 0;
      rs_copies copies = {0};
      clear_memory(ROOM);
      for (int64_t r = 0; r < ranks; r++) {
        rs_axis columns[2] = {{rows, width * ranks, width}, {width / element, element, element}};
        rs_axis back[2] = {{rows, width, width * ranks}, {width / element, element, element}};
        rs_axis gap[2] = {{rows, width * ranks, width + element}, {width / element, element, element}};
        if (k % 4 == 0)
          copies_add(&copies, r * width, GUARD + shift + r * rows * width, (int32_t)element, 2, columns);
        else if (k % 4 == 1)
          copies_add(&copies, r * rows * width, GUARD + shift + r * width, (int32_t)element, 2, back);
        else if (k % 4 == 2)
          copies_add(&copies, r * width, GUARD + shift + r * rows * (width + element), (int32_t)element, 2, gap);
      }
      if (k % 4 == 3) {
        int64_t ni = between(9, 400), nj = between(9, 300);
        rs_axis turned[3] = {{between(1, element > 4 ? 1 : 3), ni * nj * element, ni * nj * element},
                             {ni, element, nj * element},
                             {nj, ni * element, element}};
        copies_add(&copies, shift, GUARD + shift, (int32_t)element, 3, turned);
      }
      run_and_check(device, &copies, k % 8 < 4 ? HUGE_TOTAL : 0, "regular", ROOM);
      rs_copies_free(&copies);
    }
    device->destroy(device);
  }
}

/* Rows of so many lines that tasks begin within one and end in the next, beyond a gap: past the cache, and not. */
CASE(tasks_that_begin_within_a_row_end_where_it_does) {
  enum { ROWS = 3, LINES = 2500, LINE = 64 };
  const rs_axis axes[3] = {{ROWS, LINES * 2 * LINE + 192, LINES * LINE + 128}, {LINES, 2 * LINE, LINE}, {LINE, 1, 1}};
  FOR_EACH_ISA(isa) {
    for (int threads = 1; threads <= 3; threads += 2) {
      rs_device *device = device_of(threads, isa);
      for (int k = 0; k < 2; k++) {
        rs_copies copies = {0};
        clear_memory(ROOM);
        copies_add(&copies, 0, (int64_t)(-(uintptr_t)got & (LINE - 1)) + 2 * LINE, 1, 3, axes);
        run_and_check(device, &copies, k == 0 ? HUGE_TOTAL : 0, "rows of lines", ROOM);
        rs_copies_free(&copies);
      }
      device->destroy(device);
    }
  }
}

CASE(several_programs) {
  draw_state = seed;
  rs_device *device = device_of(3, RESHARD_ISA_AUTO);
  rs_program *programs[6] = {NULL};
  int64_t dst = GUARD;
  clear_memory(ROOM);
  for (int p = 0; p < 6; p++) {
    if (p == 2)
      continue;
    rs_copies copies = {0};
    if (p != 4) {
      rs_axis axes[2] = {{1 + p * 300, 256, 64}, {64, 1, 1}};
      copies_add(&copies, 0, dst, 1, 2, axes);
      rs_axis whole = {100000 * p, 1, 1};
      copies_add(&copies, 77, dst + 64 * axes[0].n, 1, 1, &whole);
      dst += 64 * axes[0].n + whole.n;
    }
    assert_int_equal(device->work->compile(device, &copies, HUGE_TOTAL, &programs[p]), RESHARD_SUCCESS);
    rs_copies_free(&copies);
  }
  assert_int_equal(device->work->count(programs[4]), 0);
  assert_int_equal(device->work->run(device, 6, programs, NULL), RESHARD_SUCCESS);
  check_copies("programs", RESHARD_ISA_AUTO, ROOM);
  assert_int_equal(device->work->run(device, 0, NULL, NULL), RESHARD_SUCCESS);
  for (int p = 0; p < 6; p++)
    device->work->release(device, programs[p]);
  device->destroy(device);
}

CASE(spans_are_copied_by_several_threads) {
  draw_state = seed;
  FOR_EACH_ISA(isa) {
    rs_device *device = device_of(3, isa);
    for (int k = 0; k < 12; k++) {
      rs_span list[40];
      int64_t n = between(0, 40), dst = GUARD;
      clear_memory(ROOM);
      for (int64_t i = 0; i < n; i++) {
        int64_t bytes = below(3) == 0 ? 0 : below(k % 2 == 0 ? 300 : 70000), src = below(1000);
        list[i] = (rs_span){source + src, got + dst, bytes, below(2) == 0};
        memcpy(wanted + dst, source + src, (size_t)bytes);
        dst += bytes;
      }
      assert_int_equal(device->work->copy(device, n, list, k % 4 < 2 ? HUGE_TOTAL : 0, NULL), RESHARD_SUCCESS);
      check_copies("spans", isa, ROOM);
    }
    for (int streaming = 0; streaming < 2; streaming++) {
      clear_memory(ROOM);
      memcpy(wanted + GUARD + 3, source + 5, ROOM - 2 * GUARD);
      rs_device_cpu_straight(device, got + GUARD + 3, source + 5, ROOM - 2 * GUARD, streaming);
      check_copies("straight", isa, ROOM);
    }
    rs_device_cpu_straight(device, got, source, 0, true);
    device->destroy(device);
  }
}

/* Several threads use one device at once. */
enum { CALLERS = 3, SHARE = 600 << 10 };
typedef struct caller {
  rs_device *device;
  rs_program *program;
  rs_span span;
  bool wrong;
} caller;

static void chunk_call(void *user, int64_t number) {
  caller *mine = (caller *)user + number;
  for (int k = 0; k < 60; k++) {
    memset(mine->span.dst, k, SHARE);
    reshard_status status =
        k % 2 == 0 ? mine->device->work->run(mine->device, 1, &mine->program, NULL)
                   : mine->device->work->copy(mine->device, 1, &mine->span, k % 3 == 0 ? HUGE_TOTAL : 0, NULL);
    mine->wrong |= status != RESHARD_SUCCESS || memcmp(mine->span.dst, mine->span.src, SHARE) != 0;
  }
}

CASE(several_callers_use_one_device) {
  rs_device *device = device_of(3, RESHARD_ISA_AUTO);
  caller all[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    all[i] = (caller){.device = device, .span = {source + i * 1000, got + i * (SHARE + 8), SHARE, false}};
    rs_copies copies = {0};
    rs_axis axes[2] = {{SHARE / 64, 64, 64}, {64, 1, 1}};
    assert_int_equal(rs_copies_add(&copies, all[i].span.src, all[i].span.dst, 1, 2, axes), RESHARD_SUCCESS);
    assert_int_equal(device->work->compile(device, &copies, i == 0 ? 0 : HUGE_TOTAL, &all[i].program), RESHARD_SUCCESS);
    rs_copies_free(&copies);
  }
  rank_threads_run(CALLERS, chunk_call, all);
  for (int i = 0; i < CALLERS; i++) {
    assert_false(all[i].wrong);
    device->work->release(device, all[i].program);
  }
  device->destroy(device);
}

CASE(memory_of_any_size_is_aligned) {
  rs_device *device = device_of(1, RESHARD_ISA_AUTO);
  static const size_t sizes[] = {1, 255, 4096, (2 << 20) - 1, 2 << 20, (5 << 20) + 13};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    void *at = NULL;
    assert_int_equal(device->memory->alloc(device, sizes[i], &at), RESHARD_SUCCESS);
    assert_int_equal((uintptr_t)at % 256, 0);
    memset(at, 1, sizes[i]);
    device->memory->free(device, at);
  }
  void *none = &none;
  assert_int_equal(device->memory->alloc(device, 0, &none), RESHARD_SUCCESS);
  assert_null(none);
  device->memory->free(device, none);
#if !defined(INSTRUMENTED) /* sanitizers end the program on such a size */
  assert_int_equal(device->memory->alloc(device, SIZE_MAX / 2, &none), RESHARD_ERROR_OUT_OF_MEMORY);
#endif
  device->destroy(device);
}

CASE(devices_take_the_machines_threads_and_isa) {
  rs_device *device = device_of(0, RESHARD_ISA_AUTO);
  assert_true(rs_device_cpu_threads(device) >= 1);
  assert_true(reshard_isa_available(rs_device_cpu_isa(device)));
  device->destroy(device);
  assert_int_equal(rs_device_cpu_create(-1, RESHARD_ISA_AUTO, &device), RESHARD_ERROR_INVALID);
  assert_int_equal(rs_device_cpu_create(1, (reshard_isa)77, &device), RESHARD_ERROR_UNSUPPORTED);
  assert_int_equal(reshard_isa_available(RESHARD_ISA_AUTO), 1);
  assert_int_equal(reshard_isa_available(RESHARD_ISA_SCALAR), 1);
  for (int isa = 0; isa < RESHARD_ISA_COUNT; isa++) {
    assert_string_not_equal(reshard_isa_string((reshard_isa)isa), "unknown");
    if (!reshard_isa_available((reshard_isa)isa))
      assert_int_equal(rs_device_cpu_create(1, (reshard_isa)isa, &device), RESHARD_ERROR_UNSUPPORTED);
  }
  assert_string_equal(reshard_isa_string((reshard_isa)-1), "unknown");
}

RUN_CASES_WITH(setup, teardown)
