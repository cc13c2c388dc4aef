#include "support/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "util.h"

#include <stdlib.h>
#include <string.h>

void parts_open(parts *p, int64_t n, const reshard_sharder_options *options) {
  *p = (parts){.n = n};
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, 2, RESHARD_ISA_AUTO, 60000, NULL, 0};
  CLI_TRY("communicator: ", reshard_comm_create_local(n, &local, p->comms));
  for (int64_t r = 0; r < n; r++)
    CLI_TRY("sharder: ", reshard_sharder_create(p->comms[r], options, &p->sharders[r]));
}

void parts_close(parts *p) {
  for (int64_t r = 0; r < p->n; r++) {
    reshard_sharder_destroy(p->sharders[r]);
    reshard_comm_destroy(p->comms[r]);
  }
}

void parts_run(parts *p, void (*body)(void *parts, int64_t rank), void *user) {
  p->user = user;
  for (int64_t r = 0; r < p->n; r++) {
    p->results[r] = (crew_result){.status = RESHARD_SUCCESS};
    p->wrong[r] = 0;
  }
  crew_run(p->n, body, p);
}

void parts_assert(const parts *p, reshard_status status, const char *part) {
  crew_assert(p->n, p->results, status, part, NULL);
  for (int64_t r = 0; r < p->n; r++)
    if (p->wrong[r] != 0)
      fail_msg("rank %d has %lld wrong elements", (int)r, (long long)p->wrong[r]);
}

reshard_layout parts_layout(const char *text, int ndim, const int64_t *shape, int64_t world) {
  reshard_layout layout;
  CLI_TRY(text, reshard_layout_parse(text, ndim, shape, world, &layout));
  return layout;
}

/* An element of 16 bytes, of which narrow dtypes take the first. */
static void element_of(uint64_t seed, int64_t index, unsigned char out[16]) {
  uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)index * 0xd6e8feb86659fd93u;
  for (int i = 0; i < 2; i++) {
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    memcpy(out + 8 * i, &x, 8);
  }
}

/* Walks the elements of an array: global indices of each dim from the layout, place from the tensor's strides. */
static int64_t walk(reshard_layout layout, int64_t rank, int64_t i, reshard_tensor array, uint64_t seed, bool fill) {
  reshard_tensor_info info;
  int64_t *global[RESHARD_MAX_DIMS] = {NULL}, at[RESHARD_MAX_DIMS] = {0}, wrong = 0;
  if (array == NULL || reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS)
    return 1;
  for (int d = 0; d < info.ndim; d++) {
    reshard_interval intervals[256];
    int64_t n = 0, made = 0;
    global[d] = cli_alloc(info.shape[d] + 1, sizeof **global);
    if (reshard_layout_array_intervals(layout, rank, i, d, 0, 256, intervals, &n) != RESHARD_SUCCESS || n > 256)
      wrong++;
    for (int64_t k = 0; k < n && k < 256; k++)
      for (int64_t g = intervals[k].begin; g < intervals[k].end; g++)
        if (made < info.shape[d])
          global[d][made++] = g;
    wrong += made != info.shape[d];
  }
  size_t width = reshard_dtype_size(info.dtype);
  const int64_t *shape = reshard_layout_shape(layout);
  for (int64_t e = 0; e < info.elements && wrong == 0; e++) {
    int64_t index = 0, place = 0, rest = e;
    for (int d = info.ndim - 1; d >= 0; d--) {
      at[d] = rest % info.shape[d];
      rest /= info.shape[d];
    }
    for (int d = 0; d < info.ndim; d++) {
      index = index * shape[d] + global[d][at[d]];
      place += at[d] * info.strides[d];
    }
    unsigned char value[16], *memory = (unsigned char *)info.data + place * (int64_t)width;
    element_of(seed, index, value);
    if (fill)
      memcpy(memory, value, width);
    else
      wrong += memcmp(memory, value, width) != 0;
  }
  for (int d = 0; d < info.ndim; d++)
    free(global[d]);
  return wrong;
}

void parts_fill(reshard_layout layout, int64_t rank, int64_t i, reshard_tensor array, uint64_t seed) {
  walk(layout, rank, i, array, seed, true);
}

int64_t parts_check(reshard_layout layout, int64_t rank, int64_t i, reshard_tensor array, uint64_t seed) {
  return walk(layout, rank, i, array, seed, false);
}

static int64_t walk_all(reshard_sharded_tensor tensor, int64_t rank, uint64_t seed, bool fill) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(tensor); i++) {
    reshard_tensor array = NULL;
    if (reshard_sharded_tensor_local(tensor, i, &array, NULL) != RESHARD_SUCCESS)
      return 1;
    wrong += walk(reshard_sharded_tensor_layout(tensor), rank, i, array, seed, fill);
  }
  return wrong;
}

void parts_fill_all(reshard_sharded_tensor tensor, int64_t rank, uint64_t seed) { walk_all(tensor, rank, seed, true); }

int64_t parts_check_all(reshard_sharded_tensor tensor, int64_t rank, uint64_t seed) {
  return walk_all(tensor, rank, seed, false);
}

static void release_memory(void *user, void *data) {
  (void)user;
  free(data);
}

reshard_tensor parts_strided(reshard_dtype dtype, int ndim, const int64_t *shape, bool reverse) {
  int64_t strides[RESHARD_MAX_DIMS], step = 2;
  for (int i = 0; i < ndim; i++) {
    int d = reverse ? i : ndim - 1 - i;
    strides[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
  }
  reshard_tensor tensor;
  void *memory = cli_alloc(step + 1, reshard_dtype_size(dtype));
  CLI_TRY("strided tensor: ", reshard_tensor_wrap(dtype, ndim, shape, strides, memory, release_memory, NULL, &tensor));
  return tensor;
}
