/* Sharded tensors whose shards are sharded tensors.
 *
 * A nested tensor is a tree: outer shards, some of them an inner tensor, at any depth, and plain sharded tensors at its
 * ends. It is flat when its ends are listed one after the other, each shard moved by the offsets of the outer shards
 * around it. An outer shard of another rank stays in the list as it is, for only the ranks that have it know its inner
 * tensor. If its box is that of a shard of this rank, it is a replica, and known. Replicas are found within one outer
 * tensor, when that is made; after that, equal boxes in the list are replicas.
 *
 * Each of this rank's shards keeps its tensor all the way: the inner one, or a view of it where an array is many boxes.
 * Overlap and coverage are checked at the end, in O(n log n), for the list as a whole. */
#include "state/state.h"

#include "layout/layout.h"
#include "metadata/group.h"

#include <stdlib.h>
#include <string.h>

static bool is_empty(int ndim, const reshard_box *box) {
  bool empty = false;
  for (int d = 0; d < ndim; d++)
    empty |= box->extent[d] == 0;
  return empty;
}

static int64_t global_rank(reshard_sharder s) { return rs_group_at(&s->group, s->comm->rank); }

/* --- Making --------------------------------------------------------------------------------------------------- */

/* Compares inner tensor i with its shard. */
static reshard_status check_inner(const rs_nested *nested, const reshard_shard *shard, int64_t i, reshard_tree inner) {
  static const char call[] = "reshard_state_nested";
  char given[RS_SHAPE_TEXT], wanted[RS_SHAPE_TEXT], text[RS_NODE_TEXT];
  const rs_nested *deeper = rs_leaf_nested(inner);
  reshard_sharded_tensor plain = rs_leaf_sharded(inner);
  if (deeper == NULL && plain == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: inner tensor %lld is %s, and should be a sharded or a nested one", call,
                    (long long)i, rs_node_text(text, inner));
  reshard_metadata m = deeper != NULL ? deeper->outer : plain->metadata, outer = nested->outer;
  reshard_sharder s = deeper != NULL ? deeper->sharder : plain->sharder;
  if (!rs_shape_equal(m->ndim, m->shape, outer->ndim, shard->box.extent))
    return rs_error(RESHARD_ERROR_INVALID, "%s: inner tensor %lld is of shape %s, its shard of size %s", call,
                    (long long)i, rs_shape_text(given, m->ndim, m->shape),
                    rs_shape_text(wanted, outer->ndim, shard->box.extent));
  if (m->properties.dtype != outer->properties.dtype)
    return rs_error(RESHARD_ERROR_INVALID, "%s: inner tensor %lld is %s, the outer one is %s", call, (long long)i,
                    reshard_dtype_string(m->properties.dtype), reshard_dtype_string(outer->properties.dtype));
  if (global_rank(s) != global_rank(nested->sharder))
    return rs_error(RESHARD_ERROR_INVALID, "%s: inner tensor %lld is global rank %lld's, the outer one is %lld's", call,
                    (long long)i, (long long)global_rank(s), (long long)global_rank(nested->sharder));
  return RESHARD_SUCCESS;
}

/* Copy of a shard as metadata have it: unused dims are 0. */
static reshard_shard clear_unused_dims(int ndim, const reshard_shard *shard) {
  reshard_shard s = {.placement = shard->placement};
  memcpy(s.box.offset, shard->box.offset, (size_t)ndim * sizeof(int64_t));
  memcpy(s.box.extent, shard->box.extent, (size_t)ndim * sizeof(int64_t));
  return s;
}

static const char *shard_text(char text[RS_BOX_TEXT + RS_PLACEMENT_TEXT], int ndim, const reshard_shard *s) {
  char box[RS_BOX_TEXT], placement[RS_PLACEMENT_TEXT];
  rs_text_add(&(rs_text){.at = text, .size = RS_BOX_TEXT + RS_PLACEMENT_TEXT}, "%s on %s",
              rs_box_text(box, ndim, s->box.offset, s->box.extent), rs_placement_text(placement, &s->placement));
  return text;
}

/* Writes, for each outer shard, which local shard it is. entries: all outer shards, once. */
static reshard_status match_local(const rs_nested *nested, const rs_names *entries, const reshard_shard *shards) {
  static const char call[] = "reshard_state_nested";
  reshard_metadata outer = nested->outer;
  char text[RS_BOX_TEXT + RS_PLACEMENT_TEXT];
  for (int64_t i = 0; i < outer->n; i++)
    nested->given[i] = RS_NESTED_OTHER;
  for (int64_t i = 0; i < nested->n; i++) {
    reshard_shard wanted = clear_unused_dims(outer->ndim, &shards[i]);
    int64_t number = rs_names_find(entries, &wanted, sizeof wanted);
    if (number < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: local shard %lld is not in the outer metadata: %s", call,
                      (long long)i, shard_text(text, outer->ndim, &wanted));
    int64_t entry = (const reshard_shard *)entries->all.at[number].at - outer->shards;
    while (entry < outer->n &&
           (nested->given[entry] >= 0 || memcmp(&outer->shards[entry], &wanted, sizeof wanted) != 0))
      entry++; /* an empty shard may be there twice */
    if (entry == outer->n)
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: local shard %lld is given more often than the outer metadata has it: %s", call, (long long)i,
                      shard_text(text, outer->ndim, &wanted));
    nested->given[entry] = i;
    nested->entries[i] = entry;
  }
  for (int64_t i = 0; i < outer->n; i++)
    if (nested->given[i] < 0 && outer->shards[i].placement.rank == global_rank(nested->sharder) &&
        !is_empty(outer->ndim, &outer->shards[i].box))
      return rs_error(RESHARD_ERROR_INVALID, "%s: outer shard %lld is this rank's and not given: %s", call,
                      (long long)i, shard_text(text, outer->ndim, &outer->shards[i]));
  return RESHARD_SUCCESS;
}

static reshard_status match_shards(const rs_nested *nested, const reshard_shard *shards) {
  reshard_metadata outer = nested->outer;
  rs_names entries = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0, number; i < outer->n && status == RESHARD_SUCCESS; i++)
    status = rs_names_put(&entries, &outer->shards[i], sizeof *outer->shards, &number);
  RS_THEN(status, match_local(nested, &entries, shards));
  rs_names_free(&entries);
  return status;
}

/* Finds the replicas of this rank's shards. Empty boxes are no replicas of each other. */
static reshard_status find_replicas(const rs_nested *nested) {
  reshard_metadata outer = nested->outer;
  rs_names here = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0, number; i < outer->n && status == RESHARD_SUCCESS; i++)
    if (nested->given[i] >= 0 && !is_empty(outer->ndim, &outer->shards[i].box))
      status = rs_names_put(&here, &outer->shards[i].box, sizeof(reshard_box), &number);
  for (int64_t i = 0; i < outer->n && status == RESHARD_SUCCESS; i++)
    if (nested->given[i] < 0 && rs_names_find(&here, &outer->shards[i].box, sizeof(reshard_box)) >= 0)
      nested->given[i] = RS_NESTED_REPLICA;
  rs_names_free(&here);
  return status;
}

static reshard_status fill_nested(rs_nested *nested, const reshard_shard *shards, int64_t n,
                                  const reshard_tree *inner) {
  RS_TRY(rs_alloc(&nested->inner, n, sizeof *inner));
  RS_TRY(rs_alloc(&nested->entries, n, sizeof *nested->entries));
  RS_TRY(rs_alloc(&nested->given, nested->outer->n, sizeof *nested->given));
  for (int64_t i = 0; i < n; i++) {
    RS_TRY(check_inner(nested, &shards[i], i, inner[i]));
    nested->inner[nested->n++] = reshard_tree_retain(inner[i]);
  }
  RS_TRY(match_shards(nested, shards));
  return find_replicas(nested);
}

reshard_status reshard_state_nested(reshard_sharder sharder, reshard_metadata outer, int64_t n,
                                    const reshard_shard *shards, const reshard_tree *inner, reshard_tree *leaf) {
  static const char call[] = "reshard_state_nested";
  RS_TRY(RS_GIVEN(call, sharder, outer));
  if (n < 0 || (n > 0 && (shards == NULL || inner == NULL)))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld shards, %s", call, (long long)n,
                    n < 0            ? "0 is the least"
                    : shards == NULL ? "shards is NULL"
                                     : "inner is NULL");
  if (leaf == NULL)
    return rs_error_null(call, "the output");
  rs_nested *nested;
  RS_TRY(rs_alloc_zero(&nested, 1, sizeof *nested));
  nested->sharder = sharder;
  nested->outer = reshard_metadata_retain(outer);
  reshard_status status = fill_nested(nested, shards, n, inner);
  RS_THEN(status, reshard_tree_opaque(&rs_nested_type, nested, leaf));
  if (status != RESHARD_SUCCESS)
    rs_nested_release(nested);
  return status;
}

/* Frees inner tensors by a list, so that depth costs no stack. */
void rs_nested_release(void *value) {
  rs_nested *dead = value;
  dead->next = NULL;
  while (dead != NULL) {
    rs_nested *nested = dead, *deeper;
    dead = nested->next;
    for (int64_t i = 0; i < nested->n; i++)
      if ((deeper = rs_node_release_value(nested->inner[i], &rs_nested_type)) != NULL) {
        deeper->next = dead;
        dead = deeper;
      }
    free(nested->inner);
    free(nested->entries);
    free(nested->given);
    reshard_metadata_release(nested->outer);
    free(nested);
  }
}

reshard_status reshard_state_get_nested(reshard_tree leaf, reshard_metadata *outer, int64_t *n, const int64_t **entries,
                                        const reshard_tree **inner) {
  RS_TRY(rs_leaf_check("reshard_state_get_nested", &rs_nested_type, leaf, leaf));
  const rs_nested *nested = rs_leaf_nested(leaf);
  if (outer != NULL)
    *outer = nested->outer;
  if (n != NULL)
    *n = nested->n;
  if (entries != NULL)
    *entries = nested->entries;
  if (inner != NULL)
    *inner = nested->inner;
  return RESHARD_SUCCESS;
}

/* --- Listing -------------------------------------------------------------------------------------------------- */

/* An outer tensor that is gone through. */
typedef struct level {
  const rs_nested *nested;
  int64_t next;                     /* outer shard */
  int64_t offset[RESHARD_MAX_DIMS]; /* of it in the outermost tensor */
} level;

static reshard_status add_shard(rs_shard_list *flat, const reshard_shard *shard, const int64_t *offset) {
  RS_TRY(rs_vec_reserve(&flat->shards, flat->shards.n + 1));
  rs_listed_shard *s = &flat->shards.at[flat->shards.n];
  *s = (rs_listed_shard){.shard = *shard, .mine = shard->placement.rank == flat->rank};
  for (int d = 0; d < flat->ndim; d++)
    if (!rs_add(offset[d], shard->box.offset[d], &s->shard.box.offset[d]))
      return rs_error(RESHARD_ERROR_INVALID, "offsets %lld and %lld of outer and inner shard overflow in dim %d",
                      (long long)offset[d], (long long)shard->box.offset[d], d);
  flat->shards.n++;
  return RESHARD_SUCCESS;
}

/* The part of an array from index `at` on. */
static reshard_status cut_view(reshard_tensor array, const int64_t *at, const int64_t *extent, reshard_tensor *view) {
  const reshard_tensor_info *info = &array->info;
  int64_t offset = info->offset;
  for (int d = 0; d < info->ndim; d++)
    offset += at[d] * info->strides[d];
  return reshard_tensor_as_strided(array, info->ndim, extent, info->strides, offset, view);
}

/* Returns the next of my shards from *at on, which are the boxes of the rank's arrays in their order. */
static rs_listed_shard *next_local(const rs_shard_list *flat, int64_t *at) {
  while (*at < flat->shards.n)
    if (flat->shards.at[(*at)++].mine)
      return &flat->shards.at[*at - 1];
  rs_error(RESHARD_ERROR_INTERNAL, "an inner tensor has more boxes here than its metadata says");
  return NULL;
}

/* Lists an array that is a product of runs per dim: its boxes are the products of one run each, row-major. */
static reshard_status list_product(rs_shard_list *flat, reshard_tensor array, const rs_pieces *pieces, int64_t *at) {
  int64_t boxes = 1;
  for (int d = 0; d < flat->ndim; d++)
    boxes *= pieces[d].n;
  for (int64_t b = 0; b < rs_max(boxes, 1); b++) {
    rs_listed_shard *s = next_local(flat, at);
    int64_t from[RESHARD_MAX_DIMS], rest = b;
    if (s == NULL)
      return RESHARD_ERROR_INTERNAL;
    if (array == NULL || boxes == 0)
      continue;
    for (int d = flat->ndim - 1; d >= 0; d--, rest /= pieces[d + 1].n)
      from[d] = pieces[d].at[rest % pieces[d].n].local;
    if (boxes == 1)
      s->local = reshard_tensor_retain(array);
    else
      RS_TRY(cut_view(array, from, s->shard.box.extent, &s->local));
  }
  return RESHARD_SUCCESS;
}

/* Lists the tensors of my shards from the at-th on. pieces: scratch. */
static reshard_status list_arrays(rs_shard_list *flat, const rs_local_arrays *local, int64_t rank, rs_pieces *pieces,
                                  int64_t at) {
  reshard_layout layout = local->layout;
  for (int64_t a = 0; a < local->n; a++) {
    if (!rs_layout_regular(layout)) { /* a box */
      rs_listed_shard *s = next_local(flat, &at);
      if (s == NULL)
        return RESHARD_ERROR_INTERNAL;
      s->local = reshard_tensor_retain(local->arrays[a]);
      continue;
    }
    for (int d = 0; d < flat->ndim; d++) {
      pieces[d].n = 0;
      RS_TRY(rs_layout_pieces(layout, rs_layout_cell(layout, rank, a), d, 0, layout->shape[d], &pieces[d]));
    }
    RS_TRY(list_product(flat, local->arrays[a], pieces, &at));
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_properties(const reshard_properties *a, const reshard_properties *b) {
  if (a->requires_grad != b->requires_grad || a->pin_memory != b->pin_memory)
    return rs_error(RESHARD_ERROR_INVALID,
                    "inner tensors differ: requires_grad %d and pin_memory %d, requires_grad %d and pin_memory %d",
                    a->requires_grad, a->pin_memory, b->requires_grad, b->pin_memory);
  return RESHARD_SUCCESS;
}

static reshard_status add_inner(rs_shard_list *flat, reshard_sharded_tensor inner, const int64_t *offset) {
  reshard_metadata m = rs_sharded_holders(inner);
  rs_pieces pieces[RESHARD_MAX_DIMS] = {0};
  int64_t first = flat->shards.n;
  if (flat->inner)
    RS_TRY(check_properties(&flat->properties, &m->properties));
  flat->inner = true;
  flat->properties = m->properties; /* the outer tensor is made without gradient */
  for (int64_t i = 0; i < m->n; i++)
    RS_TRY(add_shard(flat, &m->shards[i], offset));
  reshard_status status = list_arrays(flat, &inner->local, inner->sharder->comm->rank, pieces, first);
  for (int d = 0; d < flat->ndim; d++)
    free(pieces[d].at);
  return status;
}

/* Lists the next outer shard of the innermost level; or returns a nested tensor, which becomes the next level. */
static reshard_status list_next(rs_shard_list *flat, level *l, const rs_nested **deeper, int64_t *offset) {
  int64_t i = l->next++, given = l->nested->given[i];
  const reshard_shard *outer = &l->nested->outer->shards[i];
  if (given == RS_NESTED_REPLICA)
    return RESHARD_SUCCESS;
  if (given == RS_NESTED_OTHER)
    return add_shard(flat, outer, l->offset);
  for (int d = 0; d < flat->ndim; d++)
    if (!rs_add(l->offset[d], outer->box.offset[d], &offset[d]))
      return add_shard(flat, outer, l->offset); /* fails, with the text */
  reshard_tree inner = l->nested->inner[given];
  *deeper = rs_leaf_nested(inner);
  return *deeper == NULL ? add_inner(flat, rs_leaf_sharded(inner), offset) : RESHARD_SUCCESS;
}

reshard_status rs_shard_list_plain(reshard_sharded_tensor plain, rs_shard_list *flat) {
  static const int64_t none[RESHARD_MAX_DIMS];
  reshard_metadata m = plain->metadata;
  *flat = (rs_shard_list){.rank = global_rank(plain->sharder), .ndim = m->ndim, .properties = m->properties};
  memcpy(flat->shape, m->shape, sizeof flat->shape);
  reshard_status status = add_inner(flat, plain, none);
  if (status != RESHARD_SUCCESS)
    rs_shard_list_free(flat);
  return status;
}

reshard_status rs_shard_list_nested(const rs_nested *nested, rs_shard_list *flat) {
  RS_VEC(level) levels = {0};
  reshard_metadata outer = nested->outer;
  int64_t offset[RESHARD_MAX_DIMS] = {0};
  const rs_nested *deeper = nested;
  *flat = (rs_shard_list){.ndim = outer->ndim, .properties = outer->properties};
  flat->rank = global_rank(nested->sharder);
  memcpy(flat->shape, outer->shape, sizeof flat->shape);
  reshard_status status = RESHARD_SUCCESS;
  while (status == RESHARD_SUCCESS && (deeper != NULL || levels.n > 0)) {
    if (deeper != NULL) {
      status = rs_vec_reserve(&levels, levels.n + 1);
      if (status != RESHARD_SUCCESS)
        break;
      level *l = &levels.at[levels.n++];
      *l = (level){.nested = deeper};
      memcpy(l->offset, offset, sizeof offset);
      deeper = NULL;
    }
    level *l = &levels.at[levels.n - 1];
    if (l->next == l->nested->outer->n)
      levels.n--;
    else
      status = list_next(flat, l, &deeper, offset);
  }
  free(levels.at);
  if (status != RESHARD_SUCCESS)
    rs_shard_list_free(flat);
  return status;
}

void rs_shard_list_free(rs_shard_list *flat) {
  for (int64_t i = 0; i < flat->shards.n; i++)
    reshard_tensor_release(flat->shards.at[i].local);
  free(flat->shards.at);
  flat->shards.at = NULL;
  flat->shards.n = flat->shards.cap = 0;
}
