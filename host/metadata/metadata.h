/* Inside of metadata. */
#ifndef RS_METADATA_METADATA_H
#define RS_METADATA_METADATA_H

#include "comm/gather.h"
#include "layout/sort.h"

#include <reshard/metadata.h>
#include <reshard/tensor.h>

#include <stdatomic.h>

struct reshard_metadata_s {
  atomic_int references;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* unused dims are 0, here and in the shards: they are compared as bytes */
  reshard_properties properties;
  int64_t n;
  reshard_shard shards[];
};

/* Makes metadata whose n shards are all 0 and are the caller's to fill in, with one reference. Errors: those of
 * reshard_metadata_create, but for the shards. */
reshard_status rs_metadata_new(const reshard_properties *properties, int ndim, const int64_t *shape, int64_t n,
                               reshard_metadata *out);
/* Checks of reshard_metadata_create: of a shape, of a placement (what names it: "shard"), and of the shards. */
reshard_status rs_metadata_check_shape(int ndim, const int64_t *shape);
reshard_status rs_placement_check(const char *what, int64_t i, const reshard_remote_device *placement);
reshard_status rs_metadata_check_shards(const struct reshard_metadata_s *metadata);
/* Converts dim d of ndim, negative from the end, to 0..ndim-1; what names the caller in the text. */
reshard_status rs_metadata_dim(const char *what, int d, int ndim, int *out);
const char *rs_memory_format_string(reshard_memory_format format);

/* "rank:3/cuda:1"; returns buffer. */
#define RS_PLACEMENT_TEXT 48
const char *rs_placement_text(char buffer[RS_PLACEMENT_TEXT], const reshard_remote_device *device);

/* The placement of a tensor; and: the placement names the device of a tensor. One without a number names every GPU. */
reshard_remote_device rs_placement_of(int64_t global_rank, const struct reshard_tensor_info *tensor);
bool rs_placement_fits(const reshard_remote_device *placement, const struct reshard_tensor_info *tensor);
/* Metadata of a layout, as reshard_metadata_from_layout; without `devices` all placements have this type and no
 * number. */
reshard_status rs_metadata_from_layout(const reshard_properties *properties, reshard_layout layout,
                                       const reshard_group *group, const reshard_remote_device *devices,
                                       reshard_device_type type, reshard_metadata *metadata);

/* Global ranks to ranks of a group, for many look-ups. Errors: no ranks, negative or repeated ones. */
typedef struct rs_group_map {
  const reshard_group *group; /* borrowed */
  rs_pair *sorted;            /* global rank, rank; NULL where they are the same */
} rs_group_map;
reshard_status rs_group_map_create(const reshard_group *group, rs_group_map *out);
void rs_group_map_free(rs_group_map *map);
reshard_status rs_group_map_find(const rs_group_map *map, int64_t global_rank, int64_t *rank);
/* Checks for those errors alone. */
reshard_status rs_group_check(const reshard_group *group);
/* Global rank of a rank of the group; group NULL: the same number. */
static inline int64_t rs_group_at(const reshard_group *group, int64_t rank) {
  return group != NULL && group->ranks != NULL ? group->ranks[rank] : rank;
}

/* --- Byte strings (serialize.c) ---
 * A sealed string is a header - magic, version, length and checksum of the rest - and numbers. */

#define RS_SEAL           24 /* bytes of the header */
#define RS_MAGIC_METADATA "RSMD"
#define RS_MAGIC_LOCALS   "RSML" /* of several tensors, from rank to rank */

/* Writes a number, returns the address behind it. */
char *rs_put(char *at, uint64_t number);
int64_t rs_put_size(uint64_t number);

/* Bytes of metadata without a header; and writes them. */
int64_t rs_metadata_size(const struct reshard_metadata_s *metadata);
char *rs_metadata_put(const struct reshard_metadata_s *metadata, char *at);
/* Writes the header before `body` bytes that are in place. */
void rs_seal(const char *magic, char *string, int64_t body);

typedef struct rs_reader {
  const unsigned char *begin, *at, *end; /* begin: of the sealed string; errors tell the byte from there */
} rs_reader;
/* Checks the header, and places the reader behind it. */
reshard_status rs_unseal(const char *magic, const void *string, int64_t size, rs_reader *reader);
/* Reads the next number, which is `most` at most; what ("dims") names it in the error. */
reshard_status rs_take(rs_reader *reader, const char *what, uint64_t most, int64_t *number);
/* Metadata but for the shards. The string has room for n of them. */
typedef struct rs_head {
  reshard_properties properties;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t n;
} rs_head;
reshard_status rs_take_head(rs_reader *reader, rs_head *head);
reshard_status rs_take_shards(rs_reader *reader, int ndim, int64_t n, reshard_shard *shards);
reshard_status rs_take_end(const rs_reader *reader);

/* --- From local to global (merge.c, global.c) ------------------------------------------------------------------- */

/* Packs the local metadata of n tensors (elements may be NULL) into one sealed string; free()d by the caller. */
reshard_status rs_metadata_pack(int64_t n, const reshard_metadata *locals, int recalc_dim, char **string,
                                int64_t *size);
/* Merges what all ranks have packed into the global metadata of n tensors. Errors name ranks of the group (NULL: of the
 * strings). globals is written on success only. */
reshard_status rs_metadata_merge(const reshard_group *group, const rs_strings *strings, int64_t n,
                                 reshard_metadata *globals);
/* As reshard_metadata_build_global_many, with all options: errors name global ranks where the group is known. */
reshard_status rs_metadata_build_global(reshard_comm comm, const reshard_group *group, int64_t n,
                                        const reshard_metadata *locals, reshard_status local_status, int recalc_dim,
                                        reshard_metadata *globals);

#endif
