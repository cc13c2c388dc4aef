/* DTensors on the sub-meshes of a mesh, by each group for itself and as often as it likes. */
#include "submesh.h"
#include "support/oracles/fsdp_boxes.h"

#include "bench/cli/util.h"

#include <stdlib.h>
#include <string.h>

/* This rank's sub-mesh in one dim, and the tensor of its group. */
typedef struct group {
  contract_rank *s;
  reshard_mesh sub;
  int64_t size, i, first; /* ranks; which of them this one is; the first of them, in the communicator */
  int64_t shape[2];
  uint64_t key;
} group;

/* The elements that the rank has when dim 0 or 1 is cut (-1: all), row-major; the caller frees the list. */
static int64_t *part_of(const group *g, int dim, reshard_box *box, int64_t *n) {
  *box = box_of(2, g->shape, dim, g->size, g->i, 1, 0);
  *n = box->extent[0] * box->extent[1];
  int64_t *index = cli_alloc(*n + 1, sizeof *index);
  for (int64_t e = 0; e < *n; e++)
    index[e] = (box->offset[0] + e / box->extent[1]) * g->shape[1] + box->offset[1] + e % box->extent[1];
  return index;
}

static void check_part(group *g, reshard_tensor tensor, int dim) {
  reshard_tensor_info info = {0};
  reshard_box box;
  int64_t n, *index = part_of(g, dim, &box, &n);
  if (CONTRACT_SUCCEEDS(g->s, reshard_tensor_get_info(tensor, &info)) &&
      CONTRACT_CHECK(g->s, info.ndim == 2 && memcmp(info.shape, box.extent, sizeof g->shape) == 0))
    CONTRACT_CHECK(g->s, contract_count_wrong(g->s, tensor, n, index, false, g->key) == 0);
  free(index);
}

/* The group infers the shape. */
static reshard_dtensor make_dtensor(group *g) {
  const reshard_placement rows = placement_of(0);
  const reshard_placing placing = {g->sub, &rows, NULL};
  reshard_box box;
  reshard_dtensor made = NULL;
  int64_t n, *index = part_of(g, 0, &box, &n);
  reshard_tensor local = contract_tensor(g->s, RESHARD_F32, 2, box.extent, g->key % 2 == 0);
  contract_fill(g->s, local, n, index, false, g->key);
  CONTRACT_SUCCEEDS(g->s, reshard_dtensor_from_local(g->s->sharder, &placing, local, 0, NULL, 1, &made));
  reshard_tensor_release(local);
  free(index);
  return made;
}

static void check_moves(group *g, reshard_dtensor made) {
  const int dims[3] = {1, -1, 0};
  reshard_dtensor at = reshard_dtensor_retain(made), next;
  reshard_tensor whole = NULL;
  for (int64_t k = 0; k < 1 + 2 * (g->first % 3); k++) {
    const reshard_placement placement = placement_of(dims[k % 3]);
    const reshard_placing to = {g->sub, &placement, NULL};
    next = NULL;
    if (!CONTRACT_SUCCEEDS(g->s, reshard_dtensor_redistribute(1, &at, &to, g->s->stream, &next)))
      break;
    check_part(g, reshard_dtensor_local(next), dims[k % 3]);
    reshard_dtensor_release(at);
    at = next;
  }
  if (CONTRACT_SUCCEEDS(g->s, reshard_dtensor_full(at, g->s->stream, &whole)))
    check_part(g, whole, -1);
  reshard_tensor_release(whole);
  reshard_dtensor_release(at);
}

/* Its metadata name ranks of the whole communicator. */
static void check_ranks(group *g, reshard_dtensor made, const int64_t *global) {
  reshard_sharded_tensor sharded = reshard_dtensor_sharded(made);
  if (!CONTRACT_CHECK(g->s, sharded != NULL))
    return;
  reshard_metadata metadata = reshard_sharded_tensor_metadata(sharded);
  for (int64_t i = 0; i < reshard_metadata_count(metadata); i++) {
    int64_t rank = -1;
    CONTRACT_SUCCEEDS(g->s, reshard_mesh_rank_at(g->sub, &i, &rank));
    CONTRACT_CHECK(g->s, reshard_metadata_shards(metadata)[i].placement.rank == (global != NULL ? global[rank] : rank));
  }
}

static void check_dim(contract_rank *s, reshard_mesh mesh, int dim, uint64_t seed) {
  group g = {.s = s};
  char text[16] = {(char)('0' + dim)};
  if (!CONTRACT_SUCCEEDS(s, reshard_mesh_sub(mesh, text, RESHARD_MESH_MINE, &g.sub)))
    return;
  g.size = reshard_mesh_size(g.sub);
  CONTRACT_SUCCEEDS(s, reshard_mesh_coordinate(g.sub, RESHARD_MESH_MINE, &g.i));
  CONTRACT_SUCCEEDS(s, reshard_mesh_rank_at(g.sub, (int64_t[]){0}, &g.first));
  g.shape[0] = 2 * g.size + g.first % 3;
  g.shape[1] = g.size + g.first % 2;
  g.key = seed + (uint64_t)g.first;
  reshard_dtensor made = make_dtensor(&g);
  if (made != NULL) {
    check_ranks(&g, made, reshard_comm_global_ranks(s->comm));
    check_moves(&g, made);
  }
  reshard_dtensor_release(made);
  reshard_mesh_release(g.sub);
}

void contract_check_submeshes(contract_rank *s, reshard_mesh mesh, uint64_t seed) {
  if (!CONTRACT_SUCCEEDS(s, reshard_mesh_init_groups(mesh, 0, NULL)) || !reshard_mesh_contains(mesh, RESHARD_MESH_MINE))
    return;
  for (int d = 0; d < reshard_mesh_ndim(mesh); d++)
    if (reshard_mesh_shape(mesh)[d] < reshard_mesh_size(mesh)) /* else it is no sub-mesh */
      check_dim(s, mesh, d, seed);
}
