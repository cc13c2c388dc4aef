/* DTensors redistributed to another dtype: FSDP's all-gather of f32 shards in bf16, to a sharding by columns and back.
 * The bits are those of casting the whole tensor once. Ranks that want different dtypes. */
#include "bench/cli/naive_cast.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <string.h>

enum { RANKS = 4, ROWS = 13, COLUMNS = 21 };
static const int64_t shape[2] = {ROWS, COLUMNS}, world = RANKS;

typedef struct wanted {
  reshard_dtype first, second; /* of the two steps */
  reshard_dtype last;          /* of rank 3 in the first, where it is another */
} wanted;

/* Any bits of f32. */
static uint32_t element_bits(int64_t i, int64_t j) { return (uint32_t)(i * COLUMNS + j + 1) * 2654435761u; }

static uint64_t converted(uint64_t bits, reshard_dtype from, reshard_dtype to) {
  return from == to ? bits : naive_cast(from, to, bits);
}

/* Elements that are not what the steps should have made of them. cut: the dim that ranks share, or -1. */
static int64_t count_wrong(reshard_dtensor t, int64_t r, int cut, const wanted *w, int steps) {
  reshard_tensor_info info;
  if (t == NULL || reshard_tensor_get_info(reshard_dtensor_local(t), &info) != RESHARD_SUCCESS ||
      info.dtype != (steps == 1 ? w->first : w->second))
    return 1;
  int64_t begin[2] = {0, 0}, wrong = 0;
  if (cut >= 0)
    begin[cut] = r * ((shape[cut] + RANKS - 1) / RANKS);
  size_t width = reshard_dtype_size(info.dtype);
  for (int64_t i = 0; i < info.shape[0]; i++)
    for (int64_t j = 0; j < info.shape[1]; j++) {
      uint64_t is = 0, bits = converted(element_bits(begin[0] + i, begin[1] + j), RESHARD_F32, w->first);
      if (steps > 1)
        bits = converted(bits, w->first, w->second);
      memcpy(&is, (const char *)info.data + (size_t)(i * info.strides[0] + j * info.strides[1]) * width, width);
      wrong += is != bits;
    }
  return wrong;
}

static void fill_rows(reshard_dtensor t, int64_t r) {
  reshard_tensor_info info;
  reshard_tensor_get_info(reshard_dtensor_local(t), &info);
  for (int64_t i = 0; i < info.shape[0]; i++)
    for (int64_t j = 0; j < COLUMNS; j++)
      ((uint32_t *)info.data)[i * COLUMNS + j] = element_bits(4 * r + i, j);
}

static void move_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wanted *w = p->user;
  const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE},
                          rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                          columns = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_mesh mesh = NULL;
  reshard_dtensor shards = NULL, both[2] = {NULL}, back = NULL;
  reshard_status status = reshard_mesh_create(p->comms[r], 0, 1, &world, NULL, 0, NULL, &mesh);
  const reshard_placing placings[2] = {{mesh, &replicate, NULL}, {mesh, &columns, NULL}}, home = {mesh, &rows, NULL};
  if (status == RESHARD_SUCCESS)
    status = reshard_dtensor_empty(p->sharders[r], &home, 2, shape, &properties, NULL, &shards);
  if (status == RESHARD_SUCCESS) {
    fill_rows(shards, r);
    reshard_dtype first = r == 3 && w->last != RESHARD_DTYPE_NONE ? w->last : w->first;
    status = reshard_dtensor_redistribute_as(2, (reshard_dtensor[]){shards, shards}, placings,
                                             (reshard_dtype[]){first, w->first}, NULL, both);
  }
  if (status == RESHARD_SUCCESS) {
    p->wrong[r] += count_wrong(both[0], r, -1, w, 1) + count_wrong(both[1], r, 1, w, 1);
    status = reshard_dtensor_redistribute_as(1, &both[1], &home, &w->second, NULL, &back);
  }
  if (status == RESHARD_SUCCESS)
    p->wrong[r] += count_wrong(back, r, 0, w, 2);
  rank_result_set(&p->results[r], status);
  reshard_dtensor_release(shards);
  reshard_dtensor_release(both[0]);
  reshard_dtensor_release(both[1]);
  reshard_dtensor_release(back);
  reshard_mesh_release(mesh);
}

CASE(shards_are_gathered_and_cut_in_another_dtype) {
  static const reshard_dtype dtypes[] = {RESHARD_F64, RESHARD_F32, RESHARD_F16, RESHARD_BF16, RESHARD_F8_E4M3};
  enum { DTYPES = sizeof dtypes / sizeof *dtypes };
  for (int i = 0; i < DTYPES; i++)
    for (int j = 0; j < DTYPES; j++) {
      wanted w = {.first = dtypes[i], .second = dtypes[j]};
      sharded_ranks_check(RANKS, NULL, move_body, &w, RESHARD_SUCCESS, NULL);
    }
}

CASE(ranks_that_want_other_dtypes_are_told) {
  wanted w = {RESHARD_BF16, RESHARD_F32, RESHARD_F16};
  sharded_ranks_check(RANKS, NULL, move_body, &w, RESHARD_ERROR_MISMATCH, "dst_dtype bf16 on rank 0, f16 on rank 3");
  wanted none = {RESHARD_I32, RESHARD_F32, RESHARD_DTYPE_NONE};
  sharded_ranks_check(RANKS, NULL, move_body, &none, RESHARD_ERROR_UNSUPPORTED, "tensor 0: no cast from f32 to i32");
}

RUN_CASES
