/* Regions moved from store to store. */
#ifndef RS_FILE_MOVE_H
#define RS_FILE_MOVE_H

#include "file/map/region.h"
#include "file/move/store.h"

/* Moves all regions from store to store, by T threads (0: one per core). The caller's thread takes part and
 * calls progress. compare: nothing is written, what would be is compared with what is there: RESHARD_ERROR_CORRUPT
 * naming tensor, file and offset. only_rank >= 0: arrays of that rank of the target alone, and of a source in memory.
 */
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

#endif
