/* The k-th allocation fails, for every k, in every call on writers: no temporary is left, and no block. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include "file/write/writer.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 3, WORLD = 4 };

typedef struct writer_case {
  char path[512];
  int64_t n;
  reshard_writer_options options;
  reshard_writer_tensor tensors[TENSORS];
} writer_case;

static const int64_t shape[2] = {140, 4};
static unsigned char data[140 * 4 * 8];

static int64_t entries(void) {
  int64_t n = -2; /* . and .. */
  DIR *directory = opendir(scratch_path(""));
  while (directory != NULL && readdir(directory) != NULL)
    n++;
  if (directory != NULL)
    closedir(directory);
  return n;
}

static void make_case(writer_case *c, const char *name, const char *layout, int64_t n, int64_t index_bytes, int dedup) {
  static const char *const names[TENSORS] = {"a", "b\xc3\xa9", "c"};
  *c = (writer_case){.n = n};
  snprintf(c->path, sizeof c->path, "%s", scratch_path(name));
  c->options = (reshard_writer_options){RESHARD_WRITER_OPTIONS_INIT, .dedup = dedup, .index_bytes = index_bytes};
  for (int64_t i = 0; i < n; i++) {
    c->tensors[i] = (reshard_writer_tensor){names[i], i % 2 ? RESHARD_F64 : RESHARD_U8, NULL};
    assert_int_equal(reshard_layout_parse(layout, 2, shape, WORLD, &c->tensors[i].layout), RESHARD_SUCCESS);
  }
}

static void writer_drop(writer_case *c) {
  for (int64_t i = 0; i < c->n; i++)
    reshard_layout_release(c->tensors[i].layout);
}

static reshard_status writer_create(fault_output *out, const void *with) {
  const writer_case *c = with;
  reshard_writer writer = out->object;
  reshard_status status = reshard_writer_create(c->path, c->n, c->tensors, &c->options, &writer);
  out->object = writer;
  if (status != RESHARD_SUCCESS)
    assert_int_equal(entries(), 0);
  return status;
}

static bool created(const fault_output *out, const void *with) {
  const writer_case *c = with;
  const rs_store *store = rs_writer_store(out->object);
  return store->tensors.n == c->n && store->files.n > 0 && entries() == 1;
}

static void abandon(fault_output *out) { reshard_writer_abandon(out->object); }

/* Rows of boxes that lie side by side pass through scratch memory. */
static reshard_status put_bytes(fault_output *out, const void *with) {
  const writer_case *c = with;
  const void *const buffers[] = {data};
  reshard_writer writer;
  reshard_status status = reshard_writer_create(c->path, c->n, c->tensors, &c->options, &writer);
  if (status != RESHARD_SUCCESS)
    return status;
  for (int64_t i = 0; i < c->n && status == RESHARD_SUCCESS; i++)
    for (int64_t rank = 0; rank < WORLD && status == RESHARD_SUCCESS; rank++)
      status = reshard_writer_put(writer, i, rank, buffers);
  bool commit = status == RESHARD_SUCCESS && c->n == 1; /* once is enough: each syncs the disk */
  if (commit)
    status = reshard_writer_commit(writer);
  else
    reshard_writer_abandon(writer);
  assert_int_equal(entries(), commit && status == RESHARD_SUCCESS);
  if (status == RESHARD_SUCCESS)
    out->number = 1;
  return status;
}

static bool put_well(const fault_output *out, const void *with) {
  const writer_case *c = with;
  scratch_remove(strrchr(c->path, '/') + 1);
  return out->number == 1 && entries() == 0;
}

CASE(writers_leave_nothing_after_any_failed_allocation) {
  static const struct {
    const char *name, *layout;
    int64_t n, index_bytes;
    int dedup;
  } cases[] = {{"a.npy", "rank(2)", 1, 0, 0},
               {"a.safetensors", "mesh(4;R)", TENSORS, 0, 0},
               {"whole", "rank(0)", TENSORS, 3000, 0},
               {"shards", "chunk(1)", TENSORS, 0, 0},
               {"dedup", "mesh(2x2;S0,R)", TENSORS, 0, 1},
               {"boxes", "cyclic(1x2;140x1)", 2, 0, 0},
               {"fine", "cyclic(2x1;1x4)", 2, 0, 1},
               {"flat", "flat()", 2, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    writer_case c;
    make_case(&c, cases[i].name, cases[i].layout, cases[i].n, cases[i].index_bytes, cases[i].dedup);
    assert_true(fault_local_run(&(fault_local){cases[i].name, writer_create, created, abandon, &c}) >= 12);
    assert_true(fault_local_run(&(fault_local){cases[i].name, put_bytes, put_well, NULL, &c}) >= 12);
    writer_drop(&c);
  }
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
