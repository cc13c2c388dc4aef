/* Blocks of indices, each with one scale. */
#ifndef RS_LAYOUT_BLOCKS_H
#define RS_LAYOUT_BLOCKS_H

#include "layout/layout.h"

/* A run of indices of a rank, or a part of a dim, that begins or ends at `at`, within a block; dim -1: none does. */
typedef struct rs_block_cut {
  int64_t rank;
  int dim;
  int64_t at;
} rs_block_cut;
reshard_status rs_layout_find_cut(reshard_layout layout, const int64_t *block, rs_block_cut *found);
/* The layout of one scale for each block, of which rs_layout_find_cut finds none cut: each rank has those of its
 * blocks, by the same numbers of arrays, and by local indices over the block. */
reshard_status rs_layout_blocks(reshard_layout layout, const int64_t *block, reshard_layout *scales);

#endif
