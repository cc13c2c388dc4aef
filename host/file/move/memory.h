/* A caller's memory as a store, and the regions that a rank has of it. */
#ifndef RS_FILE_MEMORY_H
#define RS_FILE_MEMORY_H

#include "file/map/region.h"
#include "file/move/store.h"

/* Appends a tensor without arrays. Names are not looked at. */
reshard_status rs_memory_add_tensor(rs_store *store, reshard_dtype dtype, reshard_layout layout);
/* Appends arrays of a rank to the last tensor, in memory: views[a] of array a of the layout. Ranks ascend. */
reshard_status rs_memory_add_arrays(rs_store *store, int64_t rank, const rs_view *views);
/* Views of contiguous buffers, as reshard_checkpoint_read takes them, appended to `views`. what begins the text of the
 * error that a buffer is NULL. */
typedef RS_VEC(rs_view) rs_views;
reshard_status rs_memory_views(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                               void *const *buffers, rs_views *views);
/* Appends regions from a source's tensor to the same boxes of a target's tensor: all that a rank of the target holds.
 * They have nothing else in them, so that nothing else is read, unless both layouts are one. */
reshard_status rs_rank_regions(const rs_store *src, int64_t from, const rs_store *dst, int64_t to, int64_t rank,
                               rs_copy_regions *regions);
/* Appends the region from a whole tensor to a whole tensor of the same shape. */
reshard_status rs_whole_region(int64_t from, const rs_store *dst, int64_t to, rs_copy_regions *regions);

#endif
