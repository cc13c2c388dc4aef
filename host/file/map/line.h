/* One line of a map, applied to a match. */
#ifndef RS_FILE_MAP_LINE_H
#define RS_FILE_MAP_LINE_H

#include "file/ground/file.h"
#include "file/map/names.h"
#include "file/map/region.h"

/* A map that is being applied. */
typedef struct rs_map_work {
  rs_map_source source;
  char where[RS_WHERE];          /* file and line, before errors of the target's model */
  rs_map_matches matches, spare; /* of the line */
  reshard_model target;
  rs_model_tensor cast;  /* of the line, what a cast says of tensors that one is taken apart in */
  RS_VEC(int64_t) lines; /* per tensor of the target: the line that made it */
  rs_copy_regions regions;
  RS_VEC(int64_t) ends; /* of the parts of the interleaves that are under way */
} rs_map_work;
/* The line for the match: appends what it makes. */
reshard_status rs_map_apply_match(rs_map_work *work);

/* Makes the target's model and the regions to it. map NULL: each tensor whole to itself, in the same order. */
reshard_status rs_map_apply(reshard_map map, reshard_model source, reshard_model *target, rs_copy_regions *regions);

#endif
