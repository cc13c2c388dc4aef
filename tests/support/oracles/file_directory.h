/* Directories of files, with or without an index. */
#ifndef TESTS_NAIVE_FILE_DIRECTORY_H
#define TESTS_NAIVE_FILE_DIRECTORY_H

#include "files.h"

#ifdef RS_HAVE_JANSSON

typedef struct naive_dir {
  int64_t n;
  naive_file *file; /* by name */
  json_t *index;    /* model.safetensors.index.json; owned, or NULL */
} naive_dir;

naive_file *naive_dir_add(naive_dir *dir, const char *name);
void naive_write_dir(rng *r, const char *path, const naive_dir *dir);
/* Anything in the directory but these files is wrong. */
bool naive_read_dir(const char *path, naive_dir *out, rs_text *why);
void naive_dir_free(naive_dir *dir);

/* Names, dtypes, shapes, and every element; in any order. */
bool naive_same_set(const naive_set *is, const naive_set *should, rs_text *why);
/* Files by name, their tensors and their metadata. */
bool naive_same_dir(const naive_dir *is, const naive_dir *should, rs_text *why);

/* Whole tensors in files of at most so many bytes each, in the order of the set, with an index. */
void naive_index_dir(const naive_set *set, int64_t most_bytes, naive_dir *out);

#endif
#endif
