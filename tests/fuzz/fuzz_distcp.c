/* Two bytes of a length, .metadata of that length, and the rest as __0_0.distcp, opened as a checkpoint and read. Finds
 * reads and writes out of bounds, leaks, and chunks that the file has no data for. */
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

static const char *path_of(const char *name) {
  static char path[sizeof directory + 32];
  snprintf(path, sizeof path, "%s%s", directory, name);
  return path;
}

static void clean_up(void) {
  unlink(path_of("/.metadata"));
  unlink(path_of("/__0_0.distcp"));
  rmdir(directory);
}

static int write_file(const char *name, const uint8_t *data, size_t size) {
  int file = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
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
  static int made;
  if (!made) {
    snprintf(directory, sizeof directory, "%s/reshard-fuzz-XXXXXX", temporary());
    fuzz_require(mkdtemp(directory) != NULL);
    made = 1;
    atexit(clean_up);
  }
  size_t length = size >= 2 ? data[0] | (size_t)data[1] << 8 : 0;
  if (!made || size < 2 || length > size - 2 || !write_file("/.metadata", data + 2, length) ||
      !write_file("/__0_0.distcp", data + 2 + length, size - 2 - length))
    return 0;
  reshard_checkpoint checkpoint = NULL;
  if (reshard_checkpoint_open(directory, &checkpoint) != RESHARD_SUCCESS) {
    fuzz_require(strchr(reshard_last_error(), '\'') != NULL && strchr(reshard_last_error(), '\n') == NULL);
    return 0;
  }
  reshard_checkpoint_info info;
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS &&
               info.format == RESHARD_FORMAT_DISTCP);
  for (int64_t i = 0; i < info.tensors && i < 64; i++)
    read_tensor(checkpoint, i);
  reshard_checkpoint_close(checkpoint);
  return 0;
}
