/* Regions moved from store to store. */
#ifndef RS_FILE_MOVE_H
#define RS_FILE_MOVE_H

#include "file/map/region.h"
#include "file/move/store.h"

/* Moves all regions from store to store, by T threads (0: one per core), and no more than there are 4 MiB. The caller's
 * thread takes part and calls progress. compare: nothing is written, what would be is compared with what is there:
 * RESHARD_ERROR_CORRUPT naming tensor, file and offset. only_rank >= 0: arrays of that rank of the target alone, and of
 * a source in memory. */
typedef struct rs_store_move {
  const rs_store *src, *dst;
  int64_t nregions;
  const rs_copy_region *regions;
  int threads;
  bool compare;
  int64_t only_rank;   /* -1: all */
  int64_t *read_bytes; /* grows by what was read of the source's files; may be NULL */
  int (*progress)(void *user, const char *stage, int64_t done, int64_t all);
  void *user;
} rs_store_move;
reshard_status rs_store_move_run(const rs_store_move *move);

/* Gives regions of no tensor (src -1) one of zeros, which is appended to the source. Its dtype is the target's. */
reshard_status rs_zero_regions(rs_store *src, reshard_model target, rs_copy_regions *regions);
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
