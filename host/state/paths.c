/* The ranks' state dicts, path by path. A path may be absent on some ranks, or a null; those that have it agree in kind,
 * dtype and shape. Where all ranks have a tensor in one layout of the communicator, that says who holds what; everything else -
 * tensors of other groups, nested ones, paths that some ranks lack - is told by boxes (boxed.c). */
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* Two ranks' tensors of one path: one dtype and shape. */
static reshard_status check_alike(const rs_item *a, int64_t first, const rs_item *b, int64_t second) {
  char quoted[RS_QUOTE], one[RS_SHAPE_TEXT], other[RS_SHAPE_TEXT];
  int n = rs_item_ndim(a), m = rs_item_ndim(b);
  const int64_t *x = rs_item_shape(a), *y = rs_item_shape(b);
  rs_quote(quoted, sizeof quoted, a->path);
  if (rs_item_dtype(a) != rs_item_dtype(b))
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s", quoted, (long long)first,
                    reshard_dtype_string(rs_item_dtype(a)), (long long)second, reshard_dtype_string(rs_item_dtype(b)));
  if (n != m || memcmp(x, y, (size_t)n * sizeof *x) != 0)
    return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has a tensor of shape %s, rank %lld of %s", quoted,
                    (long long)first, rs_shape_text(one, n, x), (long long)second, rs_shape_text(other, m, y));
  return RESHARD_SUCCESS;
}

static const char *kind_of(const rs_item *item) {
  return rs_item_is_sharded(item) ? "a sharded tensor" : rs_kind_text(rs_item_kind(item));
}

static reshard_status kinds_differ(const rs_item *a, int64_t first, const rs_item *b, int64_t second) {
  char quoted[RS_QUOTE];
  return rs_error(RESHARD_ERROR_MISMATCH, "path '%s': rank %lld has %s, rank %lld has %s",
                  rs_quote(quoted, sizeof quoted, a->path), (long long)first, kind_of(a), (long long)second,
                  kind_of(b));
}

static uint64_t layout_hash(const rs_item *item) {
  return item->told != NULL ? item->told->layout : rs_layout_hash(item->sharded->local.layout);
}

/* Both in one layout of the communicator? */
static bool same_layout(const rs_item *a, const rs_item *b) {
  if (rs_item_by_boxes(a) || rs_item_by_boxes(b))
    return false;
  return a->told == NULL && b->told == NULL ? reshard_layout_equal(a->sharded->local.layout, b->sharded->local.layout)
                                            : layout_hash(a) == layout_hash(b);
}

/* One more rank's leaf of a path, where neither is a null: both are sharded, or tensors, or neither is. */
static reshard_status check_pair(const rs_item *a, int64_t first, const rs_item *b, int64_t second) {
  if (rs_item_is_sharded(a) != rs_item_is_sharded(b) || rs_item_is_tensor(a) != rs_item_is_tensor(b))
    return kinds_differ(a, first, b, second);
  return rs_item_is_tensor(a) ? check_alike(a, first, b, second) : RESHARD_SUCCESS;
}

static bool is_null(const rs_item *item) { return rs_item_kind(item) == RESHARD_TREE_NULL; }

/* The path of an item of the lowest rank that has it. found: per rank how many of its leaves are in the list. */
static reshard_status add_path(int64_t n, rs_state_turn *const *turns, const rs_item *first, int64_t rank,
                               int64_t *found, rs_paths *paths) {
  rs_path p = {.item = first, .rank = rank};
  bool alike = rank == 0 && !is_null(first) && !rs_item_by_boxes(first); /* all ranks have it in one layout */
  for (int64_t r = rank + 1; r < n; r++) {
    const rs_item *other = rs_items_find(&turns[r]->items, first->path);
    found[r] += other != NULL;
    alike = alike && other != NULL && !is_null(other);
    if (other == NULL || is_null(other))
      continue;
    if (is_null(p.item)) {
      p.item = other;
      p.rank = r;
      continue;
    }
    RS_TRY(check_pair(p.item, p.rank, other, r));
    alike = alike && (!rs_item_is_sharded(other) || same_layout(p.item, other));
  }
  p.boxes = rs_item_is_sharded(p.item) && !alike;
  RS_TRY(rs_vec_reserve(&paths->all, paths->all.n + 1));
  paths->all.at[paths->all.n++] = p;
  paths->boxes += p.boxes;
  return RESHARD_SUCCESS;
}

/* Has a rank before it the path? */
static bool listed(rs_state_turn *const *turns, int64_t rank, const char *path) {
  bool has = false;
  for (int64_t r = 0; r < rank && !has; r++)
    has = rs_items_find(&turns[r]->items, path) != NULL;
  return has;
}

reshard_status rs_paths_compare(int64_t n, rs_state_turn *const *turns, rs_paths *paths) {
  int64_t *found;
  RS_TRY(rs_alloc_zero(&found, n, sizeof *found));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < n; r++) {
    const rs_items *items = &turns[r]->items;
    for (int64_t i = 0; i < items->all.n && found[r] < items->all.n && status == RESHARD_SUCCESS; i++)
      if (r == 0 || !listed(turns, r, items->all.at[i].path))
        status = add_path(n, turns, &items->all.at[i], r, found, paths);
  }
  free(found);
  return status;
}

void rs_paths_free(rs_paths *paths) {
  free(paths->all.at);
  *paths = (rs_paths){0};
}
