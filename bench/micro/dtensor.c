/* The cost of a large mesh on one rank. An item is all that a rank asks before its first tensor: the mesh, its
 * coordinate, its sub-mesh, and the local box of a tensor on it. mesh_listed has ranks in an irregular order, which are
 * stored and sorted once. mesh_asked asks a mesh that exists. */
#include "bench/micro/micro.h"

#include <reshard/dtensor.h>

#include <stdlib.h>

typedef struct mesh_bench {
  int64_t size, *ranks; /* NULL: 0, 1, 2, ... */
  reshard_mesh mesh;    /* NULL: each run makes its own */
} mesh_bench;

static int create_mesh(const mesh_bench *l, reshard_mesh *mesh) {
  static const char *const names[] = {"pp", "dp", "tp"};
  const int64_t shape[3] = {8, l->size / 128, 16};
  return reshard_mesh_create(NULL, l->size, 3, shape, names, l->ranks != NULL ? l->size : 0, l->ranks, mesh) !=
         RESHARD_SUCCESS;
}

static int query_mesh(reshard_mesh mesh, int64_t rank) {
  const reshard_placement placements[3] = {{.kind = RESHARD_PLACEMENT_REPLICATE},
                                           {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                           {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0}};
  static const int order[3] = {0, 2, 1};
  const int64_t shape[2] = {53248, 16384};
  const reshard_placing placing = {mesh, placements, order};
  int64_t coordinate[3], local[2], offset[2];
  reshard_mesh sub;
  if (reshard_mesh_coordinate(mesh, rank, coordinate) || reshard_mesh_sub(mesh, "dp,tp", rank, &sub))
    return 1;
  int failed = reshard_dtensor_local_shape(&placing, 2, shape, coordinate, local, offset) != RESHARD_SUCCESS;
  reshard_mesh_release(sub);
  return failed || local[1] != shape[1];
}

static int mesh_run(void *state) {
  mesh_bench *l = state;
  reshard_mesh mesh = l->mesh;
  if (mesh == NULL && create_mesh(l, &mesh))
    return 1;
  int failed = query_mesh(mesh, l->size - 1);
  if (l->mesh == NULL)
    reshard_mesh_release(mesh);
  return failed;
}

static void mesh_drop(void *state) {
  mesh_bench *l = state;
  reshard_mesh_release(l->mesh);
  free(l->ranks);
  free(l);
}

static void *mesh_make(const micro_case *of, int64_t *items) {
  mesh_bench *l = calloc(1, sizeof *l);
  if (l != NULL)
    l->size = of->parameter;
  *items = 1;
  return l;
}

static void *mesh_make_listed(const micro_case *of, int64_t *items) {
  const int64_t size = of->parameter;
  mesh_bench *l = mesh_make(of, items);
  if (l == NULL || (l->ranks = malloc((size_t)size * sizeof *l->ranks)) == NULL) {
    free(l);
    return NULL;
  }
  for (int64_t i = 0; i < size; i++)
    l->ranks[i] = i * 4099 % size; /* 4099 is a prime */
  return l;
}

static void *mesh_make_asked(const micro_case *of, int64_t *items) {
  mesh_bench *l = mesh_make(of, items);
  if (l == NULL || create_mesh(l, &l->mesh) == 0)
    return l;
  free(l);
  return NULL;
}

static const micro_case micro_dtensor[] = {
    {"mesh", 16384, 0, mesh_make, mesh_run, mesh_drop, {0}, NULL},
    {"mesh_listed", 16384, 0, mesh_make_listed, mesh_run, mesh_drop, {0}, NULL},
    {"mesh_asked", 16384, 0, mesh_make_asked, mesh_run, mesh_drop, {0}, NULL},
};
MICRO_TABLE(micro_dtensor, NULL)
