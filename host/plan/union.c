/* Size of a union of products of index sets: the elements of a source array that others need, where destinations
 * overlap (halos). A sweep along the axes: the runs of the products cut an axis in slabs, and each slab is the same
 * question with one axis less. Only the explanation of a plan asks for it, for the bound on the busiest rank. */
#include "plan/intersect.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* True when one of the ascending runs contains an index of the asker. */
static bool runs_contain(const rs_run *runs, int64_t count, int64_t index) {
  int64_t low = 0, high = count;
  RS_LOWER_BOUND(low, high, runs[i].ask + runs[i].n <= index);
  return low < count && runs[low].ask <= index;
}

static reshard_status union_elements(const rs_lists *lists, const rs_hit *hits, int64_t n, int d, int ndim,
                                     int64_t *size) {
  *size = n > 0;
  if (n == 0 || d == ndim)
    return RESHARD_SUCCESS;
  int64_t *bounds = NULL, nbounds = 0;
  rs_hit *inside = NULL;
  for (int64_t i = 0; i < n; i++)
    nbounds += 2 * lists->list.at[hits[i].list[d]].count;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&bounds, nbounds, sizeof *bounds), done);
  RS_TRY_GOTO(status, rs_alloc(&inside, n, sizeof *inside), done);
  nbounds = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_list *list = &lists->list.at[hits[i].list[d]];
    for (int64_t r = list->first; r < list->first + list->count; r++) {
      bounds[nbounds++] = lists->run.at[r].ask;
      bounds[nbounds++] = lists->run.at[r].ask + lists->run.at[r].n;
    }
  }
  qsort(bounds, (size_t)nbounds, sizeof *bounds, by_value);
  *size = 0;
  for (int64_t b = 0; b + 1 < nbounds; b++) {
    if (bounds[b] == bounds[b + 1])
      continue;
    int64_t ninside = 0, below;
    for (int64_t i = 0; i < n; i++) {
      const rs_list *list = &lists->list.at[hits[i].list[d]];
      if (runs_contain(lists->run.at + list->first, list->count, bounds[b]))
        inside[ninside++] = hits[i];
    }
    RS_TRY_GOTO(status, union_elements(lists, inside, ninside, d + 1, ndim, &below), done);
    *size += below * (bounds[b + 1] - bounds[b]);
  }
done:
  free(bounds);
  free(inside);
  return status;
}

reshard_status rs_union(const rs_work *w, const rs_lists *lists, int64_t *elements) {
  int64_t size;
  RS_TRY(union_elements(lists, w->hits.at, w->hits.n, 0, w->class_->dst->ndim, &size));
  *elements += size;
  return RESHARD_SUCCESS;
}
