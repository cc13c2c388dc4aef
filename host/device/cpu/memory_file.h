/* Memory files (memfd_create), which other processes map. Functions return 0 or errno. */
#ifndef RS_DEVICE_CPU_MEMORY_FILE_H
#define RS_DEVICE_CPU_MEMORY_FILE_H

#include "base/base.h"

#include <sys/types.h>

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
