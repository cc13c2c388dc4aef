/* Files: their paths and errors, opened and read as a whole or in parts. */
#ifndef RS_FILE_FILE_H
#define RS_FILE_FILE_H

#include "base/base.h"
#include "base/read.h"

/* Begins an error about a file: what 'path', quoted. Returns where. */
#define RS_WHERE 512
const char *rs_where(char where[RS_WHERE], const char *what, const char *path);
/* Joins a directory's path and a name, with a NUL. */
typedef RS_VEC(char) rs_path_text;
reshard_status rs_path_join(const char *path, const char *name, rs_path_text *whole);

typedef struct rs_digests rs_digests; /* digest.h */

typedef struct rs_file {
  char *path;          /* owned; for errors */
  int fd;              /* -1: none, owned else */
  char *memory;        /* a caller's buffer in place of a file; borrowed */
  bool zeros;          /* no file either: all that is read of it is zero */
  int64_t size;        /* bytes */
  bool dropped;        /* of one that is compared: none of its pages was in memory when its header was read */
  int64_t changed_ns;  /* of a file that is read: time of its last change when it was opened */
  rs_digests *digests; /* owned; of what is written, or to check what is read; NULL: none */
} rs_file;

/* Opens a regular file for reading. files: how many are opened together, for the error when these are too many.
 * Errors: as rs_file_error, RESHARD_ERROR_INVALID for what is no regular file. */
reshard_status rs_file_open(const char *where, const char *path, int64_t files, rs_file *file);
void rs_file_close(rs_file *file);
/* Size and time of the last change of an open file. */
reshard_status rs_file_stat(const char *where, int fd, int64_t *size, int64_t *changed_ns);
/* Reads or writes bytes [offset, offset + n) of a file or of memory, through short calls and EINTR. The error of a file
 * that is shorter than it was names it. */
reshard_status rs_file_read_at(const rs_file *file, int64_t offset, void *to, int64_t n);
reshard_status rs_file_write_at(const rs_file *file, int64_t offset, const void *from, int64_t n);
/* Reads without a look at digests. */
reshard_status rs_file_read_plain(const rs_file *file, int64_t offset, void *to, int64_t n);
/* Drops the pages of a file that the system keeps in memory, so that what is read next comes from the device. False
 * when it kept some: pages that are not synced or in use, a file system in memory, no way to ask. */
bool rs_file_drop_pages(const rs_file *file);

/* Names of files and directories that a writer has not put in their place yet: ".NAME.reshard-PID-N" and a suffix. */
#define RS_TEMPORARY_MARK ".reshard-"
/* Length of NAME; 0 for an entry of another form. */
size_t rs_temporary_name(const char *entry);
/* RESHARD_ERROR_INVALID when a path leads to such a temporary, or into it: it may be incomplete. */
reshard_status rs_temporary_refuse(const char *where, const char *path);

/* Bytes that a reader of a file of so many may take: 64 MiB and 8 times these. Whatever the file claims, what it
 * describes is held in proportion to it. */
int64_t rs_budget_limit(int64_t file_bytes);
/* Errors: RESHARD_ERROR_CORRUPT with both numbers where `taken` is more than the limit. where begins the text. */
reshard_status rs_budget_check(const char *where, int64_t file_bytes, int64_t taken);

#endif
