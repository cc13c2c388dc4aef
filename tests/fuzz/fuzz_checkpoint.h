/* Shared by fuzz targets that open checkpoints: files of a directory, and all of an open checkpoint read. */
#ifndef TESTS_FUZZ_CHECKPOINT_H
#define TESTS_FUZZ_CHECKPOINT_H

#include "fuzz.h"
#include "support/fixtures/temporary.h"

#include <reshard/file.h>

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

enum { FUZZ_FILES = 8 };

static char fuzz_directory[TEMPORARY_PATH];
static const char *fuzz_names[FUZZ_FILES];

/* Path of a name in the directory; valid until the next call. */
static inline const char *fuzz_path(const char *name) {
  static char path[TEMPORARY_PATH + 64];
  snprintf(path, sizeof path, "%s/%s", fuzz_directory, name);
  return path;
}

static inline void fuzz_clean_up(void) {
  for (int i = 0; i < FUZZ_FILES && fuzz_names[i] != NULL; i++)
    remove(fuzz_path(fuzz_names[i]));
  rmdir(fuzz_directory);
}

/* Writes a file of the directory, which the first call makes and the end of the process removes; NULL: a directory. */
static inline int fuzz_put(const char *name, const uint8_t *data, size_t size) {
  int i = 0;
  if (fuzz_directory[0] == '\0') {
    snprintf(fuzz_directory, sizeof fuzz_directory, "%s/reshard-fuzz-XXXXXX", temporary());
    fuzz_require(mkdtemp(fuzz_directory) != NULL);
    atexit(fuzz_clean_up);
  }
  while (fuzz_names[i] != NULL && strcmp(fuzz_names[i], name) != 0)
    i++;
  if (fuzz_names[i] == NULL) { /* what was made last goes first */
    memmove(fuzz_names + 1, fuzz_names, (FUZZ_FILES - 1) * sizeof *fuzz_names);
    fuzz_names[0] = name;
  }
  if (data == NULL)
    return mkdir(fuzz_path(name), 0700) == 0;
  int file = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  int right = file >= 0 && write(file, data, size) == (ssize_t)size;
  if (file >= 0)
    close(file);
  return right;
}

/* An error is one line that quotes a name. */
static inline void fuzz_refused(void) {
  fuzz_require(strchr(reshard_last_error(), '\'') != NULL && strchr(reshard_last_error(), '\n') == NULL);
}

/* Reads a tensor of at most so many bytes to new memory, NULL where there is none. One of an unknown dtype is an
 * error. */
static inline uint8_t *fuzz_read(reshard_checkpoint checkpoint, int64_t i, int64_t most) {
  reshard_model_tensor t;
  reshard_layout layout = NULL, held = NULL;
  int64_t found = -1;
  fuzz_require(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &t) == RESHARD_SUCCESS);
  fuzz_require(reshard_checkpoint_find(checkpoint, t.name, &found) == RESHARD_SUCCESS && found == i);
  fuzz_require(reshard_checkpoint_layout(checkpoint, i, &held) == RESHARD_SUCCESS);
  fuzz_require(reshard_layout_check_source(held) == RESHARD_SUCCESS);
  fuzz_require(reshard_layout_create_single(t.ndim, t.shape, 1, 0, &layout) == RESHARD_SUCCESS);
  int64_t elements = reshard_layout_elements(layout), width = (int64_t)reshard_dtype_size(t.dtype);
  fuzz_require(elements == reshard_layout_elements(held) && elements * (width > 0 ? width : 1) <= most);
  uint8_t *memory = malloc((size_t)(elements * width) + 1);
  if (memory != NULL) {
    memory[0] = 0;
    fuzz_require(reshard_checkpoint_read(checkpoint, i, layout, 0, 1, (void *const *)&memory) ==
                 (t.dtype != RESHARD_DTYPE_NONE ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID));
  }
  reshard_layout_release(layout);
  reshard_layout_release(held);
  return memory;
}

/* Reads and closes one whose tensors have at most so many bytes each; it is of that format, or of any where that
 * is 0. */
static inline void fuzz_read_all(reshard_checkpoint checkpoint, int64_t most, reshard_file_format format) {
  reshard_checkpoint_info info;
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS);
  fuzz_require(format == 0 || info.format == format);
  for (int64_t i = 0; i < info.tensors && i < 64; i++)
    free(fuzz_read(checkpoint, i, most));
  reshard_checkpoint_close(checkpoint);
}

#endif
