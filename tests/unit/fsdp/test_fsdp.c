/* The FSDP extension: flatten and unflatten, marks, pre_load_state_dict, the table as a host program uses it, and
 * leaves that are DTensors in state dicts and checkpoints. */
#include "fsdp_world.h"
#include "support/fixtures/expect.h"

#include "support/fixtures/scratch.h"

#include <stdlib.h>

static const int64_t whole_shape[2] = {7, 5};

/* dp 2 x tp 2 over ranks 1-4 of 5: rank 0 is outside. */
static reshard_mesh mesh_of(const sharded_ranks *p, int64_t r) {
  reshard_mesh mesh = NULL;
  return reshard_mesh_parse(p->comms[r], 0, "dp=2,tp=2@1-4", &mesh) == RESHARD_SUCCESS ? mesh : NULL;
}

/* (S0, S0), TP first. */
static reshard_tree both_leaf(sharded_ranks *p, int64_t r, reshard_mesh mesh, reshard_tensor whole) {
  const reshard_placement placements[2] = {placement_of(0), placement_of(0)};
  const reshard_placing placing = {mesh, placements, (const int[2]){1, 0}};
  const reshard_properties properties = {.dtype = RESHARD_I32};
  reshard_dtensor tensor = NULL;
  reshard_tree leaf = NULL;
  WELL(p, r,
       reshard_dtensor_distribute(p->sharders[r], &placing, r > 0 ? whole : NULL, -1, 2, whole_shape, &properties, NULL,
                                  &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaf));
  reshard_dtensor_release(tensor);
  return leaf;
}

/* --- Flattening --------------------------------------------------------------------------------------------------- */

/* Makes of a flat parameter what FSDP does: another dtype, in memory of its own. */
static reshard_tensor tensor_cast(reshard_tensor tensor) {
  reshard_tensor_info info;
  reshard_tensor made = NULL;
  reshard_tensor_get_info(tensor, &info);
  reshard_tensor_create(RESHARD_F64, info.ndim, info.shape, &made);
  return made;
}

static void check_again(sharded_ranks *p, int64_t r, reshard_tree leaf, reshard_tree again, reshard_dtype dtype) {
  reshard_dtensor before = NULL, after = NULL;
  WELL(p, r, reshard_state_get_dtensor(leaf, &before));
  if (!WELL(p, r, reshard_state_get_dtensor(again, &after)))
    return;
  SO(p, r, reshard_layout_equal(reshard_dtensor_layout(before), reshard_dtensor_layout(after)));
  SO(p, r, reshard_mesh_equal(reshard_dtensor_mesh(before), reshard_dtensor_mesh(after)));
  SO(p, r, reshard_dtensor_order(after)[0] == 1 && reshard_dtensor_order(after)[1] == 0);
  SO(p, r, memcmp(reshard_dtensor_stride(before), reshard_dtensor_stride(after), 16) == 0);
  reshard_metadata m = NULL;
  WELL(p, r, reshard_dtensor_metadata(after, &m));
  SO(p, r, reshard_metadata_properties(m).dtype == dtype);
  reshard_metadata_release(m);
}

static void flatten_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = mesh_of(p, r);
  reshard_tensor whole = whole_of(2, whole_shape), tensor = NULL, other = NULL;
  reshard_tree leaf = both_leaf(p, r, mesh, whole), flat = NULL, again = NULL, mixed = NULL;
  reshard_flat_record record = NULL;
  reshard_tensor_info info;
  SO(p, r, !reshard_fsdp_is_flattened(local_of(leaf)));
  WELL(p, r, reshard_fsdp_flatten(leaf, &flat, &record));
  WELL(p, r, reshard_tree_get_tensor(flat, &tensor));
  SO(p, r, record != NULL && reshard_fsdp_is_flattened(tensor));
  reshard_tensor_get_info(tensor, &info);
  if (r > 0)
    SO(p, r, tensor == local_of(leaf)); /* the same, not a copy */
  else
    SO(p, r, info.ndim == 1 && info.elements == 0 && info.dtype == RESHARD_I32);
  WELL(p, r, reshard_fsdp_unflatten(p->sharders[r], tensor, record, &again));
  check_again(p, r, leaf, again, RESHARD_I32);
  if (r > 0)
    SO(p, r, local_of(again) == tensor);
  other = tensor_cast(tensor);
  SO(p, r, !reshard_fsdp_is_flattened(other));
  WELL(p, r, reshard_fsdp_unflatten(p->sharders[r], other, record, &mixed));
  check_again(p, r, leaf, mixed, RESHARD_F64);
  SO(p, r, reshard_fsdp_is_flattened(other));
  reshard_tensor_release(other);
  reshard_tree_release(mixed);
  reshard_tree_release(again);
  reshard_tree_release(flat);
  reshard_flat_record_free(record);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

CASE(flatten_and_unflatten_are_inverse) { sharded_ranks_check(5, NULL, flatten_body, NULL, RESHARD_SUCCESS, NULL); }

/* A leaf that is no DTensor is itself. */
CASE(test_flatten_plain) {
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  reshard_tensor whole = whole_of(2, whole_shape), same = NULL;
  reshard_tree leaf, flat, again;
  reshard_flat_record record = (reshard_flat_record)&p;
  GOOD(reshard_tree_tensor(whole, &leaf));
  GOOD(reshard_fsdp_flatten(leaf, &flat, &record));
  assert_ptr_equal(flat, leaf);
  assert_null(record);
  assert_false(reshard_fsdp_is_flattened(whole));
  GOOD(reshard_fsdp_unflatten(p.sharders[0], whole, NULL, &again));
  GOOD(reshard_tree_get_tensor(again, &same));
  assert_ptr_equal(same, whole);
  reshard_flat_record_free(NULL);
  assert_false(reshard_fsdp_is_flattened(NULL));
  reshard_fsdp_mark_flattened(NULL);
  reshard_fsdp_mark_flattened(whole);
  assert_true(reshard_fsdp_is_flattened(same));

  BAD(reshard_fsdp_flatten(NULL, &flat, &record), "reshard_fsdp_flatten: leaf is NULL");
  BAD(reshard_fsdp_flatten(leaf, NULL, &record), "reshard_fsdp_flatten: flat is NULL");
  BAD(reshard_fsdp_flatten(leaf, &flat, NULL), "reshard_fsdp_flatten: record is NULL");
  BAD(reshard_fsdp_unflatten(NULL, whole, NULL, &again), "reshard_fsdp_unflatten: sharder is NULL");
  BAD(reshard_fsdp_unflatten(p.sharders[0], NULL, NULL, &again), "reshard_fsdp_unflatten: tensor is NULL");
  BAD(reshard_fsdp_unflatten(p.sharders[0], whole, NULL, NULL), "reshard_fsdp_unflatten: leaf is NULL");
  reshard_tree_release(again);
  reshard_tree_release(flat);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  sharded_ranks_close(&p);
}

static void wrong_shape_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = mesh_of(p, r);
  reshard_tensor whole = whole_of(2, whole_shape);
  reshard_tree leaf = both_leaf(p, r, mesh, whole), flat = NULL, again = NULL;
  reshard_flat_record record = NULL;
  WELL(p, r, reshard_fsdp_flatten(leaf, &flat, &record));
  SO(p, r, reshard_fsdp_unflatten(p->sharders[r], whole, record, &again) == RESHARD_ERROR_INVALID);
  SO(p, r, strstr(reshard_last_error(), "of shape 7x5") != NULL && again == NULL);
  SO(p, r, !reshard_fsdp_is_flattened(whole));
  if (r == 1)
    print_message("%s\n", reshard_last_error());
  reshard_tree_release(flat);
  reshard_flat_record_free(record);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

CASE(test_wrong_shape) { sharded_ranks_check(5, NULL, wrong_shape_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Before a load ------------------------------------------------------------------------------------------------ */

CASE(test_pre_load) {
  static const reshard_properties i32 = {.dtype = RESHARD_I32};
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  reshard_tensor whole = whole_of(2, whole_shape);
  reshard_layout layout = layout_from_text("rank(0)", 2, whole_shape, 1);
  reshard_sharded_tensor sharded = NULL;
  reshard_mesh mesh = NULL;
  reshard_dtensor tensor = NULL;
  reshard_tree leaves[5], inner = NULL;
  reshard_metadata metadata = NULL;
  GOOD(reshard_mesh_parse(p.comms[0], 0, "1", &mesh));
  GOOD(reshard_sharded_tensor_empty(p.sharders[0], layout, &i32, NULL, &sharded));
  const reshard_placement replicate = placement_of(-1);
  const reshard_placing placing = {mesh, &replicate, NULL};
  GOOD(reshard_dtensor_empty(p.sharders[0], &placing, 2, whole_shape, &i32, NULL, &tensor));
  reshard_metadata own = reshard_sharded_tensor_metadata(sharded);
  GOOD(reshard_tree_tensor(whole, &leaves[0]));
  GOOD(reshard_state_sharded(sharded, &leaves[1]));
  GOOD(reshard_state_dtensor(tensor, &leaves[2]));
  GOOD(reshard_state_nested(p.sharders[0], own, 1, reshard_metadata_shards(own), &leaves[1], &leaves[3]));
  GOOD(reshard_tree_int(4, &leaves[4]));
  for (int i = 0; i < 4; i++) {
    GOOD(reshard_fsdp_pre_load(leaves[i], &inner, &metadata));
    assert_ptr_equal(inner, leaves[i == 3 ? 1 : i]);
    if (i == 0)
      assert_null(metadata);
    else if (i == 2)
      assert_true(reshard_metadata_count(metadata) == 1 && reshard_metadata_ndim(metadata) == 2);
    else
      assert_ptr_equal(metadata, own);
    reshard_tree_release(inner);
    reshard_metadata_release(metadata);
  }
  BAD(reshard_fsdp_pre_load(leaves[4], &inner, &metadata),
      "reshard_fsdp_pre_load: the leaf is an integer, a tensor of any kind is needed");
  BAD(reshard_fsdp_pre_load(NULL, &inner, &metadata), "reshard_fsdp_pre_load: leaf is NULL");
  assert_int_equal(reshard_fsdp_pre_load(leaves[0], NULL, &metadata), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_fsdp_pre_load(leaves[0], &inner, NULL), RESHARD_ERROR_INVALID);
  for (int i = 0; i < 5; i++)
    reshard_tree_release(leaves[i]);
  reshard_dtensor_release(tensor);
  reshard_sharded_tensor_release(sharded);
  reshard_layout_release(layout);
  reshard_mesh_release(mesh);
  reshard_tensor_release(whole);
  sharded_ranks_close(&p);
}

/* --- The table ---------------------------------------------------------------------------------------------------- */

/* A host program that knows the table alone. */
static void frame_step(sharded_ranks *p, int64_t r, const reshard_fsdp_extension *x, reshard_mesh mesh,
                       reshard_tree tp) {
  reshard_tree flat = NULL, again = NULL, chunk = NULL, whole = NULL, nested = NULL, inner = NULL;
  reshard_flat_record record = NULL;
  reshard_metadata metadata = NULL;
  reshard_sharded_tensor sharded = NULL;
  reshard_tensor tensor = NULL;
  reshard_comm comm = NULL;
  reshard_sharder sharder = NULL;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  reshard_box part = box_of(2, whole_shape, 0, 2, r % 2, 1, 0);
  WELL(p, r, x->pre_flatten_transform(x->user, tp, &flat, &record));
  WELL(p, r, reshard_tree_get_tensor(flat, &tensor));
  WELL(p, r, x->post_unflatten_transform(x->user, tensor, record, NULL, &again));
  WELL(p, r, x->chunk_dtensor(x->user, again, mesh, NULL, &chunk));
  WELL(p, r, x->all_gather_dtensor(x->user, chunk, mesh, NULL, &whole));
  WELL(p, r, reshard_tree_get_tensor(whole, &tensor));
  SO(p, r, wrong_in(tensor, 2, whole_shape, &part) == 0 && tensor != local_of(tp));

  WELL(p, r, reshard_mesh_comm(mesh, "dp", &comm));
  options.group = (reshard_group){reshard_comm_size(comm), reshard_comm_global_ranks(comm)};
  WELL(p, r, reshard_sharder_create(comm, &options, &sharder));
  const reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = sharder};
  WELL(p, r, x->chunk_tensor(x->user, tp, &group, NULL, &nested));
  WELL(p, r, x->pre_load_state_dict_transform(x->user, nested, &inner, &metadata));
  WELL(p, r, reshard_state_get_sharded(inner, &sharded));
  SO(p, r, reshard_metadata_count(metadata) == 2);
  reshard_metadata_release(metadata);
  reshard_tree_release(inner);
  reshard_tree_release(nested);
  reshard_tree_release(whole);
  reshard_tree_release(chunk);
  reshard_tree_release(again);
  reshard_tree_release(flat);
  reshard_flat_record_free(record);
  reshard_sharder_destroy(sharder);
}

static void table_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = NULL;
  reshard_tensor whole = whole_of(2, whole_shape);
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT};
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  WELL(p, r, reshard_fsdp_extension_init(p->sharders[r], &x));
  WELL(p, r, reshard_fsdp_extension_check(&x));
  reshard_tree tp = tp_leaf(p->sharders[r], mesh, whole, 0);
  frame_step(p, r, &x, mesh, tp);
  reshard_tree_release(tp);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

CASE(table_works_as_a_host_program_uses_it) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  sharded_ranks_run(&p, table_body, NULL);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);

  reshard_fsdp_extension x = {0};
  FAILS_WITH(reshard_fsdp_extension_init(p.sharders[0], &x), RESHARD_ERROR_INVALID,
             "size field 0, this library's reshard_fsdp_extension has");
  FAILS_WITH(reshard_fsdp_extension_check(&x), RESHARD_ERROR_INVALID, "size field 0");
  x.size = RESHARD_FSDP_EXTENSION_INIT;
  BAD(reshard_fsdp_extension_check(&x), "the FSDP extension has no pre_flatten_transform, post_unflatten_transform, "
                                        "chunk_tensor, chunk_dtensor, pre_load_state_dict_transform, "
                                        "all_gather_dtensor, all_gather_dtensor_as");
  GOOD(reshard_fsdp_extension_init(p.sharders[0], &x));
  x.chunk_dtensor = NULL;
  x.pre_flatten_transform = NULL;
  BAD(reshard_fsdp_extension_check(&x), "the FSDP extension has no pre_flatten_transform, chunk_dtensor");
  assert_int_equal(reshard_fsdp_extension_init(NULL, &x), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_fsdp_extension_init(p.sharders[0], NULL), RESHARD_ERROR_INVALID);
  BAD(reshard_fsdp_extension_check(NULL), "reshard_fsdp_extension_check: extension is NULL");
  sharded_ranks_close(&p);
}

/* --- In state dicts ----------------------------------------------------------------------------------------------- */

static void save_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = NULL;
  reshard_comm comm = NULL;
  reshard_sharder sharder = NULL;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT};
  reshard_tensor whole = whole_of(2, whole_shape);
  reshard_tree dict = NULL, tp = NULL, chunk = NULL, nested = NULL, flat = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  WELL(p, r, reshard_mesh_comm(mesh, "dp", &comm));
  options.group = (reshard_group){reshard_comm_size(comm), reshard_comm_global_ranks(comm)};
  WELL(p, r, reshard_sharder_create(comm, &options, &sharder));
  const reshard_fsdp_group group = {.size = RESHARD_FSDP_GROUP_INIT, .sharder = sharder};
  tp = tp_leaf(p->sharders[r], mesh, whole, 0);
  WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], tp, mesh, NULL, &chunk));
  WELL(p, r, reshard_fsdp_chunk_tensor(tp, &group, NULL, &nested));
  WELL(p, r, reshard_tree_dict(&dict));
  WELL(p, r, reshard_tree_set(dict, "w.chunk", chunk));
  WELL(p, r, reshard_tree_set(dict, "w.nested", nested));
  WELL(p, r, reshard_state_flatten_sharded_tensors(dict, &flat));
  reshard_tree found = NULL;
  WELL(p, r, reshard_tree_find(flat, "w.chunk", &found));
  SO(p, r, found == chunk); /* as it is */
  rank_result_set(&p->results[r], reshard_state_save(p->sharders[r], dict, p->user, NULL, NULL));
  reshard_tree_release(flat);
  reshard_tree_release(dict);
  reshard_tree_release(nested);
  reshard_tree_release(chunk);
  reshard_tree_release(tp);
  reshard_sharder_destroy(sharder);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  static const char *const paths[2] = {"w.chunk", "w.nested"};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_mesh mesh = NULL;
  reshard_tree dict = NULL, leaves[2] = {NULL, NULL};
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "dp=1,tp=3", &mesh));
  WELL(p, r, reshard_tree_dict(&dict));
  for (int i = 0; i < 2; i++) {
    const reshard_placement placements[2] = {placement_of(0), placement_of(i)};
    const reshard_placing placing = {mesh, placements, NULL};
    reshard_dtensor tensor = NULL;
    WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, whole_shape, &i32, NULL, &tensor));
    WELL(p, r, reshard_state_dtensor(tensor, &leaves[i]));
    WELL(p, r, reshard_tree_set(dict, paths[i], leaves[i]));
    reshard_dtensor_release(tensor);
  }
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], dict, p->user, NULL, NULL));
  for (int i = 0; i < 2; i++) {
    reshard_box box = box_of(2, whole_shape, i, 3, r, 1, 0);
    SO(p, r, wrong_in(local_of(leaves[i]), 2, whole_shape, &box) == 0);
    reshard_tree_release(leaves[i]);
  }
  reshard_tree_release(dict);
  reshard_mesh_release(mesh);
}

CASE(dtensor_leaves_are_saved_and_loaded_by_fewer_ranks) {
  sharded_ranks_check(4, NULL, save_body, (void *)scratch_path("saved"), RESHARD_SUCCESS, NULL);
  sharded_ranks_check(3, NULL, load_body, (void *)scratch_path("saved"), RESHARD_SUCCESS, NULL);
}

CASE(leaf_of_null_is_refused) {
  reshard_tree one, none = NULL;
  reshard_dtensor tensor = NULL;
  BAD(reshard_state_dtensor(NULL, &none), "reshard_state_dtensor: tensor is NULL");
  GOOD(reshard_tree_int(1, &one));
  BAD(reshard_state_get_dtensor(one, &tensor), "reshard_state_get_dtensor: the leaf is an integer, not a DTensor");
  assert_null(tensor);
  reshard_tree_release(one);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
