/* A tensor of 64 MiB in a file to 4 shards of rows or of columns. They are written in TMPDIR over the files of the run
 * before. Beside that is a straight copy of as many bytes in memory. */
#define _GNU_SOURCE /* nftw */
#include "bench/micro/micro.h"

#include "device/cpu/cpu.h"

#include <reshard/file.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 4096, ALL = SIDE * SIDE * 4, PATH = 512 };

typedef struct convert_bench {
  const char *layout;
  char directory[PATH], in[PATH + 16], out[PATH + 16];
  rs_device *device;
  char *src, *dst; /* of the straight copy; src is what the file has */
} convert_bench;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at) {
  (void)info, (void)kind, (void)at;
  return remove(path);
}

static void convert_drop(void *state) {
  convert_bench *b = state;
  if (b->directory[0] != '\0')
    (void)nftw(b->directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
  if (b->device != NULL)
    b->device->destroy(b->device);
  free(b->src);
  free(b->dst);
  free(b);
}

static reshard_status write_source(const convert_bench *b) {
  const int64_t shape[2] = {SIDE, SIDE};
  const reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT};
  reshard_writer_tensor tensor = {.name = "weight", .dtype = RESHARD_F32};
  reshard_writer writer;
  reshard_status status = reshard_layout_create_single(2, shape, 1, 0, &tensor.layout);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_writer_create(b->in, 1, &tensor, &options, &writer);
  if (status == RESHARD_SUCCESS) {
    status = reshard_writer_put(writer, 0, 0, &(const void *){b->src});
    if (status == RESHARD_SUCCESS)
      status = reshard_writer_commit(writer);
    else
      reshard_writer_abandon(writer);
  }
  reshard_layout_release(tensor.layout);
  return status;
}

static void *convert_make(const micro_case *of, int64_t *items) {
  convert_bench *b = calloc(1, sizeof *b);
  if (b == NULL)
    return NULL;
  const char *temporary = getenv("TMPDIR");
  b->layout = of->text;
  b->src = aligned_alloc(4096, ALL);
  b->dst = aligned_alloc(4096, ALL);
  snprintf(b->directory, sizeof b->directory, "%s/reshard-micro.XXXXXX", temporary != NULL ? temporary : "/tmp");
  if (mkdtemp(b->directory) == NULL)
    b->directory[0] = '\0';
  snprintf(b->in, sizeof b->in, "%s/in.safetensors", b->directory);
  snprintf(b->out, sizeof b->out, "%s/out", b->directory);
  *items = 1;
  if (b->src != NULL && b->dst != NULL && b->directory[0] != '\0' &&
      rs_device_cpu_create(0, RESHARD_ISA_AUTO, &b->device) == RESHARD_SUCCESS) {
    memset(b->src, 1, ALL);
    memset(b->dst, 2, ALL);
    if (write_source(b) == RESHARD_SUCCESS)
      return b;
  }
  convert_drop(b);
  return NULL;
}

static int convert_run(void *state) {
  convert_bench *b = state;
  const reshard_convert_options options = {
      .size = RESHARD_CONVERT_OPTIONS_INIT, .dst = b->layout, .world = 4, .force = 1};
  return reshard_convert(b->in, b->out, &options, NULL) != RESHARD_SUCCESS;
}

static int straight_run(void *state) {
  convert_bench *b = state;
  rs_device_cpu_straight(b->device, b->dst, b->src, ALL, true);
  return 0;
}

static int64_t convert_bytes(const void *state) {
  (void)state;
  return ALL;
}

#define CASE(name, run, layout) \
  { "convert_" name, 0, 0, convert_make, run, convert_drop, {0}, layout }
static const micro_case micro_convert[] = {
    CASE("one_file_to_4_shards_of_rows", convert_run, "chunk(0)"),
    CASE("one_file_to_4_shards_of_columns", convert_run, "chunk(1)"),
    CASE("memcpy", straight_run, "chunk(0)"),
};
MICRO_TABLE(micro_convert, convert_bytes)
