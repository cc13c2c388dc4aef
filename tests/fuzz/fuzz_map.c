/* Maps from any text: parsed, and applied to two small models. Finds reads and writes out of bounds, leaks and
 * unbounded recursion. Finds regions that reshard_entry would refuse, or that leave an element of the target out. */
#define _GNU_SOURCE
#include "file/map/line.h"
#include "fuzz.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static reshard_model model_make(int which) {
  static const struct {
    const char *name;
    reshard_dtype dtype;
    int ndim;
    int64_t shape[3];
  } tensors[2][10] = {{{"q", RESHARD_F32, 2, {4, 6}},
                       {"k", RESHARD_F32, 2, {2, 6}},
                       {"s", RESHARD_F32, 0, {0}},
                       {"e", RESHARD_F32, 3, {3, 0, 2}},
                       {"z y", RESHARD_U8, 1, {5}}},
                      {{"l.0.q.w", RESHARD_BF16, 2, {4, 6}},
                       {"l.0.k.w", RESHARD_BF16, 2, {4, 6}},
                       {"l.1.k.w", RESHARD_BF16, 2, {4, 6}},
                       {"l.1.q.w", RESHARD_BF16, 2, {4, 6}},
                       {"l.0.e.1", RESHARD_BF16, 1, {3}},
                       {"l.0.e.0", RESHARD_BF16, 1, {3}},
                       {"l.1.e.0", RESHARD_BF16, 1, {3}},
                       {"l.1.e.1", RESHARD_BF16, 1, {3}},
                       {"n", RESHARD_I64, 3, {2, 3, 4}}}};
  reshard_model made;
  fuzz_require(rs_model_new(&made) == RESHARD_SUCCESS);
  for (int i = 0; tensors[which][i].name != NULL; i++)
    fuzz_require(rs_model_add(made, "fuzz", tensors[which][i].name, strlen(tensors[which][i].name),
                              tensors[which][i].dtype, tensors[which][i].ndim,
                              tensors[which][i].shape) == RESHARD_SUCCESS);
  return made;
}

static int64_t volume(int ndim, const int64_t *extent) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= extent[d];
  return n;
}

/* In bounds on both sides, of one extent, and each source dim walked once or of one index. */
static void check_route(const rs_copy_region *r, const rs_model_tensor *src, const rs_model_tensor *dst) {
  unsigned named = 0;
  fuzz_require(src->dtype == dst->dtype);
  for (int d = 0; d < dst->ndim; d++) {
    int from = r->permutation[d];
    fuzz_require(r->dst_offset[d] >= 0 && r->dst_extent[d] >= 0 &&
                 r->dst_offset[d] + r->dst_extent[d] <= dst->shape[d]);
    fuzz_require(from >= -1 && from < src->ndim && r->dst_extent[d] == (from < 0 ? 1 : r->src_extent[from]));
    fuzz_require(from < 0 || (named & 1u << from) == 0);
    named |= from < 0 ? 0 : 1u << from;
  }
  for (int d = 0; d < src->ndim; d++) {
    fuzz_require(r->src_offset[d] >= 0 && r->src_extent[d] >= 0 &&
                 r->src_offset[d] + r->src_extent[d] <= src->shape[d]);
    fuzz_require((named & 1u << d) != 0 || r->src_extent[d] == 1);
  }
}

static void apply(reshard_map map, reshard_model source) {
  reshard_model target = NULL;
  rs_copy_regions regions = {0};
  if (rs_map_apply(map, source, &target, &regions) != RESHARD_SUCCESS) {
    fuzz_require(strncmp(reshard_last_error(), "fuzz:", 5) == 0 && strchr(reshard_last_error(), '\n') == NULL);
    return;
  }
  int64_t elements = 0, reached = 0;
  for (int64_t i = 0; i < target->tensors.n; i++)
    elements += volume(target->tensors.at[i].ndim, target->tensors.at[i].shape);
  for (int64_t i = 0; i < regions.n; i++) {
    const rs_copy_region *r = &regions.at[i];
    fuzz_require(r->src >= -1 && r->src < source->tensors.n && r->dst >= 0 && r->dst < target->tensors.n);
    const rs_model_tensor *to = &target->tensors.at[r->dst];
    rs_model_tensor zeros = {.dtype = to->dtype};
    memcpy(zeros.shape, r->src_extent, sizeof zeros.shape);
    for (int d = 0; d < to->ndim; d++)
      zeros.ndim += r->permutation[d] >= 0;
    check_route(r, r->src < 0 ? &zeros : &source->tensors.at[r->src], to);
    reached += volume(target->tensors.at[r->dst].ndim, r->dst_extent);
  }
  fuzz_require(reached == elements);
  free(regions.at);
  reshard_model_free(target);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size);
  if (text == NULL)
    return 0;
  reshard_map map = NULL;
  if (reshard_map_parse(text, "fuzz", &map) == RESHARD_SUCCESS) {
    for (int i = 0; i < 2; i++) {
      reshard_model source = model_make(i);
      apply(map, source);
      reshard_model_free(source);
    }
    reshard_map_free(map);
  } else {
    fuzz_require(map == NULL && strncmp(reshard_last_error(), "fuzz:", 5) == 0);
    fuzz_require(strchr(reshard_last_error(), '\n') == NULL);
  }
  free(text);
  return 0;
}
