/* Nested tensors made flat: a list of shards becomes a plain sharded tensor; flattens all leaves of a tree. */
#include "state/state.h"

#include "metadata/group.h"

#include <stdlib.h>

/* Chooses shards, in their order, that have each box once: mine first where `prefer`, else the first one. Empty boxes
 * all stay. chosen: [shards]. */
static reshard_status choose_shards(const rs_shard_list *flat, const int64_t *order, bool prefer, int64_t *chosen,
                                    int64_t *n) {
  rs_names boxes = {0};
  int64_t all = flat->shards.n, number, before;
  reshard_status status = RESHARD_SUCCESS;
  *n = 0;
  for (int64_t i = 0; i < all && prefer; i++)
    if (flat->shards.at[i].mine)
      RS_TRY_GOTO(status, rs_names_put(&boxes, &flat->shards.at[i].shard.box, sizeof(reshard_box), &number), done);
  for (int64_t i = 0; i < all; i++) {
    const rs_listed_shard *s = &flat->shards.at[order[i]];
    bool stays = prefer && s->mine;
    for (int d = 0; d < flat->ndim && !stays; d++)
      stays = s->shard.box.extent[d] == 0;
    if (!stays) {
      before = boxes.all.n;
      RS_TRY_GOTO(status, rs_names_put(&boxes, &s->shard.box, sizeof s->shard.box, &number), done);
      stays = number == before;
    }
    if (stays)
      chosen[(*n)++] = order[i];
  }
done:
  rs_names_free(&boxes);
  return status;
}

static reshard_status make_metadata(const rs_shard_list *flat, const int64_t *order, int64_t n,
                                    reshard_metadata *metadata) {
  RS_TRY(rs_metadata_new(&flat->properties, flat->ndim, flat->shape, n, metadata));
  for (int64_t i = 0; i < n; i++)
    (*metadata)->shards[i] = flat->shards.at[order[i]].shard;
  return rs_metadata_check_shards(*metadata);
}

/* Makes the metadata of the holders, and of each box once; the two may be one. mine: my tensors in the order of the
 * holders. */
static reshard_status make_both_metadata(const rs_shard_list *flat, bool every, int64_t *order, int64_t *chosen,
                                         reshard_metadata *holders, reshard_metadata *once, reshard_tensor *mine,
                                         int64_t *nmine) {
  int64_t n;
  if (flat->shards.n > 0)
    RS_TRY(rs_sort_by_rank(flat->shards.n, &flat->shards.at->shard.placement.rank, sizeof *flat->shards.at, order));
  RS_TRY(choose_shards(flat, order, !every, chosen, &n));
  RS_TRY(make_metadata(flat, chosen, n, once));
  RS_TRY(reshard_metadata_check(*once));
  if (!every || n == flat->shards.n)
    *holders = reshard_metadata_retain(*once);
  else
    RS_TRY(make_metadata(flat, order, flat->shards.n, holders));
  *nmine = 0;
  const int64_t *list = *holders == *once ? chosen : order;
  for (int64_t i = 0; i < (*holders)->n; i++)
    if (flat->shards.at[list[i]].mine)
      mine[(*nmine)++] = flat->shards.at[list[i]].local;
  return flat->any_flags ? RESHARD_SUCCESS : rs_check_flags(&flat->properties, *nmine, mine);
}

reshard_status rs_shard_list_build(rs_shard_list *flat, bool every, reshard_sharder sharder,
                                   reshard_sharded_tensor *tensor) {
  reshard_metadata holders = NULL, once = NULL;
  reshard_tensor *mine = NULL;
  int64_t *order = NULL, *chosen = NULL, nmine;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&order, flat->shards.n, sizeof *order), done);
  RS_TRY_GOTO(status, rs_alloc(&chosen, flat->shards.n, sizeof *chosen), done);
  RS_TRY_GOTO(status, rs_alloc(&mine, flat->shards.n, sizeof(reshard_tensor)), done);
  RS_TRY_GOTO(status, make_both_metadata(flat, every, order, chosen, &holders, &once, mine, &nmine), done);
  status = rs_sharded_replicated(sharder, holders, once, nmine, mine, tensor);
done:
  reshard_metadata_release(holders);
  reshard_metadata_release(once);
  free(order);
  free(chosen);
  free(mine);
  rs_shard_list_free(flat);
  return status;
}

reshard_status rs_nested_flatten(const rs_nested *nested, const char *path, reshard_sharded_tensor *tensor) {
  rs_shard_list flat;
  reshard_status status = rs_shard_list_nested(nested, &flat);
  RS_THEN(status, rs_shard_list_build(&flat, false, nested->sharder, tensor));
  return status == RESHARD_SUCCESS ? status : rs_path_error(path, status);
}

static reshard_status flatten_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *flat) {
  const rs_nested *nested = rs_leaf_nested(leaf);
  reshard_sharded_tensor tensor;
  (void)user;
  if (nested == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_nested_flatten(nested, path, &tensor));
  return rs_sharded_leaf(tensor, flat);
}

reshard_status reshard_state_flatten_sharded_tensors(reshard_tree state, reshard_tree *flat) {
  RS_TRY(RS_GIVEN("reshard_state_flatten_sharded_tensors", state, flat));
  return reshard_tree_map(state, flatten_leaf, NULL, flat);
}
