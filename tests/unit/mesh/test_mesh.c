/* Device meshes: making them, text, coordinates, parts, what callers get wrong; and what a mesh of 16,384 ranks costs.
 */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/mesh.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static reshard_mesh parsed(const char *text) {
  reshard_mesh mesh = NULL;
  if (reshard_mesh_parse(NULL, 0, text, &mesh) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return mesh;
}

static void assert_print(reshard_mesh mesh, const char *text) {
  char printed[512];
  size_t needed = 0;
  GOOD(reshard_mesh_print(mesh, printed, sizeof printed, &needed));
  assert_string_equal(printed, text);
  assert_int_equal(needed, strlen(text) + 1);
}

CASE(mesh_has_the_ranks_and_names_given) {
  const int64_t shape[2] = {2, 3}, ranks[6] = {7, 6, 5, 4, 3, 2};
  const char *const names[2] = {"dp", "tp"};
  reshard_mesh mesh;
  GOOD(reshard_mesh_create(NULL, 8, 2, shape, names, 0, NULL, &mesh));
  assert_int_equal(reshard_mesh_ndim(mesh), 2);
  assert_memory_equal(reshard_mesh_shape(mesh), shape, sizeof shape);
  assert_string_equal(reshard_mesh_name(mesh, 1), "tp");
  assert_null(reshard_mesh_name(mesh, 2));
  assert_null(reshard_mesh_name(mesh, -1));
  assert_int_equal(reshard_mesh_size(mesh), 6);
  assert_int_equal(reshard_mesh_world(mesh), 8);
  assert_int_equal(reshard_mesh_rank(mesh), -1);
  assert_null(reshard_mesh_base_comm(mesh));
  assert_ptr_equal(reshard_mesh_root(mesh), mesh);
  assert_true(reshard_mesh_contains(mesh, 5) && !reshard_mesh_contains(mesh, 6) && !reshard_mesh_contains(mesh, 9));
  assert_false(reshard_mesh_contains(mesh, RESHARD_MESH_MINE));
  assert_print(mesh, "dp=2,tp=3@0-5");
  assert_ptr_equal(reshard_mesh_retain(mesh), mesh);
  reshard_mesh_release(mesh);
  reshard_mesh_release(mesh);
  GOOD(reshard_mesh_create(NULL, 0, 2, shape, NULL, 6, ranks, &mesh));
  assert_int_equal(reshard_mesh_world(mesh), 8);
  assert_print(mesh, "2x3@7-2");
  assert_null(reshard_mesh_name(mesh, 0));
  reshard_mesh_release(mesh);
  reshard_mesh_release(NULL);
  assert_null(reshard_mesh_retain(NULL));
}

CASE(test_create_errors) {
  static const int64_t foreign[4] = {0, 1, 2, 9}, negative[4] = {0, 1, -2, 3}, twice[4] = {0, 3, 2, 3},
                       last[4] = {0, 1, INT64_MAX, 2}, equal[4] = {5, 5, 5, 5}, beyond[4] = {6, 7, 8, 9},
                       below[4] = {1, 0, -1, -2};
  static const char *const same[2] = {"dp", "dp"}, *const bad[2] = {"dp", "t-p"}, *const digit[2] = {"2dp", "tp"},
                           *const none[2] = {"dp", NULL}, *const empty[2] = {"", "tp"};
  const struct {
    int64_t world;
    int ndim;
    int64_t shape[2];
    const char *const *names;
    int64_t nranks;
    const int64_t *ranks;
    const char *part;
  } wrong[] = {
      {0, 0, {2, 2}, NULL, 0, NULL, "mesh: 0 mesh dims, 1 to 8 are allowed"},
      {0, 9, {2, 2}, NULL, 0, NULL, "mesh: 9 mesh dims"},
      {0, 2, {2, 0}, NULL, 0, NULL, "mesh: extent 0 of mesh dim 1, at least 1 is needed"},
      {0, 2, {-2, 2}, NULL, 0, NULL, "mesh: extent -2 of mesh dim 0"},
      {0, 2, {INT64_MAX, 2}, NULL, 0, NULL, "mesh: the ranks of 9223372036854775807x2 overflow 63 bits"},
      {-3, 2, {2, 2}, NULL, 0, NULL, "mesh: a world of -3 ranks"},
      {3, 2, {2, 2}, NULL, 0, NULL, "mesh: 4 ranks are needed, the world has 3"},
      {9, 2, {2, 2}, NULL, 4, foreign, "mesh: rank 9 at position 3 is not in the world of 9 ranks"},
      {9, 2, {2, 2}, NULL, 4, negative, "mesh: rank -2 at position 2 is not in the world of 9 ranks"},
      {9, 2, {2, 2}, NULL, 4, beyond, "mesh: rank 9 at position 3 is not in the world of 9 ranks"},
      {9, 2, {2, 2}, NULL, 4, below, "mesh: rank -1 at position 2 is not in the world of 9 ranks"},
      {0, 2, {2, 2}, NULL, 4, negative, "mesh: there is no rank -2"},
      {0, 2, {2, 2}, NULL, 4, last, "mesh: there is no rank 9223372036854775807"},
      {0, 2, {2, 2}, NULL, 4, twice, "mesh: rank 3 is named twice"},
      {0, 2, {2, 2}, NULL, 4, equal, "mesh: rank 5 is named twice"},
      {0, 2, {2, 2}, NULL, 3, foreign, "mesh: a mesh of 2x2 has 4 ranks, 3 are given"},
      {0, 2, {2, 2}, NULL, 0, foreign, "mesh: a mesh of 2x2 has 4 ranks, 0 are given"},
      {0, 2, {2, 2}, NULL, 4, NULL, "mesh: 4 ranks, the list is NULL"},
      {0, 2, {2, 2}, same, 0, NULL, "mesh: mesh dims 0 and 1 are both named 'dp'"},
      {0, 2, {2, 2}, bad, 0, NULL, "mesh: 't-p' is no name for mesh dim 1"},
      {0, 2, {2, 2}, digit, 0, NULL, "mesh: '2dp' is no name for mesh dim 0"},
      {0, 2, {2, 2}, empty, 0, NULL, "mesh: '' is no name for mesh dim 0"},
      {0, 2, {2, 2}, none, 0, NULL, "mesh: 'NULL' is no name for mesh dim 1"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    reshard_mesh mesh = (reshard_mesh)&mesh;
    reshard_status status = reshard_mesh_create(NULL, wrong[i].world, wrong[i].ndim, wrong[i].shape, wrong[i].names,
                                                wrong[i].nranks, wrong[i].ranks, &mesh);
    FAILS_WITH(status, RESHARD_ERROR_INVALID, wrong[i].part);
    assert_ptr_equal(mesh, (void *)&mesh);
  }
  reshard_comm comms[4];
  GOOD(reshard_comm_create_local(4, NULL, comms));
  reshard_mesh mesh;
  const int64_t shape[2] = {2, 2}, wide[1] = {5};
  FAILS_WITH(reshard_mesh_create(comms[1], 5, 2, shape, NULL, 0, NULL, &mesh), RESHARD_ERROR_INVALID,
             "mesh: a world of 5 ranks on a communicator of 4");
  FAILS_WITH(reshard_mesh_create(comms[1], 0, 1, wide, NULL, 0, NULL, &mesh), RESHARD_ERROR_INVALID,
             "mesh: 5 ranks are needed, the world has 4");
  FAILS_WITH(reshard_mesh_create(comms[1], 0, 2, shape, NULL, 4, foreign, &mesh), RESHARD_ERROR_INVALID,
             "rank 9 at position 3 is not in the world of 4 ranks");
  GOOD(reshard_mesh_create(comms[1], 4, 2, shape, NULL, 0, NULL, &mesh));
  assert_int_equal(reshard_mesh_rank(mesh), 1);
  assert_int_equal(reshard_mesh_world(mesh), 4);
  reshard_mesh_release(mesh);
  FAILS_WITH(reshard_mesh_create(NULL, 0, 2, NULL, NULL, 0, NULL, &mesh), RESHARD_ERROR_INVALID, "shape is NULL");
  FAILS_WITH(reshard_mesh_create(NULL, 0, 2, shape, NULL, 0, NULL, NULL), RESHARD_ERROR_INVALID, "mesh is NULL");
  rank_comms_close(4, comms);
}

CASE(texts_of_meshes_are_read_and_printed) {
  static const char *const texts[][2] = {
      {"2x4", "2x4@0-7"},
      {" dp = 2 , tp=4 ", "dp=2,tp=4@0-7"},
      {"2x2@4-7", "2x2@4-7"},
      {"8@7-0", "8@7-0"},
      {"2x2@0,2,4,6", "2x2@0,2,4,6"},
      {"tp=2,dp=3@0,3,1,4,2,5", "tp=2,dp=3@0,3,1,4,2,5"},
      {"a=1,b=1@5", "a=1,b=1@5"},
      {"5@3,1,2,9,0", "5@3,1-2,9,0"},
      {"1x1x1x1x1x1x1x2", "1x1x1x1x1x1x1x2@0-1"},
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    reshard_mesh mesh = parsed(texts[i][0]), again = parsed(texts[i][1]);
    assert_print(mesh, texts[i][1]);
    assert_true(reshard_mesh_equal(mesh, again) && reshard_mesh_hash(mesh) == reshard_mesh_hash(again));
    reshard_mesh_release(mesh);
    reshard_mesh_release(again);
  }
  static const struct {
    const char *text;
    int64_t world;
    const char *part;
  } wrong[] = {
      {"", 0, "mesh \"\": column 1: expected a number"},
      {"2x", 0, "mesh \"2x\": column 3: expected a number"},
      {"2x0", 0, "column 3: expected at least 1"},
      {"2,4", 0, "mesh \"2,4\": column 2: expected the end of the mesh"},
      {"2x4;S0", 0, "column 4: expected the end of the mesh"},
      {"dp=2,4", 0, "column 6: expected the name of a mesh dim"},
      {"dp=2,dp=4", 0, "mesh \"dp=2,dp=4\": mesh dims 0 and 1 are both named 'dp'"},
      {"dp2", 0, "column 1: a mesh dim has no size, and no world is given"},
      {"2x2@0-4", 0, "column 5: the mesh has 4 ranks, 5 are named"},
      {"2x2@0-2,1", 0, "column 5: 4 ranks are named, the world has 3"},
      {"2x2@0-2,1", 8, "mesh \"2x2@0-2,1\": rank 1 is named twice"},
      {"2x2@4-7", 6, "column 7: rank 7 is not in the world of 6 ranks"},
      {"2x4", 6, "mesh \"2x4\": 8 ranks are needed, the world has 6"},
      {"2x4", -1, "mesh \"2x4\": a world of -1 ranks"},
      {"9223372036854775807x2", 0, "the number of ranks overflows 63 bits"},
      {"1x1x1x1x1x1x1x1x1", 0, "9 mesh dims, 1 to 8 are allowed"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    reshard_mesh mesh = (reshard_mesh)&mesh;
    FAILS_WITH(reshard_mesh_parse(NULL, wrong[i].world, wrong[i].text, &mesh), RESHARD_ERROR_INVALID, wrong[i].part);
    assert_ptr_equal(mesh, (void *)&mesh);
  }
  reshard_mesh mesh;
  FAILS_WITH(reshard_mesh_parse(NULL, 0, NULL, &mesh), RESHARD_ERROR_INVALID, "text is NULL");
  FAILS_WITH(reshard_mesh_parse(NULL, 0, "2x4", NULL), RESHARD_ERROR_INVALID, "mesh is NULL");
  mesh = parsed("dp=2,tp=4");
  char small[13];
  size_t needed = 0;
  FAILS_WITH(reshard_mesh_print(mesh, small, sizeof small, &needed), RESHARD_ERROR_INVALID,
             "the text needs 14 bytes, the buffer has 13");
  assert_int_equal(needed, 14);
  FAILS_WITH(reshard_mesh_print(NULL, small, sizeof small, NULL), RESHARD_ERROR_INVALID, "mesh is NULL");
  FAILS_WITH(reshard_mesh_print(mesh, NULL, 5, NULL), RESHARD_ERROR_INVALID, "text is NULL");
  reshard_mesh_release(mesh);
}

CASE(mesh_answers_dims_coordinates_and_ranks) {
  reshard_mesh mesh = parsed("dp=2,cp=3,tp=4"), plain = parsed("2x4@8-15");
  int dim = -7;
  static const struct {
    const char *text;
    int dim;
  } dims[] = {{"dp", 0}, {"tp", 2}, {" cp ", 1}, {"0", 0}, {"-1", 2}, {"-3", 0}};
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
    GOOD(reshard_mesh_dim(mesh, dims[i].text, &dim));
    assert_int_equal(dim, dims[i].dim);
  }
  static const struct {
    const char *text, *part;
  } wrong[] = {{"pp", "mesh dim \"pp\": column 1: the mesh has no dim named pp; names: dp, cp, tp"},
               {"3", "mesh dim \"3\": column 1: mesh dim 3 of 3"},
               {"-4", "mesh dim -4 of 3"},
               {"", "mesh dim \"\": column 1: expected a mesh dim"},
               {"dp,tp", "mesh dim \"dp,tp\": column 3: expected one mesh dim"},
               {NULL, "the mesh dim is NULL"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    dim = -7;
    FAILS_WITH(reshard_mesh_dim(mesh, wrong[i].text, &dim), RESHARD_ERROR_INVALID, wrong[i].part);
    assert_int_equal(dim, -7);
  }
  FAILS_WITH(reshard_mesh_dim(plain, "tp", &dim), RESHARD_ERROR_INVALID,
             "the mesh has no dim named tp; names: none: its dims are 0..1");
  FAILS_WITH(reshard_mesh_dim(mesh, "tp", NULL), RESHARD_ERROR_INVALID, "number is NULL");

  int64_t at[3] = {-7, -7, -7}, local = -7, rank = -7;
  GOOD(reshard_mesh_coordinate(mesh, 23, at));
  assert_true(at[0] == 1 && at[1] == 2 && at[2] == 3);
  GOOD(reshard_mesh_local_rank(mesh, "cp", 17, &local));
  assert_int_equal(local, 1);
  GOOD(reshard_mesh_rank_at(plain, (int64_t[]){1, 2}, &rank));
  assert_int_equal(rank, 14);
  local = rank = at[0] = -7;
  FAILS_WITH(reshard_mesh_coordinate(plain, 7, at), RESHARD_ERROR_INVALID, "rank 7 is not in the mesh 2x4@8-15");
  FAILS_WITH(reshard_mesh_coordinate(plain, 16, at), RESHARD_ERROR_INVALID, "rank 16 is not in the mesh 2x4@8-15");
  FAILS_WITH(reshard_mesh_coordinate(plain, -2, at), RESHARD_ERROR_INVALID, "rank -2 is not in the mesh 2x4@8-15");
  FAILS_WITH(reshard_mesh_coordinate(plain, RESHARD_MESH_MINE, at), RESHARD_ERROR_INVALID,
             "a dry mesh has no rank of its own: name one");
  FAILS_WITH(reshard_mesh_local_rank(mesh, "pp", 0, &local), RESHARD_ERROR_INVALID, "names: dp, cp, tp");
  FAILS_WITH(reshard_mesh_local_rank(mesh, "tp", 24, &local), RESHARD_ERROR_INVALID,
             "rank 24 is not in the mesh dp=2,cp=3,tp=4@0-23");
  FAILS_WITH(reshard_mesh_rank_at(mesh, (int64_t[]){1, 3, 0}, &rank), RESHARD_ERROR_INVALID,
             "coordinate 3 in mesh dim 1, cp of extent 3");
  FAILS_WITH(reshard_mesh_rank_at(plain, (int64_t[]){-1, 0}, &rank), RESHARD_ERROR_INVALID,
             "coordinate -1 in mesh dim 0 of extent 2");
  assert_true(local == -7 && rank == -7 && at[0] == -7);
  FAILS_WITH(reshard_mesh_coordinate(mesh, 0, NULL), RESHARD_ERROR_INVALID, "coordinate is NULL");
  FAILS_WITH(reshard_mesh_coordinate(NULL, 0, at), RESHARD_ERROR_INVALID, "mesh is NULL");
  FAILS_WITH(reshard_mesh_local_rank(mesh, "tp", 0, NULL), RESHARD_ERROR_INVALID, "local is NULL");
  FAILS_WITH(reshard_mesh_rank_at(mesh, at, NULL), RESHARD_ERROR_INVALID, "rank is NULL");
  FAILS_WITH(reshard_mesh_ranks(mesh, NULL), RESHARD_ERROR_INVALID, "ranks is NULL");
  reshard_mesh_release(mesh);
  reshard_mesh_release(plain);
}

CASE(parts_of_parts_share_their_root) {
  reshard_mesh mesh = parsed("dp=2,cp=3,tp=4"), plain = parsed("2x4"), sub, deeper, flat, slice;
  GOOD(reshard_mesh_sub(mesh, "tp,dp", 17, &sub));
  assert_print(sub, "tp=4,dp=2@4,16,5,17,6,18,7,19");
  assert_ptr_equal(reshard_mesh_root(sub), mesh);
  GOOD(reshard_mesh_sub(sub, "dp", 6, &deeper));
  assert_print(deeper, "dp=2@6,18");
  assert_ptr_equal(reshard_mesh_root(deeper), mesh);
  GOOD(reshard_mesh_flatten(mesh, "dp,tp", "dp_tp", &flat));
  assert_print(flat, "dp_tp=8,cp=3@0,4,8,1,5,9,2,6,10,3,7,11-12,16,20,13,17,21,14,18,22,15,19,23");
  FAILS_WITH(reshard_mesh_slice(flat, "dp_tp", 1, 6, 1, &slice), RESHARD_ERROR_UNSUPPORTED,
             "slice 1:6:1 of mesh dim dp_tp of dp_tp=8,cp=3@0,4,8,");
  GOOD(reshard_mesh_slice(flat, "dp_tp", 0, 8, 1, &slice));
  assert_true(reshard_mesh_equal(slice, flat));
  reshard_mesh_release(slice);
  GOOD(reshard_mesh_slice(flat, "dp_tp", 5, 8, 3, &slice));
  assert_print(slice, "dp_tp=1,cp=3@13,17,21");
  reshard_mesh_release(slice);
  reshard_mesh_release(flat);
  GOOD(reshard_mesh_flatten(mesh, "cp,tp", "cp", &flat)); /* the name of one of them is free */
  GOOD(reshard_mesh_slice(flat, "cp", 1, 12, 5, &slice));
  assert_print(slice, "dp=2,cp=3@1,6,11,13,18,23");
  reshard_mesh_release(slice);
  reshard_mesh_release(flat);
  GOOD(reshard_mesh_flatten(plain, "0,1", "all", &flat));
  assert_print(flat, "all=8@0-7");
  reshard_mesh_release(flat);
  GOOD(reshard_mesh_flatten(plain, NULL, NULL, &flat));
  assert_print(flat, "8@0-7");
  reshard_mesh_release(flat);
  reshard_mesh_release(sub); /* the root stays as long as a part does */
  reshard_mesh kept = mesh;
  reshard_mesh_release(mesh);
  assert_ptr_equal(reshard_mesh_root(deeper), kept);
  assert_true(reshard_mesh_contains(deeper, 18));
  reshard_mesh_release(deeper);

  mesh = parsed("dp=2,cp=3,tp=4");
  reshard_mesh none = (reshard_mesh)&none;
  FAILS_WITH(reshard_mesh_sub(mesh, "dp,pp", 0, &none), RESHARD_ERROR_INVALID,
             "mesh dims \"dp,pp\": column 4: the mesh has no dim named pp; names: dp, cp, tp");
  FAILS_WITH(reshard_mesh_sub(mesh, "dp,dp", 0, &none), RESHARD_ERROR_INVALID, "column 4: mesh dim 0 stands twice");
  FAILS_WITH(reshard_mesh_sub(mesh, "0,1,2,-1", 0, &none), RESHARD_ERROR_INVALID, "mesh dim 2 stands twice");
  FAILS_WITH(reshard_mesh_sub(mesh, "dp tp", 0, &none), RESHARD_ERROR_INVALID, "column 4: expected ',' or the end");
  FAILS_WITH(reshard_mesh_sub(mesh, "dp,", 0, &none), RESHARD_ERROR_INVALID, "column 4: expected a mesh dim");
  FAILS_WITH(reshard_mesh_sub(mesh, "dp", 24, &none), RESHARD_ERROR_INVALID, "rank 24 is not in the mesh dp=2,cp=3");
  FAILS_WITH(reshard_mesh_sub(mesh, "dp", RESHARD_MESH_MINE, &none), RESHARD_ERROR_INVALID, "a dry mesh has no rank");
  FAILS_WITH(reshard_mesh_slice(mesh, "tp", -1, 2, 1, &none), RESHARD_ERROR_INVALID,
             "slice -1:2:1 of mesh dim tp, which has 4 coordinates");
  FAILS_WITH(reshard_mesh_slice(mesh, "tp", 0, 5, 1, &none), RESHARD_ERROR_INVALID, "slice 0:5:1 of mesh dim tp");
  FAILS_WITH(reshard_mesh_slice(mesh, "tp", 2, 2, 1, &none), RESHARD_ERROR_INVALID, "slice 2:2:1");
  FAILS_WITH(reshard_mesh_slice(mesh, "tp", 0, 2, 0, &none), RESHARD_ERROR_INVALID, "slice 0:2:0");
  FAILS_WITH(reshard_mesh_slice(mesh, "pp", 0, 2, 1, &none), RESHARD_ERROR_INVALID, "names: dp, cp, tp");
  FAILS_WITH(reshard_mesh_flatten(mesh, "dp,cp", NULL, &none), RESHARD_ERROR_INVALID,
             "the flattened mesh dim needs a name, as the others have");
  FAILS_WITH(reshard_mesh_flatten(mesh, "dp,cp", "tp", &none), RESHARD_ERROR_INVALID,
             "mesh dims 0 and 1 are both named 'tp'");
  FAILS_WITH(reshard_mesh_flatten(mesh, "dp,cp", "a b", &none), RESHARD_ERROR_INVALID,
             "'a b' is no name for mesh dim 0");
  reshard_mesh three = parsed("2x3x4");
  FAILS_WITH(reshard_mesh_flatten(three, "0,1", "a", &none), RESHARD_ERROR_INVALID,
             "the flattened mesh dim gets the name 'a', the others have none");
  reshard_mesh_release(three);
  FAILS_WITH(reshard_mesh_sub(NULL, "dp", 0, &none), RESHARD_ERROR_INVALID, "mesh is NULL");
  FAILS_WITH(reshard_mesh_sub(mesh, NULL, 0, &none), RESHARD_ERROR_INVALID, "dims is NULL");
  FAILS_WITH(reshard_mesh_slice(mesh, "dp", 0, 1, 1, NULL), RESHARD_ERROR_INVALID, "slice is NULL");
  FAILS_WITH(reshard_mesh_flatten(mesh, "dp", "x", NULL), RESHARD_ERROR_INVALID, "flat is NULL");
  reshard_comm comm;
  FAILS_WITH(reshard_mesh_comm(mesh, "dp", &comm), RESHARD_ERROR_INVALID, "a dry mesh has no communicator");
  FAILS_WITH(reshard_mesh_own(mesh, &none), RESHARD_ERROR_INVALID, "a dry mesh has no communicator");
  FAILS_WITH(reshard_mesh_comm(NULL, "dp", &comm), RESHARD_ERROR_INVALID, "mesh is NULL");
  assert_ptr_equal(none, (void *)&none);
  reshard_mesh_release(mesh);
  reshard_mesh_release(plain);
}

CASE(equal_meshes_have_equal_names_shapes_and_ranks) {
  static const char *const texts[] = {"2x4",      "dp=2,tp=4", "dp=2,cp=4",     "4x2",       "8",
                                      "2x4@8-15", "2x4@7-0",   "2x4@0,2,1,3-7", "2x4@0-6,9", "tp=4,dp=2"};
  enum { N = sizeof texts / sizeof *texts };
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      reshard_mesh a = NULL, b = NULL;
      GOOD(reshard_mesh_parse(NULL, 16, texts[i], &a));
      GOOD(reshard_mesh_parse(NULL, 16, texts[j], &b));
      assert_int_equal(reshard_mesh_equal(a, b), i == j);
      assert_int_equal(reshard_mesh_hash(a) == reshard_mesh_hash(b), i == j);
      reshard_mesh_release(a);
      reshard_mesh_release(b);
    }
  reshard_mesh a = parsed("2x4"), b = NULL;
  GOOD(reshard_mesh_parse(NULL, 9, "2x4", &b)); /* another world */
  assert_false(reshard_mesh_equal(a, b));
  assert_false(reshard_mesh_equal(a, NULL) || reshard_mesh_equal(NULL, b));
  assert_true(reshard_mesh_equal(NULL, NULL));
  assert_int_equal(reshard_mesh_hash(NULL), 0);
  reshard_comm comms[8];
  reshard_mesh c, d;
  GOOD(reshard_comm_create_local(8, NULL, comms));
  GOOD(reshard_mesh_parse(comms[0], 0, "2x4", &c));
  GOOD(reshard_mesh_parse(comms[5], 0, "2x4", &d));
  assert_false(reshard_mesh_equal(a, c)); /* on a communicator, and dry */
  assert_true(reshard_mesh_equal(c, d));  /* two ranks' */
  reshard_mesh_release(a);
  reshard_mesh_release(b);
  reshard_mesh_release(c);
  reshard_mesh_release(d);
  rank_comms_close(8, comms);
}

/* --- A mesh of 16,384 ranks -------------------------------------------------------------------------------------- */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* others may run meanwhile */
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

CASE(mesh_of_16384_ranks_answers_in_time) {
  const int64_t shape[3] = {16, 128, 8}, tensor[2] = {16384, 53248};
  const char *const names[3] = {"pp", "dp", "tp"};
  const reshard_placement whole[3] = {{.kind = RESHARD_PLACEMENT_REPLICATE},
                                      {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                      {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}},
                          parts[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                      {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0}};
  const int order[2] = {1, 0};
  double best = 1;
  for (int round = 0; round < 20; round++) {
    reshard_mesh mesh, sub;
    reshard_layout layout, local;
    reshard_interval rows = {0, 0}, columns = {0, 0}, piece = {0, 0};
    int64_t at[3] = {0}, runs = 0;
    double start = seconds();
    GOOD(reshard_mesh_create(NULL, 16384, 3, shape, names, 0, NULL, &mesh));
    GOOD(reshard_mesh_coordinate(mesh, 12345, at));
    GOOD(reshard_mesh_sub(mesh, "dp,tp", 12345, &sub));
    GOOD(reshard_mesh_layout(mesh, 2, tensor, whole, NULL, &layout));
    GOOD(reshard_layout_array_intervals(layout, 12345, 0, 0, 0, 1, &rows, &runs));
    GOOD(reshard_layout_array_intervals(layout, 12345, 0, 1, 0, 1, &columns, &runs));
    GOOD(reshard_mesh_layout(sub, 2, tensor, parts, order, &local)); /* this one has a list of its 1,024 ranks */
    GOOD(reshard_layout_array_intervals(local, 12345, 0, 0, 0, 1, &piece, &runs));
    double took = seconds() - start;
    best = took < best ? took : best;
    assert_true(at[0] == 12 && at[1] == 7 && at[2] == 1);
    assert_true(rows.begin == 7 * 128 && rows.end == 8 * 128 && columns.begin == 6656 && columns.end == 2 * 6656);
    assert_true(piece.begin == 2048 + 7 * 16 && piece.end == 2048 + 8 * 16);
    reshard_mesh_release(mesh);
    reshard_mesh_release(sub);
    reshard_layout_release(layout);
    reshard_layout_release(local);
  }
  print_message("mesh of 16,384 ranks: create, coordinate, sub-mesh, local boxes: %.1f us\n", 1e6 * best);
  if (test_scale() >= 1) /* under a sanitizer time tells nothing */
    assert_true(best <= 1e-3);
}

/* Texts of a billion ranks: by arithmetic, however the dims lie. */
CASE(texts_of_a_billion_ranks_are_read_by_arithmetic) {
  static const struct {
    const char *sub, *flat;
    int64_t begin, end, step;
    const char *text;
  } cases[] = {
      {"0,1", NULL, 0, 32768, 1, "32768x32768@0-1073741823"},
      {"1,0", NULL, 0, 32768, 1, "32768x32768@0,32768,65536,"},
      {"0,1", NULL, 5, 6, 1, "1x32768@163840-196607"},
      {"0,1", NULL, 1, 32768, 1, "32767x32768@32768-1073741823"},
      {"0,1", NULL, 0, 32768, 32767, "2x32768@0-32767,1073709056-1073741823"},
      {"0,1", "0,1", 0, 1073741824, 1, "1073741824@0-1073741823"},
      {"0,1", "1,0", 0, 1073741824, 1, "1073741824@0,32768,65536,"},
      {"1", NULL, 0, 32768, 1, "32768@0-32767"},
  };
  const int64_t shape[2] = {32768, 32768};
  reshard_mesh mesh;
  double start = seconds();
  GOOD(reshard_mesh_create(NULL, 0, 2, shape, NULL, 0, NULL, &mesh));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_mesh sub, flat, part;
    char text[128];
    GOOD(reshard_mesh_sub(mesh, cases[i].sub, 0, &sub));
    if (cases[i].flat != NULL)
      GOOD(reshard_mesh_flatten(sub, cases[i].flat, NULL, &flat));
    else
      flat = reshard_mesh_retain(sub);
    if (cases[i].begin == 0 && cases[i].end == reshard_mesh_shape(flat)[0] && cases[i].step == 1)
      part = reshard_mesh_retain(flat); /* a flattened dim cannot always be cut */
    else
      GOOD(reshard_mesh_slice(flat, "0", cases[i].begin, cases[i].end, cases[i].step, &part));
    snprintf(text, sizeof text, "rank -7 is not in the mesh %s", cases[i].text);
    FAILS_WITH(reshard_mesh_coordinate(part, -7, (int64_t[2]){0, 0}), RESHARD_ERROR_INVALID, text);
    reshard_mesh_release(part);
    reshard_mesh_release(flat);
    reshard_mesh_release(sub);
  }
  reshard_mesh_release(mesh);
  assert_true(seconds() - start < 1);
}

RUN_CASES
