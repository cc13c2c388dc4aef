/* State dicts of a model under FSDP and TP, with replicas (HSDP). What chunk_tensor makes of plain tensors lives on
 * the FSDP group, nested tensors on all ranks, and some parameters on some ranks only. Which rank has which rows is
 * found one by one (fsdp_boxes.h). */
#include "groups.h"
#include "support/oracles/fsdp_boxes.h"

#include "bench/cli/util.h"

#include <reshard/fsdp.h>

#include <stdio.h>
#include <stdlib.h>

/* A mesh (replicate, shard, tp) over all ranks of a communicator, and this rank's place in it. */
typedef struct rig {
  contract_rank *s;
  reshard_mesh mesh, tp;
  int64_t extents[3], at[3];
  reshard_sharder shards, tps; /* of the groups that shard, and of TP's */
  reshard_comm backward;       /* all ranks in the reverse order */
  reshard_sharder turned;      /* its */
} rig;

static const char *const names[3] = {"replicate", "shard", "tp"};

typedef struct parameter {
  const char *name;
  int ndim;
  int64_t shape[2];
  int dim; /* that TP cuts; -1: each of its ranks has the whole; -2: TP knows nothing of it */
} parameter;

static const parameter model[] = {
    {"plain", 2, {7, 4}, -2}, {"norm", 1, {3}, -2},   {"rows", 2, {9, 4}, 0}, {"columns", 2, {6, 5}, 1},
    {"twice", 2, {5, 3}, -1}, {"scale", 1, {11}, -1}, {"few", 2, {1, 3}, 1},
};
enum { PARAMETERS = sizeof model / sizeof *model, KEY = 77 };

static reshard_sharder sharder_of(rig *g, const char *dim) {
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = g->s->device};
  reshard_comm comm = NULL;
  reshard_sharder sharder = NULL;
  if (CONTRACT_SUCCEEDS(g->s, reshard_mesh_comm(g->mesh, dim, &comm)))
    CONTRACT_SUCCEEDS(g->s, reshard_sharder_create(comm, &options, &sharder));
  return sharder;
}

static bool open_rig(contract_rank *s, int64_t replicate, int64_t tp, rig *g) {
  int64_t size = reshard_comm_size(s->comm);
  *g = (rig){.s = s, .extents = {replicate, size / replicate / tp, tp}};
  if (!CONTRACT_SUCCEEDS(s, reshard_mesh_create(s->comm, 0, 3, g->extents, names, 0, NULL, &g->mesh)) ||
      !CONTRACT_SUCCEEDS(s, reshard_mesh_sub(g->mesh, "tp", RESHARD_MESH_MINE, &g->tp)))
    return false;
  g->shards = sharder_of(g, "shard");
  g->tps = sharder_of(g, "tp");
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = s->device};
  if (CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, -reshard_comm_rank(s->comm), &g->backward)))
    CONTRACT_SUCCEEDS(s, reshard_sharder_create(g->backward, &options, &g->turned));
  int64_t rank = reshard_comm_rank(s->comm);
  for (int d = 2; d >= 0; rank /= g->extents[d--])
    g->at[d] = rank % g->extents[d];
  return g->shards != NULL && g->tps != NULL && g->turned != NULL;
}

static void close_rig(rig *g) {
  reshard_sharder_destroy(g->shards);
  reshard_sharder_destroy(g->tps);
  reshard_sharder_destroy(g->turned);
  reshard_comm_destroy(g->backward);
  reshard_mesh_release(g->tp);
  reshard_mesh_release(g->mesh);
}

static void put_child(contract_rank *s, reshard_tree state, const char *key, reshard_tree leaf) {
  CONTRACT_SUCCEEDS(s, reshard_tree_set(state, key, leaf));
  reshard_tree_release(leaf);
}

/* --- Parameters --------------------------------------------------------------------------------------------------- */

/* A chunk of a parameter as FSDP saves it: of a tensor, or of the DTensor that TP made of it. */
static reshard_tree chunk_of(rig *g, const parameter *p, uint64_t key) {
  const reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = g->shards, .world = g->s->sharder};
  const reshard_placement placement = placement_of(p->dim);
  const reshard_placing placing = {g->tp, &placement, NULL};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_tensor whole = contract_tensor(g->s, RESHARD_F32, p->ndim, p->shape, false);
  reshard_dtensor part = NULL;
  reshard_tree leaf = NULL, chunk = NULL;
  contract_fill_whole(g->s, whole, key);
  if (p->dim == -2)
    CONTRACT_SUCCEEDS(g->s, reshard_tree_tensor(whole, &leaf));
  else if (CONTRACT_SUCCEEDS(g->s, reshard_dtensor_distribute(g->s->sharder, &placing, whole, -1, p->ndim, p->shape,
                                                              &f32, g->s->stream, &part)))
    CONTRACT_SUCCEEDS(g->s, reshard_state_dtensor(part, &leaf));
  CONTRACT_SUCCEEDS(g->s, reshard_fsdp_chunk_tensor(leaf, &group, g->s->stream, &chunk));
  reshard_tree_release(leaf);
  reshard_dtensor_release(part);
  reshard_tensor_release(whole);
  return chunk;
}

/* Elements of a box that are not those of a whole of that key. */
static int64_t unlike_box(contract_rank *s, const parameter *p, const reshard_box *box, reshard_tensor tensor,
                          uint64_t key) {
  int64_t n = 1, columns = p->ndim == 2 ? p->shape[1] : 1, width = p->ndim == 2 ? box->extent[1] : 1;
  for (int d = 0; d < p->ndim; d++)
    n *= box->extent[d];
  int64_t *index = cli_alloc(n + 1, sizeof *index);
  for (int64_t e = 0; e < n; e++)
    index[e] = (box->offset[0] + e / width) * columns + (p->ndim == 2 ? box->offset[1] : 0) + e % width;
  int64_t wrong = contract_count_wrong(s, tensor, n, index, false, key);
  free(index);
  return wrong;
}

static void check_chunk(rig *g, const parameter *p, reshard_tree chunk, uint64_t key) {
  const reshard_tree *inner = &chunk;
  reshard_sharded_tensor tensor = NULL;
  reshard_tensor local = NULL;
  reshard_box box =
      box_of(p->ndim, p->shape, p->dim < 0 ? -1 : p->dim, g->extents[2], g->at[2], g->extents[1], g->at[1]);
  if (p->dim > -2)
    CONTRACT_SUCCEEDS(g->s, reshard_state_get_nested(chunk, NULL, NULL, NULL, &inner));
  if (!CONTRACT_SUCCEEDS(g->s, reshard_state_get_sharded(inner[0], &tensor)))
    return;
  if (reshard_sharded_tensor_local_count(tensor) > 0 &&
      CONTRACT_SUCCEEDS(g->s, reshard_sharded_tensor_local(tensor, 0, &local, NULL)))
    CONTRACT_CHECK(g->s, unlike_box(g->s, p, &box, local, key) == 0);
  else
    CONTRACT_CHECK(g->s, box.extent[0] == 0);
}

/* --- The state ---------------------------------------------------------------------------------------------------- */

static const parameter wide = {.ndim = 2, .shape = {6, 4}, .dim = -2};

/* A tensor of a sharder's ranks, cut in rows; its local array in a whole of that key. */
static reshard_sharded_tensor rows_of(contract_rank *s, reshard_sharder sharder, int64_t size, uint64_t key,
                                      bool grad) {
  const reshard_properties f32 = {.dtype = RESHARD_F32, .requires_grad = grad};
  reshard_layout rows = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_tensor local = NULL;
  reshard_box box;
  if (!CONTRACT_SUCCEEDS(s, reshard_layout_parse("chunk(0)", 2, wide.shape, size, &rows)))
    return NULL;
  CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_empty(sharder, rows, &f32, s->stream, &tensor));
  reshard_layout_release(rows);
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(tensor); i++)
    if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_local(tensor, i, &local, &box))) {
      int64_t index[24], n = box.extent[0] * wide.shape[1];
      for (int64_t e = 0; e < n; e++)
        index[e] = box.offset[0] * wide.shape[1] + e;
      contract_fill(s, local, n, index, false, key);
    }
  return tensor;
}

static void check_rows(contract_rank *s, reshard_sharded_tensor tensor, uint64_t key) {
  reshard_tensor local = NULL;
  reshard_box box;
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(tensor); i++)
    if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_local(tensor, i, &local, &box)))
      CONTRACT_CHECK(s, unlike_box(s, &wide, &box, local, key) == 0);
}

/* Tensors beside the model: the world's own; one path in each TP group, with gradients in every second one; one of
 * which rank 0 has the world's rows and the others those of the reverse order; a path of the first and of the second TP
 * group alone; a number that only the last rank has. */
enum { OWN, SHARED, TURNED, ALONE, EXTRAS };
typedef struct extras {
  reshard_sharded_tensor at[EXTRAS]; /* alone: NULL where this rank has none */
} extras;
static const char *const extra_names[EXTRAS] = {"own", "shared", "turned", "stage.0"};

static uint64_t extra_key(const rig *g, int i, uint64_t key) {
  return key + 100 + (uint64_t)i + (i == ALONE ? (uint64_t)(reshard_comm_rank(g->s->comm) / g->extents[2]) : 0);
}

static reshard_tree make_state(rig *g, uint64_t key, extras *x) {
  reshard_tree state = NULL, leaf = NULL;
  contract_rank *s = g->s;
  int64_t size = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm), row = rank / g->extents[2];
  CONTRACT_SUCCEEDS(s, reshard_tree_dict(&state));
  for (int i = 0; i < PARAMETERS; i++)
    put_child(s, state, model[i].name, chunk_of(g, &model[i], key + (uint64_t)i));
  *x = (extras){{rows_of(s, s->sharder, size, extra_key(g, OWN, key), false),
                 rows_of(s, g->tps, g->extents[2], extra_key(g, SHARED, key), row % 2 != 0),
                 rows_of(s, rank == 0 ? s->sharder : g->turned, size, extra_key(g, TURNED, key), false),
                 row < 2 ? rows_of(s, g->tps, g->extents[2], extra_key(g, ALONE, key), false) : NULL}};
  for (int i = 0; i < EXTRAS; i++)
    if (x->at[i] != NULL && CONTRACT_SUCCEEDS(s, reshard_state_sharded(x->at[i], &leaf)))
      put_child(s, state, i == ALONE && row == 1 ? "stage.1" : extra_names[i], leaf);
  if (row != 1 && CONTRACT_SUCCEEDS(s, reshard_tree_null(&leaf))) /* not yet there, or any more */
    put_child(s, state, row == 0 ? "stage.1" : "stage.0", leaf);
  if (rank == size - 1 && CONTRACT_SUCCEEDS(s, reshard_tree_int((int64_t)key, &leaf)))
    put_child(s, state, "step", leaf);
  return state;
}

static void check_state(rig *g, reshard_tree state, const extras *x, uint64_t key) {
  reshard_tree leaf = NULL;
  int64_t step = -1, rank = reshard_comm_rank(g->s->comm), size = reshard_comm_size(g->s->comm);
  for (int i = 0; i < PARAMETERS; i++)
    if (CONTRACT_SUCCEEDS(g->s, reshard_tree_find(state, model[i].name, &leaf)))
      check_chunk(g, &model[i], leaf, key + (uint64_t)i);
  for (int i = 0; i < EXTRAS; i++)
    if (x->at[i] != NULL)
      check_rows(g->s, x->at[i], extra_key(g, i, key));
  if (rank == size - 1 && CONTRACT_SUCCEEDS(g->s, reshard_tree_find(state, "step", &leaf)) &&
      CONTRACT_SUCCEEDS(g->s, reshard_tree_get_int(leaf, &step)))
    CONTRACT_CHECK(g->s, step == (int64_t)key);
}

static void free_state(reshard_tree state, extras *x) {
  reshard_tree_release(state);
  for (int i = 0; i < EXTRAS; i++)
    reshard_sharded_tensor_release(x->at[i]);
}

static void groups_save(contract_rank *s, int64_t replicate, int64_t tp, uint64_t key, const char *directory) {
  const reshard_state_save_options over = {
      .size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .threads = 1, .stream = s->stream, .staging_bytes = 100};
  reshard_state_save_report report = {0};
  rig g;
  extras x = {0};
  if (open_rig(s, replicate, tp, &g)) {
    reshard_tree state = make_state(&g, key, &x);
    int64_t bytes = 0, stages = reshard_comm_size(s->comm) / tp > 1 ? 2 : 1;
    CONTRACT_ALL(s, reshard_state_save(s->sharder, state, directory, &over, &report), RESHARD_SUCCESS, NULL);
    for (int i = 0; i < PARAMETERS; i++) /* replicas once */
      bytes += 4 * model[i].shape[0] * (model[i].ndim == 2 ? model[i].shape[1] : 1);
    CONTRACT_CHECK(s, report.tensors == PARAMETERS + ALONE + stages);
    CONTRACT_CHECK(s, report.bytes == bytes + (ALONE + stages) * 4 * wide.shape[0] * wide.shape[1]);
    check_state(&g, state, &x, key);
    free_state(state, &x);
  }
  close_rig(&g);
}

/* Over other values, by other groups. Some paths are on none of these ranks, where they are few. */
static void groups_load(contract_rank *s, int64_t replicate, int64_t tp, uint64_t key, const char *directory) {
  const reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT,
                                              .partial = reshard_comm_size(s->comm) / tp < 2,
                                              .threads = 1,
                                              .stream = s->stream,
                                              .staging_bytes = 100};
  rig g;
  extras x = {0};
  if (open_rig(s, replicate, tp, &g)) {
    reshard_tree state = make_state(&g, key + 1000, &x);
    CONTRACT_ALL(s, reshard_state_load(s->sharder, state, directory, &options, NULL), RESHARD_SUCCESS, NULL);
    check_state(&g, state, &x, key);
    free_state(state, &x);
  }
  close_rig(&g);
}

/* --- Flattened by all, and used ----------------------------------------------------------------------------------- */

static void check_whole(contract_rank *s, const parameter *p, reshard_sharded_tensor tensor, uint64_t key) {
  reshard_tensor out = contract_tensor(s, RESHARD_F32, p->ndim, p->shape, false);
  if (CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_gather_all(tensor, out, s->stream)))
    CONTRACT_CHECK(s, contract_count_wrong_whole(s, out, key) == 0);
  reshard_tensor_release(out);
}

/* Flattened once more after it was nested again: in an outer tensor that it is all of, and, where TP has replicas of
 * each part, cut over these. */
static void nest_again(rig *g, const parameter *p, reshard_tree leaf, uint64_t key) {
  const reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = g->tps, .world = g->s->sharder};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_shard whole = {.placement = {reshard_comm_rank(g->s->comm), RESHARD_DEVICE_CPU, -1}};
  reshard_metadata outer = NULL;
  reshard_tree nested[2] = {NULL, NULL}, flat = NULL;
  reshard_sharded_tensor tensor = NULL;
  memcpy(whole.box.extent, p->shape, (size_t)p->ndim * sizeof *p->shape);
  if (CONTRACT_SUCCEEDS(g->s, reshard_metadata_create(&f32, p->ndim, p->shape, 1, &whole, &outer)))
    CONTRACT_SUCCEEDS(g->s, reshard_state_nested(g->s->sharder, outer, 1, &whole, &leaf, &nested[0]));
  if (p->dim == -1 && p->shape[0] >= g->extents[1])
    CONTRACT_SUCCEEDS(g->s, reshard_fsdp_chunk_tensor(leaf, &group, g->s->stream, &nested[1]));
  for (int i = 0; i < 2; i++) {
    if (nested[i] != NULL &&
        CONTRACT_SUCCEEDS(g->s, reshard_state_flatten_sharded_tensors_global(g->s->sharder, nested[i], &flat))) {
      if (CONTRACT_SUCCEEDS(g->s, reshard_state_get_sharded(flat, &tensor)))
        check_whole(g->s, p, tensor, key);
      reshard_tree_release(flat);
    }
    reshard_tree_release(nested[i]);
  }
  reshard_metadata_release(outer);
}

/* Each box has one owner in the metadata, and all its holders in the layout, on all ranks alike; it is gathered,
 * resharded, and gathered again. */
static void check_flat(rig *g, const parameter *p, reshard_sharded_tensor tensor, uint64_t key) {
  reshard_metadata m = reshard_sharded_tensor_metadata(tensor);
  reshard_layout layout = reshard_sharded_tensor_layout(tensor), to = NULL;
  int64_t rank = reshard_comm_rank(g->s->comm), size = reshard_comm_size(g->s->comm), arrays = -1;
  char text[4096];
  bool lowest = g->at[0] == 0 && (p->dim >= 0 || g->at[2] == 0), mine = false;
  reshard_box box =
      box_of(p->ndim, p->shape, p->dim < 0 ? -1 : p->dim, g->extents[2], g->at[2], g->extents[1], g->at[1]);
  bool some = box.extent[0] > 0 && (p->ndim == 1 || box.extent[1] > 0);
  CONTRACT_SUCCEEDS(g->s, reshard_metadata_check(m));
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *shard = &reshard_metadata_shards(m)[i];
    mine |= shard->placement.rank == rank && shard->box.extent[0] > 0 && (p->ndim == 1 || shard->box.extent[1] > 0);
  }
  CONTRACT_CHECK(g->s, mine == (some && lowest));
  CONTRACT_SUCCEEDS(g->s, reshard_layout_array_count(layout, rank, &arrays));
  CONTRACT_CHECK(g->s, !some || (arrays == 1 && reshard_sharded_tensor_local_count(tensor) == 1));
  CONTRACT_SUCCEEDS(g->s, reshard_layout_print(layout, text, sizeof text, NULL));
  CONTRACT_CHECK(g->s, strncmp(text, "boxes(replicated;", 17) == 0);
  check_whole(g->s, p, tensor, key);
  if (CONTRACT_SUCCEEDS(g->s, reshard_layout_parse("chunk(0)", p->ndim, p->shape, size, &to)) &&
      CONTRACT_SUCCEEDS(g->s, reshard_sharded_tensor_reshard(1, &tensor, &to, g->s->stream)))
    check_whole(g->s, p, tensor, key);
  CONTRACT_CHECK(g->s, reshard_metadata_count(reshard_sharded_tensor_metadata(tensor)) == size);
  reshard_layout_release(to);
}

static void groups_flatten(contract_rank *s, int64_t replicate, int64_t tp, uint64_t key) {
  rig g;
  if (!open_rig(s, replicate, tp, &g)) {
    close_rig(&g);
    return;
  }
  for (int i = 0; i < PARAMETERS; i++) {
    const parameter *p = &model[i];
    reshard_tree chunk, flat = NULL;
    reshard_sharded_tensor tensor = NULL;
    if (p->dim == -2)
      continue;
    chunk = chunk_of(&g, p, key);
    CONTRACT_ALL(s, reshard_state_flatten_sharded_tensors_global(s->sharder, chunk, &flat), RESHARD_SUCCESS, NULL);
    if (CONTRACT_SUCCEEDS(s, reshard_state_get_sharded(flat, &tensor))) {
      nest_again(&g, p, flat, key);
      check_flat(&g, p, tensor, key);
    }
    reshard_tree_release(flat);
    reshard_tree_release(chunk);
  }
  close_rig(&g);
}

/* --- Refused ------------------------------------------------------------------------------------------------------ */

typedef enum fault { CUTS, GAP, FIRST_GAP, TABLE, DTYPE, KIND, FAULTS } fault;

/* "w": on each TP group. */
static reshard_tree wrong_leaf(rig *g, fault f, reshard_sharder lying) {
  contract_rank *s = g->s;
  int64_t rank = reshard_comm_rank(s->comm), size = g->extents[2];
  bool odd = rank / g->extents[2] % 2 != 0;
  const reshard_properties properties = {.dtype = f == DTYPE && odd ? RESHARD_I32 : RESHARD_F32};
  const char *text = f == CUTS && odd ? "chunk(1)" : "chunk(0)";
  reshard_sharder sharder = f == TABLE ? lying : g->tps;
  reshard_layout layout = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_tree leaf = NULL;
  if (f == GAP || f == FIRST_GAP) {
    sharder = s->sharder;
    size = reshard_comm_size(s->comm);
  }
  if (f == KIND && odd) {
    CONTRACT_SUCCEEDS(s, reshard_tree_int(1, &leaf));
  } else if (CONTRACT_SUCCEEDS(s, reshard_layout_parse(text, 2, wide.shape, size, &layout)) &&
             CONTRACT_SUCCEEDS(s, reshard_sharded_tensor_empty(sharder, layout, &properties, s->stream, &tensor))) {
    CONTRACT_SUCCEEDS(s, reshard_state_sharded(tensor, &leaf));
  }
  reshard_sharded_tensor_release(tensor);
  reshard_layout_release(layout);
  return leaf;
}

/* Groups of 2 ranks of which the second is 2 and 3. */
static void check_refused(contract_rank *s, const char *directory) {
  static const struct {
    reshard_status status;
    const char *text;
  } errors[FAULTS] = {
      {RESHARD_ERROR_INVALID, "path 'w': shards 0 (rank:0/"},
      {RESHARD_ERROR_INVALID, "path 'w': no shard holds ["},
      {RESHARD_ERROR_INVALID, "path 'w': no shard holds [0,"},
      {RESHARD_ERROR_INVALID, "path 'w': a tensor of global rank "},
      {RESHARD_ERROR_MISMATCH, "path 'w': rank 0 has f32, rank 2 has i32"},
      {RESHARD_ERROR_MISMATCH, "path 'w': rank 0 has a sharded tensor, rank 2 has an integer"},
  };
  const reshard_state_save_options over = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .stream = s->stream};
  static const int64_t table[2] = {90, 91};
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .group = {2, table}, .device = s->device};
  reshard_sharder lying = NULL;
  reshard_comm comm = NULL;
  rig g;
  bool open = open_rig(s, 1, 2, &g) && CONTRACT_SUCCEEDS(s, reshard_mesh_comm(g.mesh, "tp", &comm)) &&
              CONTRACT_SUCCEEDS(s, reshard_sharder_create(comm, &options, &lying));
  for (fault f = 0; f < FAULTS && open; f++) {
    reshard_tree state = NULL;
    CONTRACT_SUCCEEDS(s, reshard_tree_dict(&state));
    if ((f != GAP && f != FIRST_GAP) || reshard_comm_rank(s->comm) != (f == GAP))
      put_child(s, state, "w", wrong_leaf(&g, f, lying));
    CONTRACT_ALL(s, reshard_state_save(s->sharder, state, directory, &over, NULL), errors[f].status, errors[f].text);
    reshard_tree_release(state);
  }
  reshard_sharder_destroy(lying);
  close_rig(&g);
}

/* The contract of the first n ranks, on a communicator of their own. */
static void on_first(contract_rank *s, int64_t n,
                     void (*body)(contract_rank *s, int64_t replicate, int64_t tp, uint64_t key, const char *directory),
                     int64_t replicate, int64_t tp, const char *directory) {
  reshard_comm comm = NULL;
  contract_rank sub;
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, reshard_comm_rank(s->comm) < n ? 3 : -1, 0, &comm)))
    return;
  if (comm != NULL && contract_rank_open_on(s, comm, NULL, &sub)) {
    body(&sub, replicate, tp, KEY, directory);
    contract_rank_close_on(s, &sub);
  }
  reshard_comm_destroy(comm);
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
}

static void check_four(contract_rank *s, int64_t replicate, int64_t tp, uint64_t key, const char *directory) {
  groups_flatten(s, replicate, tp, key);
  groups_save(s, replicate, tp, key, directory);
  groups_load(s, replicate, tp, key, directory);
  groups_load(s, 1, 4, key, directory);
  groups_load(s, 1, 1, key, directory);
  check_refused(s, directory);
  groups_load(s, 2, 2, key, directory); /* what was there is still there */
}

void contract_check_groups(contract_rank *s, const char *directory) {
#ifndef RS_HAVE_JANSSON
  return;
#endif
  int64_t size = reshard_comm_size(s->comm);
  on_first(s, 4, check_four, 1, 2, directory);
  on_first(s, 4, check_four, 2, 1, directory);
  if (size >= 6)
    on_first(s, 6, groups_load, 1, 3, directory);
  if (size < 8)
    return;
  on_first(s, 8, check_four, 2, 2, directory); /* HSDP */
  on_first(s, 6, groups_load, 3, 1, directory);
}
