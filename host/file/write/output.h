/* The place of a file or directory that is written: a locked temporary beside it, and the rename that makes it the real
 * one. */
#ifndef RS_FILE_OUTPUT_H
#define RS_FILE_OUTPUT_H

#include "file/ground/file.h"

#include <stdatomic.h>
#include <sys/resource.h>

typedef struct rs_output {
  char *path;         /* of the output, as resolved; owned */
  const char *name;   /* its last component */
  char *temporary;    /* path of the temporary; owned */
  const char *hidden; /* its last component */
  int parent;         /* descriptor of the directory of both; -1: none */
  int fd;             /* of the temporary: open for reading and writing, or a directory; locked; -1: none */
  bool directory, force;
  bool linked; /* the path is a symbolic link to what is replaced */
  int file_mode, directory_mode;
  bool exact_file, exact_directory; /* it is that of what is replaced; else the process's umask takes from it */
} rs_output;

/* Checks that the output may be made, removes leftovers of killed runs, and makes the temporary with that suffix (""
 * for a directory). where begins the text of an error. mode: of files, by the process's umask, where nothing is
 * replaced; who may read them may search the directory.
 *
 *   - The output is a name in a directory that is there. A symbolic link is never replaced: with force its target is.
 *   - Without force nothing may be there. With force a file replaces a regular file, and a directory one that has
 *     nothing but regular files named *.safetensors or *.json in it, so that no home directory is lost by mistake.
 *   - A link in a sticky directory that others may write to is followed where its owner is this user's, or the
 *     directory's: as the system does by protected_symlinks. */
reshard_status rs_output_create(rs_output *target, const char *where, const char *path, bool directory,
                                const char *suffix, bool force, int mode);

/* A descriptor, for reading and writing, of the temporary file, or of a new file of that name in the temporary
 * directory. The caller closes it. 0 or an error number. */
int rs_output_open(const rs_output *target, const char *name, int *fd);

/* Puts the temporary, whose contents are synced, in place of the output, and syncs the directory. After an error, the
 * output is as it was, and rs_output_free removes the temporary. What was there before is removed as far as the system
 * lets us; the rest of it is a leftover. */
reshard_status rs_output_publish(rs_output *target, const char *where);

/* Removes the temporary if it was not published; frees all. */
void rs_output_free(rs_output *target);

/* Writes a file to the device in pieces, for progress and a chance to cancel; the fsync after it has little left to do.
 * done: bytes of all files so far. output: the whole, for its error. */
reshard_status rs_sync_file(const char *output, const rs_file *file, int64_t *done, int64_t all,
                            int (*progress)(void *, const char *, int64_t, int64_t), void *user);
/* Syncs a directory, where the file system can: 0 or an error number. */
int rs_sync_directory(int fd);

/* Bytes that are free on the file system of an open file, for every user, or with those kept for root. It is the
 * largest number when it does not say. */
int64_t rs_free_bytes(int fd, bool kept);
/* True for a size beyond the limit of this process: a call would not only fail, a signal would end the process. */
bool rs_over_file_limit(struct rlimit *limit, int64_t size);
/* Reserves bytes of a file of `size`. In pieces, so that a timer's signals, each of which ends a call, cannot keep it
 * from its end. unbacked: bytes that the file system of `output` could not reserve so far. 0 or an error number. */
int rs_reserve(int output, int fd, int64_t bytes, int64_t size, _Atomic int64_t *unbacked);

#endif
