/* Tensors of a state whose shards the ranks exchange, since no layout of the communicator describes them: those of
 * smaller groups, nested ones, or of paths that some ranks lack. Each rank sends its own boxes with its global rank;
 * equal boxes are replicas. The result is one layout over all ranks for each path. */
#include "metadata/group.h"
#include "state/checkpoint.h"

#include <string.h>

void rs_exchanged_leaves_free(rs_exchanged_leaves *exchanged) {
  rs_exchanged_tensors_free(exchanged->n, exchanged->tensors);
  *exchanged = (rs_exchanged_leaves){0};
}

static reshard_status alloc_tensors(int64_t n, rs_exchanged_leaves *exchanged) {
  *exchanged = (rs_exchanged_leaves){0};
  RS_TRY(rs_alloc_zero(&exchanged->tensors, n, sizeof *exchanged->tensors));
  exchanged->n = n;
  return RESHARD_SUCCESS;
}

reshard_status rs_exchanged_leaves_list(const rs_state_paths *paths, rs_exchanged_leaves *exchanged) {
  RS_TRY(alloc_tensors(paths->exchanged, exchanged));
  rs_exchanged_tensor *m = exchanged->tensors;
  for (int64_t i = 0; i < paths->all.n; i++) {
    const rs_state_leaf *leaf = paths->all.at[i].leaf;
    if (!paths->all.at[i].exchanged)
      continue;
    m->flat = (rs_shard_list){.ndim = rs_state_leaf_ndim(leaf), .properties = {.dtype = rs_state_leaf_dtype(leaf)}};
    memcpy(m->flat.shape, rs_state_leaf_shape(leaf), (size_t)m->flat.ndim * sizeof *m->flat.shape);
    RS_TRY(rs_alloc_copy(&m->path, leaf->path, (int64_t)strlen(leaf->path) + 1, 1));
    m++;
  }
  return RESHARD_SUCCESS;
}

/* Lists this rank's shards of a tensor; flags of shards are not saved, and need not agree. */
static reshard_status list_local_shards(reshard_sharder sharder, const rs_state_leaves *leaves,
                                        const rs_exchanged_tensor *wanted, rs_exchanged_tensor *m) {
  RS_TRY(rs_alloc_copy(&m->path, wanted->path, (int64_t)strlen(wanted->path) + 1, 1));
  const rs_state_leaf *leaf = rs_state_leaves_find(leaves, m->path);
  reshard_status status = RESHARD_SUCCESS;
  if (leaf == NULL || !rs_state_leaf_is_sharded(leaf)) { /* a null, which has no shards */
    m->flat = wanted->flat;
    m->flat.rank = rs_group_at(&sharder->group, sharder->comm->rank);
  } else if (leaf->nested != NULL) {
    status = rs_shard_list_nested(leaf->nested, &m->flat);
  } else {
    status = rs_shard_list_plain(leaf->sharded, &m->flat);
  }
  m->flat.any_flags = true;
  return status == RESHARD_SUCCESS ? status : rs_path_error(m->path, status);
}

static void replace_leaves(rs_state_leaves *leaves, const rs_exchanged_leaves *made) {
  for (int64_t i = 0; i < made->n; i++) {
    int64_t number = rs_names_find(&leaves->names, made->tensors[i].path, strlen(made->tensors[i].path));
    rs_state_leaf *leaf = number >= 0 ? &leaves->all.at[number] : NULL;
    if (leaf == NULL || !rs_state_leaf_is_sharded(leaf))
      continue;
    reshard_sharded_tensor_release(leaf->sharded);
    leaf->sharded = reshard_sharded_tensor_retain(made->tensors[i].made);
    leaf->nested = NULL;
    leaf->exchanged = true;
  }
}

reshard_status rs_exchange_leaves(reshard_sharder sharder, rs_state_leaves *leaves, const rs_exchanged_leaves *list,
                                  rs_exchanged_leaves *made) {
  reshard_status status = alloc_tensors(list->n, made);
  for (int64_t i = 0; i < made->n && status == RESHARD_SUCCESS; i++)
    status = list_local_shards(sharder, leaves, &list->tensors[i], &made->tensors[i]);
  RS_TRY(rs_exchange_shards(sharder, status, made->n, made->tensors));
  replace_leaves(leaves, made);
  return RESHARD_SUCCESS;
}
