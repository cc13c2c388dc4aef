/* DTensors whose placements have parts: local shapes, ways there and back, what tells them apart, and parts that ranks
 * share, which a DTensor cannot have. */
#include "support/fixtures/sharded_ranks.h"

#include "bench/cli/util.h"

#include "support/fixtures/case.h"
#include <reshard/dtensor.h>

#include <string.h>

static const int64_t shape[2] = {16, 3};

static reshard_placement parts_of(int n, const reshard_part *parts, int ratio) {
  return (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = 0, .nparts = n, .ratio = ratio, .parts = parts};
}

CASE(local_shapes_are_the_chunks_of_all_parts) {
  const reshard_part parts[3] = {{4, 0}, {1, 0}, {1, 0}}, shared[2] = {{3, 0}, {1, 2}};
  reshard_placement placement = parts_of(3, parts, 1);
  reshard_mesh mesh;
  CLI_TRY("mesh: ", reshard_mesh_parse(NULL, 4, "4", &mesh));
  const reshard_placing placing = {mesh, &placement, NULL};
  const int64_t whole[2] = {24, 3};
  for (int64_t r = 0; r < 4; r++) {
    int64_t local[2], offset[2];
    CLI_TRY("local: ", reshard_dtensor_local_shape(&placing, 2, whole, &r, local, offset));
    assert_true(local[0] == 6 && local[1] == 3 && offset[0] == 4 * r && offset[1] == 0);
  }
  int64_t local[2] = {-1, -1}, first = 0;
  placement = parts_of(2, shared, 1);
  assert_int_equal(reshard_dtensor_local_shape(&placing, 2, whole, &first, local, NULL), RESHARD_ERROR_UNSUPPORTED);
  assert_string_equal(reshard_last_error(),
                      "reshard_dtensor_local_shape: part 1 of mesh dim 0 is in 2 pieces (/) over 4 ranks, which a "
                      "DTensor cannot have: mesh(4@0-3;S0{18,6/2})");
  assert_int_equal(local[0], -1);
  int order[1] = {7};
  assert_int_equal(reshard_placements_parse("S0{1:1}", mesh, &placement, order), RESHARD_ERROR_UNSUPPORTED);
  assert_int_equal(reshard_placements_parse("S0/2", mesh, &placement, order), RESHARD_ERROR_UNSUPPORTED);
  assert_true(order[0] == 7 && placement.parts == shared);
  reshard_mesh_release(mesh);
}

/* Rows of a rank: its half of each part. */
static int64_t wrong_rows(reshard_dtensor t, int64_t rank, const reshard_part *parts) {
  reshard_tensor_info info;
  int64_t wrong = 0, row = 0, begin = 0;
  if (reshard_tensor_get_info(reshard_dtensor_local(t), &info) != RESHARD_SUCCESS)
    return 1;
  const float *data = info.data;
  for (int k = 0; k < 2; begin += parts[k++].size) {
    int64_t half = (parts[k].size + 1) / 2, first = rank * half, end = rank == 0 ? half : parts[k].size;
    for (int64_t i = first; i < end; i++, row++)
      for (int64_t c = 0; c < 3; c++)
        wrong += data[row * 3 + c] != (float)((begin + i) * 3 + c);
  }
  return wrong + (row != info.shape[0]);
}

static void redistribute_body(void *user, int64_t rank) {
  static const reshard_part ways[][2] = {{{8, 0}, {8, 0}}, {{5, 0}, {11, 0}}, {{8, 0}, {8, 0}}};
  sharded_ranks *p = user;
  reshard_mesh mesh;
  reshard_tensor_info info;
  reshard_dtensor t = NULL, next = NULL;
  reshard_properties f32 = {.dtype = RESHARD_F32};
  CLI_TRY("mesh: ", reshard_mesh_parse(p->comms[rank], 2, "2", &mesh));
  reshard_placement placement = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  const reshard_placing placing = {mesh, &placement, NULL};
  CLI_TRY("rows: ", reshard_dtensor_empty(p->sharders[rank], &placing, 2, shape, &f32, NULL, &t));
  CLI_TRY("info: ", reshard_tensor_get_info(reshard_dtensor_local(t), &info));
  for (int64_t e = 0; e < info.elements; e++)
    ((float *)info.data)[e] = (float)(rank * info.elements + e);
  for (int i = 0; i < 9; i++) { /* kept layouts differ in the parts' numbers alone */
    const reshard_part *parts = ways[i % 3], ratio[2] = {{1, 0}, {1, 0}};
    placement = i % 3 == 2 ? parts_of(2, ratio, 1) : parts_of(2, parts, 0);
    CLI_TRY("parts: ", reshard_dtensor_redistribute(1, &t, &placing, NULL, &next));
    const reshard_placement *is = reshard_dtensor_placements(next);
    p->wrong[rank] += wrong_rows(next, rank, parts) + (is->nparts != 2 || is->ratio != 0) +
                      (is->parts[0].size != parts[0].size || is->parts == parts);
    reshard_dtensor_release(t);
    t = next;
  }
  placement = (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE};
  CLI_TRY("whole: ", reshard_dtensor_redistribute(1, &t, &placing, NULL, &next));
  CLI_TRY("info: ", reshard_tensor_get_info(reshard_dtensor_local(next), &info));
  for (int64_t e = 0; e < info.elements; e++)
    p->wrong[rank] += ((float *)info.data)[e] != (float)e;
  reshard_dtensor_release(next);
  const reshard_part shared[2] = {{8, 1}, {8, 0}};
  placement = parts_of(2, shared, 0);
  next = NULL;
  reshard_status status = reshard_dtensor_redistribute(1, &t, &placing, NULL, &next);
  p->wrong[rank] += next != NULL;
  rank_result_set(&p->results[rank], status);
  reshard_dtensor_release(t);
  reshard_mesh_release(mesh);
}

CASE(dtensors_go_to_parts_and_back_and_refuse_shared_ones) {
  sharded_ranks_check(2, NULL, redistribute_body, NULL, RESHARD_ERROR_UNSUPPORTED,
                      "part 0 of mesh dim 0 is in 1 pieces (/) over 2 ranks");
}

typedef struct given {
  reshard_part parts[2][2]; /* of ranks 0 and 1 */
} given;

static void from_local_body(void *user, int64_t rank) {
  sharded_ranks *p = user;
  const given *g = p->user;
  const int64_t half[2] = {8, 3};
  reshard_mesh mesh;
  reshard_tensor local;
  reshard_dtensor t = NULL;
  reshard_placement placement = parts_of(2, g->parts[rank], 0);
  CLI_TRY("mesh: ", reshard_mesh_parse(p->comms[rank], 2, "2", &mesh));
  CLI_TRY("local: ", reshard_tensor_create(RESHARD_F32, 2, half, &local));
  const reshard_placing placing = {mesh, &placement, NULL};
  reshard_status status = reshard_dtensor_from_local(p->sharders[rank], &placing, local, 2, shape, true, &t);
  rank_result_set(&p->results[rank], status);
  p->wrong[rank] += (status == RESHARD_SUCCESS) != (t != NULL);
  reshard_dtensor_release(t);
  reshard_tensor_release(local);
  reshard_mesh_release(mesh);
}

CASE(parts_that_differ_between_ranks_are_named) {
  given same = {{{{4, 0}, {12, 0}}, {{4, 0}, {12, 0}}}}, differ = {{{{4, 0}, {12, 0}}, {{12, 0}, {4, 0}}}};
  sharded_ranks_check(2, NULL, from_local_body, &same, RESHARD_SUCCESS, NULL);
  sharded_ranks_check(2, NULL, from_local_body, &differ, RESHARD_ERROR_MISMATCH,
                      "placements S0{4,12} on rank 0, S0{12,4} on rank 1");
}

RUN_CASES
