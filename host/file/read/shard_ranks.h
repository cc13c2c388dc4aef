/* The ranks of the files of a set of shards. */
#ifndef RS_FILE_SHARD_RANKS_H
#define RS_FILE_SHARD_RANKS_H

#include "file/read/shards.h"

/* Finds the rank of each file; what a layout of the metadata says is checked. Needs by_tensor. */
reshard_status rs_shards_rank(rs_shards *shards);

#endif
