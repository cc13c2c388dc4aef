/* Any text as an index of two files, one of them in a subfolder, each with three tensors: "a" and "b" twice. The first
 * byte chooses whether the index is opened, its directory, or its model. Finds reads out of bounds, leaks, and tensors
 * that are of another file than the index says. */
#define _GNU_SOURCE
#include "fuzz_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NAME "model.safetensors.index.json"

/* A file whose tensors have one byte each, all the same. */
static int put_file(const char *name, const char *third, uint8_t byte) {
  uint8_t whole[512] = {0};
  int n = snprintf((char *)whole + 8, sizeof whole - 8,
                   "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":"
                   "[1],\"data_offsets\":[1,2]},\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
                   third);
  whole[0] = (uint8_t)n;
  whole[1] = (uint8_t)(n >> 8);
  memset(whole + 8 + n, byte, 3);
  return fuzz_put(name, whole, 8 + (size_t)n + 3);
}

static void check(reshard_checkpoint checkpoint) {
  reshard_checkpoint_info info;
  bool used[2] = {false};
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS);
  fuzz_require(info.tensors <= 4 && info.files <= 2 && info.bytes == info.tensors);
  for (int64_t i = 0; i < info.tensors; i++) {
    reshard_model_tensor t;
    uint8_t *byte = fuzz_read(checkpoint, i, 1);
    fuzz_require(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &t) == RESHARD_SUCCESS);
    if (byte == NULL)
      continue;
    fuzz_require(*byte == 1 || *byte == 2);
    fuzz_require(strcmp(t.name, *byte == 1 ? "d" : "c") != 0); /* which the other file has */
    used[*byte - 1] = true;
    free(byte);
  }
  fuzz_require(info.files > 0 || info.tensors == 0);
  fuzz_require(info.files >= used[0] + used[1]);
  reshard_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static bool made;
  if (!made) {
    fuzz_require(fuzz_put("sub", NULL, 0));
    fuzz_require(put_file("x.safetensors", "c", 1) && put_file("sub/y.safetensors", "d", 2));
    made = true;
  }
  reshard_checkpoint checkpoint = NULL;
  reshard_model model = NULL;
  if (size < 1 || !fuzz_put(NAME, data + 1, size - 1))
    return 0;
  const char *path = data[0] % 3 > 0 ? fuzz_path(NAME) : fuzz_directory;
  if (data[0] % 3 == 2 && reshard_model_load(path, &model) == RESHARD_SUCCESS)
    reshard_model_free(model);
  else if (data[0] % 3 < 2 && reshard_checkpoint_open(path, &checkpoint) == RESHARD_SUCCESS)
    check(checkpoint);
  else
    fuzz_refused();
  return 0;
}
