/* Trees cast to another dtype: one mapping makes the new tensors and lists the casts, one launch does them all. */
#include "device/stream.h"
#include "tree/move.h"
#include "tree/tree.h"

#include <reshard/move.h>

typedef struct casting {
  reshard_dtype to;
  reshard_device device;
  void *stream;
  rs_casts casts;
} casting;

static reshard_status cast_one(casting *c, reshard_tensor src, reshard_tensor *cast) {
  const reshard_tensor_info *info = &src->info;
  if (!rs_cast_supported(info->dtype, c->to))
    return RESHARD_SUCCESS;
  RS_TRY(rs_tensor_where("reshard_tree_cast", src, c->device));
  reshard_tensor dst;
  RS_TRY(rs_tensor_use("reshard_tree_cast", src, c->stream));
  RS_TRY(reshard_tensor_create_on(c->device, c->to, info->ndim, info->shape, c->stream, &dst));
  RS_TRY_OR(info->elements > 0 ? rs_tensor_list_cast(&c->casts, src, dst) : RESHARD_SUCCESS,
            reshard_tensor_release(dst));
  reshard_tensor_set_requires_grad(dst, info->requires_grad);
  *cast = dst;
  return RESHARD_SUCCESS;
}

static reshard_status cast_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *cast) {
  reshard_status status = cast_one(user, tensor, cast);
  return status == RESHARD_SUCCESS ? status : rs_path_error(path, status);
}

reshard_status reshard_tree_cast(reshard_tree tree, reshard_dtype to, reshard_device device, void *stream,
                                 reshard_tree *cast) {
  RS_TRY(RS_GIVEN("reshard_tree_cast", tree, device, cast));
  if (!rs_cast_knows(to))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "reshard_tree_cast: to %s, which is no floating dtype with casts",
                    reshard_dtype_string(to));
  RS_TRY(rs_stream_check(device->device, stream, "reshard_tree_cast"));
  casting c = {.to = to, .device = device, .stream = stream};
  reshard_tree made;
  reshard_status status = reshard_tree_map_tensors(tree, cast_tensor, &c, &made);
  if (status == RESHARD_SUCCESS && c.casts.cast.n > 0) {
    status = device->device->work->cast(device->device, &c.casts, stream);
    if (status != RESHARD_SUCCESS)
      reshard_tree_release(made);
  }
  rs_casts_free(&c.casts);
  if (status == RESHARD_SUCCESS)
    *cast = made;
  return status;
}
