/* Names of files and directories that a writer has not put in their place yet: ".NAME.reshard-PID-N" and a suffix. */
#ifndef RS_FILE_TEMPORARY_H
#define RS_FILE_TEMPORARY_H

#include "base/base.h"

#define RS_TEMPORARY_MARK ".reshard-"
/* Length of NAME; 0 for an entry of another form. */
size_t rs_temporary_name(const char *entry);
/* RESHARD_ERROR_INVALID when a path leads to such a temporary, or into it: it may be incomplete. */
reshard_status rs_temporary_refuse(const char *where, const char *path);

#endif
