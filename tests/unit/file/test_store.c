/* Stores: boxes of arrays, stored arrays, and parts of arrays between blocks and memory, against the oracle's lists. */
#define _GNU_SOURCE
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/oracles/store.h"

#ifdef RS_HAVE_JANSSON

#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

/* An array as the oracle has it: its extents, and the tensor's element at each of its own. */
typedef struct array {
  int64_t rank, number, *index;
  int64_t shape[RESHARD_MAX_DIMS];
} array;

static array array_of(const naive_side *side, const naive_shard *shard) {
  array a = {.rank = shard->rank, .number = shard->array, .index = shard->index};
  const oracle_buffer *buffer = &side->held.buffer[side->held.first[shard->rank] + shard->array];
  bool flat = side->what.kind == RESHARD_LAYOUT_FLAT;
  for (int d = 0; d < side->what.ndim; d++)
    a.shape[d] = flat ? shard->box.extent[d] : buffer->shape[d];
  if (!flat)
    a.index = buffer->index;
  return a;
}

static void check_boxes(const naive_side *side, const array *a, int64_t first) {
  int64_t count, shape[RESHARD_MAX_DIMS];
  int ndim = side->what.ndim;
  GOOD(rs_array_boxes(side->layout, a->rank, a->number, &count, shape));
  assert_memory_equal(shape, a->shape, (size_t)ndim * sizeof *shape);
  const naive_shard *s = &side->cut.at[first];
  if (s->whole) {
    int64_t boxes = 1;
    for (int d = 0; d < ndim; d++)
      boxes *= s->nruns[d];
    assert_int_equal(count, boxes);
    return;
  }
  int64_t j = 0;
  for (; first + j < side->cut.n && s[j].rank == a->rank && s[j].array == a->number; j++) {
    reshard_box box = {{0}, {0}};
    int64_t local[RESHARD_MAX_DIMS] = {0}, at = 0;
    GOOD(rs_array_box(side->layout, a->rank, a->number, j, &box, local));
    assert_memory_equal(box.offset, s[j].box.offset, (size_t)ndim * sizeof(int64_t));
    assert_memory_equal(box.extent, s[j].box.extent, (size_t)ndim * sizeof(int64_t));
    for (int d = 0; d < ndim; d++)
      at = at * a->shape[d] + local[d];
    assert_int_equal(a->index[at], s[j].index[0]);
  }
  assert_int_equal(count, j);
}

/* A random part of an array: the elements of the tensor, in the order of dense memory. */
static int64_t draw_part(rng *r, const array *a, int ndim, int64_t *lo, int64_t *extent, int64_t **elements) {
  for (int d = 0; d < ndim; d++) {
    lo[d] = rng_one_in(r, 2) ? 0 : rng_below(r, a->shape[d]);
    extent[d] = rng_one_in(r, 2) ? a->shape[d] - lo[d] : rng_in(r, rng_one_in(r, 10) ? 0 : 1, a->shape[d] - lo[d]);
  }
  int64_t n = naive_volume(ndim, extent);
  *elements = cli_alloc(n, sizeof **elements);
  for (int64_t e = 0; e < n; e++) {
    int64_t rest = e, at = 0, stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
      at += (lo[d] + rest % extent[d]) * stride;
      rest /= extent[d];
      stride *= a->shape[d];
    }
    (*elements)[e] = a->index[at];
  }
  return n;
}

static void check_part(rng *r, const naive_tensor *t, const naive_side *side, const array *a, const rs_store *filled,
                       const rs_store *empty, rs_scratch *scratch) {
  int64_t lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS], *elements, width = (int64_t)reshard_dtype_size(t->dtype);
  int64_t n = draw_part(r, a, side->what.ndim, lo, extent, &elements);
  unsigned char *memory = cli_alloc(n * width, 1), *should = cli_alloc(n * width, 1);
  for (int64_t e = 0; e < n; e++)
    memcpy(should + e * width, t->bytes + elements[e] * width, (size_t)width);
  const rs_stored_array *from = rs_store_find(filled, 0, a->rank, a->number),
                        *to = rs_store_find(empty, 0, a->rank, a->number);
  assert_non_null(from);
  assert_non_null(to);
  memset(memory, 0x33, (size_t)(n * width));
  GOOD(rs_store_read(filled, 0, from, lo, extent, (char *)memory, scratch));
  assert_memory_equal(memory, should, (size_t)(n * width));
  GOOD(rs_store_write(empty, 0, to, lo, extent, (char *)should, scratch));
  memset(memory, 0x33, (size_t)(n * width));
  GOOD(rs_store_read(empty, 0, to, lo, extent, (char *)memory, scratch));
  assert_memory_equal(memory, should, (size_t)(n * width));
  free(memory);
  free(should);
  free(elements);
}

/* All arrays whole, and some parts of them; then the other store has all that it should, and nothing else. */
static void run_seed(uint64_t seed) {
  rng r;
  rs_text why = {0};
  naive_set set = {0};
  naive_side side;
  rs_store filled, empty;
  rs_scratch scratch = {0};
  int64_t shape[RESHARD_MAX_DIMS];
  rng_seed(&r, seed);
  int ndim = naive_draw_shape(&r, rng_one_in(&r, 4) ? 3000 : 100, shape);
  naive_fill(naive_add(&set, "t", naive_draw_dtype(&r), ndim, shape), seed);
  int64_t boxes = rng_one_in(&r, 3) ? rng_in(&r, 1, 4) : RS_MOST_BOXES;
  if (!naive_side_make(&r, ndim, shape, rng_in(&r, 1, 8), false, RESHARD_LAYOUT_KIND_COUNT, boxes, false, &side, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  naive_store_make(&r, &set, &side, NULL, rng_one_in(&r, 2), true, &filled);
  naive_store_make(&r, &set, &side, NULL, rng_one_in(&r, 2), false, &empty);
  for (int64_t i = 0; i < side.cut.n; i++) {
    const naive_shard *s = &side.cut.at[i];
    if (s->n == 0 || (i > 0 && s[-1].rank == s->rank && s[-1].array == s->array))
      continue;
    array a = array_of(&side, s);
    check_boxes(&side, &a, i);
    int64_t zero[RESHARD_MAX_DIMS] = {0};
    for (int k = 0; k < 4; k++)
      check_part(&r, &set.at[0], &side, &a, &filled, &empty, &scratch);
    unsigned char *all = cli_alloc(naive_volume(ndim, a.shape) * 16, 1);
    GOOD(rs_store_read(&filled, 0, rs_store_find(&filled, 0, a.rank, a.number), zero, a.shape, (char *)all, &scratch));
    GOOD(rs_store_write(&empty, 0, rs_store_find(&empty, 0, a.rank, a.number), zero, a.shape, (char *)all, &scratch));
    free(all);
  }
  if (!naive_store_check(&filled, &set, &side, -1, &why) || !naive_store_check(&empty, &set, &side, -1, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  assert_null(rs_store_find(&filled, 0, side.what.world, 0));
  assert_null(rs_store_find(&filled, 0, 0, 1000));
  free(scratch.at);
  naive_store_free(&filled);
  naive_store_free(&empty);
  naive_side_free(&side);
  naive_set_free(&set);
}

CASE(random_parts_of_stores_match_the_oracle) {
  double cases = 60 * test_scale();
  for (uint64_t i = 0; i < (uint64_t)cases + 1; i++)
    run_seed(1 + i);
}

/* Layouts of any size: an array may have more boxes than can be counted. */
CASE(test_many_boxes) {
  reshard_layout layout;
  int64_t count = 0, shape[RESHARD_MAX_DIMS];
  const int64_t huge[] = {1 << 24, 1 << 24};
  GOOD(reshard_layout_parse("cyclic(2x2;1x1)", 2, huge, 0, &layout));
  GOOD(rs_array_boxes(layout, 3, 0, &count, shape));
  assert_true(count == (int64_t)1 << 46);
  assert_int_equal(shape[0], 1 << 23);
  assert_int_equal(rs_array_box(layout, 0, 0, 0, NULL, NULL), RESHARD_ERROR_INTERNAL);
  reshard_layout_release(layout);
  const int64_t huger[] = {1 << 21, 1 << 21, 1 << 20};
  GOOD(reshard_layout_parse("cyclic(1x1x2;1x1x1)", 3, huger, 0, &layout));
  GOOD(rs_array_boxes(layout, 0, 0, &count, NULL));
  assert_int_equal(count, 1 << 19);
  assert_int_equal(rs_array_boxes(layout, 0, 1, &count, shape), RESHARD_ERROR_INVALID);
  reshard_layout_release(layout);
}

static rs_file open_file(const char *path, const char *mode) {
  FILE *file = fopen(path, mode);
  assert_non_null(file);
  rs_file out = {.path = (char *)path, .fd = dup(fileno(file)), .size = 8};
  fclose(file);
  assert_true(out.fd >= 0);
  return out;
}

CASE(failing_files_are_named_in_the_error) {
  const char *root = getenv("TMPDIR");
  char path[512], bytes[16] = {0};
  snprintf(path, sizeof path, "%s/reshard-store-%ld-\x01", root != NULL ? root : "/tmp", (long)getpid());
  rs_file file = open_file(path, "w+b");
  GOOD(rs_file_write_at(&file, 0, "01234567", 8));
  GOOD(rs_file_read_at(&file, 2, bytes, 6));
  assert_string_equal(bytes, "234567");
  GOOD(rs_file_read_at(&file, 8, bytes, 0));
  FAILS_WITH(rs_file_read_at(&file, 2, bytes, 7), RESHARD_ERROR_SYSTEM, "became shorter");
  assert_null(strchr(reshard_last_error(), '\x01'));
  close(file.fd);
  file = open_file(path, "rb");
  FAILS_WITH(rs_file_write_at(&file, 0, "x", 1), RESHARD_ERROR_SYSTEM, "reshard-store-");
  close(file.fd);
  unlink(path);
  file = open_file("/dev/full", "wb");
  FAILS_WITH(rs_file_write_at(&file, 0, "x", 1), RESHARD_ERROR_SYSTEM, "No space");
  close(file.fd);
  assert_int_equal(rs_file_read_at(&file, 0, bytes, 1), RESHARD_ERROR_SYSTEM);
}

/* Whether a page in the middle is in memory. A read that does not wait would tell as well, and bring it there. */
static bool in_page_cache(const rs_file *file) {
  unsigned char there = 0;
  void *page = mmap(NULL, 1, PROT_NONE, MAP_SHARED, file->fd, 1 << 20);
  assert_true(page != MAP_FAILED && mincore(page, 1, &there) == 0);
  munmap(page, 1);
  return there & 1;
}

/* Pages are dropped, or it is said that they were not: those that are not synced yet, and those in memory alone. */
CASE(pages_are_dropped_or_the_call_says_not) {
  const char *roots[] = {getenv("TMPDIR"), "/dev/shm"};
  char path[512], *bytes = calloc(1, 3 << 20);
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/reshard-pages-%ld", roots[i] != NULL ? roots[i] : "/tmp", (long)getpid());
    if (i == 1 && access(roots[i], W_OK) != 0)
      continue;
    rs_file file = open_file(path, "w+b");
    file.size = (3 << 20) - 1;
    struct statfs system;
    assert_int_equal(fstatfs(file.fd, &system), 0);
    bool memory = system.f_type == TMPFS_MAGIC;
    GOOD(rs_file_write_at(&file, 0, bytes, file.size));
    for (int synced = 0; synced < 2; synced++) {
      bool dropped = rs_file_drop_pages(&file);
      assert_false(dropped && (memory || in_page_cache(&file)));
      assert_int_equal(fsync(file.fd), 0);
    }
    unlink(path);
    close(file.fd);
  }
  free(bytes);
}

RUN_CASES

#else
RUN_CASES_IF(0, "built without jansson, which the naive files need")
#endif
