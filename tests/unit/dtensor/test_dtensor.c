/* DTensors: how they are made, moved and looked at, and what is refused. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* A mesh and placements from text, of a rank: "dp=2,tp=2" "S0,R". */
typedef struct placed {
  reshard_placing placing;
  reshard_placement placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
} placed;

static reshard_status place_on(reshard_mesh mesh, const char *text, placed *out) {
  reshard_status status = reshard_placements_parse(text, mesh, out->placements, out->order);
  out->placing = (reshard_placing){mesh, out->placements, out->order};
  return status;
}

static reshard_mesh mesh_of(sharded_ranks *p, int64_t r, const char *text) {
  reshard_mesh mesh = NULL;
  CLI_TRY(text, reshard_mesh_parse(p->comms[r], 0, text, &mesh));
  return mesh;
}

/* The local array of a rank: filled by, or compared with, what the elements of the global tensor are. */
static int64_t dtensor_fill(reshard_dtensor t, int64_t r, uint64_t seed) {
  if (reshard_dtensor_local(t) != NULL)
    array_fill(reshard_dtensor_layout(t), r, 0, reshard_dtensor_local(t), seed);
  return 0;
}

static int64_t dtensor_wrong(reshard_dtensor t, int64_t r, uint64_t seed) {
  int64_t count = -1, held = reshard_dtensor_local(t) != NULL;
  if (reshard_layout_array_count(reshard_dtensor_layout(t), r, &count) != RESHARD_SUCCESS || count != held)
    return 1;
  return held ? array_check(reshard_dtensor_layout(t), r, 0, reshard_dtensor_local(t), seed) : 0;
}

static reshard_tensor whole_tensor(int ndim, const int64_t *shape, uint64_t seed) {
  reshard_tensor whole = NULL;
  CLI_TRY("whole tensor: ", reshard_tensor_create(RESHARD_F32, ndim, shape, &whole));
  reshard_layout layout = layout_from_text("rank(0)", ndim, shape, 1);
  array_fill(layout, 0, 0, whole, seed);
  reshard_layout_release(layout);
  return whole;
}

/* --- There and elsewhere ----------------------------------------------------------------------------------------- */

/* A tensor through a list of "mesh;placements", each checked element by element, and whole at the end. */
typedef struct tour {
  int ndim;
  const int64_t *shape;
  int count;
  const char *stops[8][2];
  int64_t most; /* bytes that come to a rank, all stops together; -1: any */
} tour;

static reshard_status tour_step(sharded_ranks *p, int64_t r, const tour *t, reshard_dtensor *tensor) {
  for (int i = 1; i < t->count; i++) {
    placed at;
    reshard_dtensor next = NULL;
    reshard_mesh mesh = mesh_of(p, r, t->stops[i][0]);
    CLI_TRY(t->stops[i][1], place_on(mesh, t->stops[i][1], &at));
    reshard_status status = reshard_dtensor_redistribute(1, tensor, &at.placing, NULL, &next);
    reshard_mesh_release(mesh);
    if (status != RESHARD_SUCCESS)
      return status;
    p->wrong[r] += dtensor_wrong(next, r, 3) + dtensor_wrong(*tensor, r, 3);
    p->wrong[r] += !reshard_mesh_equal(reshard_dtensor_mesh(next), mesh);
    reshard_dtensor_release(*tensor);
    *tensor = next;
  }
  return RESHARD_SUCCESS;
}

static int64_t check_full(sharded_ranks *p, int64_t r, reshard_dtensor tensor) {
  reshard_tensor whole = NULL;
  int64_t bad = reshard_dtensor_full(tensor, NULL, &whole) != RESHARD_SUCCESS;
  bool inside = reshard_mesh_contains(reshard_dtensor_mesh(tensor), r);
  bad += (whole != NULL) != inside;
  reshard_layout single;
  CLI_TRY("whole: ",
          reshard_layout_create_single(reshard_dtensor_ndim(tensor), reshard_dtensor_shape(tensor), p->n, r, &single));
  if (whole != NULL)
    bad += array_check(single, r, 0, whole, 3);
  reshard_layout_release(single);
  reshard_tensor_release(whole);
  return bad;
}

static void tour_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const tour *t = p->user;
  placed at;
  reshard_dtensor tensor = NULL;
  reshard_mesh mesh = mesh_of(p, r, t->stops[0][0]);
  CLI_TRY(t->stops[0][1], place_on(mesh, t->stops[0][1], &at));
  CLI_TRY("empty: ", reshard_dtensor_empty(p->sharders[r], &at.placing, t->ndim, t->shape, &f32, NULL, &tensor));
  reshard_mesh_release(mesh);
  dtensor_fill(tensor, r, 3);
  reshard_comm_stats before, after;
  reshard_comm_get_stats(p->comms[r], &before);
  reshard_status status = tour_step(p, r, t, &tensor);
  reshard_comm_get_stats(p->comms[r], &after);
  p->wrong[r] += t->most >= 0 && after.received_bytes - before.received_bytes > t->most;
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS)
    p->wrong[r] += check_full(p, r, tensor);
  reshard_dtensor_release(tensor);
}

static void tour_run(int64_t n, const tour *t) {
  for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path++) {
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
    sharded_ranks_check(n, &options, tour_body, (void *)t, RESHARD_SUCCESS, NULL);
  }
}

CASE(redistribute_goes_through_any_placements) {
  const int64_t shape[3] = {7, 5, 3}, scalar[1] = {0};
  tour_run(6, &(tour){3,
                      shape,
                      7,
                      {{"3x2", "S0,S1"},
                       {"3x2", "S1,S0"},
                       {"3x2", "R,S2"},
                       {"3x2", "S0,S0;order=1,0"},
                       {"3x2", "S0*2,S0"},
                       {"3x2", "R,R"},
                       {"3x2", "S-1,S-3"}},
                      -1});
  tour_run(4,
           &(tour){3, shape, 4, {{"4", "S0"}, {"2x2", "S0,S1"}, {"dp=2,tp=2", "S1,S1;order=tp,dp"}, {"4", "S2"}}, -1});
  tour_run(5, &(tour){3, shape, 4, {{"2@1-2", "S0"}, {"2x2@0,4,3,1", "S1,R"}, {"1@4", "R"}, {"5", "S1"}}, -1});
  tour_run(3, &(tour){0, scalar, 3, {{"3", "R"}, {"1@2", "R"}, {"3", "R"}}, -1});
  tour_run(3, &(tour){1, scalar, 3, {{"3", "S0"}, {"3", "R"}, {"3", "S0"}}, 0});
  tour_run(1, &(tour){3, shape, 3, {{"1", "S0"}, {"1x1", "S0,S1"}, {"1", "R"}}, 0});
}

CASE(test_nothing_moves) {
  const int64_t shape[2] = {12, 9};
  tour_run(4, &(tour){2, shape, 4, {{"2x2", "R,R"}, {"4", "R"}, {"2x2", "S1*3,S1"}, {"2x2", "S1*3,S1"}}, 0});
  tour_run(4, &(tour){2,
                      shape,
                      3,
                      {{"dp=2,tp=2", "R,S0"}, {"dp=2,tp=2", "S0,S0;order=tp,dp"}, {"dp=2,tp=2@0-3", "S0,S0;order=1,0"}},
                      0});
  tour_run(6, &(tour){2, shape, 3, {{"2x3", "S0,R"}, {"2x3", "S0,S1"}, {"2x3", "S0,S1"}}, 0});
}

/* --- Several at once --------------------------------------------------------------------------------------------- */

static void several_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  static const char *const from[3] = {"S0,R", "R,S1", "S1,S1"}, *const to[3] = {"S1,S0", "S0*2,S0", "R,S0"};
  const int64_t shape[3][2] = {{8, 6}, {5, 7}, {1, 9}};
  reshard_mesh mesh = mesh_of(p, r, "2x2");
  reshard_dtensor tensors[3] = {NULL}, results[3] = {NULL};
  reshard_placing placings[3];
  placed at[3];
  for (int i = 0; i < 3; i++) {
    CLI_TRY(from[i], place_on(mesh, from[i], &at[i]));
    const reshard_properties properties = {.dtype = i == 1 ? RESHARD_BF16 : RESHARD_F64, .requires_grad = i == 1};
    CLI_TRY("empty: ",
            reshard_dtensor_empty(p->sharders[r], &at[i].placing, 2, shape[i], &properties, NULL, &tensors[i]));
    dtensor_fill(tensors[i], r, 10 + (uint64_t)i);
    CLI_TRY(to[i], place_on(mesh, to[i], &at[i]));
    placings[i] = at[i].placing;
  }
  for (int again = 0; again < 2; again++) {
    rank_result_set(&p->results[r], reshard_dtensor_redistribute(3, tensors, placings, NULL, results));
    for (int i = 0; i < 3; i++) {
      reshard_tensor_info info;
      p->wrong[r] += results[i] == NULL || dtensor_wrong(results[i], r, 10 + (uint64_t)i) != 0 ||
                     reshard_tensor_get_info(reshard_dtensor_local(results[i]), &info) != RESHARD_SUCCESS ||
                     info.requires_grad != (i == 1);
      reshard_dtensor_release(results[i]);
    }
  }
  reshard_sharder_stats stats;
  reshard_sharder_get_stats(p->sharders[r], &stats);
  p->wrong[r] += stats.misses != 1 || stats.hits != 1; /* one plan */
  for (int i = 0; i < 3; i++)
    reshard_dtensor_release(tensors[i]);
  reshard_mesh_release(mesh);
}

CASE(several_tensors_move_in_one_call) { sharded_ranks_check(4, NULL, several_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- From local -------------------------------------------------------------------------------------------------- */

typedef struct brought {
  const char *mesh[6], *placements[6]; /* of each rank; NULL: the first's */
  int64_t extents[6][2];               /* of its local tensor; {-1}: none */
  reshard_dtype dtypes[6];             /* NONE: f32 */
  int64_t shapes[6][2];                /* global, stated by each; {0, 0} where inferred is set */
  bool infer, check;
} brought;

static void from_local_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const brought *b = p->user;
  placed at;
  reshard_mesh mesh = mesh_of(p, r, b->mesh[r] != NULL ? b->mesh[r] : b->mesh[0]);
  const char *text = b->placements[r] != NULL ? b->placements[r] : b->placements[0];
  CLI_TRY(text, place_on(mesh, text, &at));
  reshard_tensor local = NULL;
  if (b->extents[r][0] >= 0)
    CLI_TRY("local: ", reshard_tensor_create(b->dtypes[r] != RESHARD_DTYPE_NONE ? b->dtypes[r] : RESHARD_F32, 2,
                                             b->extents[r], &local));
  reshard_dtensor tensor = NULL;
  const int64_t *shape = b->shapes[r][0] + b->shapes[r][1] > 0 ? b->shapes[r] : b->shapes[0];
  reshard_status status =
      reshard_dtensor_from_local(p->sharders[r], &at.placing, local, 2, b->infer ? NULL : shape, b->check, &tensor);
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS) {
    p->wrong[r] += memcmp(reshard_dtensor_shape(tensor), b->shapes[0], sizeof b->shapes[0]) != 0;
    p->wrong[r] += reshard_dtensor_stride(tensor)[0] != (b->shapes[0][1] > 0 ? b->shapes[0][1] : 1);
    p->wrong[r] += reshard_dtensor_stride(tensor)[1] != 1;
    if (local != NULL && reshard_mesh_contains(mesh, r))
      p->wrong[r] += reshard_dtensor_local(tensor) != local;
    dtensor_fill(tensor, r, 3);
    p->wrong[r] += check_full(p, r, tensor);
  } else {
    p->wrong[r] += tensor != NULL;
  }
  reshard_dtensor_release(tensor);
  reshard_tensor_release(local);
  reshard_mesh_release(mesh);
}

static void brought_run(int64_t n, const brought *b, reshard_status status, const char *text) {
  sharded_ranks_check(n, NULL, from_local_body, (void *)b, status, text);
}

CASE(test_from_local) {
  brought b = {{"2x2"}, {"S0,S1"}, {{3, 4}, {3, 3}, {2, 4}, {2, 3}}, {0}, {{5, 7}}, false, false};
  brought_run(4, &b, RESHARD_SUCCESS, NULL);
  b.check = true;
  brought_run(4, &b, RESHARD_SUCCESS, NULL);
  b.infer = true;
  brought_run(4, &b, RESHARD_SUCCESS, NULL);
  /* Trailing parts are empty or absent, and two ranks are outside. */
  brought c = {{"4@4,0,2,1"}, {"S1"}, {{6, 2}, {6, 0}, {6, 1}, {-1}, {6, 2}, {-1}}, {0}, {{6, 5}}, true, false};
  brought_run(6, &c, RESHARD_SUCCESS, NULL);
  c.extents[1][0] = -1;
  brought_run(6, &c, RESHARD_SUCCESS, NULL);
  c.infer = false;
  c.check = true;
  brought_run(6, &c, RESHARD_SUCCESS, NULL);
  c.check = false; /* not collective: those without a part have to tell the dtype */
  for (int r = 0; r < 6; r++)
    if (c.extents[r][0] < 0)
      c.extents[r][0] = r == 1 ? 6 : 0, c.extents[r][1] = 0;
  brought_run(6, &c, RESHARD_SUCCESS, NULL);
  brought d = {{"dp=2,tp=2"}, {"S0,S0;order=tp,dp"}, {{2, 2}, {1, 2}, {1, 2}, {1, 2}}, {0}, {{5, 2}}, true, false};
  brought_run(4, &d, RESHARD_SUCCESS, NULL);
  brought e = {{"2x2"}, {"S0*2,S0"}, {{2, 2}, {1, 2}, {1, 2}, {1, 2}}, {0}, {{5, 2}}, true, false};
  brought_run(4, &e, RESHARD_SUCCESS, NULL);
  brought f = {{"3"}, {"R"}, {{0, 4}, {0, 4}, {0, 4}}, {0}, {{0, 4}}, true, false};
  brought_run(3, &f, RESHARD_SUCCESS, NULL);
}

CASE(test_from_local_refused) {
  const brought b = {{"2x2"}, {"S0,S1"}, {{3, 4}, {3, 3}, {2, 4}, {2, 3}}, {0}, {{5, 7}}, true, false};
  brought c = b;
  c.extents[2][0] = 3, c.extents[3][1] = 4;
  brought_run(
      4, &c, RESHARD_ERROR_INVALID,
      "the local tensor of rank 3 is of shape 2x4 and should be of 3x3: all parts together are a tensor of shape 6x7");
  c = b;
  c.extents[0][0] = 2;
  brought_run(4, &c, RESHARD_ERROR_INVALID,
              "the local tensor of rank 1 is of shape 3x3 and should be of 2x3: all parts");
  c = b;
  c.extents[3][0] = -1;
  brought_run(4, &c, RESHARD_ERROR_INVALID, "the local tensor of rank 3 is NULL and should be of 2x3");
  c = b;
  c.dtypes[2] = RESHARD_BF16;
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "dtype f32 on rank 0, bf16 on rank 2");
  c.infer = false;
  c.check = true;
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "dtype f32 on rank 0, bf16 on rank 2");
  c = b;
  c.mesh[1] = "2x2@0,1,3,2";
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "mesh 2x2@0-3 on rank 0, 2x2@0-1,3-2 on rank 1");
  c = b;
  c.placements[3] = "S0,S0;order=1,0";
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "placements S0,S1 on rank 0, S0,S0;order=1,0 on rank 3");
  c.mesh[0] = "dp=2,tp=2";
  c.placements[3] = "S0,S0;order=tp,dp";
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "placements S0,S1 on rank 0, S0,S0;order=tp,dp on rank 3");
  c.mesh[0] = b.mesh[0];
  c.placements[3] = "S0,S-1"; /* the same */
  brought_run(4, &c, RESHARD_SUCCESS, NULL);
  c = b;
  c.infer = false;
  c.check = true;
  c.shapes[1][0] = 6, c.shapes[1][1] = 7;
  brought_run(4, &c, RESHARD_ERROR_MISMATCH, "global shape [5,7] on rank 0, [6,7] on rank 1");
  c.extents[1][0] = 4;
  brought_run(4, &c, RESHARD_ERROR_INVALID, "the local tensor of rank 1 is of shape 4x3 and should be of 3x3");
  c = b;
  for (int r = 0; r < 4; r++)
    c.extents[r][0] = -1;
  brought_run(4, &c, RESHARD_ERROR_INVALID, "no rank of the mesh 2x2@0-3 has a local tensor");
  c = b;
  c.mesh[0] = "2x1@0-1";
  c.extents[0][1] = 7, c.extents[1][0] = 2, c.extents[1][1] = 7;
  brought_run(
      4, &c, RESHARD_ERROR_INVALID,
      "rank 2 is outside of the mesh 2x1@0-1 and has a local tensor of shape 2x4: none or an empty one is expected");
  c = b;
  c.placements[0] = "S0,S2";
  brought_run(4, &c, RESHARD_ERROR_INVALID, "mesh: dim 2 of a tensor of 2 dims");
}

/* Calls that are not collective, made by one rank alone. */
CASE(test_local_refused) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  const int64_t shape[2] = {5, 4}, part[2] = {3, 4};
  placed at;
  reshard_dtensor tensor = NULL;
  reshard_tensor local, whole;
  reshard_mesh mesh = mesh_of(&p, 1, "2@1-2"), dry, foreign = mesh_of(&p, 0, "2@1-2");
  CLI_TRY("mesh: ", reshard_mesh_parse(NULL, 4, "2@1-2", &dry));
  CLI_TRY("local: ", reshard_tensor_create(RESHARD_F32, 2, part, &local));
  CLI_TRY("whole: ", reshard_tensor_create(RESHARD_F32, 2, shape, &whole));
  CLI_TRY("S0", place_on(mesh, "S0", &at));
  reshard_sharder s = p.sharders[1];
#define REFUSED(call, text) \
  do { \
    assert_int_equal(call, RESHARD_ERROR_INVALID); \
    assert_string_equal(reshard_last_error(), text); \
    assert_null(tensor); \
  } while (0)
  REFUSED(reshard_dtensor_from_local(NULL, &at.placing, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: sharder is NULL");
  REFUSED(reshard_dtensor_from_local(s, NULL, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: placing is NULL");
  REFUSED(reshard_dtensor_from_local(s, &(reshard_placing){.mesh = mesh}, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: the list of placements is NULL");
  REFUSED(reshard_dtensor_from_local(s, &(reshard_placing){.placements = at.placements}, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: the mesh of a placing is NULL");
  REFUSED(reshard_dtensor_from_local(s, &at.placing, local, 2, shape, 0, NULL),
          "reshard_dtensor_from_local: tensor is NULL");
  REFUSED(reshard_dtensor_from_local(s, &at.placing, NULL, 2, shape, 0, &tensor),
          "the local tensor of rank 1 is NULL and should be of shape 3x4");
  REFUSED(reshard_dtensor_from_local(s, &at.placing, whole, 2, shape, 0, &tensor),
          "the local tensor of rank 1 is of shape 5x4 and should be of 3x4");
  REFUSED(reshard_dtensor_from_local(s, &at.placing, local, 1, shape, 0, &tensor),
          "the local tensor of rank 1 is of shape 3x4 and should be of 3");
  REFUSED(reshard_dtensor_from_local(s, &(reshard_placing){dry, at.placements, NULL}, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: the mesh 2@1-2 is dry: it has no communicator");
  REFUSED(reshard_dtensor_from_local(s, &(reshard_placing){foreign, at.placements, NULL}, local, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: the mesh 2@1-2 is of another communicator than the sharder");
  REFUSED(reshard_dtensor_distribute(s, &at.placing, NULL, -1, 2, shape, &f32, NULL, &tensor),
          "reshard_dtensor_distribute: rank 1 is in the mesh and gives no whole tensor");
  REFUSED(reshard_dtensor_distribute(s, &at.placing, local, -1, 2, shape, &f32, NULL, &tensor),
          "reshard_dtensor_distribute: the whole tensor of rank 1 is of shape 3x4 and should be of 5x4");
  REFUSED(reshard_dtensor_distribute(s, &at.placing, whole, -1, 2, shape, &(reshard_properties){.dtype = RESHARD_I64},
                                     NULL, &tensor),
          "reshard_dtensor_distribute: the whole tensor of rank 1 is f32 and should be i64");
  REFUSED(reshard_dtensor_distribute(s, &at.placing, whole, -1, 2, shape, NULL, NULL, &tensor),
          "reshard_dtensor_distribute: properties is NULL");
  at.placements[0].dim = 2;
  REFUSED(reshard_dtensor_empty(s, &at.placing, 2, shape, &f32, NULL, &tensor),
          "reshard_dtensor_empty: mesh: dim 2 of a tensor of 2 dims");
  at.placements[0].dim = -3;
  REFUSED(reshard_dtensor_empty(s, &at.placing, 2, shape, &f32, NULL, &tensor),
          "reshard_dtensor_empty: mesh: dim -3 of a tensor of 2 dims");
  at.placements[0].dim = 0;
  at.order[0] = 1;
  REFUSED(reshard_dtensor_empty(s, &at.placing, 2, shape, &f32, NULL, &tensor),
          "reshard_dtensor_empty: mesh: order names mesh dim 1 of 1");
  REFUSED(reshard_dtensor_redistribute(-1, NULL, NULL, NULL, NULL),
          "reshard_dtensor_redistribute: -1 tensors, list NULL");
  REFUSED(reshard_dtensor_redistribute(1, &tensor, &at.placing, NULL, &tensor),
          "reshard_dtensor_redistribute: tensor 0 is NULL");
  GOOD(reshard_dtensor_redistribute(0, NULL, NULL, NULL, NULL));
  /* Ranks outside of the mesh tell the dtype. */
  reshard_placing outside = {foreign, at.placements, NULL};
  REFUSED(reshard_dtensor_from_local(p.sharders[0], &outside, NULL, 2, shape, 0, &tensor),
          "reshard_dtensor_from_local: rank 0 has no local tensor that tells the dtype: give an empty one, or check");
  reshard_box box;
  reshard_shard shard;
  CLI_TRY("outside: ", reshard_dtensor_empty(p.sharders[0], &outside, 2, shape, &f32, NULL, &tensor));
  assert_null(reshard_dtensor_local(tensor));
  BAD(reshard_dtensor_local_box(tensor, &box), "reshard_dtensor_local_box: rank 0 is outside of the mesh 2@1-2");
  BAD(reshard_dtensor_shard_metadata(tensor, &shard),
      "reshard_dtensor_shard_metadata: rank 0 is outside of the mesh 2@1-2");
  BAD(reshard_dtensor_box_for(tensor, 2, &box), "reshard_dtensor_box_for: part 2, the mesh 2@1-2 has 2 ranks");
  GOOD(reshard_dtensor_box_for(tensor, 1, &box));
  assert_true(box.offset[0] == 3 && box.extent[0] == 2 && box.offset[1] == 0 && box.extent[1] == 4);
  reshard_dtensor_release(tensor);
  tensor = NULL;
  at.placements[0] = (reshard_placement){.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = 0, .split_factor = 2};
  at.order[0] = 0;
  CLI_TRY("strided: ", reshard_dtensor_empty(s, &at.placing, 2, shape, &f32, NULL, &tensor));
  BAD(reshard_dtensor_local_box(tensor, &box),
      "reshard_dtensor_local_box: the part of rank 1 is no box: it has 2 boxes");
  reshard_dtensor_release(tensor);
  reshard_dtensor_release(NULL);
  reshard_tensor_release(local);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
  reshard_mesh_release(dry);
  reshard_mesh_release(foreign);
  sharded_ranks_close(&p);
}

/* --- Distribute -------------------------------------------------------------------------------------------------- */

typedef struct dealt {
  const char *mesh, *placements;
  int64_t src;
  int64_t odd; /* a rank that states another shape; -1: none */
  int missing; /* that rank gives no placings */
} dealt;

static void distribute_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const dealt *d = p->user;
  placed at;
  const int64_t shape[2] = {r == d->odd ? 6 : 5, 7};
  reshard_mesh mesh = mesh_of(p, r, d->mesh);
  CLI_TRY(d->placements, place_on(mesh, d->placements, &at));
  reshard_tensor whole = d->src < 0 || d->src == r ? whole_tensor(2, shape, 3) : NULL;
  if (d->src < 0 && !reshard_mesh_contains(mesh, r)) {
    reshard_tensor_release(whole);
    whole = NULL;
  }
  const reshard_properties properties = {.dtype = RESHARD_F32, .requires_grad = 1};
  reshard_dtensor tensor = NULL;
  reshard_comm_stats before, after;
  reshard_comm_get_stats(p->comms[r], &before);
  reshard_status status = reshard_dtensor_distribute(p->sharders[r], d->missing && r == d->odd ? NULL : &at.placing,
                                                     whole, d->src, 2, shape, &properties, NULL, &tensor);
  reshard_comm_get_stats(p->comms[r], &after);
  if (d->src < 0)
    p->wrong[r] += after.received_bytes != before.received_bytes;
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS) {
    reshard_tensor_info info = {.requires_grad = 1};
    if (reshard_dtensor_local(tensor) != NULL)
      reshard_tensor_get_info(reshard_dtensor_local(tensor), &info);
    reshard_tensor_release(whole); /* the result aliases nothing */
    whole = NULL;
    p->wrong[r] += dtensor_wrong(tensor, r, 3) + check_full(p, r, tensor) + !info.requires_grad;
  } else
    p->wrong[r] += tensor != NULL;
  reshard_tensor_release(whole);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
}

static void dealt_run(const dealt *d, reshard_status status, const char *text) {
  sharded_ranks_check(4, NULL, distribute_body, (void *)d, status, text);
}

CASE(distribute_deals_a_tensor_of_any_rank) {
  static const char *const placements[] = {"S0,S1", "R,S1", "S0,S0;order=1,0", "S1*2,S1", "R,R"};
  for (int i = 0; i < 5; i++)
    for (int64_t src = -1; src < 4; src += 2)
      dealt_run(&(dealt){"2x2", placements[i], src, -1, 0}, RESHARD_SUCCESS, NULL);
  dealt_run(&(dealt){"3@3,0,1", "S0", -1, -1, 0}, RESHARD_SUCCESS, NULL);
  dealt_run(&(dealt){"3@3,0,1", "S0", 2, -1, 0}, RESHARD_SUCCESS, NULL); /* a source outside of the mesh */
  dealt_run(&(dealt){"2x2", "S0,S1", 4, -1, 0}, RESHARD_ERROR_INVALID, "rank 4 of a communicator of 4");
  dealt_run(&(dealt){"2x2", "S0,S1", 1, 2, 1}, RESHARD_ERROR_INVALID, "reshard_dtensor_distribute: placing is NULL");
  dealt_run(&(dealt){"2x2", "S0,S1", 1, 2, 0}, RESHARD_ERROR_MISMATCH, NULL);
}

/* --- Refused by all alike ---------------------------------------------------------------------------------------- */

typedef struct misled {
  int what;
} misled;

static void refuse_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const misled *m = p->user;
  const int64_t shape[2] = {5, 7};
  placed from, to;
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2");
  reshard_mesh other = m->what == 3 && r == 1 ? mesh_of(p, r, "2x2@3-0") : reshard_mesh_retain(mesh);
  CLI_TRY("from: ", place_on(mesh, "S0,S1", &from));
  CLI_TRY("to: ", place_on(other, m->what == 2 && r == 3 ? "S1,S0" : "R,S0", &to));
  reshard_dtensor tensors[2] = {NULL}, results[2] = {NULL};
  CLI_TRY("empty: ", reshard_dtensor_empty(p->sharders[r], &from.placing, 2, shape, &f32, NULL, &tensors[0]));
  tensors[1] = tensors[0];
  if (m->what == 0 && r == 2)
    to.placements[1].dim = 2;
  if (m->what == 4 && r == 0)
    tensors[1] = NULL;
  reshard_placing placings[2] = {to.placing, to.placing};
  if (m->what == 1 && r == 1)
    placings[1].mesh = NULL;
  rank_result_set(&p->results[r],
                  reshard_dtensor_redistribute(2, tensors, placings, NULL, m->what == 5 && r == 1 ? NULL : results));
  p->wrong[r] += results[0] != NULL || results[1] != NULL;
  reshard_dtensor_release(tensors[0]);
  reshard_mesh_release(mesh);
  reshard_mesh_release(other);
}

CASE(wrong_calls_are_refused_on_all_ranks) {
  static const struct {
    reshard_status status;
    const char *text;
  } cases[] = {
      {RESHARD_ERROR_INVALID, "rank 2: reshard_dtensor_redistribute: mesh: dim 2 of a tensor of 2 dims"},
      {RESHARD_ERROR_INVALID, "rank 1: reshard_dtensor_redistribute: the mesh of a placing is NULL"},
      {RESHARD_ERROR_MISMATCH, " on rank 3"},
      {RESHARD_ERROR_MISMATCH, " on rank 1"},
      {RESHARD_ERROR_INVALID, "rank 0: reshard_dtensor_redistribute: tensor 1 is NULL"},
      {RESHARD_ERROR_INVALID, "rank 1: reshard_dtensor_redistribute: results is NULL"},
  };
  for (int i = 0; i < 6; i++) {
    sharded_ranks_check(4, NULL, refuse_body, &(misled){i}, cases[i].status, cases[i].text);
  }
}

/* --- Sharded tensors ---------------------------------------------------------------------------------------------- */

static void sharded_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {5, 7};
  placed at;
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2"), other = mesh_of(p, r, "dp=2,tp=2@0,2-1,3");
  CLI_TRY("S0,S1", place_on(mesh, "S0,S1", &at));
  reshard_dtensor tensor = NULL, back = NULL, never = NULL;
  CLI_TRY("empty: ", reshard_dtensor_empty(p->sharders[r], &at.placing, 2, shape, &f32, NULL, &tensor));
  dtensor_fill(tensor, r, 3);
  reshard_sharded_tensor sharded = reshard_dtensor_sharded(tensor);
  p->wrong[r] += sharded == NULL || sharded != reshard_dtensor_sharded(tensor) || sharded_check(sharded, r, 3);
  p->wrong[r] += reshard_metadata_count(reshard_sharded_tensor_metadata(sharded)) != 4;
  reshard_status status = reshard_dtensor_from_sharded(sharded, mesh, &back);
  p->wrong[r] += status != RESHARD_SUCCESS || reshard_dtensor_local(back) != reshard_dtensor_local(tensor);
  rank_result_set(&p->results[r], reshard_dtensor_from_sharded(sharded, other, &never));
  p->wrong[r] += never != NULL;
  reshard_dtensor_release(tensor);
  p->wrong[r] += back != NULL ? dtensor_wrong(back, r, 3) + check_full(p, r, back) : 1;
  reshard_dtensor_release(back);
  reshard_mesh_release(mesh);
  reshard_mesh_release(other);
}

CASE(dtensors_are_made_of_sharded_tensors_on_the_mesh_alone) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  sharded_ranks_run(&p, sharded_body, NULL);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID,
                       "reshard_dtensor_from_sharded: the layout mesh(dp=2,tp=2@0-3;S0,S1) is not one of the mesh "
                       "dp=2,tp=2@0,2-1,3");
  sharded_ranks_close(&p);
}

RUN_CASES
