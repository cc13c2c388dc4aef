#include "layout/ranks.h"

#include "base/order.h"
#include "layout/sort.h"

#include <stdlib.h>

static int64_t lowest_rank(const rs_rank_range *r) { return r->step > 0 ? r->first : r->first - r->count + 1; }

static int by_lowest(const void *a, const void *b) { return RS_ORDER(lowest_rank(a), lowest_rank(b)); }

/* Greedy maximal ranges; returns how many, writes them when out is not NULL. */
static int64_t split_ranges(int64_t n, const int64_t *ranks, rs_rank_range *out) {
  int64_t count = 0;
  for (int64_t i = 0; i < n;) {
    int64_t step = i + 1 < n && ranks[i + 1] == ranks[i] - 1 ? -1 : 1, j = i + 1;
    while (j < n && ranks[j] == ranks[j - 1] + step)
      j++;
    if (out != NULL)
      out[count] = (rs_rank_range){i, ranks[i], j - i, j - i > 1 ? step : 1};
    count++;
    i = j;
  }
  return count;
}

/* The ranges by lowest_rank rank. */
static reshard_status sort_ranges(rs_ranks *r, int64_t world) {
  enum { FEW = 64 };
  RS_TRY(rs_alloc_copy(&r->sorted, r->ranges, r->nranges, sizeof *r->sorted));
  if (r->nranges <= FEW) {
    qsort(r->sorted, (size_t)r->nranges, sizeof *r->sorted, by_lowest);
    return RESHARD_SUCCESS;
  }
  rs_pair *pairs; /* and behind them room for the sort */
  RS_TRY(rs_alloc(&pairs, 2 * r->nranges, sizeof *pairs));
  for (int64_t i = 0; i < r->nranges; i++)
    pairs[i] = (rs_pair){(uint64_t)lowest_rank(&r->ranges[i]), (uint64_t)i};
  const rs_pair *sorted = rs_sort_pairs(pairs, pairs + r->nranges, r->nranges, false, 0, rs_bits((uint64_t)world));
  for (int64_t i = 0; i < r->nranges; i++)
    r->sorted[i] = r->ranges[sorted[i].value];
  free(pairs);
  return RESHARD_SUCCESS;
}

reshard_status rs_ranks_create(const char *what, int64_t n, const int64_t *ranks, int64_t world, rs_ranks *out) {
  if (n < 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld ranks, at least 1 is needed", what, (long long)n);
  if (ranks == NULL && n > world)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld ranks are needed, the world has %lld", what, (long long)n,
                    (long long)world);
  for (int64_t i = 0; ranks != NULL && i < n; i++)
    if (ranks[i] < 0 || ranks[i] >= world)
      return rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld at position %lld is not in the world of %lld ranks", what,
                      (long long)ranks[i], (long long)i, (long long)world);
  rs_ranks made = {.n = n, .nranges = ranks == NULL ? 1 : split_ranges(n, ranks, NULL), .ascending = true};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&made.ranges, made.nranges, sizeof *made.ranges), fail);
  if (ranks == NULL)
    made.ranges[0] = (rs_rank_range){0, 0, n, 1};
  else
    split_ranges(n, ranks, made.ranges);
  RS_TRY_GOTO(status, sort_ranges(&made, world), fail);
  for (int64_t i = 0; i < made.nranges; i++) {
    if (i > 0 && lowest_rank(&made.sorted[i]) < lowest_rank(&made.sorted[i - 1]) + made.sorted[i - 1].count) {
      status = rs_error(RESHARD_ERROR_INVALID, "%s: rank %lld is named twice", what,
                        (long long)lowest_rank(&made.sorted[i]));
      goto fail;
    }
    if (made.ranges[i].step < 0 || (i > 0 && made.ranges[i].first < made.ranges[i - 1].first))
      made.ascending = false;
  }
  *out = made;
  return RESHARD_SUCCESS;
fail:
  rs_ranks_free(&made);
  return status;
}

void rs_ranks_free(rs_ranks *ranks) {
  free(ranks->ranges);
  free(ranks->sorted);
  *ranks = (rs_ranks){0};
}

int64_t rs_ranks_at(const rs_ranks *ranks, int64_t position) {
  int64_t low = 1, high = ranks->nranges;
  RS_LOWER_BOUND(low, high, ranks->ranges[i].position <= position);
  const rs_rank_range *r = &ranks->ranges[low - 1];
  return r->first + (position - r->position) * r->step;
}

int64_t rs_ranks_find(const rs_ranks *ranks, int64_t rank) {
  int64_t low = 1, high = ranks->nranges;
  RS_LOWER_BOUND(low, high, lowest_rank(&ranks->sorted[i]) <= rank);
  if (ranks->nranges == 0)
    return -1;
  const rs_rank_range *r = &ranks->sorted[low - 1];
  int64_t i = (rank - r->first) * r->step;
  return i >= 0 && i < r->count ? r->position + i : -1;
}

bool rs_ranks_equal(const rs_ranks *a, const rs_ranks *b) {
  if (a->n != b->n || a->nranges != b->nranges)
    return false;
  for (int64_t i = 0; i < a->nranges; i++)
    if (a->ranges[i].first != b->ranges[i].first || a->ranges[i].count != b->ranges[i].count ||
        a->ranges[i].step != b->ranges[i].step)
      return false;
  return true;
}
