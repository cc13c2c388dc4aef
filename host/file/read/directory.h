/* The files of a checkpoint that is being opened: those of a directory, and those that an index names. */
#ifndef RS_FILE_DIRECTORY_H
#define RS_FILE_DIRECTORY_H

#include "file/read/open.h"

/* Opens the files of a directory, and reads the headers of safetensors files; says the kind. */
reshard_status rs_open_directory(rs_opening *opening, const char *path);
/* Likewise the files that an index names, relative to the directory. */
reshard_status rs_open_index(rs_opening *opening, const char *directory, const char *path);
/* False for a tensor that the index does not give to that file, which is counted. */
bool rs_opening_takes(rs_opening *opening, int64_t file, const char *tensor);
/* A tensor that the index gives to a file, and that is left out. */
void rs_index_forget(rs_opening *opening, const char *tensor);
/* Every tensor of the index is there. */
reshard_status rs_index_check(const rs_opening *opening);
void rs_index_free(rs_opening *opening);
/* Opens the files of the set that a file is of; *set is false, and nothing was opened, where it is of none, alone, or a
 * shard, of which one is opened as a set of one file. */
reshard_status rs_open_set(rs_opening *opening, const char *directory, const char *path, bool *set);
/* True for paths of models in one directory that differ by "-I-of-N" alone, which both have. */
bool rs_set_has(const char *set, const char *file);
/* A note of the set that a file has stood for. */
reshard_status rs_note_set(rs_opening *opening, const char *path);
/* Notes of the sets that the files of a directory without an index are, where there are several. other: an index that
 * was not looked at, or NULL. */
reshard_status rs_note_sets(rs_opening *opening, const char *path, const char *other);
/* Reads the headers of the files that are open. */
reshard_status rs_open_headers(rs_opening *opening);
/* Likewise where these are safetensors, and not files of torch.save: says which. */
reshard_status rs_open_read(rs_opening *opening);

#endif
