/* Free blocks by size: finding one takes two searches for a bit and a look at a few blocks. Blocks of one list differ
 * by an eighth, so the one that fits best among the first LOOK is taken; that finds one of the very size that was asked
 * for wherever sizes come again. What nobody has to wait for comes first in a list, last freed first, since it may be
 * in a cache; then what has to be waited for, first freed first, since it is done first. */
#include "device/memory/pool_internal.h"

enum { LOOK = 32 };

void rs_bins_init(rs_bins *bins) {
  bins->powers = 0;
  for (int p = 0; p <= RS_LARGEST - RS_SMALLEST; p++) {
    bins->eighths[p] = 0;
    for (int e = 0; e < RS_EIGHTHS; e++)
      bins->list[p][e].next = bins->list[p][e].prev = &bins->list[p][e];
  }
}

/* size: 2^RS_SMALLEST or more, less than 2^(RS_LARGEST + 1). */
static void place_of(size_t size, int *power, int *eighth) {
  int log = 63 - __builtin_clzll(size);
  *power = log - RS_SMALLEST;
  *eighth = (int)(size >> (log - 3)) & (RS_EIGHTHS - 1);
}

void rs_bins_put(rs_bins *bins, rs_store *store) {
  int p, e;
  place_of(store->size, &p, &e);
  rs_ring *head = &bins->list[p][e], *next = store->after.n == 0 ? head->next : head;
  store->ring = (rs_ring){next, next->prev};
  next->prev->next = &store->ring;
  next->prev = &store->ring;
  bins->eighths[p] |= (uint8_t)(1u << e);
  bins->powers |= (uint64_t)1 << p;
}

void rs_bins_remove(rs_bins *bins, rs_store *store) {
  int p, e;
  store->ring.prev->next = store->ring.next;
  store->ring.next->prev = store->ring.prev;
  place_of(store->size, &p, &e);
  if (bins->list[p][e].next != &bins->list[p][e])
    return;
  bins->eighths[p] &= (uint8_t) ~(1u << e);
  if (bins->eighths[p] == 0)
    bins->powers &= ~((uint64_t)1 << p);
}

static rs_store *best_in(const rs_ring *head, size_t size) {
  rs_store *best = NULL;
  int look = LOOK;
  for (rs_ring *at = head->next; at != head && look-- > 0; at = at->next) {
    rs_store *store = (rs_store *)at;
    if (store->size < size || (best != NULL && store->size >= best->size))
      continue;
    best = store;
    if (best->size == size)
      break;
  }
  return best;
}

rs_store *rs_bins_find(const rs_bins *bins, size_t size) {
  int p, e;
  place_of(size, &p, &e);
  if (bins->eighths[p] & 1u << e) {
    rs_store *same = best_in(&bins->list[p][e], size);
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
  return best_in(&bins->list[p][__builtin_ctz(eighths)], size);
}
