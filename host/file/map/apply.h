/* A map applied to a model. */
#ifndef RS_FILE_MAP_APPLY_H
#define RS_FILE_MAP_APPLY_H

#include "file/map/region.h"

/* Makes the target's model and the regions to it. map NULL: each tensor whole to itself, in the same order. */
reshard_status rs_map_apply(reshard_map map, reshard_model source, reshard_model *target, rs_copy_regions *regions);

#endif
