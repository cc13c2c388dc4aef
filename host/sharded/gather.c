/* To one rank, to all ranks, from one rank: pairs of layouts of which one side is whole tensors. */
#include "sharded/sharder.h"

/* One tensor between a sharded one and whole ones. */
typedef struct passage {
  const char *call, *what; /* what: the whole tensor's name in errors */
  reshard_sharder sharder;
  bool all;     /* every rank has a whole tensor; else */
  int64_t rank; /* this one */
  rs_held whole;
  rs_leg leg;
  rs_planned *planned;
} passage;

static reshard_status check_place(const passage *p, reshard_tensor whole) {
  long long me = p->sharder->comm->rank, size = p->sharder->comm->size, rank = p->rank;
  if (!p->all && (rank < 0 || rank >= size))
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld of a communicator of %lld", p->call, rank, size);
  bool mine = p->all || rank == me;
  if (mine && whole == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld has to give the %s, and gives none", p->call, me, p->what);
  if (!mine && whole != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the %s is rank %lld's to give, and rank %lld gives one", p->call,
                    p->what, rank, me);
  return RESHARD_SUCCESS;
}

/* The side of the whole tensors, of the shape of the other side's layout. */
static reshard_status take_whole(passage *p, reshard_layout like, reshard_dtype dtype, reshard_tensor whole) {
  static const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};
  int ndim = reshard_layout_ndim(like);
  int64_t size = p->sharder->comm->size;
  const int64_t *shape = reshard_layout_shape(like);
  reshard_layout layout;
  RS_TRY(check_place(p, whole));
  RS_TRY(p->all ? reshard_layout_create_mesh(ndim, shape, size, 1, &size, NULL, &replicate, NULL, NULL, &layout)
                : reshard_layout_create_single(ndim, shape, size, p->rank, &layout));
  reshard_status status =
      rs_held_wrap(p->what, layout, p->sharder->comm->rank, dtype, whole != NULL, &whole, &p->whole);
  reshard_layout_release(layout);
  return status;
}

static reshard_status prepare_gather(passage *p, reshard_sharded_tensor tensor, reshard_tensor out) {
  reshard_dtype dtype = reshard_metadata_properties(tensor->metadata).dtype;
  RS_TRY(take_whole(p, tensor->held.layout, dtype, out));
  p->leg = (rs_leg){&tensor->held, &p->whole, dtype};
  return rs_sharder_plan(p->sharder, 1, &p->leg, &p->planned);
}

static reshard_status gather(passage *p, reshard_sharded_tensor tensor, reshard_tensor out, void *stream) {
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor is NULL", p->call);
  p->what = "output";
  p->sharder = tensor->sharder;
  reshard_status mine = prepare_gather(p, tensor, out);
  reshard_status status = rs_sharder_move(p->sharder, p->planned, &p->leg, mine, stream, NULL);
  rs_held_free(&p->whole);
  return status;
}

reshard_status reshard_sharded_tensor_gather(reshard_sharded_tensor tensor, int64_t dst, reshard_tensor out,
                                             void *stream) {
  passage p = {.call = "reshard_sharded_tensor_gather", .rank = dst};
  return gather(&p, tensor, out, stream);
}

reshard_status reshard_sharded_tensor_gather_all(reshard_sharded_tensor tensor, reshard_tensor out, void *stream) {
  passage p = {.call = "reshard_sharded_tensor_gather_all", .all = true};
  return gather(&p, tensor, out, stream);
}

static reshard_status prepare_scatter(passage *p, reshard_tensor whole, reshard_layout layout,
                                      const reshard_properties *properties, void *stream,
                                      reshard_sharded_tensor *made) {
  RS_TRY(rs_check_new(p->call, p->sharder, layout, properties));
  RS_TRY(take_whole(p, layout, properties->dtype, whole));
  RS_TRY(reshard_sharded_tensor_empty(p->sharder, layout, properties, stream, made));
  p->leg = (rs_leg){&p->whole, &(*made)->held, properties->dtype};
  return rs_sharder_plan(p->sharder, 1, &p->leg, &p->planned);
}

reshard_status reshard_sharded_tensor_scatter(reshard_sharder sharder, reshard_tensor whole, int64_t src,
                                              reshard_layout layout, const reshard_properties *properties, void *stream,
                                              reshard_sharded_tensor *tensor) {
  passage p = {.call = "reshard_sharded_tensor_scatter", .what = "whole tensor", .sharder = sharder, .rank = src};
  if (sharder == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: sharder is NULL", p.call);
  reshard_sharded_tensor made = NULL;
  reshard_status mine = tensor == NULL ? rs_error(RESHARD_ERROR_INVALID, "%s: tensor is NULL", p.call)
                                       : prepare_scatter(&p, whole, layout, properties, stream, &made);
  reshard_status status = rs_sharder_move(sharder, p.planned, &p.leg, mine, stream, NULL);
  rs_held_free(&p.whole);
  if (status == RESHARD_SUCCESS)
    *tensor = made;
  else
    reshard_sharded_tensor_release(made);
  return status;
}
