/* The FSDP extension: flattening, unwrapping, the table of functions. chunk*.c cut and gather. */
#include "fsdp/fsdp.h"

#include <stdlib.h>
#include <string.h>

/* --- Leaves ------------------------------------------------------------------------------------------------------- */

reshard_status rs_fsdp_dtensor_leaf(reshard_dtensor tensor, reshard_tree *leaf) {
  reshard_status status = reshard_state_dtensor(tensor, leaf);
  reshard_dtensor_release(tensor);
  return status;
}

reshard_status rs_fsdp_local_leaf(reshard_dtensor tensor, reshard_dtype dtype, reshard_tree *leaf) {
  static const int64_t none[1] = {0};
  reshard_tensor local = reshard_dtensor_local(tensor);
  if (local != NULL)
    return reshard_tree_tensor(local, leaf);
  dtype = dtype != RESHARD_DTYPE_NONE ? dtype : tensor->properties.dtype;
  RS_TRY(reshard_tensor_create_on(tensor->sharder->device, dtype, 1, none, NULL, &local));
  reshard_status status = reshard_tree_tensor(local, leaf);
  reshard_tensor_release(local);
  return status;
}

reshard_status rs_fsdp_error_leaf(const char *call, reshard_tree leaf, const char *wanted) {
  char text[RS_NODE_TEXT];
  return rs_error(RESHARD_ERROR_INVALID, "%s: the leaf is %s, %s is needed", call, rs_node_text(text, leaf), wanted);
}

/* --- Marks -------------------------------------------------------------------------------------------------------- */

void reshard_fsdp_mark_flattened(reshard_tensor tensor) {
  if (tensor != NULL)
    atomic_store_explicit(&tensor->flattened, true, memory_order_relaxed);
}

int reshard_fsdp_is_flattened(reshard_tensor tensor) {
  return tensor != NULL && atomic_load_explicit(&tensor->flattened, memory_order_relaxed);
}

/* --- Flattening --------------------------------------------------------------------------------------------------- */

struct reshard_flat_record_s {
  reshard_mesh mesh;       /* retained */
  reshard_sharder sharder; /* which the DTensor was made with; borrowed */
  reshard_placement placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* the stride follows from it */
};

void reshard_flat_record_free(reshard_flat_record record) {
  if (record == NULL)
    return;
  reshard_mesh_release(record->mesh);
  free(record);
}

static reshard_status make_record(reshard_dtensor tensor, reshard_flat_record *record) {
  struct reshard_flat_record_s *r;
  RS_TRY(rs_alloc_zero(&r, 1, sizeof *r));
  r->mesh = reshard_mesh_retain(reshard_dtensor_mesh(tensor));
  r->sharder = tensor->given;
  size_t mesh_ndim = (size_t)reshard_mesh_ndim(r->mesh);
  memcpy(r->placements, reshard_dtensor_placements(tensor), mesh_ndim * sizeof *r->placements);
  memcpy(r->order, reshard_dtensor_order(tensor), mesh_ndim * sizeof *r->order);
  r->ndim = reshard_dtensor_ndim(tensor);
  memcpy(r->shape, reshard_dtensor_shape(tensor), (size_t)r->ndim * sizeof *r->shape);
  *record = r;
  return RESHARD_SUCCESS;
}

static reshard_status flatten_dtensor(reshard_dtensor tensor, reshard_tree *flat, reshard_flat_record *record) {
  reshard_flat_record made;
  RS_TRY(make_record(tensor, &made));
  RS_TRY_OR(rs_fsdp_local_leaf(tensor, RESHARD_DTYPE_NONE, flat), reshard_flat_record_free(made));
  reshard_tensor_set_requires_grad((*flat)->tensor, 1); /* whatever the DTensor has */
  reshard_fsdp_mark_flattened((*flat)->tensor);
  *record = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_flatten(reshard_tree leaf, reshard_tree *flat, reshard_flat_record *record) {
  static const char call[] = "reshard_fsdp_flatten";
  RS_TRY(RS_GIVEN(call, leaf, flat, record));
  if (rs_leaf_dtensor(leaf) != NULL)
    return flatten_dtensor(rs_leaf_dtensor(leaf), flat, record);
  *flat = reshard_tree_retain(leaf);
  *record = NULL;
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_unflatten(reshard_sharder sharder, reshard_tensor tensor, reshard_flat_record record,
                                      reshard_tree *leaf) {
  static const char call[] = "reshard_fsdp_unflatten";
  RS_TRY(RS_GIVEN(call, sharder, leaf));
  RS_TRY(RS_GIVEN(call, tensor));
  if (record == NULL)
    return reshard_tree_tensor(tensor, leaf);
  reshard_placing placing = {record->mesh, record->placements, record->order};
  reshard_dtensor made;
  if (sharder->comm != record->mesh->root->comm) /* the mesh is the TP group's own */
    sharder = record->sharder;
  RS_TRY(reshard_dtensor_from_local(sharder, &placing, tensor, record->ndim, record->shape, 0, &made));
  RS_TRY(rs_fsdp_dtensor_leaf(made, leaf));
  reshard_fsdp_mark_flattened(tensor);
  return RESHARD_SUCCESS;
}

/* --- Before a load ------------------------------------------------------------------------------------------------ */

static reshard_status leaf_metadata(reshard_tree leaf, reshard_metadata *metadata) {
  if (rs_leaf_dtensor(leaf) != NULL)
    return reshard_dtensor_metadata(rs_leaf_dtensor(leaf), metadata);
  if (rs_leaf_sharded(leaf) != NULL)
    *metadata = reshard_metadata_retain(rs_leaf_sharded(leaf)->metadata);
  else if (rs_leaf_nested(leaf) != NULL)
    *metadata = reshard_metadata_retain(rs_leaf_nested(leaf)->outer);
  else if (leaf->kind == RESHARD_TREE_TENSOR)
    *metadata = NULL;
  else
    return rs_fsdp_error_leaf("reshard_fsdp_pre_load", leaf, "a tensor of any kind");
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_pre_load(reshard_tree leaf, reshard_tree *inner, reshard_metadata *metadata) {
  RS_TRY(RS_GIVEN("reshard_fsdp_pre_load", leaf, inner, metadata));
  const rs_nested *nested = rs_leaf_nested(leaf);
  if (nested != NULL && nested->n == 1)
    leaf = nested->inner[0];
  RS_TRY(leaf_metadata(leaf, metadata));
  *inner = reshard_tree_retain(leaf);
  return RESHARD_SUCCESS;
}

/* --- The table ---------------------------------------------------------------------------------------------------- */

static reshard_status pre_flatten(void *user, reshard_tree leaf, reshard_tree *flat, reshard_flat_record *record) {
  (void)user;
  return reshard_fsdp_flatten(leaf, flat, record);
}

/* Orders nothing, since none of the tensor's memory is touched. */
static reshard_status post_unflatten(void *user, reshard_tensor tensor, reshard_flat_record record, void *stream,
                                     reshard_tree *leaf) {
  (void)stream;
  return reshard_fsdp_unflatten(user, tensor, record, leaf);
}

static reshard_status chunk_tensor(void *user, reshard_tree leaf, const reshard_fsdp_group *group, void *stream,
                                   reshard_tree *chunk) {
  reshard_fsdp_group whole;
  if (group != NULL && group->size == sizeof *group && group->world == NULL) {
    whole = *group;
    whole.world = user;
    group = &whole;
  }
  return reshard_fsdp_chunk_tensor(leaf, group, stream, chunk);
}

static reshard_status chunk_dtensor(void *user, reshard_tree leaf, reshard_mesh mesh, void *stream,
                                    reshard_tree *chunk) {
  return reshard_fsdp_chunk_dtensor(user, leaf, mesh, stream, chunk);
}

static reshard_status chunk_dtensor_fsdp_first(void *user, reshard_tree leaf, reshard_mesh mesh, void *stream,
                                               reshard_tree *chunk) {
  return reshard_fsdp_chunk_dtensor_ordered(user, leaf, mesh, RESHARD_FSDP_FSDP_FIRST, stream, chunk);
}

static reshard_status pre_load(void *user, reshard_tree leaf, reshard_tree *inner, reshard_metadata *metadata) {
  (void)user;
  return reshard_fsdp_pre_load(leaf, inner, metadata);
}

static reshard_status all_gather(void *user, reshard_tree leaf, reshard_mesh parent, void *stream,
                                 reshard_tree *whole) {
  return reshard_fsdp_all_gather(user, leaf, parent, stream, whole);
}

static reshard_status all_gather_as(void *user, reshard_tree leaf, reshard_mesh parent, reshard_dtype dtype,
                                    void *stream, reshard_tree *whole) {
  return reshard_fsdp_all_gather_as(user, leaf, parent, dtype, stream, whole);
}

static reshard_status check_size(const reshard_fsdp_extension *extension) {
  RS_TRY(RS_SIZED(reshard_fsdp_extension, extension));
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_extension_init(reshard_sharder sharder, reshard_fsdp_extension *extension) {
  RS_TRY(RS_GIVEN("reshard_fsdp_extension_init", sharder, extension));
  RS_TRY(check_size(extension));
  *extension = (reshard_fsdp_extension){.size = sizeof *extension,
                                        .user = sharder,
                                        .pre_flatten_transform = pre_flatten,
                                        .post_unflatten_transform = post_unflatten,
                                        .chunk_tensor = chunk_tensor,
                                        .chunk_dtensor = chunk_dtensor,
                                        .pre_load_state_dict_transform = pre_load,
                                        .all_gather_dtensor = all_gather,
                                        .all_gather_dtensor_as = all_gather_as};
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_extension_set_order(reshard_fsdp_extension *extension, reshard_fsdp_order order) {
  static const char call[] = "reshard_fsdp_extension_set_order";
  RS_TRY(RS_GIVEN(call, extension));
  RS_TRY(check_size(extension));
  if (extension->chunk_dtensor != chunk_dtensor && extension->chunk_dtensor != chunk_dtensor_fsdp_first)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the table's chunk_dtensor is none of reshard_fsdp_extension_init",
                    call);
  if ((int)order != RESHARD_FSDP_TP_FIRST && (int)order != RESHARD_FSDP_FSDP_FIRST)
    return rs_error(RESHARD_ERROR_INVALID, "%s: unknown order %d", call, (int)order);
  extension->chunk_dtensor = order == RESHARD_FSDP_TP_FIRST ? chunk_dtensor : chunk_dtensor_fsdp_first;
  return RESHARD_SUCCESS;
}

reshard_status reshard_fsdp_extension_check(const reshard_fsdp_extension *x) {
  if (x == NULL)
    return rs_error_null("reshard_fsdp_extension_check", "extension");
  RS_TRY(check_size(x));
  const struct {
    const char *name;
    bool there;
  } functions[] = {
      {"pre_flatten_transform", x->pre_flatten_transform != NULL},
      {"post_unflatten_transform", x->post_unflatten_transform != NULL},
      {"chunk_tensor", x->chunk_tensor != NULL},
      {"chunk_dtensor", x->chunk_dtensor != NULL},
      {"pre_load_state_dict_transform", x->pre_load_state_dict_transform != NULL},
      {"all_gather_dtensor", x->all_gather_dtensor != NULL},
      {"all_gather_dtensor_as", x->all_gather_dtensor_as != NULL},
  };
  char missing[256] = "";
  rs_text text = {.at = missing, .size = sizeof missing};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!functions[i].there)
      rs_text_add(&text, "%s%s", text.length > 0 ? ", " : "", functions[i].name);
  return text.length == 0 ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_INVALID, "the FSDP extension has no %s", missing);
}
