/* Gather to one rank or to all, scatter from one: pairs of layouts of which one side is whole tensors. */
#include "sharded/sharder.h"

#include "device/stream.h"

/* One tensor between its shards and whole tensors. */
typedef struct whole_move {
  const char *call, *what; /* what: name of the whole tensor in errors */
  reshard_sharder sharder;
  bool all; /* every rank has a whole tensor; else only `rank` */
  rs_argument rank;
  reshard_dtype dtype; /* of the gathered tensor; NONE: the shards' own */
  rs_local_arrays whole;
  rs_sharder_entry entry;
  rs_cached_plan *plan;
} whole_move;

static reshard_status check_whole(const whole_move *p, reshard_tensor whole) {
  long long me = p->sharder->comm->rank, rank = p->rank.value;
  bool mine = p->all || rank == me;
  if (mine && whole == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld has to give the %s, and gives none", p->call, me, p->what);
  if (!mine && whole != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the %s is rank %lld's to give, and rank %lld gives one", p->call,
                    p->what, rank, me);
  return RESHARD_SUCCESS;
}

/* Makes the layout of the whole tensor, with the shape of the other side's. */
static reshard_status make_layout(whole_move *p, reshard_layout like) {
  static const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};
  int ndim = reshard_layout_ndim(like);
  int64_t size = p->sharder->comm->size;
  const int64_t *shape = reshard_layout_shape(like);
  if (p->all)
    return reshard_layout_create_mesh(ndim, shape, size, 1, &size, NULL, &replicate, NULL, NULL, &p->whole.layout);
  if (p->rank.value < 0 || p->rank.value >= size)
    return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld of a communicator of %lld", p->call, (long long)p->rank.value,
                    (long long)size);
  return reshard_layout_create_single(ndim, shape, size, p->rank.value, &p->whole.layout);
}

static reshard_status wrap_whole(whole_move *p, reshard_dtype dtype, reshard_tensor whole) {
  rs_local_arrays wrapped;
  RS_TRY(check_whole(p, whole));
  RS_TRY(
      rs_local_arrays_wrap(p->what, p->whole.layout, p->sharder->comm->rank, dtype, whole != NULL, &whole, &wrapped));
  rs_local_arrays_free(&p->whole);
  p->whole = wrapped;
  return RESHARD_SUCCESS;
}

static reshard_status prepare_gather(whole_move *p, reshard_sharded_tensor tensor, reshard_tensor out) {
  reshard_dtype dtype = reshard_metadata_properties(tensor->metadata).dtype;
  bool other = p->dtype != RESHARD_DTYPE_NONE && p->dtype != dtype;
  RS_TRY(make_layout(p, tensor->local.layout));
  if (other && !rs_cast_supported(dtype, p->dtype))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: no cast from %s to %s", p->call, reshard_dtype_string(dtype),
                    reshard_dtype_string(p->dtype));
  p->entry =
      (rs_sharder_entry){&tensor->local, &p->whole, .dtype = dtype, .dst_dtype = other ? p->dtype : RESHARD_DTYPE_NONE};
  RS_TRY(rs_sharder_plan(p->sharder, 1, &p->entry, &p->plan));
  return wrap_whole(p, other ? p->dtype : dtype, out);
}

static reshard_status gather_whole(whole_move *p, reshard_sharded_tensor tensor, reshard_tensor out, void *stream) {
  if (tensor == NULL)
    return rs_error_null(p->call, "tensor");
  p->what = "output";
  p->sharder = tensor->sharder;
  reshard_status mine;
  RS_TRY(rs_request_begin(p->call, p->sharder->comm, p->sharder->path, stream, &mine));
  RS_CALL_AS(p->sharder->comm, p->call, 0);
  RS_THEN(mine, prepare_gather(p, tensor, out));
  reshard_status status = rs_sharder_execute_with(p->sharder, p->plan, &p->entry, mine, &p->rank, stream, NULL);
  rs_local_arrays_free(&p->whole);
  return status;
}

reshard_status reshard_sharded_tensor_gather(reshard_sharded_tensor tensor, int64_t dst, reshard_tensor out,
                                             void *stream) {
  whole_move p = {.call = "reshard_sharded_tensor_gather", .rank = {"reshard_sharded_tensor_gather: dst", dst}};
  return gather_whole(&p, tensor, out, stream);
}

reshard_status reshard_sharded_tensor_gather_as(reshard_sharded_tensor tensor, int64_t dst, reshard_dtype dtype,
                                                reshard_tensor out, void *stream) {
  whole_move p = {.call = "reshard_sharded_tensor_gather_as",
                  .rank = {"reshard_sharded_tensor_gather_as: dst", dst},
                  .dtype = dtype};
  return gather_whole(&p, tensor, out, stream);
}

reshard_status reshard_sharded_tensor_gather_all(reshard_sharded_tensor tensor, reshard_tensor out, void *stream) {
  whole_move p = {.call = "reshard_sharded_tensor_gather_all", .all = true, .rank = {"", 0}};
  return gather_whole(&p, tensor, out, stream);
}

static reshard_status prepare_scatter(whole_move *p, reshard_tensor whole, reshard_layout layout,
                                      const reshard_properties *properties, void *stream,
                                      reshard_sharded_tensor *made) {
  RS_TRY(rs_check_new(p->call, p->sharder, layout, properties));
  const rs_local_arrays parts = {.layout = layout};
  RS_TRY(make_layout(p, layout));
  p->entry = (rs_sharder_entry){&p->whole, &parts, .dtype = properties->dtype};
  RS_TRY(rs_sharder_plan(p->sharder, 1, &p->entry, &p->plan));
  RS_TRY(wrap_whole(p, properties->dtype, whole));
  RS_TRY(reshard_sharded_tensor_empty(p->sharder, layout, properties, stream, made));
  p->entry.dst = &(*made)->local;
  return RESHARD_SUCCESS;
}

reshard_status reshard_sharded_tensor_scatter(reshard_sharder sharder, reshard_tensor whole, int64_t src,
                                              reshard_layout layout, const reshard_properties *properties, void *stream,
                                              reshard_sharded_tensor *tensor) {
  whole_move p = {.call = "reshard_sharded_tensor_scatter",
                  .what = "whole tensor",
                  .sharder = sharder,
                  .rank = {"reshard_sharded_tensor_scatter: src", src}};
  if (sharder == NULL)
    return rs_error_null(p.call, "sharder");
  reshard_status mine;
  RS_TRY(rs_request_begin(p.call, sharder->comm, sharder->path, stream, &mine));
  RS_CALL(sharder->comm, 0);
  reshard_sharded_tensor made = NULL;
  RS_THEN(mine, tensor == NULL ? rs_error_null(p.call, "tensor")
                               : prepare_scatter(&p, whole, layout, properties, stream, &made));
  reshard_status status = rs_sharder_execute_with(sharder, p.plan, &p.entry, mine, &p.rank, stream, NULL);
  rs_local_arrays_free(&p.whole);
  return rs_sharded_return(status, made, tensor);
}
