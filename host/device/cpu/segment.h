/* Memory of the CPU that other processes of the node can map.
 *
 * A process has one memory file. Each piece of shared memory is a segment: a range of the file that is mapped in this
 * process. No range is used twice, so a file and an offset name one segment for ever. Processes get the descriptor of
 * the file once, to be read, and know every segment by its offset from then on. Its length is fixed, and other users
 * cannot open it. The file ends with the last process that has it, however that ends.
 *
 * A segment that is freed is a hole in the file: its memory goes back at once, whoever still has it mapped. These read
 * zeros there, in pages that stay until the file ends, and no signal comes. */
#ifndef RS_DEVICE_CPU_SEGMENT_H
#define RS_DEVICE_CPU_SEGMENT_H

#include "base/base.h"
#include <sys/types.h>

/* A segment as other processes know it. */
typedef struct rs_shared_place {
  int64_t offset, bytes; /* in the file of the process */
} rs_shared_place;

/* One more user of this process's file, which is made for the first one. *fd is a descriptor to read it by, for other
 * processes, and borrowed until the user closes it; fd may be NULL. RESHARD_ERROR_UNSUPPORTED where the system has no
 * memory files. */
RS_PRIVATE_API reshard_status rs_shared_open(int *fd);
/* One user less. The last one closes the descriptor; its segments have been freed. */
RS_PRIVATE_API void rs_shared_close(void);

/* Allocates a segment, aligned to a page, or to a huge page where one fits. *memory is NULL for 0 bytes. The file has a
 * user. RESHARD_ERROR_OUT_OF_MEMORY: also at the limit of a file's size (ulimit -f). */
RS_PRIVATE_API reshard_status rs_shared_alloc(size_t bytes, void **memory);
/* NULL is allowed. */
RS_PRIVATE_API void rs_shared_free(void *memory);
/* Finds the segment that has all of [begin, end); false: none has. */
RS_PRIVATE_API bool rs_shared_find(const void *begin, const void *end, rs_shared_place *place, int64_t *inside);

/* Maps a range of a memory file where huge pages fit, for PROT_READ and PROT_WRITE or less; NULL: there is no room. */
char *rs_shared_map(int fd, const rs_shared_place *place, int protection);

/* --- Files of other processes (import.c) -------------------------------------------------------------------------- */

typedef struct rs_import rs_import;

/* Takes a descriptor of another process's file, also when it fails. All imports of one file in this process are one,
 * which counts them. */
RS_PRIVATE_API reshard_status rs_import_open(int fd, rs_import **import);
/* An import of no file: it tells that a process is of this node. */
reshard_status rs_import_none(rs_import **import);
/* One more user of an import; returns it. */
RS_PRIVATE_API rs_import *rs_import_retain(rs_import *import);
/* The last one unmaps all and closes the descriptor. NULL is allowed. */
void rs_import_close(rs_import *import);
/* Maps a segment, to be read. It stays mapped until it was unmapped as often, and a while longer: mapping it again is
 * then a search. RESHARD_ERROR_INVALID where the file has no such range. */
RS_PRIVATE_API reshard_status rs_import_map(rs_import *import, const rs_shared_place *place, const char **at);
void rs_import_unmap(rs_import *import, const rs_shared_place *place);
/* The same, and it is not mapped for longer: of segments that are not mapped again. */
RS_PRIVATE_API void rs_import_remove(rs_import *import, const rs_shared_place *place);

/* Bytes that a file of this process may have (ulimit -f), up to `most`. */
int64_t rs_memory_file_limit(int64_t most);
/* Bytes of memory that the control groups of this process may have, up to `most`. Beyond it the system kills. */
int64_t rs_memory_group_limit(int64_t most);
/* Makes a file of that length, all holes, which is closed on exec. It is sealed: it neither shrinks nor grows, so no
 * access to it ever ends in a SIGBUS for that. mode: of those who open it anew. EFBIG beyond the limit. */
int rs_memory_file_make(const char *name, int64_t bytes, mode_t mode, int *fd);
/* Opens it once more, to be read alone. */
int rs_memory_file_reopen(int fd, int *reader);

#endif
