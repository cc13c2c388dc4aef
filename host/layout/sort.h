/* Stable radix sorts, least significant digit first: linear in n per digit, no comparisons. */
#ifndef RS_LAYOUT_SORT_H
#define RS_LAYOUT_SORT_H

#include "base/base.h"

typedef struct rs_pair {
  uint64_t key, value;
} rs_pair;

/* Sorts by bits [from, to) of each key, ascending. spare has room for n; the result is in the array that is returned,
 * keys or spare, the other one is scratch. */
uint64_t *rs_sort_keys(uint64_t *keys, uint64_t *spare, int64_t n, int from, int to);
/* Sorts pairs alike, by bits of the key, or of the value where by_value. */
rs_pair *rs_sort_pairs(rs_pair *pairs, rs_pair *spare, int64_t n, bool by_value, int from, int to);

/* Bits that x needs: 0 for 0. */
static inline int rs_bits(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

#endif
