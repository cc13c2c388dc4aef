/* A rank's one shard, from chunks to chunks, as PyTorch's reshard has it. Both of its functions move between a pair of
 * chunk layouts; they are two so that users of PyTorch find them. */
#include "sharded/sharder.h"

#include "metadata/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shard_move {
  const char *call;
  reshard_sharder sharder;
  reshard_local_reshard cuts;
  rs_local_arrays src, dst;
  rs_sharder_entry entry;
  rs_cached_plan *plan;
  void *stream;
} shard_move;

/* Ranks of the communicator, from placements, which name global ranks. */
static reshard_status find_ranks(const reshard_group *group, const reshard_chunk_spec *side, int64_t *ranks) {
  rs_group_map map;
  for (int64_t i = 0; i < side->n; i++)
    ranks[i] = side->placements[i].rank;
  RS_TRY(rs_group_check(&(reshard_group){side->n, ranks}));
  RS_TRY(rs_group_map_create(group, &map));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < side->n && status == RESHARD_SUCCESS; i++)
    status = rs_group_map_find(&map, ranks[i], &ranks[i]);
  rs_group_map_free(&map);
  return status;
}

static reshard_status make_layout(const shard_move *x, const reshard_chunk_spec *side, reshard_layout *layout) {
  char where[128];
  int64_t *ranks;
  snprintf(where, sizeof where, "%s: placements %s", x->call, side == &x->cuts.before ? "before" : "after");
  if (side->n < 1 || side->placements == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld, list %s", where, (long long)side->n,
                    side->placements == NULL ? "NULL" : "given");
  RS_TRY(rs_alloc(&ranks, side->n, sizeof *ranks));
  reshard_status status = rs_error_in(where, find_ranks(&x->sharder->group, side, ranks));
  RS_THEN(status, reshard_layout_create_chunk(x->cuts.ndim, x->cuts.shape, x->sharder->comm->size, side->dim, side->n,
                                              ranks, layout));
  free(ranks);
  return status;
}

static reshard_status wrap_source(shard_move *x, reshard_tensor local) {
  reshard_layout layout = reshard_layout_retain(x->src.layout);
  int64_t n;
  rs_local_arrays wrapped;
  reshard_status status = reshard_layout_array_count(layout, x->sharder->comm->rank, &n);
  if (status == RESHARD_SUCCESS && n == 0 && local != NULL)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: global rank %lld gives a shard, and is not in the placements before",
                      x->call, (long long)rs_group_at(&x->sharder->group, x->sharder->comm->rank));
  RS_THEN(status,
          rs_local_arrays_wrap("local shard", layout, x->sharder->comm->rank, x->cuts.dtype, n, &local, &wrapped));
  if (status == RESHARD_SUCCESS) {
    rs_local_arrays_free(&x->src);
    x->src = wrapped;
  }
  reshard_layout_release(layout);
  return status;
}

static reshard_status create_result(shard_move *x) {
  rs_local_arrays made;
  const reshard_properties properties = {.dtype = x->cuts.dtype};
  RS_TRY(
      rs_local_arrays_create(x->sharder->device, x->dst.layout, x->sharder->comm->rank, &properties, x->stream, &made));
  rs_local_arrays_free(&x->dst);
  x->dst = made;
  return RESHARD_SUCCESS;
}

static reshard_status prepare_move(shard_move *x, bool same_dim, const reshard_local_reshard *cuts,
                                   reshard_tensor local, const reshard_tensor *result) {
  int before, after;
  if (cuts == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: cuts is NULL", x->call);
  RS_TRY(RS_SIZED(reshard_local_reshard, cuts));
  x->cuts = *cuts;
  if (result == NULL)
    return rs_error_null(x->call, "result");
  RS_TRY(rs_metadata_dim(x->call, x->cuts.before.dim, x->cuts.ndim, &before));
  RS_TRY(rs_metadata_dim(x->call, x->cuts.after.dim, x->cuts.ndim, &after));
  if (same_dim && x->cuts.before.n != x->cuts.after.n)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld placements before and %lld after: the chunks are not the same",
                    x->call, (long long)x->cuts.before.n, (long long)x->cuts.after.n);
  if (same_dim && before != after)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d before and %d after: reshard_reshard_local_shard does that",
                    x->call, before, after);
  if (!same_dim && before == after)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d before and after: reshard_reshuffle_local_shard does that",
                    x->call, before);
  RS_TRY(make_layout(x, &x->cuts.before, &x->src.layout));
  RS_TRY(make_layout(x, &x->cuts.after, &x->dst.layout));
  x->entry = (rs_sharder_entry){&x->src, &x->dst, .dtype = x->cuts.dtype};
  RS_TRY(rs_sharder_plan(x->sharder, 1, &x->entry, &x->plan));
  RS_TRY(wrap_source(x, local));
  return create_result(x);
}

/* Collective: the result requires a gradient on all ranks where any rank's shard does. */
static reshard_status agree_on_grad(reshard_comm comm, reshard_tensor local, bool *grad) {
  const char mine = local != NULL && local->info.requires_grad;
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  *grad = memchr(gathered, 1, (size_t)comm->size) != NULL;
  return RESHARD_SUCCESS;
}

static reshard_status move_chunk(shard_move *x, bool same_dim, const reshard_local_reshard *cuts, reshard_tensor local,
                                 reshard_tensor *result) {
  if (x->sharder == NULL)
    return rs_error_null(x->call, "sharder");
  bool grad = false;
  reshard_status mine;
  RS_TRY(rs_request_begin(x->call, x->sharder->comm, x->sharder->path, x->stream, &mine));
  RS_THEN(mine, prepare_move(x, same_dim, cuts, local, result));
  reshard_status status = agree_on_grad(x->sharder->comm, local, &grad);
  if (status == RESHARD_SUCCESS)
    status = rs_sharder_execute(x->sharder, x->plan, &x->entry, mine, x->stream, NULL);
  else
    rs_sharder_end_call(x->sharder);
  if (status == RESHARD_SUCCESS) {
    *result = x->dst.n > 0 ? reshard_tensor_retain(x->dst.arrays[0]) : NULL;
    reshard_tensor_set_requires_grad(*result, grad);
  }
  rs_local_arrays_free(&x->src);
  rs_local_arrays_free(&x->dst);
  return status;
}

reshard_status reshard_reshuffle_local_shard(reshard_sharder sharder, const reshard_local_reshard *cuts,
                                             reshard_tensor local, void *stream, reshard_tensor *result) {
  shard_move x = {.call = "reshard_reshuffle_local_shard", .sharder = sharder, .stream = stream};
  return move_chunk(&x, true, cuts, local, result);
}

reshard_status reshard_reshard_local_shard(reshard_sharder sharder, const reshard_local_reshard *cuts,
                                           reshard_tensor local, void *stream, reshard_tensor *result) {
  shard_move x = {.call = "reshard_reshard_local_shard", .sharder = sharder, .stream = stream};
  return move_chunk(&x, false, cuts, local, result);
}
