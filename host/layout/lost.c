/* The part of a tensor that is lost with some of its ranks. A cell has one set of holders, so it is lost as a whole, or
 * a survivor has it. */
#include "layout/layout.h"

#include <stdlib.h>

typedef struct lost_walk {
  reshard_layout layout;
  int64_t n;
  const int64_t *lost; /* ascending */
  reshard_lost_visitor visit;
  void *user;
  RS_VEC(rs_holder) holders;
  RS_VEC(reshard_interval) runs; /* of one array, dim after dim */
  bool over;
} lost_walk;

static bool is_lost(const lost_walk *w, int64_t rank) {
  int64_t low = 0, high = w->n;
  RS_LOWER_BOUND(low, high, w->lost[i] < rank);
  return low < w->n && w->lost[low] == rank;
}

/* True for the lowest of a cell's holders, where no survivor is among them. Where they are more than the lost ranks one
 * is, and they are not listed: they may be as many as the world has ranks. */
static reshard_status check_holders(lost_walk *w, int64_t rank, int64_t cell, bool *first) {
  int64_t n = rs_layout_holder_count(w->layout, cell);
  *first = false;
  if (n > w->n)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&w->holders, n));
  const rs_holder *holders = rs_layout_holders(w->layout, cell, w->holders.at);
  *first = n > 0 && holders[0].rank == rank;
  for (int64_t i = 0; i < n && *first; i++)
    *first = is_lost(w, holders[i].rank);
  return RESHARD_SUCCESS;
}

static reshard_status find_runs(lost_walk *w, int64_t rank, int64_t array, int64_t *count) {
  w->runs.n = 0;
  for (int d = 0; d < w->layout->ndim; d++) {
    RS_TRY(reshard_layout_array_intervals(w->layout, rank, array, d, 0, 0, NULL, &count[d]));
    RS_TRY(rs_vec_reserve(&w->runs, w->runs.n + count[d]));
    RS_TRY(reshard_layout_array_intervals(w->layout, rank, array, d, 0, count[d], w->runs.at + w->runs.n, &count[d]));
    w->runs.n += count[d];
  }
  return RESHARD_SUCCESS;
}

/* The products of the array's runs, row-major. */
static reshard_status visit_boxes(lost_walk *w, int64_t rank, int64_t array) {
  int ndim = w->layout->ndim;
  int64_t count[RESHARD_MAX_DIMS], at[RESHARD_MAX_DIMS] = {0};
  RS_TRY(find_runs(w, rank, array, count));
  for (int d = 0; d >= 0 && !w->over;) {
    reshard_box box = {{0}, {0}};
    const reshard_interval *runs = w->runs.at;
    for (d = 0; d < ndim; runs += count[d++]) {
      box.offset[d] = runs[at[d]].begin;
      box.extent[d] = runs[at[d]].end - runs[at[d]].begin;
    }
    w->over = w->visit(w->user, &box) != 0;
    for (d = ndim - 1; d >= 0 && ++at[d] == count[d]; d--)
      at[d] = 0;
  }
  return RESHARD_SUCCESS;
}

static reshard_status visit_rank(lost_walk *w, int64_t rank) {
  int64_t arrays = rs_layout_arrays(w->layout, rank);
  for (int64_t a = 0; a < arrays && !w->over; a++) {
    reshard_array_info info;
    bool first;
    RS_TRY(reshard_layout_array(w->layout, rank, a, &info));
    if (info.elements == 0)
      continue;
    RS_TRY(check_holders(w, rank, rs_layout_cell(w->layout, rank, a), &first));
    if (first)
      RS_TRY(visit_boxes(w, rank, a));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_lost(reshard_layout layout, int64_t n, const int64_t *lost, reshard_lost_visitor visit,
                                   void *user) {
  if (layout == NULL || n < 0 || (n > 0 && lost == NULL) || visit == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_lost: layout %s, %lld ranks, list %s, visit %s",
                    layout == NULL ? "NULL" : "given", (long long)n, lost == NULL ? "NULL" : "given",
                    visit == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < n; i++)
    if (lost[i] < 0 || (i > 0 && lost[i] <= lost[i - 1]))
      return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_lost: lost[%lld] is %lld, ranks ascend from 0",
                      (long long)i, (long long)lost[i]);
  RS_TRY(reshard_layout_check_source(layout));
  lost_walk w = {.layout = layout, .n = n, .lost = lost, .visit = visit, .user = user};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS && !w.over; i++)
    if (lost[i] < layout->world)
      status = visit_rank(&w, lost[i]);
  free(w.holders.at);
  free(w.runs.at);
  return status;
}
