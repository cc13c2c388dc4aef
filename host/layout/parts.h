/* Parts of a placement: checked, and kept as sizes that add up. */
#ifndef RS_LAYOUT_PARTS_H
#define RS_LAYOUT_PARTS_H

#include "layout/layout.h"

/* Copies the parts of all placements into the layout, whose placements are without them. A ratio becomes sizes, pieces
 * that are no fewer than the ranks become 0, and what one part says no longer is left out. Errors:
 * RESHARD_ERROR_INVALID, with the numbers; RESHARD_ERROR_UNSUPPORTED: too many parts. */
reshard_status rs_parts_keep(struct reshard_layout_s *layout, const reshard_placement *given);
void rs_parts_free(struct reshard_layout_s *layout);
/* The cut of a mesh dim that has a Shard, of parts or not. Where all parts are in as many pieces, fewer than there are
 * ranks, *replica is what is left of the mesh dim (n 1: nothing). */
rs_cut rs_parts_cut(const struct reshard_layout_s *layout, int mesh_dim, int64_t stride, rs_replica *replica);
/* {4096,1024/8}: sizes, or a ratio. */
void rs_parts_text(rs_text *text, const reshard_placement *placement);

#endif
