/* Inside of metadata. */
#ifndef RS_METADATA_METADATA_H
#define RS_METADATA_METADATA_H

#include "base/text.h"
#include "layout/sort.h"

#include <reshard/metadata.h>
#include <reshard/tensor.h>

#include <stdatomic.h>

struct reshard_metadata_s {
  atomic_int references;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* unused dims are 0, here and in the shards: they are compared as bytes */
  reshard_properties properties;
  int64_t n;
  reshard_shard shards[];
};

/* Makes metadata whose n shards are all 0 and are the caller's to fill in, with one reference. Errors: those of
 * reshard_metadata_create, but for the shards. */
reshard_status rs_metadata_new(const reshard_properties *properties, int ndim, const int64_t *shape, int64_t n,
                               reshard_metadata *out);
/* Checks of reshard_metadata_create: of a shape, of a placement (what names it: "shard"), and of the shards. */
reshard_status rs_metadata_check_shape(int ndim, const int64_t *shape);
reshard_status rs_placement_check(const char *what, int64_t i, const reshard_remote_device *placement);
reshard_status rs_metadata_check_shards(const struct reshard_metadata_s *metadata);
/* Converts dim d of ndim, negative from the end, to 0..ndim-1; what names the caller in the text. */
reshard_status rs_metadata_dim(const char *what, int d, int ndim, int *out);
const char *rs_memory_format_string(reshard_memory_format format);

/* "rank:3/cuda:1"; returns buffer. */
#define RS_PLACEMENT_TEXT 48
const char *rs_placement_text(char buffer[RS_PLACEMENT_TEXT], const reshard_remote_device *device);

/* The placement of a tensor; and: the placement names the device of a tensor. One without a number names every GPU. */
reshard_remote_device rs_placement_of(int64_t global_rank, const struct reshard_tensor_info *tensor);
bool rs_placement_fits(const reshard_remote_device *placement, const struct reshard_tensor_info *tensor);
/* Metadata of a layout, as reshard_metadata_from_layout; without `devices` all placements have this type and no
 * number. */
reshard_status rs_metadata_from_layout(const reshard_properties *properties, reshard_layout layout,
                                       const reshard_group *group, const reshard_remote_device *devices,
                                       reshard_device_type type, reshard_metadata *metadata);

#endif
