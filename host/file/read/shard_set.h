/* The files of a set of shards, read. */
#ifndef RS_FILE_SHARD_SET_H
#define RS_FILE_SHARD_SET_H

#include "base/text.h"
#include "file/read/shards.h"

/* "tensor 'name' of file 'dir/file'", for errors about a shard. */
#define RS_SHARD_WHERE (RS_WHERE + RS_QUOTE + 32)
const char *rs_shard_where(const rs_shards *shards, const rs_shard *shard, char where[RS_SHARD_WHERE]);

/* Reads the files: tensors, shards, runs, world. */
reshard_status rs_shards_collect(rs_shards *shards);

#endif
