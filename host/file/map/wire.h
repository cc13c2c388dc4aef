/* Bytes that a conversion would move between ranks, were both sides in their memory. */
#ifndef RS_FILE_WIRE_H
#define RS_FILE_WIRE_H

#include "file/map/region.h"

typedef struct rs_wire {
  const struct reshard_model_s *source, *target;
  const rs_copy_regions *regions;
  int64_t nsrc;                                    /* layouts of the source, NULL for what no region takes */
  const reshard_layout *src_layouts, *dst_layouts; /* by tensor */
  int64_t world;                                   /* of the target */
} rs_wire;
/* The narrower dtype of both sides travels, and values with their scales where both sides have whole blocks; else the
 * wide dtype of these. -1 where counting takes too long. */
reshard_status rs_wire_count(const rs_wire *wire, int64_t *bytes);

#endif
