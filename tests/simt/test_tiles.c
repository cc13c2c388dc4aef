/* The tables of the box copy kernels: which bytes share a tile, what tiles share, and limits. Nothing is copied. */
#include "device/cuda/tiles.h"
#include "support/fixtures/expect.h"

#include "support/fixtures/draw.h"

#include "tests/support/fixtures/case.h"

#include <stdlib.h>
#include <string.h>

enum { SECTOR = 32, LINE = 128 };

/* --- Sectors of the source --- */

/* Sectors, and lines, of a source from `base` on; which of them a tile touches is noted by the tile's number. */
typedef struct touched {
  const char *base;
  int64_t sector[1 << 16], line[1 << 14], tile;
  int64_t sectors, reads; /* that any tile touches; the sum over tiles */
  int64_t lines;          /* of this tile */
} touched;

static void touch(touched *t, const char *at, int64_t bytes) {
  for (int64_t s = (at - t->base) / SECTOR; s <= (at - t->base + bytes - 1) / SECTOR; s++) {
    t->sectors += t->sector[s] == 0;
    t->reads += t->sector[s] != t->tile;
    t->sector[s] = t->tile;
    t->lines += t->line[s * SECTOR / LINE] != t->tile;
    t->line[s * SECTOR / LINE] = t->tile;
  }
}

static void touch_tile(touched *t, const rs_box_tables *tables, int class, const rs_box_tile *tile) {
  const rs_box_shape *shape = &tables->shape.at[tile->shape];
  uint32_t outer = class == RS_BOX_TRANSPOSES ? tile->count & 0xffff : tile->count;
  uint32_t inner = class == RS_BOX_TRANSPOSES ? tile->count >> 16 : shape->inside > 0 ? shape->inner.n : 1;
  assert_true(shape->inside < 2);
  t->tile++;
  t->lines = 0;
  for (uint32_t i = 0; i < outer; i++)
    for (uint32_t j = 0; j < inner; j++)
      touch(t, tile->src + i * shape->outer_src + (inner > 1 ? j * shape->inner.src : 0), shape->run);
}

/* k rows of `run` bytes beside each other, m times, `leap` bytes apart. Each goes to m * run bytes of its own, as one
 * copy or as k. */
static void check_sectors(int64_t run, int64_t k, int64_t leap, bool parts) {
  static touched t;
  rs_copies copies = {0};
  rs_box_tables tables = {0};
  const int64_t m = (1 << 20) / leap, places = parts ? k : 1;
  char *from = (char *)((int64_t)1 << 40), *to = (char *)((int64_t)1 << 41);
  memset(&t, 0, sizeof t);
  t.base = from;
  rs_axis axes[3] = {{k, run, m * run}, {m, leap, run}, {run, 1, 1}};
  for (int64_t i = 0; i < places; i++)
    GOOD(rs_copies_add(&copies, from + i * run, to + i * m * run, 1, parts ? 2 : 3, parts ? axes + 1 : axes));
  GOOD(rs_box_tables_make(&tables, &copies, &(rs_box_policy){8, 0, 0, 0}));
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    for (int64_t i = 0; i < tables.tile[c].n; i++) {
      touch_tile(&t, &tables, c, &tables.tile[c].at[i]);
      /* RS_BOX_BLOCKS of them are in the first-level cache, of which 192 KiB are counted on. */
      if (c != RS_BOX_TRANSPOSES && t.lines * LINE * RS_BOX_BLOCKS > 192 << 10)
        fail_msg("%lld rows of %lld bytes, %lld apart: a tile has %lld lines", (long long)k, (long long)run,
                 (long long)leap, (long long)t.lines);
    }
  if (t.reads > t.sectors + t.tile) /* two tiles may share the sector between them */
    fail_msg("%lld rows of %lld bytes, %lld apart, %s: %lld sectors are read %lld times in %lld tiles", (long long)k,
             (long long)run, (long long)leap, parts ? "as copies" : "as one", (long long)t.sectors, (long long)t.reads,
             (long long)t.tile);
  rs_copies_free(&copies);
  rs_box_tables_free(&tables);
}

CASE(sectors_of_tiny_rows_that_leap_belong_to_one_tile) {
  for (int64_t run = 4; run <= 64; run += run < 8 ? 1 : 4)
    for (int64_t leap = 32; leap < 288; leap += leap % 16 == 0 ? 4 : 12)
      for (int64_t k = 2; k * run <= rs_min(leap, LINE); k++)
        for (int parts = 0; parts < 2; parts++)
          check_sectors(run, k, leap, parts != 0);
  check_sectors(4, 4, 16, true); /* two in a sector */
  check_sectors(8, 2, 16, false);
}

/* --- Batches, limits --- */

/* Tile t of a batch is found by a rule: here by going round. */
CASE(tiles_of_a_batch_are_found_by_their_rule) {
  for (int k = 0; k < 200; k++) {
    draw_state = 40 + (uint64_t)k;
    rs_box_batch batch = {0};
    static rs_box_tile tiles[64];
    int n = (int)between(1, 9);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
      rs_box_part part = {.tiles = tiles, .count = (uint32_t)between(1, 12)};
      assert_true(rs_box_batch_add(&batch, &part));
      total += part.count;
    }
    rs_box_batch_close(&batch);
    assert_int_equal(batch.tiles, total);
    uint32_t next = 0;
    for (uint32_t row = 0; next < batch.tiles; row++)
      for (uint32_t part = 0; part < batch.nparts; part++)
        if (row < batch.part[part].count) {
          uint32_t k1 = 0; /* what find_tile in kernels/box_device.cuh does */
          while (k1 + 1 < batch.nparts && batch.part[k1 + 1].begin <= next)
            k1++;
          uint32_t left = batch.nparts - k1, turn = next - batch.part[k1].begin;
          assert_int_equal(k1 + turn % left, part);
          assert_int_equal(turn / left + (k1 > 0 ? batch.part[k1 - 1].count : 0), row);
          next++;
        }
  }
  rs_box_batch full = {0};
  rs_box_part half = {.count = 1u << 30};
  assert_true(rs_box_batch_add(&full, &half));
  assert_false(rs_box_batch_add(&full, &half));
}

/* Boxes whose strides and sizes are beyond 32 bits: tables alone, nothing is copied. */
CASE(boxes_beyond_32_bits_have_right_tables) {
  rs_copies copies = {0};
  rs_box_tables tables = {0};
  const int64_t terabyte = (int64_t)1 << 40, base = (int64_t)1 << 45;
  rs_axis rows[2] = {{5, -terabyte, terabyte / 2}, {terabyte / 64, 1, 1}};
  GOOD(rs_copies_add(&copies, (char *)(base + 4 * terabyte), (char *)(2 * base), 1, 2, rows));
  GOOD(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, 0, 0, 0}));
  int64_t bytes = 0, previous = 0;
  for (int64_t i = 0; i < tables.tile[RS_BOX_BULK].n; i++) {
    const rs_box_tile *tile = &tables.tile[RS_BOX_BULK].at[i];
    int64_t to = (int64_t)(tile->dst - (char *)(2 * base)), row = to / (terabyte / 2);
    assert_int_equal(tile->src - (char *)(base + 4 * terabyte), -row * terabyte + to - row * (terabyte / 2));
    assert_true(i == 0 || to > previous);
    previous = to;
    bytes += tile->count;
  }
  assert_int_equal(bytes, copies.bytes);
  rs_copies_clear(&copies);
  rs_axis many[2] = {{(int64_t)1 << 36, 1 << 21, 1 << 21}, {1 << 20, 1, 1}};
  GOOD(rs_copies_add(&copies, (char *)base, (char *)(2 * base), 1, 2, many));
  assert_int_equal(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, 0, 0, 0}), RESHARD_ERROR_UNSUPPORTED);
  rs_copies_free(&copies);
  rs_box_tables_free(&tables);
}

/* Rows of the source follow its lines, and are not the loop next to that of columns. */
CASE(transposed_casts_are_boxes_along_the_lines_of_both_sides) {
  enum { ROWS = 200, COLUMNS = 132, TIMES = 3 };
  char *const from = (char *)((int64_t)1 << 40), *const to = (char *)((int64_t)1 << 41);
  const rs_axis axes[3] = {
      {ROWS, 4, TIMES * COLUMNS * 2}, {TIMES, (ROWS * COLUMNS + 4) * 4, COLUMNS * 2}, {COLUMNS, ROWS * 4, 2}};
  rs_copies copies = {0};
  rs_box_tables tables = {0};
  GOOD(rs_copies_convert(&copies, from, to, RESHARD_F32, RESHARD_BF16, 3, axes));
  GOOD(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, 0, 0, 0}));
  int64_t turned = 0, boxes = 0;
  for (int64_t i = 0; i < tables.tile[RS_BOX_VECTORS].n; i++) {
    rs_box_vectors v;
    const rs_box_tile *tile = &tables.tile[RS_BOX_VECTORS].at[i];
    memcpy(&v, &tables.axis.at[tile->shape], sizeof v);
    const int64_t n = (int64_t)v.inner_n * tables.axis.at[tile->count].n;
    assert_true(n <= RS_BOX_CONVERT_TURNED_BOXES);
    if (v.turned && v.line_src == ROWS * 4) {
      turned += (int64_t)v.units * 4 * n;
      boxes += n;
    }
  }
  assert_int_equal(turned, TIMES * ROWS * (COLUMNS - COLUMNS % RS_BOX_CONVERT_TURNED));
  assert_int_equal(boxes, 4 * 2 * TIMES);
  assert_int_equal(tables.kept, RS_BOX_CONVERT_TURNED_KEPT);
  assert_int_equal(tables.vector_threads, RS_BOX_THREADS);
  rs_copies_free(&copies);
  rs_box_tables_free(&tables);
}

/* Casts that have more loops or more tiles than a program can have. */
CASE(casts_beyond_the_tables_are_refused_with_the_numbers) {
  enum { LOOPS = 2 * RESHARD_MAX_DIMS + 1 };
  char *const from = (char *)((int64_t)1 << 45), *const to = (char *)((int64_t)1 << 46);
  rs_axis loops[LOOPS];
  int64_t step = 1;
  for (int i = LOOPS - 1; i >= 0; i--, step *= 3)
    loops[i] = (rs_axis){2, 8 * step, 6 * step};
  const rs_axis many[3] = {{(int64_t)1 << 20, 1 << 21, 1 << 20}, {1 << 16, 8, 6}, {(int64_t)1 << 20, 1 << 19, 1 << 18}};
  const struct {
    const rs_axis *axes;
    int n;
    const char *text;
  } cases[] = {{loops, LOOPS, "has 17 loops, 16 are the most"}, {many, 3, "more than 2147483647 tiles"}};
  for (int i = 0; i < 2; i++) {
    rs_copies copies = {0};
    rs_box_tables tables = {0};
    GOOD(rs_copies_convert(&copies, from, to, RESHARD_F32, RESHARD_BF16, cases[i].n, cases[i].axes));
    FAILS_WITH(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, 0, 0, 0}), RESHARD_ERROR_UNSUPPORTED,
               cases[i].text);
    rs_copies_free(&copies);
    rs_box_tables_free(&tables);
  }
}

/* Boxes of the same strides share a shape, and one that stands for thousands is found again. */
CASE(shapes_are_shared) {
  rs_copies copies = {0};
  rs_box_tables tables = {0};
  for (int64_t i = 0; i < 3000; i++) {
    rs_axis rows[3] = {{4 + i % 5, 4096, 2048}, {3, 1024, 512}, {100 + i % 50, 1, 1}};
    char *at = (char *)(i << 20);
    GOOD(rs_copies_add(&copies, at + 4096, at + 4096, 1, 3, rows));
  }
  for (int again = 0; again < 2; again++) {
    GOOD(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, 0, 0, 0}));
    assert_int_equal(tables.shape.n, 50);
    assert_int_equal(tables.tile[RS_BOX_ROWS].n, 3000);
  }
  rs_copies_free(&copies);
  rs_box_tables_free(&tables);
}

/* --- Sources of several GPUs --- */

enum { DEALT = 3, ROW = 8192, PITCH = 100 };

/* Copies of whole rows from peers 5, 6 and 1, so many of each, as an entry has them. */
static void add_rows(rs_copies *copies, const int64_t *rows, char *to) {
  static const int32_t peers[DEALT] = {5, 6, 1};
  for (int64_t k = 0; k < DEALT; k++) {
    const rs_axis axes[2] = {{rows[k], 2 * ROW, ROW}, {ROW, 1, 1}};
    copies->peer = peers[k];
    GOOD(rs_copies_add(copies, (char *)((int64_t)peers[k] << 40), to, 1, 2, axes));
    to += rows[k] * ROW;
  }
}

/* Writes the peer of each tile as a digit, in the order of tiles. All rows are there, each once. */
static void order_rows(bool deal, bool bulk, int64_t entries, char *order) {
  const int64_t rows[2][DEALT] = {{4, 2, 3}, {1, 3, 1}}, total = entries == 1 ? 9 : 14;
  const int class = bulk ? RS_BOX_BULK : RS_BOX_ROWS;
  char *to = (char *)((int64_t)1 << 50);
  bool seen[2 * PITCH] = {false};
  rs_copies copies = {.deal = deal};
  rs_box_tables tables = {0};
  for (int64_t e = 0; e < entries; e++)
    add_rows(&copies, rows[e], to + e * PITCH * ROW);
  for (int again = 0; again < 2; again++)
    GOOD(rs_box_tables_make(&tables, &copies, &(rs_box_policy){132, ROW, bulk ? 1 : INT64_MAX, 0}));
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    assert_int_equal(tables.tile[c].n, c == class ? total : 0);
  for (int64_t i = 0; i < total; i++) {
    const rs_box_tile *t = &tables.tile[class].at[i];
    assert_false(seen[(t->dst - to) / ROW]);
    seen[(t->dst - to) / ROW] = true;
    order[i] = (char)('0' + (int)((uintptr_t)t->src >> 40));
  }
  order[total] = 0;
  rs_box_tables_free(&tables);
  rs_copies_free(&copies);
}

CASE(sources_of_several_gpus_are_read_in_turn) {
  char order[PITCH];
  for (int bulk = 0; bulk < 2; bulk++) {
    order_rows(true, bulk != 0, 1, order);
    assert_string_equal(order, "561561515");
    order_rows(true, bulk != 0, 2, order);
    assert_string_equal(order, "56156151656156");
    order_rows(false, bulk != 0, 2, order);
    assert_string_equal(order, "55556611156661");
  }
}

RUN_CASES_WITH(NULL, NULL)
