/* Finds the cells of a layout that share elements with a product of index sets, and the shared elements, dim by dim.
 *
 * In a regular layout the dims are independent: each dim is cut by arithmetic into (part, runs), and the cells met are
 * the product of the parts met. So lists of runs are made once per dim and part, and shared by all cells. A flat layout
 * is walked along the flattening, from one piece to the next element of the query beyond it. Boxes are found through
 * their tree. */
#include "layout/query.h"

#include "base/order.h"

#include <stdlib.h>
#include <string.h>

void rs_lists_free(rs_lists *lists) {
  free(lists->run.at);
  free(lists->list.at);
  free(lists->found.at);
  free(lists->group.at);
  *lists = (rs_lists){0};
}

void rs_lists_drop_scratch(rs_lists *lists) {
  free(lists->found.at);
  free(lists->group.at);
  memset(&lists->found, 0, sizeof lists->found);
  memset(&lists->group, 0, sizeof lists->group);
}

static reshard_status begin_list(rs_lists *lists) {
  RS_TRY(rs_vec_reserve(&lists->list, lists->list.n + 1));
  lists->list.at[lists->list.n++] = (rs_list){lists->run.n, 0, 0};
  return RESHARD_SUCCESS;
}

/* Appends a run to the last list, to its last run where it goes on from there. */
static reshard_status add_run(rs_lists *lists, rs_run run) {
  rs_list *list = &lists->list.at[lists->list.n - 1];
  list->length += run.n;
  if (list->count > 0) {
    rs_run *last = &lists->run.at[lists->run.n - 1];
    if (last->ask + last->n == run.ask && last->held + last->n == run.held) {
      last->n += run.n;
      return RESHARD_SUCCESS;
    }
  }
  RS_TRY(rs_vec_reserve(&lists->run, lists->run.n + 1));
  lists->run.at[lists->run.n++] = run;
  list->count++;
  return RESHARD_SUCCESS;
}

RS_ORDER_BY_TWO(by_part, rs_found, part, run.ask)

reshard_status rs_dim_meet(const rs_dim *dim, const rs_piece *pieces, int64_t count, rs_lists *lists) {
  lists->found.n = 0;
  bool ordered = true;
  for (int64_t p = 0; p < count; p++) {
    for (int64_t i = pieces[p].begin, end = i + pieces[p].n; i < end;) {
      rs_found f = {.run.ask = pieces[p].local + (i - pieces[p].begin)};
      rs_dim_locate(dim, i, &f.part, &f.run.held, &f.run.n);
      f.run.n = rs_min(f.run.n, end - i);
      int64_t more = i == pieces[p].begin && f.run.n < end - i ? rs_dim_least_runs(dim, end - i) : 1;
      if (rs_vec_reserve(&lists->found, lists->found.n + more) != RESHARD_SUCCESS)
        return rs_dim_error_runs(dim, lists->found.n + more);
      ordered &= lists->found.n == 0 || lists->found.at[lists->found.n - 1].part <= f.part;
      lists->found.at[lists->found.n++] = f;
      i += f.run.n;
    }
  }
  if (!ordered) /* local indices ascend along the pieces, so (part, ask) is a stable order */
    qsort(lists->found.at, (size_t)lists->found.n, sizeof *lists->found.at, by_part);
  int64_t parts = 0;
  for (int64_t i = 0; i < lists->found.n; i++)
    parts += i == 0 || lists->found.at[i - 1].part != lists->found.at[i].part;
  RS_TRY(rs_vec_reserve(&lists->list, lists->list.n + parts));
  RS_TRY(rs_vec_reserve(&lists->group, lists->group.n + parts));
  RS_TRY(rs_vec_reserve(&lists->run, lists->run.n + parts));
  for (int64_t i = 0; i < lists->found.n; i++) {
    const rs_found *f = &lists->found.at[i];
    if (i == 0 || f[-1].part != f->part) {
      RS_TRY(begin_list(lists));
      lists->group.at[lists->group.n++] = (rs_group){f->part, lists->list.n - 1};
    }
    RS_TRY(add_run(lists, f->run));
  }
  return RESHARD_SUCCESS;
}

static reshard_status query_regular(const struct reshard_layout_s *l, const rs_query *query, rs_lists *lists,
                                    rs_hit_visit visit, void *user) {
  int64_t first[RESHARD_MAX_DIMS + 1], at[RESHARD_MAX_DIMS];
  lists->group.n = 0;
  for (int d = 0; d < l->ndim; d++) {
    first[d] = at[d] = lists->group.n;
    RS_TRY(rs_dim_meet(&l->dim[d], query->pieces[d], query->count[d], lists));
    if (lists->group.n == first[d])
      return RESHARD_SUCCESS;
  }
  first[l->ndim] = lists->group.n;
  for (;;) {
    rs_hit hit;
    hit.cell = 0;
    hit.elements = 1;
    for (int d = 0; d < l->ndim; d++) {
      const rs_group *g = &lists->group.at[at[d]];
      hit.cell = hit.cell * l->dim[d].parts + g->part;
      hit.list[d] = g->list;
      hit.length[d] = lists->list.at[g->list].length;
      hit.elements *= hit.length[d];
    }
    RS_TRY(visit(user, &hit));
    int d = l->ndim - 1;
    while (d >= 0 && ++at[d] == first[d + 1]) {
      at[d] = first[d];
      d--;
    }
    if (d < 0)
      return RESHARD_SUCCESS;
  }
}

/* First piece that ends behind an index. */
static int64_t first_behind(const rs_piece *pieces, int64_t count, int64_t index) {
  int64_t low = 0, high = count;
  RS_LOWER_BOUND(low, high, pieces[i].begin + pieces[i].n <= index);
  return low;
}

/* Runs of a box in one dim of the query, as a list; their length. */
static reshard_status list_dim(const rs_piece *pieces, int64_t count, int64_t lo, int64_t hi, rs_lists *lists,
                               int64_t *length) {
  const rs_piece *p = pieces + first_behind(pieces, count, lo), *end = pieces + count;
  RS_TRY(begin_list(lists));
  for (; p < end && p->begin < hi; p++) {
    int64_t b = rs_max(p->begin, lo), e = rs_min(p->begin + p->n, hi);
    RS_TRY(add_run(lists, (rs_run){p->local + (b - p->begin), b - lo, e - b}));
  }
  *length = lists->list.at[lists->list.n - 1].length;
  return RESHARD_SUCCESS;
}

/* One box against the query: makes its lists, one per dim, and visits it unless they miss each other somewhere. */
static reshard_status meet_box(const struct reshard_layout_s *l, const rs_query *query, int64_t cell, const int64_t *lo,
                               const int64_t *hi, rs_lists *lists, rs_hit_visit visit, void *user) {
  rs_hit hit;
  hit.cell = cell;
  hit.elements = 1;
  int64_t runs = lists != NULL ? lists->run.n : 0, made = lists != NULL ? lists->list.n : 0;
  for (int d = 0; d < l->ndim; d++) {
    if (lists != NULL) {
      hit.list[d] = lists->list.n;
      RS_TRY(list_dim(query->pieces[d], query->count[d], lo[d], hi[d], lists, &hit.length[d]));
    } else {
      const rs_piece *p = query->pieces[d];
      hit.length[d] = rs_max(0, rs_min(p->begin + p->n, hi[d]) - rs_max(p->begin, lo[d]));
    }
    hit.elements *= hit.length[d];
  }
  if (hit.elements > 0)
    return visit(user, &hit);
  if (lists != NULL) {
    lists->run.n = runs;
    lists->list.n = made;
  }
  return RESHARD_SUCCESS;
}

typedef struct box_query {
  const struct reshard_layout_s *layout;
  const rs_query *query;
  rs_lists *lists;
  rs_hit_visit visit;
  void *user;
} box_query;

static reshard_status meet_cell(void *user, int64_t cell) {
  box_query *q = user;
  const rs_boxes *boxes = q->layout->boxes;
  int64_t box = boxes->cell_box[cell];
  return meet_box(q->layout, q->query, cell, rs_boxes_lo(boxes, box), rs_boxes_hi(boxes, box), q->lists, q->visit,
                  q->user);
}

static reshard_status query_boxes(const struct reshard_layout_s *l, const rs_query *query, rs_lists *lists,
                                  rs_hit_visit visit, void *user) {
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  for (int d = 0; d < l->ndim; d++) {
    const rs_piece *last = &query->pieces[d][query->count[d] - 1];
    lo[d] = query->pieces[d][0].begin;
    hi[d] = last->begin + last->n;
  }
  box_query q = {l, query, lists, visit, user};
  return rs_boxes_query(l->boxes, lo, hi, meet_cell, &q);
}

/* Smallest position in the flattening, from x on, whose element is in the query; -1 when there is none. */
static int64_t next_element(const struct reshard_layout_s *l, const rs_query *query, int64_t x) {
  int64_t c[RESHARD_MAX_DIMS], rest = x;
  for (int d = l->ndim - 1; d >= 0; d--) {
    c[d] = rest % l->shape[d];
    rest /= l->shape[d];
  }
  if (rest > 0)
    return -1;
  int d = 0;
  while (d < l->ndim) {
    int64_t p = first_behind(query->pieces[d], query->count[d], c[d]);
    if (p < query->count[d] && query->pieces[d][p].begin <= c[d]) {
      d++;
      continue;
    }
    if (p < query->count[d]) { /* jumps ahead in this dim: the dims behind start from their first */
      c[d] = query->pieces[d][p].begin;
      for (int e = d + 1; e < l->ndim; e++)
        c[e] = query->pieces[e][0].begin;
      break;
    }
    if (d == 0)
      return -1;
    d--; /* nothing left in this dim: the next index of the one before, from its start */
    c[d]++;
    for (int e = d + 1; e < l->ndim; e++)
      c[e] = 0;
  }
  int64_t at = 0;
  for (int e = 0; e < l->ndim; e++)
    at = at * l->shape[e] + c[e];
  return at;
}

static reshard_status query_flat(const struct reshard_layout_s *l, const rs_query *query, rs_lists *lists,
                                 rs_hit_visit visit, void *user) {
  int64_t corners[2 * RESHARD_MAX_DIMS * 2 * RESHARD_MAX_DIMS], most = rs_flat_most(l->ndim);
  for (int64_t x = next_element(l, query, 0); x >= 0;) {
    int64_t piece = x / l->flat_piece, begin = piece * l->flat_piece;
    int64_t end = begin + rs_min(l->flat_piece, l->elements - begin);
    int n = rs_flat_boxes(l->ndim, l->shape, begin, end, corners);
    for (int b = 0; b < n; b++) {
      const int64_t *lo = corners + (int64_t)b * 2 * l->ndim;
      RS_TRY(meet_box(l, query, piece * most + b, lo, lo + l->ndim, lists, visit, user));
    }
    x = end < l->elements ? next_element(l, query, end) : -1;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_layout_query(const struct reshard_layout_s *l, const rs_query *query, rs_lists *lists,
                               rs_hit_visit visit, void *user) {
  if (l->elements == 0)
    return RESHARD_SUCCESS;
  for (int d = 0; d < l->ndim; d++)
    if (query->count[d] == 0)
      return RESHARD_SUCCESS;
  if (l->kind == RESHARD_LAYOUT_BOXES)
    return query_boxes(l, query, lists, visit, user);
  if (l->kind == RESHARD_LAYOUT_FLAT)
    return query_flat(l, query, lists, visit, user);
  return query_regular(l, query, lists, visit, user);
}

/* The public question: who holds what meets a box. */
typedef struct meeting {
  int64_t rank, array, elements;
} meeting;

typedef struct meetings {
  const struct reshard_layout_s *layout;
  RS_VEC(meeting) all;
  RS_VEC(rs_holder) holders;
} meetings;

static reshard_status note_holders(void *user, const rs_hit *hit) {
  meetings *m = user;
  int64_t n = rs_layout_holder_count(m->layout, hit->cell);
  RS_TRY(rs_vec_reserve(&m->holders, n));
  RS_TRY(rs_vec_reserve(&m->all, m->all.n + n));
  const rs_holder *holders = rs_layout_holders(m->layout, hit->cell, m->holders.at);
  for (int64_t i = 0; i < n; i++)
    m->all.at[m->all.n++] = (meeting){holders[i].rank, holders[i].array, hit->elements};
  return RESHARD_SUCCESS;
}

RS_ORDER_BY_TWO(by_rank_and_array, meeting, rank, array)

reshard_status reshard_layout_meet(reshard_layout layout, const reshard_box *box, reshard_layout_visitor visit,
                                   void *user) {
  RS_TRY(RS_GIVEN("reshard_layout_meet", layout, box, visit));
  rs_piece piece[RESHARD_MAX_DIMS];
  rs_query query;
  for (int d = 0; d < layout->ndim; d++) {
    if (box->offset[d] < 0 || box->extent[d] < 0 || box->extent[d] > layout->shape[d] - box->offset[d])
      return rs_error(RESHARD_ERROR_INVALID, "reshard_layout_meet: [%lld,+%lld) in dim %d of extent %lld",
                      (long long)box->offset[d], (long long)box->extent[d], d, (long long)layout->shape[d]);
    piece[d] = (rs_piece){box->offset[d], box->extent[d], 0};
    query.count[d] = box->extent[d] > 0;
    query.pieces[d] = &piece[d];
  }
  rs_lists lists = {0};
  meetings m = {.layout = layout};
  reshard_status status = rs_layout_query(layout, &query, &lists, note_holders, &m);
  if (status == RESHARD_SUCCESS) {
    if (m.all.n > 1)
      qsort(m.all.at, (size_t)m.all.n, sizeof *m.all.at, by_rank_and_array);
    for (int64_t i = 0; i < m.all.n; i++)
      if (visit(user, m.all.at[i].rank, m.all.at[i].array, m.all.at[i].elements) != 0)
        break;
  }
  rs_lists_free(&lists);
  free(m.all.at);
  free(m.holders.at);
  return status;
}
