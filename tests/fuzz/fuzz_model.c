/* Any text as a JSON list of tensors. Finds reads and writes out of bounds, leaks, and sizes that overflow. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <reshard/file.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = fuzz_file(data, size);
  if (path == NULL)
    return 0;
  reshard_model model = NULL;
  if (reshard_model_load(path, &model) != RESHARD_SUCCESS) {
    fuzz_require(strncmp(reshard_last_error(), "model file '/proc/self", 22) == 0);
    fuzz_require(strchr(reshard_last_error(), '\n') == NULL);
    return 0;
  }
  int64_t all = 0;
  for (int64_t i = 0; i < reshard_model_count(model); i++) {
    reshard_model_tensor t;
    fuzz_require(reshard_model_get(model, i, &t) == RESHARD_SUCCESS && t.name[0] != '\0');
    fuzz_require(t.ndim >= 0 && t.ndim <= RESHARD_MAX_DIMS && reshard_dtype_size(t.dtype) > 0);
    int64_t bytes = (int64_t)reshard_dtype_size(t.dtype);
    for (int d = 0; d < t.ndim; d++)
      fuzz_require(!__builtin_mul_overflow(bytes, t.shape[d], &bytes) && bytes >= 0);
    fuzz_require(!__builtin_add_overflow(all, bytes, &all));
  }
  fuzz_require(all == reshard_model_bytes(model));
  reshard_model_free(model);
  return 0;
}
