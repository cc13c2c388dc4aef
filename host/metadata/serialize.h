/* Metadata as byte strings, and merged from those of all ranks. */
#ifndef RS_METADATA_SERIALIZE_H
#define RS_METADATA_SERIALIZE_H

#include "comm/gather.h"
#include "metadata/metadata.h"

/* A sealed string is a header - magic, version, length and checksum of the rest - and numbers. */

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

/* --- From local to global (merge.c) ------------------------------------------------------------------------------ */

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
