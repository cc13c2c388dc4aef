/* Any text as the header of a .safetensors file, with as much data as the input's first two bytes say. Lines two and
 * three of the text, where present, become DCP_SHARDING_INFO and reshard of the header's metadata. So JSON in JSON need
 * not be guessed. The file is checked by its digests, opened as a checkpoint (whole tensors, or a set of shards of one
 * file) and read. Finds reads and writes out of bounds, leaks, and tensors without data. */
#define _GNU_SOURCE
#include "fuzz_checkpoint.h"

#include <reshard/file.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NAME "100" /* of the file, as the metadata of a set says it */

typedef struct header {
  char *at;
  size_t n;
} header;

static void header_add(header *h, const char *text, size_t n) {
  memcpy(h->at + h->n, text, n);
  h->n += n;
}
#define ADD(h, literal) header_add(h, literal, sizeof(literal) - 1)

static void add_quoted(header *h, const char *text, size_t n) {
  ADD(h, "\"");
  for (size_t i = 0; i < n; i++) {
    if (text[i] == '"' || text[i] == '\\')
      ADD(h, "\\");
    header_add(h, text + i, 1);
  }
  ADD(h, "\"");
}

/* Room for the text twice and a hundred bytes more is at h->at. */
static void make_header(header *h, const char *text, size_t n) {
  const char *line[3] = {text};
  size_t length[3] = {n}, lines = 1;
  const char *end = memchr(text, '\n', n);
  while (end != NULL && lines < 3) {
    length[lines - 1] = (size_t)(end - line[lines - 1]);
    line[lines] = end + 1;
    length[lines] = (size_t)(text + n - line[lines]);
    end = memchr(line[lines], '\n', length[lines]);
    lines++;
  }
  if (lines > 1) {
    ADD(h, "{\"__metadata__\":{\"DCP_SHARDING_INFO\":");
    add_quoted(h, line[1], length[1]);
    if (lines > 2) {
      ADD(h, ",\"reshard\":");
      add_quoted(h, line[2], length[2]);
    }
    ADD(h, "},");
  }
  size_t skip = lines > 1 && length[0] > 0; /* its own brace */
  header_add(h, line[0] + skip, length[0] - skip);
}

/* By digests, of which the header may have some. */
static void check_digests(const char *path) {
  const reshard_check_options options = {.size = RESHARD_CHECK_OPTIONS_INIT, .threads = 1};
  reshard_check_report report = {.files = -1};
  reshard_status status = reshard_checkpoint_check(path, &options, &report);
  if (status == RESHARD_SUCCESS)
    fuzz_require(report.files == 1 && report.wrong == 0);
  else
    fuzz_refused();
}

static void open_and_read(const char *path, int64_t bytes) {
  reshard_checkpoint checkpoint = NULL;
  check_digests(path);
  if (reshard_checkpoint_open(path, &checkpoint) != RESHARD_SUCCESS) {
    fuzz_refused();
    return;
  }
  reshard_checkpoint_info info;
  fuzz_require(reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS);
  fuzz_require(info.stored_bytes == bytes && info.bytes <= info.stored_bytes);
  fuzz_read_all(checkpoint, bytes, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  if (file < 0)
    file = dup2(memfd_create("fuzz", 0), atoi(NAME));
  header h = {malloc(2 * size + 128), 0};
  if (file >= 0 && h.at != NULL && size >= 2 && ftruncate(file, 0) == 0) {
    make_header(&h, (const char *)data + 2, size - 2);
    uint64_t length = h.n; /* of the machine's byte order, which is the format's on all that this is run on */
    size_t bytes = data[0] | (size_t)data[1] << 8;
    if (pwrite(file, &length, 8, 0) == 8 && pwrite(file, h.at, h.n, 8) == (ssize_t)h.n &&
        ftruncate(file, (off_t)(8 + h.n + bytes)) == 0)
      open_and_read("/proc/self/fd/" NAME, (int64_t)bytes);
  }
  free(h.at);
  return 0;
}
