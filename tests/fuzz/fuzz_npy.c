/* Any bytes as an .npy file: its header, and all of its data read. Finds reads and writes out of bounds, leaks, and
 * shapes that the file has no data for. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <reshard/file.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = size >= 6 && memcmp(data, "\x93NUMPY", 6) == 0 ? fuzz_file(data, size) : NULL;
  if (path == NULL)
    return 0;
  reshard_checkpoint checkpoint = NULL;
  if (reshard_checkpoint_open(path, &checkpoint) != RESHARD_SUCCESS) {
    fuzz_require(strncmp(reshard_last_error(), "file '/proc/self", 16) == 0 &&
                 strchr(reshard_last_error(), '\n') == NULL);
    return 0;
  }
  reshard_checkpoint_info info;
  reshard_model_tensor t;
  reshard_layout layout = NULL;
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS && info.format == RESHARD_FORMAT_NPY);
  fuzz_require(info.tensors == 1 && info.bytes >= 0 && info.bytes < (int64_t)size);
  fuzz_require(reshard_model_get(reshard_checkpoint_model(checkpoint), 0, &t) == RESHARD_SUCCESS);
  fuzz_require(reshard_layout_create_single(t.ndim, t.shape, 1, 0, &layout) == RESHARD_SUCCESS);
  void *memory = malloc((size_t)info.bytes + 1);
  if (memory != NULL)
    fuzz_require(reshard_checkpoint_read(checkpoint, 0, layout, 0, 1, &memory) == RESHARD_SUCCESS);
  free(memory);
  reshard_layout_release(layout);
  reshard_checkpoint_close(checkpoint);
  return 0;
}
