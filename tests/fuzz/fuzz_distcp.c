/* Two bytes of a length, .metadata of that length, and the rest as __0_0.distcp, opened as a checkpoint and read. Finds
 * reads and writes out of bounds, leaks, and chunks that the file has no data for. */
#define _GNU_SOURCE
#include "fuzz_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t length = size >= 2 ? data[0] | (size_t)data[1] << 8 : 0;
  if (size < 2 || length > size - 2 || !fuzz_put(".metadata", data + 2, length) ||
      !fuzz_put("__0_0.distcp", data + 2 + length, size - 2 - length))
    return 0;
  reshard_checkpoint checkpoint = NULL;
  if (reshard_checkpoint_open(fuzz_directory, &checkpoint) == RESHARD_SUCCESS)
    fuzz_read_all(checkpoint, (int64_t)size, RESHARD_FORMAT_DISTCP);
  else
    fuzz_refused();
  return 0;
}
