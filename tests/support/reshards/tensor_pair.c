#include "tensor_pair.h"

#include "base/base.h"

reshard_status tensor_pair_make(reshard_device device, const int64_t shape[2], int64_t world, int64_t rank,
                                void *stream, tensor_pair *p) {
  const int64_t rows[2] = {shape[0] / world, shape[1]}, columns[2] = {shape[0], shape[1] / world};
  *p = (tensor_pair){.src = NULL};
  RS_TRY(reshard_tensor_create_on(device, RESHARD_F32, 2, rows, stream, &p->src));
  RS_TRY(reshard_tensor_create_on(device, RESHARD_F32, 2, columns, stream, &p->dst));
  RS_TRY(reshard_tensor_get_info(p->src, &p->from));
  RS_TRY(reshard_tensor_get_info(p->dst, &p->to));
  p->arrays = (reshard_arrays){RESHARD_ARRAYS_INIT, .src = &p->from.data, .dst = &p->to.data};
  RS_TRY(reshard_layout_parse("chunk(0)", 2, shape, world, &p->rows));
  RS_TRY(reshard_layout_parse("chunk(1)", 2, shape, world, &p->columns));
  const reshard_entry entry = {RESHARD_ENTRY_INIT, .src = p->rows, .dst = p->columns, .dtype = RESHARD_F32};
  return reshard_plan_create(1, &entry, rank, NULL, &p->plan);
}

reshard_status tensor_pair_bind(tensor_pair *p, reshard_comm comm) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
  return reshard_transfer_create(p->plan, comm, &p->arrays, &options, &p->transfer);
}

void tensor_pair_free(tensor_pair *p) {
  reshard_transfer_destroy(p->transfer);
  reshard_plan_destroy(p->plan);
  reshard_layout_release(p->rows);
  reshard_layout_release(p->columns);
  reshard_tensor_release(p->src);
  reshard_tensor_release(p->dst);
}
