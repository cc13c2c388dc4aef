/* Another tree, in which what was nested is flat.
 *
 * The tree is gone through once, each node once, however many containers it is in, and what has to become of something
 * is noted: containers and nested tensors, children before parents. Then the nested ones are made flat - on this rank
 * alone, or after all ranks have told each other what they have of them - and containers follow in that order: one of
 * which no child has changed is the same node again. */
#include "state/flatten.h"

#include "metadata/metadata.h"

#include <stdlib.h>
#include <string.h>

/* --- A list of shards to a sharded tensor --------------------------------------------------------------------- */

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

reshard_status rs_nested_flatten(reshard_state nested, const char *path, reshard_sharded_tensor *tensor) {
  rs_flat flat;
  reshard_status status = rs_flat_list(nested, &flat);
  if (status == RESHARD_SUCCESS)
    status = rs_flat_finish(&flat, nested->nested.sharder, tensor);
  return status == RESHARD_SUCCESS ? status : rs_state_path_error(path, status);
}

/* --- What there is to change ---------------------------------------------------------------------------------- */

void rs_changes_free(rs_changes *c) {
  for (int64_t i = 0; i < c->all.n; i++) {
    free(c->all.at[i].path);
    reshard_state_release(c->all.at[i].made);
  }
  rs_names_free(&c->numbers);
  free(c->all.at);
  free(c->order.at);
  rs_walk_free(&c->walk);
}

static bool matters(reshard_state node) { return rs_state_holds(node) || node->kind == RESHARD_STATE_NESTED; }

static reshard_status leave(rs_changes *c, reshard_state node) {
  RS_TRY(rs_vec_reserve(&c->order, c->order.n + 1));
  c->order.at[c->order.n++] = rs_names_find(&c->numbers, &node, sizeof node);
  return RESHARD_SUCCESS;
}

static reshard_status meet(rs_changes *c, const reshard_state *slot) {
  reshard_state node = *slot;
  int64_t number;
  if (!matters(node))
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&c->all, c->all.n + 1));
  RS_TRY(rs_names_put(&c->numbers, slot, sizeof *slot, &number));
  if (number < c->all.n)
    return RESHARD_SUCCESS;
  c->all.at[c->all.n++] = (rs_change){.node = node};
  if (rs_state_holds(node))
    return rs_walk_enter(&c->walk, node);
  const char *path = c->walk.stack.n > 0 ? c->walk.path.at : "";
  RS_TRY(rs_alloc_copy(&c->all.at[number].path, path, (int64_t)strlen(path) + 1, 1));
  return leave(c, node);
}

reshard_status rs_changes_find(rs_changes *c, const reshard_state *root) {
  RS_TRY(meet(c, root));
  while (c->walk.stack.n > 0) {
    reshard_state container = c->walk.stack.at[c->walk.stack.n - 1].node;
    const rs_child *child;
    RS_TRY(rs_walk_next(&c->walk, &child));
    RS_TRY(child != NULL ? meet(c, &child->node) : leave(c, container));
  }
  return RESHARD_SUCCESS;
}

rs_change *rs_changes_next(rs_changes *c, int64_t *i) {
  while (*i < c->order.n) {
    rs_change *change = &c->all.at[c->order.at[(*i)++]];
    if (change->node->kind == RESHARD_STATE_NESTED)
      return change;
  }
  return NULL;
}

/* --- The tree again ------------------------------------------------------------------------------------------- */

reshard_status rs_change_put(rs_change *change, reshard_sharded_tensor tensor) {
  reshard_status status = reshard_state_sharded(tensor, &change->made);
  reshard_sharded_tensor_release(tensor);
  return status;
}

/* What a node has become; itself where it has not changed. */
static reshard_state now(const rs_changes *c, reshard_state node) {
  int64_t number = matters(node) ? rs_names_find(&c->numbers, &node, sizeof node) : -1;
  return number >= 0 && c->all.at[number].made != NULL ? c->all.at[number].made : node;
}

/* A copy of the container, if one of its children has changed. */
static reshard_status copy_changed(const rs_changes *c, rs_change *container) {
  const rs_child *children = container->node->children.at;
  int64_t n = container->node->children.n;
  bool changed = false;
  for (int64_t i = 0; i < n && !changed; i++)
    changed = now(c, children[i].node) != children[i].node;
  if (!changed)
    return RESHARD_SUCCESS;
  RS_TRY(rs_state_new("", container->node->kind, &container->made));
  for (int64_t i = 0; i < n; i++)
    RS_TRY(rs_state_add(container->made, children[i].key, now(c, children[i].node)));
  return RESHARD_SUCCESS;
}

reshard_status rs_changes_apply(rs_changes *c, const reshard_state *root, reshard_state *made) {
  for (int64_t i = 0; i < c->order.n; i++) {
    rs_change *change = &c->all.at[c->order.at[i]];
    if (rs_state_holds(change->node))
      RS_TRY(copy_changed(c, change));
  }
  *made = reshard_state_retain(now(c, *root));
  return RESHARD_SUCCESS;
}

/* --- On this rank alone --------------------------------------------------------------------------------------- */

static reshard_status flatten_here(rs_changes *c) {
  int64_t i = 0;
  for (rs_change *change; (change = rs_changes_next(c, &i)) != NULL;) {
    reshard_sharded_tensor tensor;
    RS_TRY(rs_nested_flatten(change->node, change->path, &tensor));
    RS_TRY(rs_change_put(change, tensor));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_state_flatten_sharded_tensors(reshard_state state, reshard_state *flat) {
  if (state == NULL || flat == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_state_flatten_sharded_tensors: %s is NULL",
                    state == NULL ? "state" : "flat");
  rs_changes changes = {0};
  reshard_status status = rs_changes_find(&changes, &state);
  if (status == RESHARD_SUCCESS)
    status = flatten_here(&changes);
  if (status == RESHARD_SUCCESS)
    status = rs_changes_apply(&changes, &state, flat);
  rs_changes_free(&changes);
  return status;
}
