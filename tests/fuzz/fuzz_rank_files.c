/* Files of two ranks, opened as such and read: a byte that chooses the layout, two bytes of a length, a file of that
 * length, and the rest as the other file. Finds reads and writes out of bounds, leaks, and parts without data. */
#define _GNU_SOURCE
#include "fuzz.h"
#include "support/fixtures/temporary.h"

#include <reshard/file.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[TEMPORARY_PATH];

static const char *path_of(int rank) {
  static char path[sizeof directory + 32];
  snprintf(path, sizeof path, "%s/%d", directory, rank);
  return path;
}

static void clean_up(void) {
  unlink(path_of(0));
  unlink(path_of(1));
  rmdir(directory);
}

static int write_file(int rank, const uint8_t *data, size_t size) {
  int file = open(path_of(rank), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  int right = file >= 0 && write(file, data, size) == (ssize_t)size;
  if (file >= 0)
    close(file);
  return right;
}

static void read_tensor(reshard_checkpoint checkpoint, int64_t i) {
  reshard_model_tensor t;
  reshard_layout layout = NULL, held = NULL;
  fuzz_require(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &t) == RESHARD_SUCCESS);
  fuzz_require(reshard_checkpoint_layout(checkpoint, i, &held) == RESHARD_SUCCESS);
  fuzz_require(reshard_layout_check_source(held) == RESHARD_SUCCESS);
  fuzz_require(reshard_layout_create_single(t.ndim, t.shape, 1, 0, &layout) == RESHARD_SUCCESS);
  void *memory = malloc((size_t)reshard_layout_elements(layout) * reshard_dtype_size(t.dtype) + 1);
  if (memory != NULL)
    fuzz_require(reshard_checkpoint_read(checkpoint, i, layout, 0, 1, &memory) == RESHARD_SUCCESS);
  free(memory);
  reshard_layout_release(layout);
  reshard_layout_release(held);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const layouts[] = {"chunk(0)",       "chunk(-1)",  "mesh(2;R)", "mesh(1x2;S0,S1)", "rank(1)",
                                        "mesh(2x1;S0,R)", "mesh(2;S1)", "flat()",    "cyclic(2;1)",     "chunk(0;1,0)"};
  static int made;
  if (!made) {
    snprintf(directory, sizeof directory, "%s/reshard-fuzz-XXXXXX", temporary());
    fuzz_require(mkdtemp(directory) != NULL);
    made = 1;
    atexit(clean_up);
  }
  size_t length = size >= 3 ? data[1] | (size_t)data[2] << 8 : 0;
  if (size < 3 || length > size - 3 || !write_file(0, data + 3, length) ||
      !write_file(1, data + 3 + length, size - 3 - length))
    return 0;
  reshard_checkpoint checkpoint = NULL;
  const char *layout = layouts[data[0] % (sizeof layouts / sizeof *layouts)];
  if (reshard_checkpoint_open_ranks(directory, "{R}", layout, NULL, 2, &checkpoint) != RESHARD_SUCCESS) {
    fuzz_require(strchr(reshard_last_error(), '\'') != NULL && strchr(reshard_last_error(), '\n') == NULL);
    return 0;
  }
  reshard_checkpoint_info info;
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS && info.world == 2);
  for (int64_t i = 0; i < info.tensors && i < 64; i++)
    read_tensor(checkpoint, i);
  reshard_checkpoint_close(checkpoint);
  return 0;
}
