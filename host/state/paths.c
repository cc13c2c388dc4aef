/* The ranks' state dicts, path by path. A path may be absent on some ranks, or a null; leaves of one path agree in
 * kind, dtype and shape. A tensor that all ranks have in one layout of the communicator needs no more. All others -
 * tensors of other groups, nested ones, paths that some ranks lack - are marked: the ranks exchange their shards
 * (exchange_shards.c). */
#include "base/text.h"
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* Two ranks' tensors of one path have one dtype and shape. */
static reshard_status compare_tensors(const rs_state_leaf *a, int64_t first, const rs_state_leaf *b, int64_t second) {
  char quoted[RS_QUOTE], one[RS_SHAPE_TEXT], other[RS_SHAPE_TEXT];
  int n = rs_state_leaf_ndim(a), m = rs_state_leaf_ndim(b);
  const int64_t *x = rs_state_leaf_shape(a), *y = rs_state_leaf_shape(b);
  rs_quote(quoted, sizeof quoted, a->path);
  if (rs_state_leaf_dtype(a) != rs_state_leaf_dtype(b))
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s", quoted, (long long)first,
                    reshard_dtype_string(rs_state_leaf_dtype(a)), (long long)second,
                    reshard_dtype_string(rs_state_leaf_dtype(b)));
  if (n != m || memcmp(x, y, (size_t)n * sizeof *x) != 0)
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has a tensor of shape %s, rank %lld of %s", quoted,
                    (long long)first, rs_shape_text(one, n, x), (long long)second, rs_shape_text(other, m, y));
  return RESHARD_SUCCESS;
}

static const char *leaf_kind_text(const rs_state_leaf *leaf) {
  return rs_state_leaf_is_sharded(leaf) ? "a sharded tensor" : rs_kind_text(rs_state_leaf_kind(leaf));
}

static reshard_status error_kinds_differ(const rs_state_leaf *a, int64_t first, const rs_state_leaf *b,
                                         int64_t second) {
  char quoted[RS_QUOTE];
  return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s",
                  rs_quote(quoted, sizeof quoted, a->path), (long long)first, leaf_kind_text(a), (long long)second,
                  leaf_kind_text(b));
}

static uint64_t layout_hash(const rs_state_leaf *leaf) {
  return leaf->remote != NULL ? leaf->remote->layout : rs_layout_hash(leaf->sharded->local.layout);
}

/* Both leaves are in one layout of the communicator. */
static bool same_layout(const rs_state_leaf *a, const rs_state_leaf *b) {
  if (rs_state_leaf_is_exchanged(a) || rs_state_leaf_is_exchanged(b))
    return false;
  return a->remote == NULL && b->remote == NULL
             ? reshard_layout_equal(a->sharded->local.layout, b->sharded->local.layout)
             : layout_hash(a) == layout_hash(b);
}

/* Compares one more rank's leaf of a path, neither being a null: both are sharded, or tensors, or neither is. */
static reshard_status compare_leaves(const rs_state_leaf *a, int64_t first, const rs_state_leaf *b, int64_t second) {
  if (rs_state_leaf_is_sharded(a) != rs_state_leaf_is_sharded(b) ||
      rs_state_leaf_is_tensor(a) != rs_state_leaf_is_tensor(b))
    return error_kinds_differ(a, first, b, second);
  return rs_state_leaf_is_tensor(a) ? compare_tensors(a, first, b, second) : RESHARD_SUCCESS;
}

static bool is_null_leaf(const rs_state_leaf *leaf) { return rs_state_leaf_kind(leaf) == RESHARD_TREE_NULL; }

/* Adds the path of a leaf of the lowest rank that has it. found: per rank the number of its leaves in the list. */
static reshard_status add_path(int64_t n, rs_state_call *const *calls, const rs_state_leaf *first, int64_t rank,
                               int64_t *found, rs_state_paths *paths) {
  rs_state_path p = {.leaf = first, .rank = rank};
  bool alike =
      rank == 0 && !is_null_leaf(first) && !rs_state_leaf_is_exchanged(first); /* all ranks have it in one layout */
  for (int64_t r = rank + 1; r < n; r++) {
    const rs_state_leaf *other = rs_state_leaves_find(&calls[r]->leaves, first->path);
    found[r] += other != NULL;
    alike = alike && other != NULL && !is_null_leaf(other);
    if (other == NULL || is_null_leaf(other))
      continue;
    if (is_null_leaf(p.leaf)) {
      p.leaf = other;
      p.rank = r;
      continue;
    }
    RS_TRY(compare_leaves(p.leaf, p.rank, other, r));
    alike = alike && (!rs_state_leaf_is_sharded(other) || same_layout(p.leaf, other));
  }
  p.exchanged = rs_state_leaf_is_sharded(p.leaf) && !alike;
  RS_TRY(rs_vec_push(&paths->all, p));
  paths->exchanged += p.exchanged;
  return RESHARD_SUCCESS;
}

/* A rank before this one has the path. */
static bool path_listed(rs_state_call *const *calls, int64_t rank, const char *path) {
  bool has = false;
  for (int64_t r = 0; r < rank && !has; r++)
    has = rs_state_leaves_find(&calls[r]->leaves, path) != NULL;
  return has;
}

reshard_status rs_state_paths_compare(int64_t n, rs_state_call *const *calls, rs_state_paths *paths) {
  int64_t *found;
  RS_TRY(rs_alloc_zero(&found, n, sizeof *found));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < n; r++) {
    const rs_state_leaves *leaves = &calls[r]->leaves;
    for (int64_t i = 0; i < leaves->all.n && found[r] < leaves->all.n && status == RESHARD_SUCCESS; i++)
      if (r == 0 || !path_listed(calls, r, leaves->all.at[i].path))
        status = add_path(n, calls, &leaves->all.at[i], r, found, paths);
  }
  free(found);
  return status;
}

void rs_state_paths_free(rs_state_paths *paths) {
  free(paths->all.at);
  *paths = (rs_state_paths){0};
}
