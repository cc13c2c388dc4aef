/* Local shapes and offsets of DTensors: against PyTorch's, hashed in tests/figures, and figures known by heart. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <reshard/dtensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 12, HASHES = 7 };

static reshard_mesh dry(const char *text) {
  reshard_mesh mesh;
  CLI_TRY(text, reshard_mesh_parse(NULL, 0, text, &mesh));
  return mesh;
}

static uint32_t hash_add(uint32_t hash, int ndim, const int64_t *numbers) {
  for (int d = 0; d < ndim; d++)
    hash = (hash ^ (uint32_t)numbers[d]) * 16777619u;
  return hash;
}

/* Of all ranks of a mesh of two dims. */
static uint32_t add_ranks(uint32_t hash, const reshard_placing *placing, int ndim, const int64_t *shape) {
  const int64_t *mesh = reshard_mesh_shape(placing->mesh);
  for (int64_t a = 0; a < mesh[0]; a++)
    for (int64_t b = 0; b < mesh[1]; b++) {
      int64_t local[2], offset[2], coordinate[2] = {a, b};
      CLI_TRY("local shape: ", reshard_dtensor_local_shape(placing, ndim, shape, coordinate, local, offset));
      hash = hash_add(hash_add(hash, ndim, local), ndim, offset);
    }
  return hash;
}

static uint32_t all_shapes(const reshard_placing *placing, int ndim) {
  uint32_t hash = 2166136261u;
  int64_t shape[2];
  for (shape[0] = 0; shape[0] <= MOST; shape[0]++)
    for (shape[1] = 0; shape[1] <= (ndim == 2 ? MOST : 0); shape[1]++)
      hash = add_ranks(hash, placing, ndim, shape);
  return hash;
}

/* The second placement of the i-th hash of a line. */
static const char *second(int i) {
  static const char *const names[HASHES] = {"R", "S0", "S0*2", "S0*3", "S1", "S1*2", "S1*3"};
  return names[i];
}

static int64_t check_line(const char *line) {
  int ndim, at = 0;
  char mesh[8], first[8], text[24];
  if (sscanf(line, "%d %7s %7s%n", &ndim, mesh, first, &at) != 3)
    fail_msg("what is '%s'?", line);
  reshard_placement placements[2];
  int order[2];
  reshard_placing placing = {dry(mesh), placements, order};
  for (int i = 0; i < (ndim == 2 ? HASHES : 4); i++) {
    unsigned hash = 0;
    int n = 0;
    assert_int_equal(sscanf(line + at, "%8x%n", &hash, &n), 1);
    at += n;
    snprintf(text, sizeof text, "%s,%s", first, second(i));
    CLI_TRY(text, reshard_placements_parse(text, placing.mesh, placements, order));
    if (all_shapes(&placing, ndim) != hash)
      fail_msg("%d dims on %s, %s: not PyTorch's local shapes and offsets", ndim, mesh, text);
  }
  reshard_mesh_release(placing.mesh);
  return ndim == 2 ? HASHES : 4;
}

CASE(local_shapes_are_those_of_pytorch) {
  char path[1024], line[256];
  int64_t cases = 0;
  snprintf(path, sizeof path, "%s/tests/figures/dtensor_shapes.txt", getenv("SOURCE") ? getenv("SOURCE") : ".");
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL)
    if (line[0] != '#')
      cases += check_line(line);
  fclose(file);
  assert_int_equal(cases, 12 * (4 * 4 + 7 * 7));
}

static void shapes_expect(const char *mesh, const char *text, int64_t n, const char *wanted) {
  reshard_placement placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
  reshard_placing placing = {dry(mesh), placements, order};
  char got[256] = "";
  CLI_TRY(text, reshard_placements_parse(text, placing.mesh, placements, order));
  for (int64_t i = 0; i < reshard_mesh_size(placing.mesh); i++) {
    int64_t coordinate[RESHARD_MAX_DIMS], local, offset;
    CLI_TRY(mesh, reshard_mesh_coordinate(placing.mesh, i, coordinate));
    CLI_TRY(text, reshard_dtensor_local_shape(&placing, 1, &n, coordinate, &local, &offset));
    snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d@%d", i > 0 ? " " : "", (int)local, (int)offset);
  }
  assert_string_equal(got, wanted);
  reshard_mesh_release(placing.mesh);
}

CASE(known_local_shapes_hold) {
  shapes_expect("4", "S0", 10, "3@0 3@3 3@6 1@9"); /* not size // chunks as stride */
  shapes_expect("4", "S0", 5, "2@0 2@2 1@4 0@5");
  shapes_expect("2x2", "S0,S0", 5, "2@0 1@2 1@3 1@4");
  shapes_expect("dp=2,tp=2", "S0,S0;order=tp,dp", 5, "2@0 1@3 1@2 1@4");
  shapes_expect("2x2", "S0*2,S0", 5, "2@0 1@3 1@2 1@4");
  shapes_expect("dp=3,tp=2", "S0,S0;order=tp,dp", 7, "2@0 1@4 2@2 1@5 0@7 1@6");
  shapes_expect("3x2", "S0*2,S0", 7, "2@0 1@4 2@2 1@5 1@6 0@7");
}

CASE(wrong_placements_are_refused) {
  reshard_placement placements[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                     {.kind = RESHARD_PLACEMENT_SHARD, .dim = 2}};
  reshard_placing placing = {dry("dp=2,tp=3"), placements, NULL};
  int64_t shape[2] = {4, 4}, coordinate[2] = {1, 3}, local[2] = {-7, -7};
  BAD(reshard_dtensor_local_shape(&placing, 2, shape, coordinate, local, NULL),
      "coordinate 3 in mesh dim 1 of extent 3");
  coordinate[1] = 2;
  BAD(reshard_dtensor_local_shape(&placing, 2, shape, coordinate, local, NULL), "mesh: dim 2 of a tensor of 2 dims");
  assert_int_equal(reshard_dtensor_local_shape(NULL, 2, shape, coordinate, local, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(local[0], -7);
  reshard_mesh_release(placing.mesh);
}

static void shapes_refused(const char *text, reshard_status status, const char *error) {
  reshard_placement placements[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 7, .split_factor = 7}};
  int order[2] = {7, 7};
  reshard_mesh mesh = dry("dp=2,tp=3");
  FAILS(reshard_placements_parse(text, mesh, placements, order), status, error);
  assert_int_equal(placements[0].dim, 7);
  assert_int_equal(order[0], 7);
  reshard_mesh_release(mesh);
}

CASE(wrong_texts_of_placements_are_refused_with_the_column) {
  shapes_refused("S0", RESHARD_ERROR_INVALID, "placements \"S0\": column 1: 1 placements, the mesh has 2 dims");
  shapes_refused("S0,R,R", RESHARD_ERROR_INVALID, "placements \"S0,R,R\": column 1: 3 placements, the mesh has 2 dims");
  shapes_refused("S0,Psum", RESHARD_ERROR_UNSUPPORTED,
                 "placements \"S0,Psum\": column 4: Psum (Partial) is reserved, this version lacks it");
  shapes_refused("S0,Q", RESHARD_ERROR_INVALID, "placements \"S0,Q\": column 4: expected a placement: S0, S0*2 or R");
  shapes_refused("S0,S8", RESHARD_ERROR_INVALID, "placements \"S0,S8\": column 5: dim 8 of a tensor of at most 8 dims");
  shapes_refused("S0,R;order=tp", RESHARD_ERROR_INVALID,
                 "placements \"S0,R;order=tp\": column 12: order= has 1 mesh dims, the mesh has 2");
  shapes_refused("S0,R)", RESHARD_ERROR_INVALID, "placements \"S0,R)\": column 5: expected the end of the placements");
  shapes_refused("S0,R;order=tp,pp", RESHARD_ERROR_INVALID,
                 "placements \"S0,R;order=tp,pp\": column 15: the mesh has no dim named pp");
  reshard_placement placements[2];
  int order[2];
  reshard_mesh mesh = dry("dp=2,tp=3");
  CLI_TRY("placements: ", reshard_placements_parse(" S-1*3 , R ; order = tp , dp ", mesh, placements, order));
  assert_int_equal(placements[0].kind, RESHARD_PLACEMENT_STRIDED_SHARD);
  assert_int_equal(placements[0].dim, -1);
  assert_int_equal(placements[0].split_factor, 3);
  assert_int_equal(placements[1].kind, RESHARD_PLACEMENT_REPLICATE);
  assert_true(order[0] == 1 && order[1] == 0);
  CLI_TRY("placements: ", reshard_placements_parse("R,S1", mesh, placements, order));
  assert_true(order[0] == 0 && order[1] == 1 && placements[1].dim == 1);
  reshard_mesh_release(mesh);
}

/* Costs of a tensor on a mesh of 16,384 ranks. */
CASE(test_large_mesh) {
  const char *text = "pp=8,dp=128,tp=16";
  reshard_placement placements[3];
  int order[3];
  reshard_placing placing = {dry(text), placements, order};
  int64_t shape[2] = {53248, 16384}, coordinate[3] = {5, 127, 15}, local[2], offset[2];
  CLI_TRY(text, reshard_placements_parse("R,S0,S0;order=pp,tp,dp", placing.mesh, placements, order));
  CLI_TRY(text, reshard_dtensor_local_shape(&placing, 2, shape, coordinate, local, offset));
  assert_true(local[0] == 26 && local[1] == 16384 && offset[0] == 53248 - 26 && offset[1] == 0);
  reshard_mesh_release(placing.mesh);
}

RUN_CASES
