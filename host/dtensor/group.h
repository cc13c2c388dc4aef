/* Groups of ranks that act together on DTensors, and layouts that are made once: kept with the sharder. */
#ifndef RS_DTENSOR_GROUP_H
#define RS_DTENSOR_GROUP_H

#include "dtensor/dtensor.h"

/* The sharder of a sub-mesh's group. The root, retained, owns the group's communicator. */
typedef struct rs_group_sharder {
  reshard_mesh root;
  reshard_sharder sharder;
} rs_group_sharder;
/* Attached to the sharder that DTensors are made with; or to that of a group. */
typedef struct rs_dtensor_cache {
  reshard_sharder made_for;                  /* a group's: the sharder that owns it; NULL: it is a user's */
  RS_VEC(rs_group_sharder) groups;           /* group.c */
  RS_VEC(struct rs_cached_layout *) layouts; /* used last first (layouts.c) */
} rs_dtensor_cache;
/* The cache of a sharder, made when it is first asked for (group.c). */
reshard_status rs_dtensor_cache_get(reshard_sharder sharder, rs_dtensor_cache **cache);
void rs_cached_layout_free(struct rs_cached_layout *cached);

/* The ranks that act together in a placing. Those of a sub-mesh (a part with fewer ranks than its root) act alone, each
 * group for itself, in ranks of the group. Else all ranks of the communicator do. */
typedef struct rs_placing_group {
  reshard_sharder sharder; /* given, or made for the group and owned by it */
  reshard_comm comm;       /* of the sharder; NULL: the group has none */
  bool outside; /* this rank is not of the sub-mesh: it takes no part, and its layouts have ranks of the communicator */
} rs_placing_group;
/* Checks the placing; call begins the errors. *group is written in any case: with no success its comm has the ranks to
 * agree with. */
reshard_status rs_placing_group_find(const char *call, reshard_sharder given, const reshard_placing *placing,
                                     rs_placing_group *group);
/* Both meshes are sub-meshes of the same ranks in the same order. */
bool rs_same_group(reshard_mesh a, reshard_mesh b);
/* Layout of a tensor, one reference, cached by the sharder. It has the ranks of the sharder: of a group's, or of the
 * one whose communicator the mesh is of. */
reshard_status rs_placing_layout(const char *call, reshard_sharder sharder, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout);
/* RESHARD_ERROR_UNSUPPORTED, and why, where ranks of a layout share parts (/n): each then has several arrays. */
reshard_status rs_dtensor_check_parts(const char *call, const struct reshard_layout_s *layout);

#endif
