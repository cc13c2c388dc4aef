/* Nested tensors made flat: the list of shards that one is becomes a plain sharded tensor; and the tree in which all of
 * them are, which is a mapping of its leaves. */
#include "state/state.h"

#include "layout/sort.h"
#include "metadata/metadata.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of the shards by rank, each box once: mine, or that of the lowest rank. Empty boxes all stay. */
static reshard_status choose(const rs_flat *flat, int64_t *order, int64_t *n) {
  rs_names boxes = {0};
  rs_pair *pairs = NULL, *spare = NULL, *sorted;
  int64_t all = flat->shards.n, number, before;
  uint64_t most = 0;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&pairs, all, sizeof *pairs), done);
  RS_TRY_GOTO(status, rs_alloc(&spare, all, sizeof *spare), done);
  for (int64_t i = 0; i < all; i++) {
    const rs_flat_shard *s = &flat->shards.at[i];
    pairs[i] = (rs_pair){(uint64_t)(s->shard.placement.rank + 1), (uint64_t)i}; /* -1: none, and refused later */
    most = most > pairs[i].key ? most : pairs[i].key;
    if (s->mine)
      RS_TRY_GOTO(status, rs_names_put(&boxes, &s->shard.box, sizeof s->shard.box, &number), done);
  }
  sorted = rs_sort_pairs(pairs, spare, all, false, 0, rs_bits(most));
  *n = 0;
  for (int64_t i = 0; i < all; i++) {
    const rs_flat_shard *s = &flat->shards.at[sorted[i].value];
    bool stays = s->mine;
    for (int d = 0; d < flat->ndim && !stays; d++)
      stays = s->shard.box.extent[d] == 0;
    if (!stays) {
      before = boxes.all.n;
      RS_TRY_GOTO(status, rs_names_put(&boxes, &s->shard.box, sizeof s->shard.box, &number), done);
      stays = number == before;
    }
    if (stays)
      order[(*n)++] = (int64_t)sorted[i].value;
  }
done:
  rs_names_free(&boxes);
  free(pairs);
  free(spare);
  return status;
}

/* Metadata of the chosen shards, and my tensors in their order. */
static reshard_status take_chosen(const rs_flat *flat, const int64_t *order, int64_t n, reshard_metadata *metadata,
                                  reshard_tensor *mine, int64_t *nmine) {
  reshard_metadata m;
  RS_TRY(rs_metadata_new(&flat->properties, flat->ndim, flat->shape, n, &m));
  *nmine = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_flat_shard *s = &flat->shards.at[order[i]];
    m->shards[i] = s->shard;
    if (s->mine)
      mine[(*nmine)++] = s->local;
  }
  *metadata = m;
  RS_TRY(rs_metadata_check_shards(m));
  return reshard_metadata_check(m);
}

reshard_status rs_flat_finish(rs_flat *flat, reshard_sharder sharder, reshard_sharded_tensor *tensor) {
  reshard_metadata metadata = NULL;
  reshard_tensor *mine = NULL;
  int64_t *order = NULL, n, nmine;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&order, flat->shards.n, sizeof *order), done);
  RS_TRY_GOTO(status, rs_alloc(&mine, flat->shards.n, sizeof(reshard_tensor)), done);
  RS_TRY_GOTO(status, choose(flat, order, &n), done);
  RS_TRY_GOTO(status, take_chosen(flat, order, n, &metadata, mine, &nmine), done);
  status = reshard_sharded_tensor_from_metadata(sharder, metadata, nmine, mine, tensor);
done:
  reshard_metadata_release(metadata);
  free(order);
  free(mine);
  rs_flat_free(flat);
  return status;
}

reshard_status rs_nested_flatten(const rs_nested *nested, const char *path, reshard_sharded_tensor *tensor) {
  rs_flat flat;
  reshard_status status = rs_flat_list(nested, &flat);
  if (status == RESHARD_SUCCESS)
    status = rs_flat_finish(&flat, nested->sharder, tensor);
  return status == RESHARD_SUCCESS ? status : rs_path_error(path, status);
}

static reshard_status flatten_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *flat) {
  const rs_nested *nested = rs_leaf_nested(leaf);
  reshard_sharded_tensor tensor;
  (void)user;
  if (nested == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_nested_flatten(nested, path, &tensor));
  reshard_status status = reshard_state_sharded(tensor, flat);
  reshard_sharded_tensor_release(tensor);
  return status;
}

reshard_status reshard_state_flatten_sharded_tensors(reshard_tree state, reshard_tree *flat) {
  if (state == NULL || flat == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_flatten_sharded_tensors: %s is NULL",
                    state == NULL ? "state" : "flat");
  return reshard_tree_map(state, flatten_leaf, NULL, flat);
}
