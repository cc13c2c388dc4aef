/* Any bytes as a file of torch.save: its archive, its pickle, and all of its data read. The first byte chooses: the
 * file as it is; a pickle, which is given an archive with storages of 64 bytes, "0" and "1". Finds reads and writes out
 * of bounds, leaks, and tensors that the file has no data for. */
#define _GNU_SOURCE
#include "fuzz_checkpoint.h"

#include <reshard/file.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct archive {
  uint8_t *at;
  size_t n, entries, entry[3], size[3]; /* of each: where its header is, its bytes */
  const char *name[3];
} archive;

static void archive_put(archive *a, const void *bytes, size_t n) {
  if (n > 0)
    memcpy(a->at + a->n, bytes, n);
  a->n += n;
}

static void put_number(archive *a, int n, uint64_t number) {
  for (int i = 0; i < n; i++)
    a->at[a->n++] = (uint8_t)(number >> 8 * i);
}

static void archive_add(archive *a, const char *name, const uint8_t *bytes, size_t n) {
  size_t i = a->entries++;
  a->entry[i] = a->n;
  a->size[i] = n;
  a->name[i] = name;
  archive_put(a, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 26);
  put_number(a, 2, strlen(name));
  put_number(a, 2, 0);
  archive_put(a, name, strlen(name));
  archive_put(a, bytes, n);
}

static void archive_finish(archive *a) {
  size_t begin = a->n;
  for (size_t i = 0; i < a->entries; i++) {
    archive_put(a, "PK\1\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    put_number(a, 4, a->size[i]);
    put_number(a, 4, a->size[i]);
    put_number(a, 2, strlen(a->name[i]));
    archive_put(a, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
    put_number(a, 4, a->entry[i]);
    archive_put(a, a->name[i], strlen(a->name[i]));
  }
  size_t end = a->n;
  archive_put(a, "PK\5\6\0\0\0\0", 8);
  put_number(a, 2, a->entries);
  put_number(a, 2, a->entries);
  put_number(a, 4, end - begin);
  put_number(a, 4, begin);
  put_number(a, 2, 0);
}

static void open_and_read(const char *path, int64_t size) {
  reshard_checkpoint checkpoint = NULL;
  reshard_checkpoint_info info;
  if (reshard_checkpoint_open(path, &checkpoint) != RESHARD_SUCCESS) {
    fuzz_refused();
    return;
  }
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS);
  if (info.format == RESHARD_FORMAT_TORCH)
    fuzz_read_all(checkpoint, size, RESHARD_FORMAT_TORCH);
  else
    reshard_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const uint8_t storage[64];
  archive a = {.at = malloc(size + 1024)};
  if (a.at != NULL && size >= 1) {
    if (data[0] % 2 == 0) {
      archive_put(&a, data + 1, size - 1);
    } else {
      archive_add(&a, "a/data.pkl", data + 1, size - 1);
      archive_add(&a, "a/data/0", storage, sizeof storage);
      archive_add(&a, "a/data/1", storage, sizeof storage);
      archive_finish(&a);
    }
    const char *path = fuzz_file(a.at, a.n);
    if (path != NULL)
      open_and_read(path, (int64_t)a.n);
  }
  free(a.at);
  return 0;
}
