/* Box copies of 64 MiB by all cores: by the length of their runs, the width of their elements, and how far the runs are
 * from an aligned address; for narrow runs by all of these together (copy_narrow_RUN/SHIFT); transposes; and
 * index_select of rows. Beside each family is its sibling NAME_memcpy, a straight copy of as many bytes by as many
 * threads, to be measured in the same run. */
#include "bench/micro/micro.h"

#include "bench/cli/machine.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { ALL = 64 << 20, ROOM = 2 * ALL + 4096 };

typedef struct copy_bench {
  rs_device *device;
  rs_program *program;
  rs_select select;
  int64_t *indices;
  char *src, *dst;
} copy_bench;

static void copy_drop(void *state) {
  copy_bench *b = state;
  if (b->device != NULL && b->program != NULL)
    b->device->work->release(b->device, b->program);
  if (b->device != NULL)
    b->device->destroy(b->device);
  free(b->indices);
  free(b->src);
  free(b->dst);
  free(b);
}

static copy_bench *copy_open(void) {
  copy_bench *b = calloc(1, sizeof *b);
  if (b == NULL)
    return NULL;
  b->src = aligned_alloc(4096, ROOM);
  b->dst = aligned_alloc(4096, ROOM);
  if (b->src == NULL || b->dst == NULL || rs_device_cpu_create(0, RESHARD_ISA_AUTO, &b->device) != RESHARD_SUCCESS) {
    copy_drop(b);
    return NULL;
  }
  memset(b->src, 1, ROOM);
  memset(b->dst, 2, ROOM);
  return b;
}

/* Compiles one copy of these loops, outermost first. */
static void *compile_copy(copy_bench *b, int64_t shift, int32_t width, const rs_axis *axes) {
  rs_copies copies = {0};
  reshard_status status = rs_copies_add(&copies, b->src + shift, b->dst, width, 2, axes);
  RS_THEN(status, b->device->work->compile(b->device, &copies, copies.bytes, &b->program));
  rs_copies_free(&copies);
  if (status == RESHARD_SUCCESS)
    return b;
  copy_drop(b);
  return NULL;
}

/* Runs of so many bytes: every second of the source, one behind the other in the destination. */
static void *runs_make(const micro_case *of, int64_t *items) {
  const int64_t run = of->parameter;
  copy_bench *b = copy_open();
  const rs_axis axes[] = {{ALL / run, 2 * run, run}, {run / 4, 4, 4}};
  *items = ALL / run;
  return b != NULL ? compile_copy(b, 0, 4, axes) : NULL;
}

/* Runs of so many bytes, of elements as wide as they and the shift allow, that begin so many bytes behind an aligned
 * address. */
static void *narrow_make(const micro_case *of, int64_t *items) {
  copy_bench *b = copy_open();
  const int64_t run = of->more[0], shift = of->parameter;
  int64_t width = run < 16 ? run : 16;
  while (shift % width != 0)
    width /= 2;
  const rs_axis axes[] = {{ALL / run, 2 * run, run}, {run / width, width, width}};
  *items = ALL / run;
  return b != NULL ? compile_copy(b, shift, (int32_t)width, axes) : NULL;
}

/* Runs of 4 KiB that begin so many bytes behind an aligned address. */
static void *shifted_make(const micro_case *of, int64_t *items) {
  copy_bench *b = copy_open();
  const rs_axis axes[] = {{ALL / 4096, 8192, 4096}, {4096, 1, 1}};
  *items = ALL / 4096;
  return b != NULL ? compile_copy(b, of->parameter, 1, axes) : NULL;
}

/* A transpose of a square of elements of so many bytes, as far as 64 MiB reach. */
static void *transpose_make(const micro_case *of, int64_t *items) {
  copy_bench *b = copy_open();
  int64_t width = of->parameter, n = 1;
  while ((n * 2) * (n * 2) * width <= ALL)
    n *= 2;
  int64_t m = ALL / width / n;
  const rs_axis axes[] = {{n, width, m * width}, {m, n * width, width}};
  *items = n * m;
  return b != NULL ? compile_copy(b, 0, (int32_t)width, axes) : NULL;
}

static int copy_run(void *state) {
  copy_bench *b = state;
  return b->device->work->run(b->device, 1, &b->program, NULL) != RESHARD_SUCCESS;
}

/* The faster straight copy by the size: streaming. */
static int straight_run(void *state) {
  copy_bench *b = state;
  rs_device_cpu_straight(b->device, b->dst, b->src, ALL, true);
  return 0;
}

/* Rows of so many bytes, in an order that is not theirs. */
static void *select_make(const micro_case *of, int64_t *items) {
  copy_bench *b = copy_open();
  int64_t row = of->parameter, n = ALL / row;
  if (b == NULL)
    return NULL;
  b->indices = malloc((size_t)n * sizeof *b->indices);
  if (b->indices == NULL) {
    copy_drop(b);
    return NULL;
  }
  for (int64_t i = 0; i < n; i++)
    b->indices[i] = (int64_t)((uint64_t)i * 2654435761u % (uint64_t)n); /* n is a power of two, the factor odd */
  b->select = (rs_select){.src = b->src,
                          .index = (const char *)b->indices,
                          .dst = b->dst,
                          .count = n,
                          .extent = n,
                          .index_stride = 8,
                          .src_stride = row,
                          .dst_stride = row,
                          .index_bytes = 8,
                          .element = 4,
                          .run = row};
  *items = n;
  return b;
}

static int select_run(void *state) {
  copy_bench *b = state;
  return b->device->work->select(b->device, &b->select, NULL, NULL) != RESHARD_SUCCESS;
}

const char *micro_isa(void) {
  static machine m;
  machine_read(&m);
  return m.isa;
}

#define CASE(name, parameter, make, run) \
  { name, parameter, 0, make, run, copy_drop, {0}, NULL }
#define NARROW(run, shift) \
  { "copy_narrow_" #run, shift, 0, narrow_make, copy_run, copy_drop, {run}, NULL }
#define CASES(run) NARROW(run, 0), NARROW(run, 1), NARROW(run, 4), NARROW(run, 16)

static int64_t copies_bytes(const void *state) {
  (void)state;
  return ALL;
}

static const micro_case micro_copies[] = {
    CASE("copy_runs", 4, runs_make, copy_run),
    CASE("copy_runs", 16, runs_make, copy_run),
    CASE("copy_runs", 64, runs_make, copy_run),
    CASE("copy_runs", 256, runs_make, copy_run),
    CASE("copy_runs", 4096, runs_make, copy_run),
    CASE("copy_runs", 65536, runs_make, copy_run),
    CASE("copy_runs", 1 << 20, runs_make, copy_run),
    CASE("copy_runs_memcpy", 0, shifted_make, straight_run),
    CASES(1),
    CASES(2),
    CASES(4),
    CASES(8),
    CASES(16),
    CASES(32),
    CASES(64),
    CASE("copy_narrow_memcpy", 0, shifted_make, straight_run),
    CASE("copy_shifted", 1, shifted_make, copy_run),
    CASE("copy_shifted", 4, shifted_make, copy_run),
    CASE("copy_shifted", 32, shifted_make, copy_run),
    CASE("copy_shifted", 64, shifted_make, copy_run),
    CASE("copy_shifted_memcpy", 0, shifted_make, straight_run),
    CASE("copy_transpose", 1, transpose_make, copy_run),
    CASE("copy_transpose", 2, transpose_make, copy_run),
    CASE("copy_transpose", 4, transpose_make, copy_run),
    CASE("copy_transpose", 8, transpose_make, copy_run),
    CASE("copy_transpose", 16, transpose_make, copy_run),
    CASE("copy_transpose_memcpy", 0, shifted_make, straight_run),
    CASE("index_select", 16, select_make, select_run),
    CASE("index_select", 64, select_make, select_run),
    CASE("index_select", 1024, select_make, select_run),
    CASE("index_select", 65536, select_make, select_run),
    CASE("index_select_memcpy", 0, shifted_make, straight_run),
};
MICRO_TABLE(micro_copies, copies_bytes)
