/* Files of two ranks, opened as such and read: a byte that chooses the layout, two bytes of a length, a file of that
 * length, and the rest as the other file. Finds reads and writes out of bounds, leaks, and parts without data. */
#define _GNU_SOURCE
#include "fuzz_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const layouts[] = {"chunk(0)",       "chunk(-1)",  "mesh(2;R)", "mesh(1x2;S0,S1)", "rank(1)",
                                        "mesh(2x1;S0,R)", "mesh(2;S1)", "flat()",    "cyclic(2;1)",     "chunk(0;1,0)"};
  size_t length = size >= 3 ? data[1] | (size_t)data[2] << 8 : 0;
  if (size < 3 || length > size - 3 || !fuzz_put("0", data + 3, length) ||
      !fuzz_put("1", data + 3 + length, size - 3 - length))
    return 0;
  reshard_checkpoint checkpoint = NULL;
  const char *layout = layouts[data[0] % (sizeof layouts / sizeof *layouts)];
  if (reshard_checkpoint_open_ranks(fuzz_directory, "{R}", layout, NULL, 2, &checkpoint) == RESHARD_SUCCESS)
    fuzz_read_all(checkpoint, (int64_t)size, RESHARD_FORMAT_SHARDS);
  else
    fuzz_refused();
  return 0;
}
