/* Any text as a JSON list of tensors. Finds reads and writes out of bounds, leaks, and sizes that overflow. */
#define _GNU_SOURCE
#include <reshard/file.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int truth) {
  if (!truth)
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[64];
  if (file < 0) {
    file = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
    return 0;
  reshard_model model = NULL;
  if (reshard_model_load(path, &model) != RESHARD_SUCCESS) {
    check(strncmp(reshard_last_error(), "model file '/proc/self", 22) == 0);
    check(strchr(reshard_last_error(), '\n') == NULL);
    return 0;
  }
  int64_t all = 0;
  for (int64_t i = 0; i < reshard_model_count(model); i++) {
    reshard_model_tensor t;
    check(reshard_model_get(model, i, &t) == RESHARD_SUCCESS && t.name[0] != '\0');
    check(t.ndim >= 0 && t.ndim <= RESHARD_MAX_DIMS && reshard_dtype_size(t.dtype) > 0);
    int64_t bytes = (int64_t)reshard_dtype_size(t.dtype);
    for (int d = 0; d < t.ndim; d++)
      check(!__builtin_mul_overflow(bytes, t.shape[d], &bytes) && bytes >= 0);
    check(!__builtin_add_overflow(all, bytes, &all));
  }
  check(all == reshard_model_bytes(model));
  reshard_model_free(model);
  return 0;
}
