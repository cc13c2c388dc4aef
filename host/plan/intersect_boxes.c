/* Boxes against boxes. The general way (intersect.c) asks with lists of pieces per dim, which two corners do not need.
 * With millions of boxes the lists would take most of the time. Segments come out the same. */
#include "plan/intersect.h"

typedef struct asking {
  rs_work *w;
  const rs_boxes *held; /* the other side's */
  const int *held_dim;
  int64_t *lo, *hi; /* of my box, in the other side's coordinates */
} asking;

/* My box in the other side's coordinates, clipped to the region; its elements, 0 when it is outside. */
static int64_t place_box(asking *q, bool asks_src, const int64_t *lo, const int64_t *hi) {
  const rs_space *s = &q->w->class_->space;
  const int *own_dim = asks_src ? s->src_dim : s->dst_dim;
  const int64_t *own_offset = asks_src ? s->src_offset : s->dst_offset;
  const int64_t *held_offset = asks_src ? s->dst_offset : s->src_offset;
  int64_t elements = 1;
  for (int a = 0; a < s->naxes; a++) {
    int64_t begin = 0, end = s->extent[a]; /* in the region */
    if (own_dim[a] >= 0) {
      begin = rs_max(begin, lo[own_dim[a]] - own_offset[a]);
      end = rs_min(end, hi[own_dim[a]] - own_offset[a]);
    }
    if (begin >= end)
      return 0;
    if (q->held_dim[a] >= 0) {
      q->lo[q->held_dim[a]] = begin + held_offset[a];
      q->hi[q->held_dim[a]] = end + held_offset[a];
    }
    elements *= end - begin;
  }
  return elements;
}

/* Elements that a cell shares with my box; *rows as in rs_receiver. */
static inline int64_t shared_elements(const asking *q, int64_t cell, int64_t *rows) {
  const int64_t *lo = rs_boxes_lo(q->held, q->held->cell_box[cell]), *hi = lo + q->held->ndim;
  int64_t elements = 1;
  *rows = 1;
  for (int a = 0; a < q->w->class_->space.naxes; a++) {
    int d = q->held_dim[a];
    if (d < 0)
      continue;
    int64_t length = rs_min(q->hi[d], hi[d]) - rs_max(q->lo[d], lo[d]);
    elements *= length;
    if (*rows == 1)
      *rows = length;
  }
  return elements;
}

/* rs_add_holder where `met` has what is found. */
static inline reshard_status add_meeting(const asking *q, rs_holder h, int64_t elements) {
  rs_work *w = q->w;
  if (w->met.pair.n == w->met.pair.cap)
    RS_TRY(rs_vec_reserve(&w->met.pair, w->met.pair.n + 1));
  uint64_t place = (uint64_t)rs_boxes_place(q->held, h.rank, h.array);
  w->met.pair.at[w->met.pair.n++] = (rs_pair){place << 32 | (uint64_t)w->array, (uint64_t)elements};
  if (h.rank == w->rank)
    w->class_->kept += elements;
  return RESHARD_SUCCESS;
}

static reshard_status send_cell(void *user, int64_t cell) {
  const asking *q = user;
  rs_work *w = q->w;
  int64_t rows, elements = shared_elements(q, cell, &rows);
  bool others = false;
  if (w->groups != NULL)
    return rs_add_hop_unit(w, (rs_hop_unit){cell, elements, rows, -1});
  for (int64_t i = q->held->cell_first[cell]; i < q->held->cell_first[cell + 1]; i++) {
    others |= q->held->holders[i].rank != w->rank;
    RS_TRY(w->boxed ? add_meeting(q, q->held->holders[i], elements)
                    : rs_add_holder(w, q->held->holders[i], elements, rows, -1));
  }
  w->class_->exclusive += others && !w->shared ? elements : 0;
  return RESHARD_SUCCESS;
}

static reshard_status receive_cell(void *user, int64_t cell) {
  const asking *q = user;
  rs_work *w = q->w;
  const rs_holder *holders = q->held->holders + q->held->cell_first[cell];
  int64_t n = q->held->cell_first[cell + 1] - q->held->cell_first[cell], rows;
  if (n == 1 && w->groups == NULL) {
    if (holders->rank == w->rank)
      return RESHARD_SUCCESS;
    int64_t elements = shared_elements(q, cell, &rows);
    return rs_add_segment(w, holders->rank, w->rank, (rs_segment){holders->array, w->array, -1, 0, elements});
  }
  if (rs_layout_holds(w->class_->src, cell, w->rank))
    return RESHARD_SUCCESS;
  int64_t elements = shared_elements(q, cell, &rows);
  RS_TRY(rs_vec_reserve(&w->wants, w->wants.n + 1));
  w->wants.at[w->wants.n++] = (rs_want){cell, w->array, elements, rows, -1};
  return RESHARD_SUCCESS;
}

/* Boxes that follow one another are near each other, mostly. So a few are placed, and the cells around them all are
 * gathered once. Where these are too many, boxes are asked for one by one, for ever longer. */
enum { BATCH = 16, PAUSE_MOST = 64, FETCHED = 16 };
typedef struct batch {
  int64_t n, elements[BATCH];
  int64_t lo[BATCH][RESHARD_MAX_DIMS], hi[BATCH][RESHARD_MAX_DIMS];
  int64_t paused, pause; /* batches still to be asked for one by one; and after the next that fails */
  bool gathered;
  rs_near near;
} batch;

/* Corners are far from each other in memory where a rank's boxes are. */
static inline void fetch_corners(const rs_boxes *own, const int64_t *box, int64_t n) {
  if (n > FETCHED)
    __builtin_prefetch(rs_boxes_lo(own, box[FETCHED]));
}

/* Places the first of n boxes of my side: as many as a batch takes. */
static void place_batch(asking *q, bool asks_src, const rs_boxes *own, const int64_t *box, int64_t n, batch *b) {
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS], placed = 0;
  b->n = rs_min(n, BATCH);
  for (int64_t i = 0; i < b->n; i++) {
    fetch_corners(own, box + i, n - i);
    q->lo = b->lo[i];
    q->hi = b->hi[i];
    b->elements[i] = place_box(q, asks_src, rs_boxes_lo(own, box[i]), rs_boxes_hi(own, box[i]));
    for (int d = 0; d < q->held->ndim && b->elements[i] > 0; d++) {
      lo[d] = placed > 0 ? rs_min(lo[d], q->lo[d]) : q->lo[d];
      hi[d] = placed > 0 ? rs_max(hi[d], q->hi[d]) : q->hi[d];
    }
    placed += b->elements[i] > 0;
  }
  b->gathered = placed > 1 && b->paused == 0 && rs_boxes_gather(q->held, lo, hi, &b->near);
  if (b->paused > 0)
    b->paused--;
  else if (placed > 1)
    b->paused = b->pause = b->gathered ? 0 : rs_min(2 * b->pause + 1, PAUSE_MOST);
}

/* Asks the other side for box i of the batch. */
static reshard_status ask_placed(asking *q, batch *b, int64_t i, rs_boxes_visit visit) {
  q->lo = b->lo[i];
  q->hi = b->hi[i];
  return b->gathered ? rs_near_query(&b->near, q->lo, q->hi, visit, q)
                     : rs_boxes_query(q->held, q->lo, q->hi, visit, q);
}

static reshard_status send_batch(asking *q, const rs_boxes *own, const int64_t *box, int64_t n, batch *b) {
  rs_work *w = q->w;
  place_batch(q, true, own, box, n, b);
  for (int64_t i = 0; i < b->n; i++, w->array++) {
    bool mine;
    w->cell = own->cell_of[box[i]];
    if (b->elements[i] == 0)
      continue;
    RS_TRY(rs_begin_cell(w, &mine));
    if (!mine)
      continue;
    RS_TRY(ask_placed(q, b, i, send_cell));
    RS_TRY(rs_end_cell(w));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_send_boxes(rs_work *w) {
  const rs_boxes *own = w->class_->src->boxes;
  asking q = {.w = w, .held = w->class_->dst->boxes, .held_dim = w->class_->space.dst_dim};
  int64_t first, count;
  batch b;
  b.paused = b.pause = 0;
  rs_boxes_of_rank(own, w->rank, &first, &count);
  /* The cells that one box meets are in order, mostly: there is nothing to sort. */
  w->boxed = count > 1 && !own->replicated && w->groups == NULL;
  RS_TRY(w->boxed ? rs_vec_reserve(&w->met.pair, count)
                  : rs_vec_reserve(&w->found, w->found.n + count)); /* most boxes meet something */
  for (w->array = 0; w->array < count;)
    RS_TRY(send_batch(&q, own, own->by_rank + first + w->array, count - w->array, &b));
  return RESHARD_SUCCESS;
}

static reshard_status receive_batch(asking *q, const rs_boxes *own, const int64_t *box, int64_t n, batch *b) {
  rs_work *w = q->w;
  place_batch(q, false, own, box, n, b);
  for (int64_t i = 0; i < b->n; i++, w->array++) {
    w->class_->wanted += b->elements[i];
    if (b->elements[i] > 0)
      RS_TRY(ask_placed(q, b, i, receive_cell));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_receive_boxes(rs_work *w) {
  const rs_boxes *own = w->class_->dst->boxes;
  asking q = {.w = w, .held = w->class_->src->boxes, .held_dim = w->class_->space.src_dim};
  int64_t first, count;
  batch b;
  b.paused = b.pause = 0;
  rs_boxes_of_rank(own, w->rank, &first, &count);
  RS_TRY(rs_vec_reserve(&w->found, count));
  for (w->array = 0; w->array < count;)
    RS_TRY(receive_batch(&q, own, own->by_rank + first + w->array, count - w->array, &b));
  return RESHARD_SUCCESS;
}

/* True where the region is all of the destination. */
static bool wants_all(const rs_class *c) {
  for (int a = 0; a < c->space.naxes; a++) {
    int d = c->space.dst_dim[a];
    if (d >= 0 && c->space.extent[a] != c->dst->shape[d])
      return false;
  }
  return true;
}

void rs_count_wanted_boxes(rs_work *w) {
  const rs_boxes *own = w->class_->dst->boxes;
  int64_t first, count, lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  asking q = {.w = w, .held_dim = w->class_->space.src_dim, .lo = lo, .hi = hi};
  rs_boxes_of_rank(own, w->rank, &first, &count);
  if (wants_all(w->class_)) {
    w->class_->wanted += rs_boxes_elements(own, w->rank);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    const int64_t *box = own->by_rank + first + i;
    fetch_corners(own, box, count - i);
    w->class_->wanted += place_box(&q, false, rs_boxes_lo(own, *box), rs_boxes_hi(own, *box));
  }
}
