/* A model of HSDP with TP, whole: parameters that TP leaves alone, cuts along either dim, replicates; each as TP has
 * it, and chunked in every way; saved together by 8 ranks, loaded by 6 of another mesh in every way, all bytes
 * compared. */
#include "fsdp_world.h"
#include "support/fixtures/scratch.h"

#include <stdlib.h>

enum { PARAMETERS = 4, FORMS = 4 };

/* tp: the dim that TP cuts, -1: all its ranks have the whole; plain: TP has no DTensor of it. */
typedef struct parameter {
  const char *name;
  int64_t shape[2];
  int tp;
  bool plain;
} parameter;

static const parameter parameters[PARAMETERS] = {
    {"norm", {13, 1}, -1, true}, {"up", {31, 13}, 0, false}, {"down", {13, 31}, 1, false}, {"gate", {9, 5}, -1, false}};

/* Forms of a parameter in the state dict: as TP has it; what chunk_dtensor makes of it, in either order; what
 * chunk_tensor makes. */
typedef enum form { RAW, TP_FIRST, FSDP_FIRST, SHARDED } form;
static const char *const form_names[FORMS] = {"raw", "tp_first", "fsdp_first", "sharded"};

/* One rank's handles: `world` is the sharder of sharded_ranks. */
typedef struct rank_state {
  reshard_sharder world, row, column; /* of all ranks, of the TP group, of the FSDP group */
  reshard_mesh mesh, tp, own;
  int64_t f, t, fsdp_size, tp_size; /* coordinates and extents */
} rank_state;

static reshard_sharder sharder_on(sharded_ranks *p, int64_t r, reshard_comm comm) {
  reshard_sharder sharder = NULL;
  WELL(p, r, reshard_sharder_create(comm, NULL, &sharder));
  return sharder;
}

static void rank_open(sharded_ranks *p, int64_t r, const char *mesh, rank_state *s) {
  reshard_comm column = NULL;
  *s = (rank_state){.world = p->sharders[r]};
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, mesh, &s->mesh));
  WELL(p, r, reshard_mesh_init_groups(s->mesh, 0, NULL));
  WELL(p, r, reshard_mesh_sub(s->mesh, "tp", RESHARD_MESH_MINE, &s->tp));
  WELL(p, r, reshard_mesh_own(s->tp, &s->own));
  WELL(p, r, reshard_mesh_comm(s->mesh, "shard", &column));
  s->row = sharder_on(p, r, reshard_mesh_base_comm(s->own));
  s->column = sharder_on(p, r, column);
  s->fsdp_size = reshard_comm_size(column);
  s->f = reshard_comm_rank(column);
  s->tp_size = reshard_mesh_size(s->tp);
  s->t = reshard_mesh_rank(s->own);
}

static void rank_close(rank_state *s) {
  reshard_sharder_destroy(s->row);
  reshard_sharder_destroy(s->column);
  reshard_mesh_release(s->own);
  reshard_mesh_release(s->tp);
  reshard_mesh_release(s->mesh);
}

/* As TP has it: `down` on the group's own mesh, the others on mesh["tp"]. */
static reshard_tree raw_leaf(sharded_ranks *p, int64_t r, const rank_state *s, const parameter *q, bool zeros) {
  const reshard_placement placement = placement_of(q->tp);
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  bool own = q->tp == 1;
  const reshard_placing placing = {own ? s->own : s->tp, &placement, NULL};
  reshard_tensor whole = whole_of(2, q->shape);
  reshard_tensor_info info;
  reshard_dtensor part = NULL;
  reshard_tree leaf = NULL;
  reshard_tensor_get_info(whole, &info);
  if (zeros)
    memset(info.data, 0, (size_t)info.elements * 4);
  if (q->plain) {
    WELL(p, r, reshard_tree_tensor(whole, &leaf));
  } else {
    WELL(p, r,
         reshard_dtensor_distribute(own ? s->row : s->world, &placing, whole, -1, 2, q->shape, &i32, NULL, &part));
    WELL(p, r, reshard_state_dtensor(part, &leaf));
  }
  reshard_dtensor_release(part);
  reshard_tensor_release(whole);
  return leaf;
}

static reshard_tree make_leaf(sharded_ranks *p, int64_t r, const rank_state *s, const parameter *q, form f,
                              bool zeros) {
  const reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = s->column, .world = s->world};
  reshard_tree raw = raw_leaf(p, r, s, q, zeros), leaf = NULL;
  if (f == RAW)
    return raw;
  if (f == SHARDED)
    WELL(p, r, reshard_fsdp_chunk_tensor(raw, &group, NULL, &leaf));
  else
    WELL(p, r,
         reshard_fsdp_chunk_dtensor_ordered(
             s->world, raw, s->mesh, f == TP_FIRST ? RESHARD_FSDP_TP_FIRST : RESHARD_FSDP_FSDP_FIRST, NULL, &leaf));
  reshard_tree_release(raw);
  return leaf;
}

/* The box of a parameter that this rank should have. */
static reshard_box wanted(const rank_state *s, const parameter *q, form f) {
  if (f == RAW)
    return box_of(2, q->shape, q->tp, s->tp_size, s->t, 1, 0);
  if (f == FSDP_FIRST && q->tp == 0)
    return box_of(2, q->shape, 0, s->fsdp_size, s->f, s->tp_size, s->t);
  return box_of(2, q->shape, q->tp, s->tp_size, s->t, s->fsdp_size, s->f);
}

static reshard_tensor tensor_of(sharded_ranks *p, int64_t r, reshard_tree leaf, form f) {
  reshard_sharded_tensor sharded = NULL;
  reshard_tensor tensor = NULL;
  reshard_tree inner = NULL;
  reshard_metadata metadata = NULL;
  if (reshard_tree_get_kind(leaf) == RESHARD_TREE_TENSOR) {
    WELL(p, r, reshard_tree_get_tensor(leaf, &tensor));
    return tensor;
  }
  if (f != SHARDED)
    return local_of(leaf);
  WELL(p, r, reshard_fsdp_pre_load(leaf, &inner, &metadata));
  WELL(p, r, reshard_state_get_sharded(inner, &sharded));
  if (reshard_sharded_tensor_local_count(sharded) > 0)
    WELL(p, r, reshard_sharded_tensor_local(sharded, 0, &tensor, NULL));
  reshard_metadata_release(metadata);
  reshard_tree_release(inner);
  return tensor;
}

/* Every parameter in every form, as zeros or not. turn: the form is another one than the name says. */
static reshard_tree model_make(sharded_ranks *p, int64_t r, const rank_state *s, int turn, bool zeros) {
  reshard_tree state = NULL;
  WELL(p, r, reshard_tree_dict(&state));
  for (int q = 0; q < PARAMETERS; q++)
    for (int f = 0; f < FORMS; f++) {
      char name[64];
      snprintf(name, sizeof name, "%s.%s", form_names[f], parameters[q].name);
      reshard_tree leaf = make_leaf(p, r, s, &parameters[q], (form)((f + turn) % FORMS), zeros);
      WELL(p, r, reshard_tree_set(state, name, leaf));
      reshard_tree_release(leaf);
    }
  return state;
}

static void compare_state(sharded_ranks *p, int64_t r, const rank_state *s, reshard_tree state, int turn) {
  for (int q = 0; q < PARAMETERS; q++)
    for (int i = 0; i < FORMS; i++) {
      const parameter *a = &parameters[q];
      form f = (form)((i + turn) % FORMS);
      reshard_box box = wanted(s, a, f);
      reshard_tree leaf = NULL;
      char name[64];
      snprintf(name, sizeof name, "%s.%s", form_names[i], a->name);
      WELL(p, r, reshard_tree_find(state, name, &leaf));
      reshard_tensor tensor = tensor_of(p, r, leaf, f);
      if (!SO(p, r, tensor != NULL ? wrong_in(tensor, 2, a->shape, &box) == 0 : elements_of(2, &box) == 0))
        fprintf(stderr, "  %s as %s\n", name, form_names[f]);
    }
}

static void save_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  rank_state s;
  rank_open(p, r, "replicate=2,shard=2,tp=2", &s);
  reshard_tree state = model_make(p, r, &s, 0, false);
  compare_state(p, r, &s, state, 0);
  rank_result_set(&p->results[r], reshard_state_save(s.world, state, p->user, NULL, NULL));
  reshard_tree_release(state);
  rank_close(&s);
}

static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  rank_state s;
  rank_open(p, r, "shard=3,tp=2", &s);
  for (int turn = 0; turn < FORMS; turn++) {
    reshard_tree state = model_make(p, r, &s, turn, true);
    rank_result_set(&p->results[r], reshard_state_load(s.world, state, p->user, NULL, NULL));
    SO(p, r, p->results[r].status == RESHARD_SUCCESS);
    compare_state(p, r, &s, state, turn);
    reshard_tree_release(state);
  }
  rank_close(&s);
}

CASE(hsdp_model_is_saved_and_loaded_by_fewer_ranks) {
  char directory[256];
  snprintf(directory, sizeof directory, "%s", scratch_path("hsdp"));
  sharded_ranks_check(8, NULL, save_body, directory, RESHARD_SUCCESS, NULL);
  sharded_ranks_check(6, NULL, load_body, directory, RESHARD_SUCCESS, NULL);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
