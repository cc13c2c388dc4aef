/* Files that the ranks of an engine have written each for itself. */
#ifndef RS_FILE_RANK_FILES_H
#define RS_FILE_RANK_FILES_H

#include "file/read/open.h"

/* Fills store and info from the files of a directory that options.ranks describes. */
reshard_status rs_open_ranks(rs_opening *opening, const char *path);

/* Files of a pattern, or of the first usual one (NULL) that some files have, by rank and name (rank_names.c). */
typedef struct rs_rank_file {
  char *name; /* owned */
  int64_t rank;
} rs_rank_file;
typedef RS_VEC(rs_rank_file) rs_rank_names;
reshard_status rs_rank_names_list(const char *path, const char *pattern, rs_rank_names *names);
void rs_rank_names_free(rs_rank_names *names);
/* RESHARD_ERROR_INVALID: no file has the pattern. */
reshard_status rs_rank_names_error(const char *where, const char *pattern);
/* *found: the directory has files of a usual pattern. */
reshard_status rs_rank_files_found(const char *path, bool *found);

#endif
