/* Ranks of a group. */
#ifndef RS_METADATA_GROUP_H
#define RS_METADATA_GROUP_H

#include "metadata/metadata.h"

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

#endif
