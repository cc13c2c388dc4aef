/* Gathering and resharding into another dtype: every element is what one rounding makes of it, whatever the layout,
 * strides and path; dtypes that have no cast, and ranks that do not want the same one. */
#include "bench/cli/naive_cast.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/metadata.h>

#include <string.h>

enum { RANKS = 4, ROWS = 13, COLUMNS = 21 };
static const int64_t shape[2] = {ROWS, COLUMNS};

typedef struct fixture {
  const char *layout;
  reshard_dtype from, to;
  bool strided; /* the output */
  int64_t dst;
  bool differ;  /* rank 3 wants bf16 */
  bool reshard; /* to columns, and the result is gathered as it is */
} fixture;

static uint64_t bits_at(const reshard_tensor_info *info, int64_t i, int64_t j) {
  uint64_t bits = 0;
  size_t width = reshard_dtype_size(info->dtype);
  memcpy(&bits, (const char *)info->data + (size_t)(i * info->strides[0] + j * info->strides[1]) * width, width);
  return bits;
}

/* Elements that are not the cast of what they were gathered from. */
static int64_t unlike(const fixture *s, reshard_tensor plain, reshard_tensor cast) {
  reshard_tensor_info a, b;
  int64_t wrong = 0;
  reshard_tensor_get_info(plain, &a);
  reshard_tensor_get_info(cast, &b);
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t j = 0; j < COLUMNS; j++) {
      uint64_t bits = bits_at(&a, i, j);
      wrong += bits_at(&b, i, j) != (s->from == s->to ? bits : naive_cast(s->from, s->to, bits));
    }
  return wrong;
}

/* Two results of one plan, of which one keeps its dtype. */
static reshard_status reshard_columns(reshard_sharded_tensor t, reshard_dtype to, int64_t dst, reshard_tensor out) {
  reshard_layout columns = layout_from_text("chunk(1;1,3,0)", 2, shape, RANKS);
  reshard_sharded_tensor made[2] = {NULL, NULL};
  reshard_status status =
      reshard_sharded_tensor_reshard_to_as(2, (reshard_sharded_tensor[]){t, t}, (reshard_layout[]){columns, columns},
                                           (reshard_dtype[]){RESHARD_DTYPE_NONE, to}, NULL, made);
  reshard_dtype as = made[0] != NULL ? reshard_metadata_properties(reshard_sharded_tensor_metadata(made[0])).dtype : 0,
                is = reshard_metadata_properties(reshard_sharded_tensor_metadata(t)).dtype;
  if (status == RESHARD_SUCCESS)
    status = as == is ? reshard_sharded_tensor_gather(made[1], dst, out, NULL) : RESHARD_ERROR_INTERNAL;
  reshard_sharded_tensor_release(made[0]);
  reshard_sharded_tensor_release(made[1]);
  reshard_layout_release(columns);
  return status;
}

static void gather_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  const reshard_properties properties = {.dtype = s->from};
  reshard_layout layout = layout_from_text(s->layout, 2, shape, RANKS);
  reshard_sharded_tensor t = NULL;
  reshard_tensor plain = NULL, out = NULL;
  reshard_dtype to = s->differ && r == 3 ? RESHARD_BF16 : s->to;
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], layout, &properties, NULL, &t);
  if (r == s->dst && status == RESHARD_SUCCESS) {
    status = reshard_tensor_create(s->from, 2, shape, &plain);
    if (s->strided)
      out = strided_tensor(s->to, 2, shape, true);
    else if (status == RESHARD_SUCCESS)
      status = reshard_tensor_create(s->to, 2, shape, &out);
  }
  if (status == RESHARD_SUCCESS) {
    sharded_fill(t, r, 7);
    status = reshard_sharded_tensor_gather(t, s->dst, plain, NULL);
  }
  if (status == RESHARD_SUCCESS && s->reshard)
    status = reshard_columns(t, to == s->from ? RESHARD_DTYPE_NONE : to, s->dst, out);
  else if (status == RESHARD_SUCCESS)
    status = reshard_sharded_tensor_gather_as(t, s->dst, to == s->from ? RESHARD_DTYPE_NONE : to, out, NULL);
  if (status == RESHARD_SUCCESS && r == s->dst)
    p->wrong[r] += unlike(s, plain, out);
  p->wrong[r] += sharded_check(t, r, 7);
  rank_result_set(&p->results[r], status);
  reshard_sharded_tensor_release(t);
  reshard_tensor_release(plain);
  reshard_tensor_release(out);
  reshard_layout_release(layout);
}

static void gather_run(const fixture *s, reshard_path path, reshard_status status, const char *text) {
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = path};
  sharded_ranks_check(RANKS, &options, gather_body, (void *)s, status, text);
}

CASE(gather_as_rounds_each_element_once) {
  static const char *const layouts[] = {"chunk(1;2,0,3,1)", "mesh(2x2;S0,R)", "cyclic(2x2;2x3)", "flat()", "rank(2)"};
  static const reshard_dtype pairs[][2] = {{RESHARD_F32, RESHARD_BF16}, {RESHARD_BF16, RESHARD_F32},
                                           {RESHARD_F32, RESHARD_F16},  {RESHARD_F64, RESHARD_F32},
                                           {RESHARD_F16, RESHARD_F64},  {RESHARD_F32, RESHARD_F8_E4M3},
                                           {RESHARD_I32, RESHARD_I32}};
  for (int k = 0; k < 5; k++)
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
      const fixture s = {
          .layout = layouts[k], .from = pairs[i][0], .to = pairs[i][1], .strided = i % 2, .dst = (k + (int)i) % RANKS};
      gather_run(&s, k % 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO, RESHARD_SUCCESS, NULL);
      fixture resharded = s;
      resharded.reshard = true;
      gather_run(&resharded, k % 2 ? RESHARD_PATH_AUTO : RESHARD_PATH_PACKED, RESHARD_SUCCESS, NULL);
    }
}

CASE(gather_as_of_dtypes_without_cast_is_refused) {
  const fixture integers = {.layout = "chunk(0)", .from = RESHARD_I32, .to = RESHARD_F32, .dst = 1};
  const fixture differ = {.layout = "chunk(0)", .from = RESHARD_F32, .to = RESHARD_F16, .dst = 1, .differ = true};
  gather_run(&integers, RESHARD_PATH_AUTO, RESHARD_ERROR_UNSUPPORTED,
             "rank 0: reshard_sharded_tensor_gather_as: no cast from i32 to f32");
  gather_run(&differ, RESHARD_PATH_AUTO, RESHARD_ERROR_MISMATCH, "'tensor': dst_dtype f16 on rank 0, bf16 on rank 3");
  gather_run(&differ, RESHARD_PATH_PACKED, RESHARD_ERROR_MISMATCH, "'tensor': dst_dtype f16 on rank 0, bf16 on rank 3");
  fixture apart = differ;
  apart.reshard = true;
  gather_run(&apart, RESHARD_PATH_AUTO, RESHARD_ERROR_MISMATCH, "dst_dtype f16 on rank 0, bf16 on rank 3");
}

RUN_CASES
