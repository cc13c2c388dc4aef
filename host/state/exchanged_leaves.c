/* Tensors of which the ranks have to tell each other what they hold, since no layout of the communicator says it: of
 * smaller groups, nested, or of paths that some ranks lack. Each rank tells its own boxes, with its global rank; equal
 * boxes are replicas. What comes of it is one layout over all ranks for each path. */
#include "metadata/metadata.h"
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

void rs_boxed_free(rs_boxed *boxed) {
  rs_meetings_free(boxed->n, boxed->tensors);
  *boxed = (rs_boxed){0};
}

static reshard_status start(int64_t n, rs_boxed *boxed) {
  *boxed = (rs_boxed){0};
  RS_TRY(rs_alloc_zero(&boxed->tensors, n, sizeof *boxed->tensors));
  boxed->n = n;
  return RESHARD_SUCCESS;
}

static reshard_status copy_path(const char *path, rs_meeting *m) {
  return rs_alloc_copy(&m->path, path, (int64_t)strlen(path) + 1, 1);
}

reshard_status rs_boxed_list(const rs_paths *paths, rs_boxed *boxed) {
  RS_TRY(start(paths->boxes, boxed));
  rs_meeting *m = boxed->tensors;
  for (int64_t i = 0; i < paths->all.n; i++) {
    const rs_item *item = paths->all.at[i].item;
    if (!paths->all.at[i].boxes)
      continue;
    m->flat = (rs_flat){.ndim = rs_item_ndim(item), .properties = {.dtype = rs_item_dtype(item)}};
    memcpy(m->flat.shape, rs_item_shape(item), (size_t)m->flat.ndim * sizeof *m->flat.shape);
    RS_TRY(copy_path(item->path, m++));
  }
  return RESHARD_SUCCESS;
}

/* What this rank has of a tensor; flags of shards are not saved, and need not agree. */
static reshard_status list_mine(reshard_sharder sharder, const rs_items *items, const rs_meeting *wanted,
                                rs_meeting *m) {
  RS_TRY(copy_path(wanted->path, m));
  const rs_item *item = rs_items_find(items, m->path);
  reshard_status status = RESHARD_SUCCESS;
  if (item == NULL || !rs_item_is_sharded(item)) { /* a null */
    m->flat = wanted->flat;                        /* which has no shards */
    m->flat.rank = rs_group_at(&sharder->group, sharder->comm->rank);
  } else if (item->nested != NULL) {
    status = rs_flat_list(item->nested, &m->flat);
  } else {
    status = rs_flat_list_plain(item->sharded, &m->flat);
  }
  m->flat.any_flags = true;
  return status == RESHARD_SUCCESS ? status : rs_path_error(m->path, status);
}

static void take_made(rs_items *items, const rs_boxed *made) {
  for (int64_t i = 0; i < made->n; i++) {
    int64_t number = rs_names_find(&items->names, made->tensors[i].path, strlen(made->tensors[i].path));
    rs_item *item = number >= 0 ? &items->all.at[number] : NULL;
    if (item == NULL || !rs_item_is_sharded(item))
      continue;
    reshard_sharded_tensor_release(item->sharded);
    item->sharded = reshard_sharded_tensor_retain(made->tensors[i].made);
    item->nested = NULL;
    item->boxes = true;
  }
}

reshard_status rs_boxed_meet(reshard_sharder sharder, rs_items *items, const rs_boxed *list, rs_boxed *made) {
  reshard_status status = start(list->n, made);
  for (int64_t i = 0; i < made->n && status == RESHARD_SUCCESS; i++)
    status = list_mine(sharder, items, &list->tensors[i], &made->tensors[i]);
  RS_TRY(rs_flat_meet(sharder, status, made->n, made->tensors));
  take_made(items, made);
  return RESHARD_SUCCESS;
}
