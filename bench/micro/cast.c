/* Casts of 1,000 tensors in one job, 16 Ki numbers each. Beside them memcpy by as many threads, of as many bytes as the
 * cast reads and writes (half of them are read, half are written): the figure is memcpy's time over the cast's,
 * measured in turns by --benchmark_enable_random_interleaving=true. */
#include "bench/micro/micro.h"

#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS = 1000, NUMBERS = 16 << 10, ROOM = TENSORS * NUMBERS * 8 };

typedef struct cast_bench {
  rs_device *device;
  rs_casts casts;
  char *src, *dst;
  int64_t bytes; /* read and written */
} cast_bench;

static void cast_drop(void *state) {
  cast_bench *b = state;
  rs_casts_free(&b->casts);
  if (b->device != NULL)
    b->device->destroy(b->device);
  free(b->src);
  free(b->dst);
  free(b);
}

static int fill_casts(cast_bench *b, reshard_dtype from, reshard_dtype to) {
  int64_t wide = (int64_t)reshard_dtype_size(from), narrow = (int64_t)reshard_dtype_size(to);
  const rs_axis axis = {NUMBERS, wide, narrow};
  b->src = aligned_alloc(256, ROOM);
  b->dst = aligned_alloc(256, ROOM);
  if (b->src == NULL || b->dst == NULL || rs_device_cpu_create(0, RESHARD_ISA_AUTO, &b->device))
    return 1;
  memset(b->src, 1, ROOM);
  memset(b->dst, 1, ROOM);
  b->bytes = TENSORS * NUMBERS * (wide + narrow);
  for (int64_t i = 0; i < TENSORS; i++)
    if (rs_casts_add(&b->casts, b->src + i * NUMBERS * wide, b->dst + i * NUMBERS * narrow, from, to, 1, &axis))
      return 1;
  return 0;
}

static void *cast_make(const micro_case *of, int64_t *items) {
  cast_bench *b = calloc(1, sizeof *b);
  *items = TENSORS;
  if (b == NULL || fill_casts(b, (reshard_dtype)of->more[0], (reshard_dtype)of->more[1]) == 0)
    return b;
  cast_drop(b);
  return NULL;
}

static int cast_run(void *state) {
  cast_bench *b = state;
  return b->device->work->cast(b->device, &b->casts, NULL) != RESHARD_SUCCESS;
}

static int copy_run(void *state) {
  cast_bench *b = state;
  rs_device_cpu_straight(b->device, b->dst, b->src, b->bytes / 2, false);
  return 0;
}

static int64_t cast_bytes(const void *state) { return ((const cast_bench *)state)->bytes; }

#define PAIR(name, from, to) \
  {"cast_1000_tensors_" name, 0, 0, cast_make, cast_run, cast_drop, {RESHARD_##from, RESHARD_##to}, NULL}, { \
    "cast_1000_tensors_" name "_memcpy", 0, 0, cast_make, copy_run, cast_drop, {RESHARD_##from, RESHARD_##to}, NULL \
  }
static const micro_case micro_cast[] = {
    PAIR("f32_bf16", F32, BF16),  PAIR("bf16_f32", BF16, F32), PAIR("f32_f16", F32, F16),
    PAIR("f32_f8", F32, F8_E4M3), PAIR("f64_bf16", F64, BF16),
};
MICRO_TABLE(micro_cast, cast_bytes)
