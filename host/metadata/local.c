/* Metadata of the shards of one rank. */
#include "metadata/metadata.h"

#include <reshard/tensor.h>

reshard_remote_device rs_placement_of(int64_t global_rank, const reshard_tensor_info *tensor) {
  return (reshard_remote_device){global_rank, tensor->device_type,
                                 tensor->device_type == RESHARD_DEVICE_CPU ? -1 : tensor->device_index};
}

bool rs_placement_fits(const reshard_remote_device *placement, const reshard_tensor_info *tensor) {
  return placement->type == tensor->device_type && (tensor->device_type == RESHARD_DEVICE_CPU || placement->index < 0 ||
                                                    placement->index == tensor->device_index);
}

/* Compares a shard with the tensor that has its data, which is on its device. */
static reshard_status check_tensor(int64_t i, const reshard_shard *s, int ndim, const reshard_tensor_info *info,
                                   int64_t global_rank) {
  char text[RS_PLACEMENT_TEXT], sizes[RS_SHAPE_TEXT], shape[RS_SHAPE_TEXT];
  if (s->placement.rank != global_rank)
    return rs_error(RESHARD_ERROR_INVALID, "shard %lld of rank %lld is placed on %s", (long long)i,
                    (long long)global_rank, rs_placement_text(text, &s->placement));
  if (!rs_placement_fits(&s->placement, info)) {
    char place[RS_PLACEMENT_TEXT];
    const reshard_remote_device is = rs_placement_of(-1, info);
    return rs_error(RESHARD_ERROR_INVALID, "shard %lld is placed on %s, its tensor is on %s", (long long)i,
                    rs_placement_text(text, &s->placement), rs_placement_text(place, &is));
  }
  bool same = info->ndim == ndim;
  for (int d = 0; d < ndim && same; d++)
    same = info->shape[d] == s->box.extent[d];
  if (!same)
    return rs_error(RESHARD_ERROR_INVALID, "shard %lld of rank %lld has sizes %s, its tensor %s", (long long)i,
                    (long long)global_rank, rs_shape_text(sizes, ndim, s->box.extent),
                    rs_shape_text(shape, info->ndim, info->shape));
  return RESHARD_SUCCESS;
}

/* Compares shards within a rank, as PyTorch's _raise_if_mismatch. */
static reshard_status compare_shards(int64_t i, const reshard_tensor_info *first, const reshard_tensor_info *other,
                                     int64_t global_rank) {
  static const char *const flag[2] = {"0", "1"};
  const char *what, *a, *b;
  if (first->dtype != other->dtype) {
    what = "dtype";
    a = reshard_dtype_string(first->dtype);
    b = reshard_dtype_string(other->dtype);
  } else if (!first->requires_grad != !other->requires_grad) {
    what = "requires_grad";
    a = flag[first->requires_grad != 0];
    b = flag[other->requires_grad != 0];
  } else if (!first->pin_memory != !other->pin_memory) {
    what = "pin_memory";
    a = flag[first->pin_memory != 0];
    b = flag[other->pin_memory != 0];
  } else {
    return RESHARD_SUCCESS;
  }
  return rs_error(RESHARD_ERROR_INVALID, "shards 0 and %lld of rank %lld differ in %s: %s and %s", (long long)i,
                  (long long)global_rank, what, a, b);
}

/* Checks and adds the i-th shard. */
static reshard_status add_shard(struct reshard_metadata_s *m, int64_t i, const reshard_local_shard *shard,
                                const reshard_tensor_info *first, int64_t global_rank) {
  const reshard_shard *s = &shard->metadata;
  reshard_tensor_info info;
  if (shard->tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "shard %lld of rank %lld has no tensor", (long long)i,
                    (long long)global_rank);
  RS_TRY(reshard_tensor_get_info(shard->tensor, &info));
  RS_TRY(rs_placement_check("shard", i, &s->placement));
  RS_TRY(check_tensor(i, s, m->ndim, &info, global_rank));
  RS_TRY(compare_shards(i, first, &info, global_rank));
  for (int d = 0; d < m->ndim; d++) {
    m->shards[i].box.offset[d] = s->box.offset[d];
    m->shards[i].box.extent[d] = s->box.extent[d];
  }
  m->shards[i].placement = s->placement;
  return RESHARD_SUCCESS;
}

reshard_status reshard_metadata_build_local(int ndim, const int64_t *shape, int64_t n,
                                            const reshard_local_shard *shards, int64_t global_rank,
                                            reshard_metadata *metadata) {
  if (metadata == NULL || shards == NULL || n < 1)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_metadata_build_local: %lld shards, %s is NULL", (long long)n,
                    metadata == NULL ? "metadata"
                    : shards == NULL ? "shards"
                                     : "nothing");
  reshard_tensor_info first = {.dtype = RESHARD_U8}; /* stands for no tensor, which is an error below */
  if (shards[0].tensor != NULL)
    RS_TRY(reshard_tensor_get_info(shards[0].tensor, &first));
  reshard_properties properties = {first.dtype, RESHARD_MEMORY_CONTIGUOUS, first.requires_grad != 0,
                                   first.pin_memory != 0};
  reshard_metadata made;
  RS_TRY(rs_metadata_new(&properties, ndim, shape, n, &made));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = add_shard(made, i, &shards[i], &first, global_rank);
  RS_THEN(status, rs_metadata_check_shards(made));
  RS_TRY_OR(status, reshard_metadata_release(made));
  *metadata = made;
  return RESHARD_SUCCESS;
}
