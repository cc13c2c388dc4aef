#include "layout/sort.h"

#include <string.h>

/* 2^11 counters stay in the first-level cache, and so does the line that each bucket is writing. Few items take short
 * digits, so that clearing and summing the counters does not outweigh the items. */
#define DIGIT_MOST 11
#define DIGIT_FEW  6

static int digit_bits(int64_t n, int bits) {
  int most = n < 4096 ? DIGIT_FEW : DIGIT_MOST;
  int passes = (bits + most - 1) / most;
  return (bits + passes - 1) / passes;
}

/* Counts to first places; false when one bucket has all, so that there is nothing to move. */
static bool counts_to_places(int64_t *count, int64_t buckets, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < buckets; i++) {
    int64_t here = count[i];
    if (here == n)
      return false;
    count[i] = sum;
    sum += here;
  }
  return true;
}

uint64_t *rs_sort_keys(uint64_t *keys, uint64_t *spare, int64_t n, int from, int to) {
  int64_t count[1 << DIGIT_MOST];
  if (n < 2 || from >= to)
    return keys;
  int width = digit_bits(n, to - from);
  for (int bit = from; bit < to; bit += width) {
    uint64_t mask = ((uint64_t)1 << rs_min(width, to - bit)) - 1;
    memset(count, 0, sizeof count[0] * (mask + 1));
    for (int64_t i = 0; i < n; i++)
      count[keys[i] >> bit & mask]++;
    if (!counts_to_places(count, (int64_t)mask + 1, n))
      continue;
    for (int64_t i = 0; i < n; i++)
      spare[count[keys[i] >> bit & mask]++] = keys[i];
    uint64_t *swap = keys;
    keys = spare;
    spare = swap;
  }
  return keys;
}

rs_pair *rs_sort_pairs(rs_pair *pairs, rs_pair *spare, int64_t n, bool by_value, int from, int to) {
  int64_t count[1 << DIGIT_MOST];
  if (n < 2 || from >= to)
    return pairs;
  int width = digit_bits(n, to - from);
  for (int bit = from; bit < to; bit += width) {
    uint64_t mask = ((uint64_t)1 << rs_min(width, to - bit)) - 1;
    memset(count, 0, sizeof count[0] * (mask + 1));
    for (int64_t i = 0; i < n; i++)
      count[(by_value ? pairs[i].value : pairs[i].key) >> bit & mask]++;
    if (!counts_to_places(count, (int64_t)mask + 1, n))
      continue;
    for (int64_t i = 0; i < n; i++)
      spare[count[(by_value ? pairs[i].value : pairs[i].key) >> bit & mask]++] = pairs[i];
    rs_pair *swap = pairs;
    pairs = spare;
    spare = swap;
  }
  return pairs;
}
