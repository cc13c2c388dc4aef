/* Free blocks by size: the smallest that fits is found, among many, and of one size those that need no wait first. */
#include "support/fixtures/draw.h"
#include "support/fixtures/scale.h"

#include "device/memory/bins.h"

#include <string.h>

#include "support/fixtures/case.h"

enum { BLOCKS = 40 };

typedef struct model {
  rs_pool_bins bins;
  rs_pool_block blocks[BLOCKS];
} model;

static size_t smallest(const model *m, size_t size) {
  size_t best = 0;
  for (int i = 0; i < BLOCKS; i++)
    if (m->blocks[i].free && m->blocks[i].size >= size && (best == 0 || m->blocks[i].size < best))
      best = m->blocks[i].size;
  return best;
}

static void check_find(const model *m, size_t size) {
  rs_pool_block *found = rs_pool_bins_find(&m->bins, size);
  size_t best = smallest(m, size);
  if ((found != NULL ? found->size : 0) != best || (found != NULL && !found->free))
    fail_msg("%zu bytes: a block of %zu is found, one of %zu is free", size, found != NULL ? found->size : 0, best);
}

/* Sizes of every power, many of them close to others, and to the border of a bin. */
static size_t draw_size(const model *m) {
  size_t base = m->blocks[below(BLOCKS)].size, power = (size_t)1 << between(RS_BIN_SMALLEST, RS_BIN_LARGEST);
  size_t size = chance(3) && base > 0 ? base + (size_t)between(-2, 2) : power + (size_t)below((int64_t)power);
  if (chance(4))
    size = power + (power >> 3) * (size_t)below(8) + (size_t)between(0, 1);
  return size < (size_t)1 << RS_BIN_SMALLEST ? (size_t)1 << RS_BIN_SMALLEST : size;
}

CASE(smallest_block_that_fits_is_found) {
  static model m;
  draw_state = 7;
  for (int64_t round = test_scaled(60, 10); round > 0; round--) {
    memset(&m, 0, sizeof m);
    rs_pool_bins_init(&m.bins);
    check_find(&m, 1000);
    for (int step = 0; step < 300; step++) {
      rs_pool_block *block = &m.blocks[below(BLOCKS)];
      if (block->free) {
        rs_pool_bins_remove(&m.bins, block);
      } else {
        block->size = draw_size(&m);
        block->uses.n = below(2);
        rs_pool_bins_put(&m.bins, block);
      }
      block->free = !block->free;
      check_find(&m, draw_size(&m));
    }
  }
}

CASE(blocks_that_need_no_wait_come_first) {
  static model m;
  static const int expected[] = {3, 1, 0, 2}; /* last freed first; those that need a wait behind, first freed first */
  memset(&m, 0, sizeof m);
  rs_pool_bins_init(&m.bins);
  for (int i = 0; i < 4; i++) {
    m.blocks[i].size = 4096;
    m.blocks[i].uses.n = i % 2 == 0;
    rs_pool_bins_put(&m.bins, &m.blocks[i]);
  }
  for (int i = 0; i < 4; i++) {
    assert_ptr_equal(rs_pool_bins_find(&m.bins, 4096), &m.blocks[expected[i]]);
    rs_pool_bins_remove(&m.bins, &m.blocks[expected[i]]);
  }
  assert_null(rs_pool_bins_find(&m.bins, 4096));
}

/* The first 32 of a list are looked at, of the size that is asked for the first alone. */
CASE(search_ends_after_32_blocks) {
  static model m;
  memset(&m, 0, sizeof m);
  rs_pool_bins_init(&m.bins);
  for (int i = 0; i < 33; i++) {
    m.blocks[i].size = 5000 - (i == 0 || i == 1 ? 10 : 0);
    rs_pool_bins_put(&m.bins, &m.blocks[i]);
  }
  assert_ptr_equal(rs_pool_bins_find(&m.bins, 4800), &m.blocks[1]); /* the 32nd; the 33rd is as large */
  rs_pool_bins_remove(&m.bins, &m.blocks[1]);
  assert_ptr_equal(rs_pool_bins_find(&m.bins, 4800), &m.blocks[0]);
  m.blocks[33].size = 5000;
  rs_pool_bins_put(&m.bins, &m.blocks[33]);
  assert_ptr_equal(rs_pool_bins_find(&m.bins, 4800), &m.blocks[33]);
  assert_ptr_equal(rs_pool_bins_find(&m.bins, 5000), &m.blocks[33]);
}

RUN_CASES
