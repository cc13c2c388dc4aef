/* Inside of metadata. */
#ifndef RS_METADATA_METADATA_H
#define RS_METADATA_METADATA_H

#include "base/text.h"
#include "layout/sort.h"

#include <reshard/metadata.h>
#include <reshard/tensor.h>

#include <stdatomic.h>

/* Global ranks to ranks of a group, for many look-ups. Errors: no ranks, negative or repeated ones. */
typedef struct rs_group_map {
  const reshard_group *group; /* borrowed */
  rs_pair *sorted;            /* global rank, rank; NULL where they are the same */
} rs_group_map;
reshard_status rs_group_map_create(const reshard_group *group, rs_group_map *out);
void rs_group_map_free(rs_group_map *map);
reshard_status rs_group_map_find(const rs_group_map *map, int64_t global_rank, int64_t *rank);
/* Checks for those errors alone. */
reshard_status rs_group_check(const reshard_group *group);
/* Global rank of a rank of the group; group NULL: the same number. */
static inline int64_t rs_group_at(const reshard_group *group, int64_t rank) {
  return group != NULL && group->ranks != NULL ? group->ranks[rank] : rank;
}
/* Sorts the numbers of n shards by their ranks, `step` bytes apart; -1 comes first, equal ones stay in order. */
reshard_status rs_sort_by_rank(int64_t n, const int64_t *ranks, size_t step, int64_t *order);

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

/* Characters of a placement or a name that an error quotes (rs_quote). */
#define RS_QUOTED 96
bool rs_worker_character(char c);
/* Rank of a name of n characters, -1 where it is not in the table; workers may be NULL. */
int64_t rs_workers_find(reshard_workers workers, const char *name, size_t n);

#endif
