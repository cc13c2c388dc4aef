/* Free blocks by size: two searches for a bit find a list, then a few of its blocks are compared. Blocks of one list
 * differ by an eighth, and the one that fits best among the first LOOK is taken: one of the very size where sizes come
 * again. First in a list are blocks that need no wait, last freed first, since they may be in a cache. Those that need
 * one follow, first freed first, since they are done first. */
#include "device/memory/bins.h"

enum { LOOK = 32 };

void rs_pool_bins_init(rs_pool_bins *bins) {
  bins->powers = 0;
  for (int p = 0; p <= RS_BIN_LARGEST - RS_BIN_SMALLEST; p++) {
    bins->eighths[p] = 0;
    for (int e = 0; e < RS_BIN_EIGHTHS; e++)
      bins->list[p][e].next = bins->list[p][e].prev = &bins->list[p][e];
  }
}

/* size: 2^RS_BIN_SMALLEST or more, less than 2^(RS_BIN_LARGEST + 1). */
static void bin_of(size_t size, int *power, int *eighth) {
  int log = 63 - __builtin_clzll(size);
  *power = log - RS_BIN_SMALLEST;
  *eighth = (int)(size >> (log - 3)) & (RS_BIN_EIGHTHS - 1);
}

void rs_pool_bins_put(rs_pool_bins *bins, rs_pool_block *block) {
  int p, e;
  bin_of(block->size, &p, &e);
  rs_pool_link *head = &bins->list[p][e], *next = block->uses.n == 0 ? head->next : head;
  block->link = (rs_pool_link){next, next->prev};
  next->prev->next = &block->link;
  next->prev = &block->link;
  bins->eighths[p] |= (uint8_t)(1u << e);
  bins->powers |= (uint64_t)1 << p;
}

void rs_pool_bins_remove(rs_pool_bins *bins, rs_pool_block *block) {
  int p, e;
  block->link.prev->next = block->link.next;
  block->link.next->prev = block->link.prev;
  bin_of(block->size, &p, &e);
  if (bins->list[p][e].next != &bins->list[p][e])
    return;
  bins->eighths[p] &= (uint8_t) ~(1u << e);
  if (bins->eighths[p] == 0)
    bins->powers &= ~((uint64_t)1 << p);
}

static rs_pool_block *best_in_bin(const rs_pool_link *head, size_t size) {
  rs_pool_block *best = NULL;
  int look = LOOK;
  for (rs_pool_link *at = head->next; at != head && look-- > 0; at = at->next) {
    rs_pool_block *block = (rs_pool_block *)at;
    if (block->size < size || (best != NULL && block->size >= best->size))
      continue;
    best = block;
    if (best->size == size)
      break;
  }
  return best;
}

rs_pool_block *rs_pool_bins_find(const rs_pool_bins *bins, size_t size) {
  int p, e;
  bin_of(size, &p, &e);
  if (bins->eighths[p] & 1u << e) {
    rs_pool_block *same = best_in_bin(&bins->list[p][e], size);
    if (same != NULL)
      return same;
  }
  unsigned eighths = bins->eighths[p] & ~0u << (e + 1);
  if (eighths == 0) {
    uint64_t powers = p < 63 ? bins->powers & ~(uint64_t)0 << (p + 1) : 0;
    if (powers == 0)
      return NULL;
    p = __builtin_ctzll(powers);
    eighths = bins->eighths[p];
  }
  return best_in_bin(&bins->list[p][__builtin_ctz(eighths)], size);
}
