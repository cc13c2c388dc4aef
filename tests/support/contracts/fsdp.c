/* FSDP with tensor parallelism over a mesh (fsdp, tp): what is cut is found row by row (fsdp_boxes.h). */
#include "fsdp.h"
#include "support/oracles/fsdp_boxes.h"

#include "bench/cli/util.h"

#include <reshard/fsdp.h>

#include <stdlib.h>

/* A parameter, and what this rank has of the mesh. */
typedef struct stage {
  contract_rank *s;
  reshard_mesh mesh, tp;
  int64_t fsdp_size, tp_size, f, t; /* extents, and this rank's coordinates */
  reshard_sharder rows;             /* of the FSDP group's sub-communicator */
  reshard_fsdp_extension table;
  int ndim, dim; /* that TP cuts; -1: none */
  int64_t shape[2];
  uint64_t key;
} stage;

static reshard_box box_here(const stage *g, bool by_tp, bool by_fsdp) {
  return box_of(g->ndim, g->shape, by_tp ? g->dim : -1, g->tp_size, g->t, by_fsdp ? g->fsdp_size : 1,
                by_fsdp ? g->f : 0);
}

/* Checks that a tensor is this box of the parameter. Returns its bytes. */
static int64_t check_box(stage *g, reshard_tensor tensor, reshard_box box) {
  reshard_tensor_info info = {0};
  int64_t n = 1, columns = g->ndim == 2 ? g->shape[1] : 1;
  if (!CONTRACT_SUCCEEDS(g->s, reshard_tensor_get_info(tensor, &info)))
    return 0;
  for (int d = 0; d < g->ndim; d++)
    n *= box.extent[d];
  CONTRACT_CHECK(g->s, info.ndim == g->ndim && memcmp(info.shape, box.extent, (size_t)g->ndim * sizeof *g->shape) == 0);
  int64_t *index = cli_alloc(n + 1, sizeof *index), width = g->ndim == 2 ? box.extent[1] : 1;
  for (int64_t e = 0; e < n; e++)
    index[e] = (box.offset[0] + e / width) * columns + (g->ndim == 2 ? box.offset[1] : 0) + e % width;
  CONTRACT_CHECK(g->s, contract_count_wrong(g->s, tensor, n, index, false, g->key) == 0);
  free(index);
  return n * (int64_t)reshard_dtype_size(info.dtype);
}

static reshard_tensor local_of(stage *g, reshard_tree leaf) {
  reshard_dtensor tensor = NULL;
  return CONTRACT_SUCCEEDS(g->s, reshard_state_get_dtensor(leaf, &tensor)) ? reshard_dtensor_local(tensor) : NULL;
}

/* The leaf as TP has it: a tensor, or a DTensor over its row of the mesh. */
static reshard_tree make_leaf(stage *g, bool cut) {
  reshard_tensor whole = contract_tensor(g->s, RESHARD_F32, g->ndim, g->shape, g->key % 2 == 0);
  reshard_tree leaf = NULL;
  reshard_dtensor part = NULL;
  reshard_placement placement = placement_of(g->dim);
  const reshard_placing placing = {g->tp, &placement, NULL};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  contract_fill_whole(g->s, whole, g->key);
  if (!cut)
    CONTRACT_SUCCEEDS(g->s, reshard_tree_tensor(whole, &leaf));
  else if (CONTRACT_SUCCEEDS(g->s, reshard_dtensor_distribute(g->s->sharder, &placing, whole, -1, g->ndim, g->shape,
                                                              &properties, g->s->stream, &part)))
    CONTRACT_SUCCEEDS(g->s, reshard_state_dtensor(part, &leaf));
  reshard_dtensor_release(part);
  reshard_tensor_release(whole);
  return leaf;
}

/* A gathered part as the DTensor that it was. */
static void check_unflatten(stage *g, reshard_tree leaf, reshard_tensor gathered) {
  reshard_tree flat = NULL, again = NULL;
  reshard_flat_record record = NULL;
  CONTRACT_SUCCEEDS(g->s, g->table.pre_flatten_transform(g->table.user, leaf, &flat, &record));
  if (CONTRACT_CHECK(g->s, record != NULL) &&
      CONTRACT_SUCCEEDS(g->s, g->table.post_unflatten_transform(g->table.user, gathered, record, g->s->stream, &again)))
    CONTRACT_CHECK(g->s, local_of(g, again) == gathered && reshard_fsdp_is_flattened(gathered));
  reshard_flat_record_free(record);
  reshard_tree_release(again);
  reshard_tree_release(flat);
}

static void check_dtensor(stage *g, bool cut) {
  reshard_tree leaf = make_leaf(g, cut), chunk = NULL, whole = NULL;
  reshard_tensor gathered = NULL;
  int64_t before = contract_received(g->s), kept, got;
  if (CONTRACT_SUCCEEDS(g->s, g->table.chunk_dtensor(g->table.user, leaf, g->mesh, g->s->stream, &chunk))) {
    kept = check_box(g, local_of(g, chunk), box_here(g, cut, true));
    CONTRACT_CHECK(g->s, contract_received(g->s) == before);
    CONTRACT_SUCCEEDS(g->s, g->table.all_gather_dtensor(g->table.user, chunk, g->mesh, g->s->stream, &whole));
    CONTRACT_SUCCEEDS(g->s, reshard_tree_get_tensor(whole, &gathered));
    got = check_box(g, gathered, box_here(g, cut, false));
    CONTRACT_CHECK(g->s, contract_received(g->s) - before == got - kept);
    if (cut)
      check_unflatten(g, leaf, gathered);
  }
  reshard_tree_release(whole);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
}

/* FSDP cuts first, as PyTorch has it: rows come from other ranks where TP cuts them, too. */
static void check_fsdp_first(stage *g, bool cut) {
  reshard_tree leaf = make_leaf(g, cut), chunk = NULL, whole = NULL;
  reshard_tensor gathered = NULL;
  bool both = cut && g->dim == 0;
  CONTRACT_SUCCEEDS(g->s, reshard_fsdp_extension_set_order(&g->table, RESHARD_FSDP_FSDP_FIRST));
  if (CONTRACT_SUCCEEDS(g->s, g->table.chunk_dtensor(g->table.user, leaf, g->mesh, g->s->stream, &chunk))) {
    check_box(g, local_of(g, chunk),
              both ? box_of(g->ndim, g->shape, 0, g->fsdp_size, g->f, g->tp_size, g->t) : box_here(g, cut, true));
    CONTRACT_SUCCEEDS(g->s, g->table.all_gather_dtensor(g->table.user, chunk, g->mesh, g->s->stream, &whole));
    CONTRACT_SUCCEEDS(g->s, reshard_tree_get_tensor(whole, &gathered));
    check_box(g, gathered, box_here(g, cut, false));
  }
  CONTRACT_SUCCEEDS(g->s, reshard_fsdp_extension_set_order(&g->table, RESHARD_FSDP_TP_FIRST));
  reshard_tree_release(whole);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
}

/* The whole of a sharded tensor of all ranks. */
static void check_whole(stage *g, reshard_sharded_tensor tensor) {
  reshard_tensor out = contract_tensor(g->s, RESHARD_F32, g->ndim, g->shape, false);
  if (CONTRACT_SUCCEEDS(g->s, reshard_sharded_tensor_gather_all(tensor, out, g->s->stream)))
    CONTRACT_CHECK(g->s, contract_count_wrong_whole(g->s, out, g->key) == 0);
  reshard_tensor_release(out);
}

/* Nested, flattened by all ranks, gathered. */
static void check_nested(stage *g, reshard_tree chunk) {
  reshard_tree state = NULL, flat = NULL, leaf = NULL;
  reshard_sharded_tensor tensor = NULL;
  CONTRACT_SUCCEEDS(g->s, reshard_tree_dict(&state));
  CONTRACT_SUCCEEDS(g->s, reshard_tree_set(state, "weight", chunk));
  if (CONTRACT_SUCCEEDS(g->s, reshard_state_flatten_sharded_tensors_global(g->s->sharder, state, &flat)) &&
      CONTRACT_SUCCEEDS(g->s, reshard_tree_find(flat, "weight", &leaf)) &&
      CONTRACT_SUCCEEDS(g->s, reshard_state_get_sharded(leaf, &tensor)))
    check_whole(g, tensor);
  reshard_tree_release(flat);
  reshard_tree_release(state);
}

/* The inner tensor is this rank's chunk of its part, and its metadata names the ranks of its column. */
static void check_tensor(stage *g, bool cut) {
  enum { DEVICES = 2 }; /* of a node */
  const reshard_fsdp_group group = {
      .size = RESHARD_FSDP_GROUP_INIT, .sharder = g->rows, .world = g->s->sharder, .devices_per_node = DEVICES};
  reshard_tree leaf = make_leaf(g, cut), chunk = NULL, inner = NULL;
  reshard_metadata metadata = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_tensor local = NULL;
  int64_t before = contract_received(g->s);
  if (CONTRACT_SUCCEEDS(g->s, g->table.chunk_tensor(g->table.user, leaf, &group, g->s->stream, &chunk)) &&
      CONTRACT_SUCCEEDS(g->s, g->table.pre_load_state_dict_transform(g->table.user, chunk, &inner, &metadata)) &&
      CONTRACT_SUCCEEDS(g->s, reshard_state_get_sharded(inner, &tensor))) {
    const reshard_shard *shards = reshard_metadata_shards(metadata);
    CONTRACT_CHECK(g->s, contract_received(g->s) == before);
    reshard_metadata chunks = reshard_sharded_tensor_metadata(tensor);
    for (int64_t i = 0; i < reshard_metadata_count(chunks); i++) {
      const reshard_remote_device *at = &reshard_metadata_shards(chunks)[i].placement;
      CONTRACT_CHECK(g->s, at->index == (g->s->device != NULL ? (int)(at->rank % DEVICES) : -1));
    }
    for (int64_t i = 0; i < reshard_metadata_count(metadata); i++) {
      int64_t rank = -1;
      CONTRACT_SUCCEEDS(g->s, reshard_mesh_rank_at(g->mesh, (int64_t[]){i, g->t}, &rank));
      CONTRACT_CHECK(g->s, shards[i].placement.rank == rank &&
                               (shards[i].placement.type == RESHARD_DEVICE_CUDA) == (g->s->device != NULL));
    }
    if (reshard_sharded_tensor_local_count(tensor) > 0 &&
        CONTRACT_SUCCEEDS(g->s, reshard_sharded_tensor_local(tensor, 0, &local, NULL)))
      check_box(g, local, box_here(g, cut, true));
  }
  if (chunk != NULL && cut)
    check_nested(g, chunk);
  reshard_metadata_release(metadata);
  reshard_tree_release(inner);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
}

static void check_parameter(stage *g) {
  for (int cut = 0; cut < 2; cut++) {
    check_dtensor(g, cut);
    check_fsdp_first(g, cut);
    check_tensor(g, cut);
  }
}

/* An error that rank 1 alone finds is everybody's. */
static void check_refusals(stage *g) {
  bool alone = reshard_comm_rank(g->s->comm) == 1;
  reshard_tree leaf = make_leaf(g, true), chunk = NULL, again = NULL, whole = NULL;
  CONTRACT_SUCCEEDS(g->s, g->table.chunk_dtensor(g->table.user, leaf, g->mesh, g->s->stream, &chunk));
  for (int i = 0; i < 2; i++) {
    CONTRACT_ALL(g->s, g->table.all_gather_dtensor(g->table.user, chunk, g->mesh, g->s->stream, alone ? NULL : &again),
                 RESHARD_ERROR_INVALID, "rank 1: ");
    CONTRACT_SUCCEEDS(g->s, reshard_fsdp_extension_set_order(&g->table, RESHARD_FSDP_FSDP_FIRST));
    CONTRACT_ALL(g->s, g->table.chunk_dtensor(g->table.user, leaf, g->mesh, g->s->stream, alone ? NULL : &again),
                 RESHARD_ERROR_INVALID, "rank 1: ");
    CONTRACT_SUCCEEDS(g->s, reshard_fsdp_extension_set_order(&g->table, RESHARD_FSDP_TP_FIRST));
    CONTRACT_SUCCEEDS(g->s, g->table.all_gather_dtensor(g->table.user, chunk, g->mesh, g->s->stream, &whole));
    reshard_tree_release(whole);
    whole = NULL;
  }
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
}

static void check_stage(stage *g, uint64_t seed) {
  static const int64_t shapes[][2] = {{7, 4}, {1, 3}, {5, 1}, {9, 0}};
  rng r;
  rng_seed(&r, seed);
  for (int k = 0; k < 4; k++) {
    g->ndim = shapes[k][1] > 0 ? 2 : 1;
    memcpy(g->shape, shapes[k], sizeof g->shape);
    for (g->dim = -1; g->dim < g->ndim; g->dim++) {
      g->key = rng_next(&r);
      check_parameter(g);
      if (g->s->device == NULL && g->dim == 0 && k == 0) /* else hosts need not meet, and the communicator ends */
        check_refusals(g);
    }
  }
}

static bool open_stage(contract_rank *s, stage *g) {
  static const char *const names[2] = {"fsdp", "tp"};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = s->device};
  int64_t extents[2] = {reshard_comm_size(s->comm) / 2, 2};
  reshard_comm rows = NULL;
  *g = (stage){.s = s, .fsdp_size = extents[0], .tp_size = 2, .table = {.size = RESHARD_FSDP_EXTENSION_INIT}};
  return CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, 2, extents, names, 0, NULL, &g->mesh)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_init_groups(g->mesh, 0, NULL)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_sub(g->mesh, "tp", RESHARD_MESH_MINE, &g->tp)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_local_rank(g->mesh, "fsdp", RESHARD_MESH_MINE, &g->f)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_local_rank(g->mesh, "tp", RESHARD_MESH_MINE, &g->t)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_comm(g->mesh, "fsdp", &rows)) &&
         CONTRACT_SUCCEEDS(s, reshard_sharder_create(rows, &options, &g->rows)) &&
         CONTRACT_SUCCEEDS(s, reshard_fsdp_extension_init(s->sharder, &g->table)) &&
         CONTRACT_SUCCEEDS(s, reshard_fsdp_extension_check(&g->table));
}

/* An odd rank is left out, by a split. */
void contract_check_fsdp(contract_rank *s, uint64_t seed) {
  int64_t even = reshard_comm_size(s->comm) / 2 * 2;
  reshard_comm comm = NULL;
  contract_rank sub;
  stage g;
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, reshard_comm_rank(s->comm) < even ? 5 : -1, 0, &comm)) ||
      comm == NULL)
    return;
  if (contract_rank_open_on(s, comm, NULL, &sub)) {
    if (open_stage(&sub, &g))
      check_stage(&g, seed);
    reshard_sharder_destroy(g.rows);
    reshard_mesh_release(g.tp);
    reshard_mesh_release(g.mesh);
    contract_rank_close_on(s, &sub);
  }
  reshard_comm_destroy(comm);
}
