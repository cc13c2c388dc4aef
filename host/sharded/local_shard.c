/* A rank's one shard, from chunks to chunks, as PyTorch's reshard has it. Both of its functions move between a pair of
 * chunk layouts; they are two so that users of PyTorch find them. */
#include "sharded/sharder.h"

#include "metadata/metadata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One side: dim cut over placements. */
typedef struct chunks {
  int dim;
  int64_t n;
  const reshard_remote_device *placements;
} chunks;

typedef struct shard_move {
  const char *call;
  reshard_sharder sharder;
  reshard_dtype dtype;
  int ndim;
  const int64_t *shape;
  chunks before, after;
  rs_local_arrays src, dst;
  rs_sharder_entry entry;
  rs_cached_plan *plan;
  void *stream;
} shard_move;

/* Ranks of the communicator, from placements, which name global ranks. */
static reshard_status find_ranks(const reshard_group *group, const chunks *side, int64_t *ranks) {
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

static reshard_status make_layout(const shard_move *x, const chunks *side, reshard_layout *layout) {
  char where[128];
  int64_t *ranks;
  snprintf(where, sizeof where, "%s: placements %s", x->call, side == &x->before ? "before" : "after");
  if (side->n < 1 || side->placements == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld, list %s", where, (long long)side->n,
                    side->placements == NULL ? "NULL" : "given");
  RS_TRY(rs_alloc(&ranks, side->n, sizeof *ranks));
  reshard_status status = rs_error_in(where, find_ranks(&x->sharder->group, side, ranks));
  if (status == RESHARD_SUCCESS)
    status = reshard_layout_create_chunk(x->ndim, x->shape, x->sharder->comm->size, side->dim, side->n, ranks, layout);
  free(ranks);
  return status;
}

static reshard_status wrap_source(shard_move *x, reshard_tensor local) {
  reshard_layout layout;
  int64_t n;
  RS_TRY(make_layout(x, &x->before, &layout));
  reshard_status status = reshard_layout_array_count(layout, x->sharder->comm->rank, &n);
  if (status == RESHARD_SUCCESS && n == 0 && local != NULL)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: global rank %lld gives a shard, and is not in the placements before",
                      x->call, (long long)rs_group_at(&x->sharder->group, x->sharder->comm->rank));
  if (status == RESHARD_SUCCESS)
    status = rs_local_arrays_wrap("local shard", layout, x->sharder->comm->rank, x->dtype, n, &local, &x->src);
  reshard_layout_release(layout);
  return status;
}

static reshard_status create_result(shard_move *x) {
  reshard_layout layout;
  const reshard_properties properties = {.dtype = x->dtype};
  RS_TRY(make_layout(x, &x->after, &layout));
  reshard_status status =
      rs_local_arrays_create(x->sharder->device, layout, x->sharder->comm->rank, &properties, x->stream, &x->dst);
  reshard_layout_release(layout);
  return status;
}

static reshard_status prepare_move(shard_move *x, bool same_dim, reshard_tensor local, const reshard_tensor *result) {
  int before, after;
  if (result == NULL)
    return rs_error_null(x->call, "result");
  RS_TRY(rs_metadata_dim(x->call, x->before.dim, x->ndim, &before));
  RS_TRY(rs_metadata_dim(x->call, x->after.dim, x->ndim, &after));
  if (same_dim && x->before.n != x->after.n)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld placements before and %lld after: the chunks are not the same",
                    x->call, (long long)x->before.n, (long long)x->after.n);
  if (!same_dim && before == after)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d before and after: reshard_reshuffle_local_shard does that",
                    x->call, before);
  RS_TRY(wrap_source(x, local));
  RS_TRY(create_result(x));
  x->entry = (rs_sharder_entry){&x->src, &x->dst, x->dtype};
  return rs_sharder_plan(x->sharder, 1, &x->entry, &x->plan);
}

/* Collective: the result requires a gradient on all ranks where any rank's shard does. */
static reshard_status agree_on_grad(reshard_comm comm, reshard_tensor local, bool *grad) {
  const char mine = local != NULL && local->info.requires_grad;
  const void *gathered;
  RS_TRY(comm->ops->allgather(comm, &mine, sizeof mine, &gathered));
  *grad = memchr(gathered, 1, (size_t)comm->size) != NULL;
  return RESHARD_SUCCESS;
}

static reshard_status move_chunk(shard_move *x, bool same_dim, reshard_tensor local, reshard_tensor *result) {
  if (x->sharder == NULL)
    return rs_error_null(x->call, "sharder");
  bool grad = false;
  reshard_status mine = prepare_move(x, same_dim, local, result);
  reshard_status status = agree_on_grad(x->sharder->comm, local, &grad);
  if (status == RESHARD_SUCCESS)
    status = rs_sharder_execute(x->sharder, x->plan, &x->entry, mine, x->stream, NULL);
  if (status == RESHARD_SUCCESS) {
    *result = x->dst.n > 0 ? reshard_tensor_retain(x->dst.arrays[0]) : NULL;
    reshard_tensor_set_requires_grad(*result, grad);
  }
  rs_local_arrays_free(&x->src);
  rs_local_arrays_free(&x->dst);
  return status;
}

reshard_status reshard_reshuffle_local_shard(reshard_sharder sharder, reshard_dtype dtype, int ndim,
                                             const int64_t *shape, int dim, int64_t n,
                                             const reshard_remote_device *before, int64_t m,
                                             const reshard_remote_device *after, reshard_tensor local, void *stream,
                                             reshard_tensor *result) {
  shard_move x = {.call = "reshard_reshuffle_local_shard",
                  .sharder = sharder,
                  .dtype = dtype,
                  .ndim = ndim,
                  .shape = shape,
                  .before = {dim, n, before},
                  .after = {dim, m, after},
                  .stream = stream};
  return move_chunk(&x, true, local, result);
}

reshard_status reshard_reshard_local_shard(reshard_sharder sharder, reshard_dtype dtype, int ndim, const int64_t *shape,
                                           int dim_before, int64_t n, const reshard_remote_device *before,
                                           int dim_after, int64_t m, const reshard_remote_device *after,
                                           reshard_tensor local, void *stream, reshard_tensor *result) {
  shard_move x = {.call = "reshard_reshard_local_shard",
                  .sharder = sharder,
                  .dtype = dtype,
                  .ndim = ndim,
                  .shape = shape,
                  .before = {dim_before, n, before},
                  .after = {dim_after, m, after},
                  .stream = stream};
  return move_chunk(&x, false, local, result);
}
