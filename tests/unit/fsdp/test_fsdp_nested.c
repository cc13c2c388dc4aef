/* chunk_tensor of plain tensors, and of what TP has cut: nested tensors, which owners they name when they are
 * flattened; pre_load_state_dict. World: dp 2 x tp 2, rank 2 d + t, and FSDP groups {0, 2} and {1, 3}. */
#include "fsdp_world.h"
#include "support/fixtures/expect.h"

#include <stdlib.h>

static const char *const names[2] = {"dp", "tp"};

/* Communicators and meshes of each rank. */
typedef struct rank_state {
  reshard_mesh mesh;
  reshard_sharder fsdp, tp; /* of a row and of a column */
  reshard_fsdp_group group;
} rank_state;

static reshard_sharder sharder_of(sharded_ranks *p, int64_t r, reshard_mesh mesh, const char *dim) {
  reshard_comm comm = NULL;
  reshard_sharder sharder = NULL;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  if (WELL(p, r, reshard_mesh_comm(mesh, dim, &comm))) {
    options.group = (reshard_group){reshard_comm_size(comm), reshard_comm_global_ranks(comm)};
    WELL(p, r, reshard_sharder_create(comm, &options, &sharder));
  }
  return sharder;
}

static void rank_open(sharded_ranks *p, int64_t r, rank_state *s) {
  const int64_t shape[2] = {2, p->n / 2};
  *s = (rank_state){.group = {.size = RESHARD_FSDP_GROUP_INIT}};
  WELL(p, r, reshard_mesh_create(p->comms[r], 0, 2, shape, names, 0, NULL, &s->mesh));
  s->fsdp = sharder_of(p, r, s->mesh, "dp");
  s->tp = sharder_of(p, r, s->mesh, "tp");
  s->group.sharder = s->fsdp;
}

static void rank_close(rank_state *s) {
  reshard_sharder_destroy(s->fsdp);
  reshard_sharder_destroy(s->tp);
  reshard_mesh_release(s->mesh);
}

/* --- Plain tensors ------------------------------------------------------------------------------------------------ */

/* n rows by the chunk rule; ranks after the last chunk have none. */
static void check_plain(sharded_ranks *p, int64_t r, int64_t n, int64_t devices) {
  const int64_t shape[2] = {n, 3}, w = p->n;
  reshard_tensor whole = whole_of(2, shape), local = NULL;
  reshard_tensor_info info;
  reshard_tree leaf = NULL, chunk = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = p->sharders[r], .devices_per_node = devices};
  int64_t chunks = n == 0 ? 1 : owner_of(n, w, n - 1) + 1, before = received(p->comms[r]);
  reshard_box box = box_of(2, shape, -1, 1, 0, w, r);
  WELL(p, r, reshard_tree_tensor(whole, &leaf));
  if (!WELL(p, r, reshard_fsdp_chunk_tensor(leaf, &group, NULL, &chunk)))
    return;
  SO(p, r, received(p->comms[r]) == before);
  WELL(p, r, reshard_state_get_sharded(chunk, &tensor));
  reshard_metadata m = reshard_sharded_tensor_metadata(tensor);
  const reshard_shard *shards = reshard_metadata_shards(m);
  reshard_properties properties = reshard_metadata_properties(m);
  SO(p, r, reshard_metadata_count(m) == chunks && properties.requires_grad == 0);
  SO(p, r, reshard_sharded_tensor_local_count(tensor) == (r < chunks));
  for (int64_t i = 0; i < chunks; i++) {
    reshard_box want = box_of(2, shape, -1, 1, 0, w, i);
    SO(p, r, shards[i].placement.rank == i && shards[i].box.offset[0] == want.offset[0]);
    SO(p, r, shards[i].box.extent[0] == want.extent[0] && shards[i].box.extent[1] == 3);
    SO(p, r, shards[i].placement.type == RESHARD_DEVICE_CPU && shards[i].placement.index == -1); /* devices: of GPUs */
  }
  if (r < chunks) { /* a copy: what happens to the leaf does not matter to it */
    reshard_tensor_get_info(whole, &info);
    for (int64_t i = 0; i < info.elements; i++)
      ((int32_t *)info.data)[i] = -1;
    WELL(p, r, reshard_sharded_tensor_local(tensor, 0, &local, NULL));
    SO(p, r, wrong_in(local, 2, shape, &box) == 0);
    reshard_tensor_get_info(local, &info);
    SO(p, r, info.requires_grad == 0 && info.contiguous);
  }
  reshard_tree_release(leaf);
  reshard_tree_release(chunk);
  reshard_tensor_release(whole);
}

static void plain_body(void *user, int64_t r) {
  for (int64_t n = 0; n <= 12; n++)
    check_plain(user, r, n, n % 3);
}

CASE(plain_tensors_are_chunked_by_rows) {
  for (int64_t n = 1; n <= 5; n++)
    sharded_ranks_check(n, NULL, plain_body, NULL, RESHARD_SUCCESS, NULL);
}

/* Global ranks and their devices, in a group that is a part of the world; a tensor whose elements lie apart. */
static void group_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {5, 4};
  rank_state s;
  rank_open(p, r, &s);
  s.group.devices_per_node = 3;
  reshard_tensor whole = whole_of(2, shape), strided, local = NULL;
  reshard_tensor_info info;
  reshard_tree leaf = NULL, chunk = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_tensor_get_info(whole, &info);
  const int64_t half[2] = {5, 2}, strides[2] = {4, 2};
  WELL(p, r, reshard_tensor_wrap(RESHARD_I32, 2, half, strides, info.data, NULL, NULL, &strided));
  WELL(p, r, reshard_tree_tensor(strided, &leaf));
  if (WELL(p, r, reshard_fsdp_chunk_tensor(leaf, &s.group, NULL, &chunk))) {
    WELL(p, r, reshard_state_get_sharded(chunk, &tensor));
    const reshard_shard *shards = reshard_metadata_shards(reshard_sharded_tensor_metadata(tensor));
    for (int i = 0; i < 2; i++) {
      SO(p, r, shards[i].placement.rank == r % 2 + 2 * i);
      SO(p, r, shards[i].placement.type == RESHARD_DEVICE_CPU && shards[i].placement.index == -1);
    }
    WELL(p, r, reshard_sharded_tensor_local(tensor, 0, &local, NULL));
    reshard_tensor_get_info(local, &info);
    SO(p, r, info.shape[0] == (r < 2 ? 3 : 2) && info.shape[1] == 2);
    for (int64_t i = 0; i < info.elements; i++)
      SO(p, r, ((int32_t *)info.data)[i] == (r < 2 ? 0 : 12) + 2 * i);
  }
  reshard_tree_release(leaf);
  reshard_tree_release(chunk);
  reshard_tensor_release(strided);
  reshard_tensor_release(whole);
  rank_close(&s);
}

CASE(groups_chunk_tensors_for_themselves) { sharded_ranks_check(4, NULL, group_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Nested ones -------------------------------------------------------------------------------------------------- */

typedef struct nested {
  int64_t rows;
  int dim;      /* that TP cuts; -1: none */
  bool sharded; /* the leaf is a sharded tensor of the TP group, else a DTensor */
} nested;

/* This rank's TP part as a leaf. */
static reshard_tree outer_leaf(sharded_ranks *p, int64_t r, const rank_state *s, const nested *c,
                               reshard_tensor whole) {
  reshard_tree leaf = tp_leaf(p->sharders[r], s->mesh, whole, c->dim), same = NULL;
  if (!c->sharded || leaf == NULL)
    return leaf;
  const int64_t shape[2] = {c->rows, 4};
  reshard_box box = box_of(2, shape, c->dim, p->n / 2, r % (p->n / 2), 1, 0);
  reshard_sharded_tensor tensor = NULL;
  reshard_local_shard shard = {{box, {r, RESHARD_DEVICE_CPU, -1}}, local_of(leaf)};
  WELL(p, r, reshard_sharded_tensor_from_local(s->tp, 2, shape, 1, &shard, &tensor));
  WELL(p, r, reshard_state_sharded(tensor, &same));
  reshard_sharded_tensor_release(tensor);
  reshard_tree_release(leaf);
  return same;
}

static bool metadata_has(reshard_metadata m, int64_t rank, const reshard_box *box) {
  const reshard_shard *shards = reshard_metadata_shards(m);
  for (int64_t i = 0; i < reshard_metadata_count(m); i++)
    if (shards[i].placement.rank == rank &&
        memcmp(shards[i].box.extent, box->extent, (size_t)reshard_metadata_ndim(m) * sizeof(int64_t)) == 0 &&
        (elements_of(reshard_metadata_ndim(m), box) == 0 ||
         memcmp(shards[i].box.offset, box->offset, (size_t)reshard_metadata_ndim(m) * sizeof(int64_t)) == 0))
      return true;
  return false;
}

/* The outer tensor, the inner one, what a load sees. */
static void check_nested(sharded_ranks *p, int64_t r, const nested *c, reshard_tree chunk) {
  const int64_t shape[2] = {c->rows, 4}, tp = p->n / 2, t = r % tp;
  reshard_metadata outer = NULL, metadata = NULL;
  int64_t n = 0;
  const reshard_tree *inner = NULL;
  reshard_tree loaded = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_box part = box_of(2, shape, c->dim, tp, t, 1, 0), box = box_of(2, shape, c->dim, tp, t, 2, r / tp);
  WELL(p, r, reshard_state_get_nested(chunk, &outer, &n, NULL, &inner));
  SO(p, r, n == 1 && reshard_metadata_properties(outer).requires_grad == 0 && metadata_has(outer, r, &part));
  WELL(p, r, reshard_state_get_sharded(inner[0], &tensor));
  reshard_metadata m = reshard_sharded_tensor_metadata(tensor);
  SO(p, r, reshard_metadata_properties(m).requires_grad == 0);
  SO(p, r, memcmp(reshard_metadata_shape(m), part.extent, sizeof shape) == 0);
  if (reshard_sharded_tensor_local_count(tensor) > 0) {
    reshard_tensor local = NULL;
    WELL(p, r, reshard_sharded_tensor_local(tensor, 0, &local, NULL));
    SO(p, r, wrong_in(local, 2, shape, &box) == 0);
  } else {
    SO(p, r, elements_of(2, &box) == 0);
  }
  if (WELL(p, r, reshard_fsdp_pre_load(chunk, &loaded, &metadata)))
    SO(p, r, loaded == inner[0] && metadata == m);
  reshard_tree_release(loaded);
  reshard_metadata_release(metadata);
}

/* Flattened here, others' outer shards stay; flattened by all, every owner is true. */
static void check_flat(sharded_ranks *p, int64_t r, const nested *c, reshard_tree chunk) {
  const int64_t shape[2] = {c->rows, 4}, tp = p->n / 2, t = r % tp, d = r / tp;
  reshard_tree flat[2] = {NULL, NULL};
  WELL(p, r, reshard_state_flatten_sharded_tensors(chunk, &flat[0]));
  WELL(p, r, reshard_state_flatten_sharded_tensors_global(p->sharders[r], chunk, &flat[1]));
  for (int i = 0; i < 2; i++) {
    reshard_sharded_tensor tensor = NULL;
    reshard_tensor local = NULL;
    if (!WELL(p, r, reshard_state_get_sharded(flat[i], &tensor)))
      continue;
    reshard_metadata m = reshard_sharded_tensor_metadata(tensor);
    WELL(p, r, reshard_metadata_check(m));
    for (int64_t other = 0; other < p->n; other++) {
      reshard_box whole = box_of(2, shape, c->dim, tp, other % tp, 1, 0);
      reshard_box part = box_of(2, shape, c->dim, tp, other % tp, 2, other / tp);
      bool mine = other % tp == t; /* the inner tensor that I have a part of */
      if (elements_of(2, &part) == 0 || (c->dim < 0 && !mine))
        continue;
      if (i == 1 ? c->dim >= 0 : mine)
        SO(p, r, metadata_has(m, other, &part));
      else if (i == 0 && other / tp == d)
        SO(p, r, metadata_has(m, other, &whole));
    }
    reshard_box box = box_of(2, shape, c->dim, tp, t, 2, d);
    if (elements_of(2, &box) > 0 && SO(p, r, reshard_sharded_tensor_local_count(tensor) == 1)) {
      WELL(p, r, reshard_sharded_tensor_local(tensor, 0, &local, NULL));
      SO(p, r, wrong_in(local, 2, shape, &box) == 0);
    }
  }
  reshard_tree_release(flat[0]);
  reshard_tree_release(flat[1]);
}

static void nested_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const nested *c = p->user;
  const int64_t shape[2] = {c->rows, 4};
  rank_state s;
  rank_open(p, r, &s);
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT}; /* its sharder is the world's, too */
  bool by_table = c->rows % 2 == 0;
  WELL(p, r, reshard_fsdp_extension_init(p->sharders[r], &x));
  s.group.world = c->sharded && !by_table ? p->sharders[r] : NULL;
  reshard_tensor whole = whole_of(2, shape);
  reshard_tree leaf = outer_leaf(p, r, &s, c, whole), chunk = NULL;
  if (SO(p, r, leaf != NULL) && WELL(p, r,
                                     by_table ? x.chunk_tensor(x.user, leaf, &s.group, NULL, &chunk)
                                              : reshard_fsdp_chunk_tensor(leaf, &s.group, NULL, &chunk))) {
    check_nested(p, r, c, chunk);
    check_flat(p, r, c, chunk);
  }
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  rank_close(&s);
}

CASE(nested_tensors_name_their_true_owners) {
  for (int64_t n = 4; n <= 6; n += 2)
    for (int dim = -1; dim <= 1; dim++)
      for (int sharded = 0; sharded <= (dim >= 0); sharded++)
        for (int64_t rows = 0; rows <= 7; rows++) {
          nested c = {rows, dim, sharded != 0};
          sharded_ranks_check(n, NULL, nested_body, &c, RESHARD_SUCCESS, NULL);
        }
}

/* --- Refused ------------------------------------------------------------------------------------------------------ */

typedef enum fault {
  KIND,
  NONE,
  OUTPUT,
  SCALAR,
  DEVICES,
  TWO_SHARDS,
  NO_SHARD,
  STRIDED,
  TWO_DIMS,
  NO_WORLD,
  SHAPES,
  DTYPES,
  NODES,
  FAULTS
} fault;

/* The leaf of rank 2, in place of 5 x 4 elements. */
static reshard_tree wrong_leaf(sharded_ranks *p, int64_t r, const rank_state *s, fault f, reshard_tensor whole) {
  static const int64_t shape[2] = {5, 4}, other[2] = {6, 4};
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_placement two[2] = {placement_of(0), placement_of(1)};
  reshard_placement strided = {.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = 0, .split_factor = 2};
  reshard_placing placing = {s->mesh, two, NULL};
  reshard_mesh tp = NULL;
  reshard_tree leaf = NULL;
  reshard_tensor tensor = NULL;
  reshard_dtensor made = NULL;
  reshard_sharded_tensor sharded = NULL;
  reshard_layout layout = NULL;
  WELL(p, r, reshard_mesh_sub(s->mesh, "tp", RESHARD_MESH_MINE, &tp));
  switch (f) {
  case KIND: WELL(p, r, reshard_tree_int(1, &leaf)); break;
  case SCALAR:
  case SHAPES:
  case DTYPES:
    WELL(p, r,
         reshard_tensor_create(f == DTYPES ? RESHARD_F64 : RESHARD_I32, f == SCALAR ? 0 : 2,
                               f == SHAPES ? other : shape, &tensor));
    WELL(p, r, reshard_tree_tensor(tensor, &leaf));
    break;
  case TWO_SHARDS:
  case NO_SHARD:
    layout = layout_from_text(f == NO_SHARD ? "rank(1)" : "boxes(2:[0,0]+[2,4];2:[2,0]+[3,4])", 2, shape, 4);
    WELL(p, r, reshard_sharded_tensor_empty(p->sharders[r], layout, &i32, NULL, &sharded));
    WELL(p, r, reshard_state_sharded(sharded, &leaf));
    break;
  case STRIDED:
  case TWO_DIMS:
    if (f == STRIDED)
      placing = (reshard_placing){tp, &strided, NULL};
    WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &made));
    WELL(p, r, reshard_state_dtensor(made, &leaf));
    break;
  default: WELL(p, r, reshard_tree_tensor(whole, &leaf));
  }
  reshard_layout_release(layout);
  reshard_sharded_tensor_release(sharded);
  reshard_dtensor_release(made);
  reshard_tensor_release(tensor);
  reshard_mesh_release(tp);
  return leaf;
}

static void fault_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fault f = *(const fault *)p->user;
  const int64_t shape[2] = {5, 4};
  const nested c = {5, 0, true};
  rank_state s;
  rank_open(p, r, &s);
  reshard_tensor whole = whole_of(2, shape);
  reshard_tree leaf = NULL, chunk = NULL;
  if (f == NO_WORLD)
    leaf = outer_leaf(p, r, &s, &c, whole);
  else if (r == 2 && f != NONE)
    leaf = wrong_leaf(p, r, &s, f, whole);
  else if (r != 2)
    WELL(p, r, reshard_tree_tensor(whole, &leaf));
  if (r == 2)
    s.group.devices_per_node = f == DEVICES ? -1 : f == NODES ? 3 : 0;
  reshard_status status = reshard_fsdp_chunk_tensor(leaf, &s.group, NULL, r == 2 && f == OUTPUT ? NULL : &chunk);
  if (r % 2 == 0 || f == NO_WORLD) {
    rank_result_set(&p->results[r], status);
    SO(p, r, chunk == NULL);
  } else { /* the other group */
    WELL(p, r, status);
    p->results[r] = (rank_result){.status = RESHARD_ERROR_INVALID};
  }
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  rank_close(&s);
}

CASE(wrong_leaves_and_groups_are_refused) {
  static const char *const texts[FAULTS] = {
      "the leaf is an integer, a tensor, a sharded tensor or a DTensor is needed",
      "the leaf is NULL, a tensor, a sharded tensor or a DTensor is needed",
      "chunk is NULL",
      "a scalar has no dim 0 to cut",
      "-1 devices per node, 0 is the least",
      "the sharded tensor has 2 local shards, one is needed",
      "the sharded tensor has 0 local shards, one is needed",
      "the local shard is 2 boxes, one is needed",
      "the DTensor is on the mesh dp=2,tp=2@0-3 of 2 dims, one of 1 is needed",
      "of the group is not one of the sharder that the nested tensor is of: give a `world`",
      "reshard_fsdp_chunk_tensor: shape [5,4] on rank 0, [6,4] on rank 1, of the FSDP group",
      "reshard_fsdp_chunk_tensor: dtype i32 on rank 0, f64 on rank 1, of the FSDP group",
      "reshard_fsdp_chunk_tensor: devices_per_node 0 on rank 0, 3 on rank 1, of the FSDP group",
  };
  for (fault f = 0; f < FAULTS; f++) {
    reshard_status status = f >= SHAPES ? RESHARD_ERROR_MISMATCH : RESHARD_ERROR_INVALID;
    sharded_ranks p;
    sharded_ranks_open(&p, 4, NULL);
    sharded_ranks_run(&p, fault_body, &f);
    print_message("%s\n", p.results[0].text);
    for (int64_t r = 0; r < 4; r += f == NO_WORLD ? 1 : 2) { /* one group */
      assert_int_equal(p.wrong[r], 0);
      assert_int_equal(p.results[r].status, status);
      assert_string_equal(p.results[r].text, p.results[r % 2].text);
      assert_non_null(strstr(p.results[r].text, texts[f]));
    }
    assert_int_equal(p.wrong[1] + p.wrong[3], 0);
    sharded_ranks_close(&p);
  }
}

CASE(test_refused_group) {
  sharded_ranks p;
  reshard_tree chunk;
  reshard_fsdp_group group = {0};
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT};
  sharded_ranks_open(&p, 1, NULL);
  BAD(reshard_fsdp_chunk_tensor(NULL, NULL, NULL, &chunk), "reshard_fsdp_chunk_tensor: group is NULL");
  GOOD(reshard_fsdp_extension_init(p.sharders[0], &x));
  BAD(x.chunk_tensor(x.user, NULL, NULL, NULL, &chunk), "reshard_fsdp_chunk_tensor: group is NULL");
  FAILS_WITH(reshard_fsdp_chunk_tensor(NULL, &group, NULL, &chunk), RESHARD_ERROR_INVALID,
             "size field 0, this library's reshard_fsdp_group has");
  group.size = RESHARD_FSDP_GROUP_INIT;
  BAD(reshard_fsdp_chunk_tensor(NULL, &group, NULL, &chunk), "reshard_fsdp_chunk_tensor: the group's sharder is NULL");
  sharded_ranks_close(&p);
}

RUN_CASES
