/* From a segment to box copies, and from the messages of a plan.
 *
 * A segment is a product of lists of runs. The runs of one axis are nearly always a few interleaved arithmetic
 * progressions (blocks dealt to ranks in turn). A list therefore becomes progressions, each of them two plain loops -
 * steps and indices - and the segment the product of its axes' progressions. Block-cyclic layouts of any size thus cost
 * a handful of descriptors, not one per block. */
#include "exec/lower/lower.h"

#include "plan/hops.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 32 };

/* Of the axes, one after the other; few of them need no memory. */
typedef struct progressions {
  rs_progression *at;
  int64_t n, cap;
  rs_progression few[FEW];
} progressions;

/* Room for one more. */
static reshard_status reserve_progression(progressions *list) {
  if (list->n < list->cap)
    return RESHARD_SUCCESS;
  if (list->at != list->few)
    return rs_grow(&list->at, &list->cap, list->n + 1, sizeof *list->at);
  rs_progression *more;
  RS_TRY(rs_alloc(&more, 2 * FEW, sizeof *more));
  memcpy(more, list->few, sizeof list->few);
  list->at = more;
  list->cap = 2 * FEW;
  return RESHARD_SUCCESS;
}

/* Elements of a destination in messages that pass them on: what has come in the narrower dtype goes on so, exactly. */
static rs_format passed_format(const rs_class *c) { return c->wire.width < c->to.width ? c->wire : c->to; }

static int64_t array_stride(const rs_view *view, int dim) { return dim >= 0 ? view->strides[dim] : 0; }

/* Byte strides of a message that is row-major over the axes; axes with one index are dropped into the base addresses.
 */
static void find_axes(const rs_lowering *w, rs_lowered *out) {
  const rs_space *space = &w->class_->space;
  const rs_geometry *g = &out->geometry;
  rs_segment_geometry(w->class_, w->sending ? &w->class_->send : &w->class_->receive, w->route, w->segment,
                      &out->geometry);
  out->naxes = 0;
  out->src = w->src != NULL ? w->src->at : w->linear;
  out->dst = w->dst != NULL ? w->dst->at : w->linear;
  rs_format linear_format = w->passed ? passed_format(w->class_) : w->class_->wire;
  out->of = w;
  out->scales = rs_scaled_view(w) != NULL ? rs_scaled_view(w)->scales : NULL;
  out->from = w->src != NULL ? w->class_->from : linear_format;
  out->to = w->dst != NULL ? w->class_->to : linear_format;
  out->back = w->back;
  int64_t linear = w->class_->wire.width;
  bool in_blocks = rs_class_in_blocks(w->class_), parts = !in_blocks && rs_lowers_scales(w);
  rs_lowered_axis found[RESHARD_MAX_DIMS];
  for (int a = g->naxes - 1; a >= 0; a--) {
    const rs_span_list *list = &g->axis[a];
    rs_lowered_axis axis = {.runs = list->runs, .count = list->count, .length = list->length};
    if (a == g->cut) {
      axis.skip = w->segment->begin;
      axis.length = rs_segment_rows(w->segment, g);
    }
    axis.src_linear = w->src == NULL;
    axis.dst_linear = w->dst == NULL;
    int64_t each = in_blocks ? w->class_->scaling->block[a] : 1; /* elements per index */
    axis.src_stride = axis.src_linear ? linear : array_stride(w->src, space->src_dim[a]) * each;
    axis.dst_stride = axis.dst_linear ? linear : array_stride(w->dst, space->dst_dim[a]) * each;
    axis.number = a;
    if (axis.length == 1 && list->count == 1 && !(parts && w->class_->scaling->block[a] > 1)) {
      int64_t ask = list->runs[0].ask + axis.skip, held = list->runs[0].held + axis.skip;
      out->src += axis.src_linear ? 0 : (g->src_asks ? ask : held) * axis.src_stride;
      out->dst += axis.dst_linear ? 0 : (g->src_asks ? held : ask) * axis.dst_stride;
      if (out->scales != NULL)
        out->scales += (w->class_->scaling->source == g->src_asks ? ask : held) * rs_scale_stride(w, a);
      continue;
    }
    linear *= axis.length;
    found[out->naxes++] = axis;
  }
  for (int a = 0; a < out->naxes; a++)
    out->axis[a] = found[out->naxes - 1 - a];
}

/* True when runs [first, last) are progressions of period t. */
static bool is_periodic(const rs_progression *r, int64_t first, int64_t last, int64_t t) {
  int64_t src_step = r[first + t].src - r[first].src, dst_step = r[first + t].dst - r[first].dst;
  for (int64_t i = first; i + t < last; i++)
    if (r[i + t].n != r[i].n || r[i + t].src - r[i].src != src_step || r[i + t].dst - r[i].dst != dst_step)
      return false;
  return true;
}

/* Folds runs [from, last) of the list into progressions of the shortest period; false when there is none. */
#define LONGEST_PERIOD 64
static bool fold_range(progressions *list, int64_t from, int64_t last) {
  rs_progression *r = list->at;
  for (int64_t t = 1; t <= LONGEST_PERIOD && 2 * t <= last - from; t++) {
    if (!is_periodic(r, from, last, t))
      continue;
    int64_t steps = (last - from) / t;
    for (int64_t i = 0; i < t; i++) {
      r[from + i].steps = steps;
      r[from + i].src_step = r[from + i + t].src - r[from + i].src;
      r[from + i].dst_step = r[from + i + t].dst - r[from + i].dst;
    }
    /* The runs of a last, incomplete period stay alone: copies of equal loops are what a device does together. */
    int64_t kept = from + t;
    for (int64_t i = from + steps * t; i < list->n; i++)
      r[kept++] = r[i];
    list->n = kept;
    return true;
  }
  return false;
}

/* Folds the runs from `first` on; the outermost two are often cut short, and then stay alone. */
static void fold_runs(progressions *list, int64_t first) {
  for (int alone = 0; alone < 4; alone++)
    if (list->n - first > 2 && fold_range(list, first + (alone >> 1), list->n - (alone & 1)))
      return;
}

/* Positions [lo, hi) of an axis as progressions. */
static reshard_status list_progressions(const rs_lowered *w, const rs_lowered_axis *axis, int64_t lo, int64_t hi,
                                        progressions *list) {
  int64_t first = list->n, position = -axis->skip; /* of the run's first index, from the cut on */
  for (int64_t i = 0; i < axis->count && position < hi; position += axis->runs[i].n, i++) {
    const rs_run *run = &axis->runs[i];
    int64_t from = rs_max(lo - position, 0), to = rs_min(hi - position, run->n);
    if (from >= to)
      continue;
    int64_t src = (w->geometry.src_asks ? run->ask : run->held) + from,
            dst = (w->geometry.src_asks ? run->held : run->ask) + from;
    if (axis->src_linear)
      src = position + from;
    if (axis->dst_linear)
      dst = position + from;
    RS_TRY(reserve_progression(list));
    list->at[list->n++] = (rs_progression){src, dst, to - from, 1, 0, 0};
  }
  fold_runs(list, first);
  return RESHARD_SUCCESS;
}

/* From dtype to dtype where these differ, else as they are. */
static reshard_status add_copy(rs_copies *copies, const rs_lowered *w, const char *from, char *to, rs_axis *axes) {
  int n = 2 * w->naxes;
  rs_format src = w->back ? w->to : w->from, dst = w->back ? w->from : w->to;
  const char *read = w->back ? to : from;
  char *written = w->back ? (char *)from : to;
  for (int a = 0; a < n && w->back; a++)
    axes[a] = (rs_axis){axes[a].n, axes[a].dst, axes[a].src};
  return src.dtype == dst.dtype ? rs_copies_add(copies, read, written, (int32_t)src.width, n, axes)
                                : rs_copies_convert(copies, read, written, src.dtype, dst.dtype, n, axes);
}

/* Copies of one progression of each axis. */
static reshard_status add_progressions(const rs_lowered *w, const char *src, char *dst,
                                       const rs_progression *const *picked, rs_copies *copies) {
  rs_axis axes[2 * RESHARD_MAX_DIMS];
  if (rs_lowers_scales(w->of))
    return rs_lower_scales(w, src, dst, picked, copies);
  for (int a = 0; a < w->naxes; a++) {
    const rs_progression *p = picked[a];
    int64_t from = w->axis[a].src_stride, to = w->axis[a].dst_stride;
    src += p->src * from;
    dst += p->dst * to;
    axes[2 * a] = (rs_axis){p->steps, p->src_step * from, p->dst_step * to};
    axes[2 * a + 1] = (rs_axis){p->n, from, to};
  }
  return add_copy(copies, w, src, dst, axes);
}

/* Positions [lo, hi) of the axes as copies; base addresses are those of position 0. */
static reshard_status add_product(const rs_lowered *w, const char *src, char *dst, const int64_t *lo, const int64_t *hi,
                                  rs_copies *copies) {
  progressions list;
  list.at = list.few;
  list.n = 0;
  list.cap = FEW;
  int64_t first[RESHARD_MAX_DIMS + 1], at[RESHARD_MAX_DIMS];
  reshard_status status = RESHARD_SUCCESS;
  for (int a = 0; a < w->naxes; a++) {
    first[a] = at[a] = list.n;
    RS_TRY_GOTO(status, list_progressions(w, &w->axis[a], lo[a], hi[a], &list), done);
    if (list.n == first[a])
      goto done;
  }
  first[w->naxes] = list.n;
  for (;;) {
    const rs_progression *picked[RESHARD_MAX_DIMS];
    for (int a = 0; a < w->naxes; a++)
      picked[a] = &list.at[at[a]];
    RS_TRY_GOTO(status, add_progressions(w, src, dst, picked, copies), done);
    int a = w->naxes - 1;
    while (a >= 0 && ++at[a] == first[a + 1]) {
      at[a] = first[a];
      a--;
    }
    if (a < 0)
      break;
  }
done:
  if (list.at != list.few)
    free(list.at);
  return status;
}

reshard_status rs_lower(const rs_lowering *lowering, rs_copies *copies) {
  rs_lowered w;
  int64_t lo[RESHARD_MAX_DIMS] = {0}, hi[RESHARD_MAX_DIMS];
  find_axes(lowering, &w);
  for (int a = 0; a < w.naxes; a++)
    hi[a] = w.axis[a].length;
  return add_product(&w, w.src, w.dst, lo, hi, copies);
}

reshard_status rs_lower_range(const rs_lowering *lowering, int64_t begin, int64_t end, rs_copies *copies) {
  rs_lowered w;
  int64_t shape[RESHARD_MAX_DIMS], corners[2 * RESHARD_MAX_DIMS * 2 * RESHARD_MAX_DIMS];
  find_axes(lowering, &w);
  for (int a = 0; a < w.naxes; a++)
    shape[a] = w.axis[a].length;
  int n = rs_flat_boxes(w.naxes, shape, begin, end, corners);
  /* positions are those of the segment; the message's piece starts with element `begin` */
  const char *src = lowering->src == NULL ? w.src - begin * w.from.width : w.src;
  char *dst = lowering->dst == NULL ? w.dst - begin * w.to.width : w.dst;
  for (int b = 0; b < n; b++) {
    const int64_t *lo = corners + (int64_t)b * 2 * w.naxes;
    RS_TRY(add_product(&w, src, dst, lo, lo + w.naxes, copies));
  }
  return RESHARD_SUCCESS;
}

/* --- Copies to a rank straight from the arrays of the ranks that hold the data ------------------------------------ */

/* The array of this rank that the last segment of the entry went to: most go to the same as the one before. */
typedef struct last_destination {
  int64_t array; /* -1: none yet */
  rs_view view;
} last_destination;

/* Copies of one message of a rank (or of what is kept: the message to itself), all into this rank's arrays. */
static reshard_status pull_message(const struct reshard_plan_s *plan, int64_t entry, const rs_class *c, int64_t rank,
                                   const rs_message *message, rs_view_of view_of, void *user, last_destination *dst,
                                   rs_copies *copies) {
  rs_view src;
  copies->peer = (int32_t)rank;
  for (int64_t i = 0; i < message->count; i++) {
    const rs_segment *s = &message->segments[i];
    if (i == 0 || s[-1].src_array != s->src_array)
      RS_TRY(view_of(user, rank, entry, true, s->src_array, &src));
    if (dst->array != s->dst_array)
      RS_TRY(view_of(user, plan->rank, entry, false, s->dst_array, &dst->view));
    dst->array = s->dst_array;
    rs_lowering lowering = {.class_ = c,
                            .sending = rank == plan->rank,
                            .route = {rank, plan->rank},
                            .segment = s,
                            .src = &src,
                            .dst = &dst->view};
    RS_TRY(rs_lower(&lowering, copies));
  }
  return RESHARD_SUCCESS;
}

/* Copies of the data that stays on the rank. */
static reshard_status pull_own(const struct reshard_plan_s *plan, int64_t entry, rs_view_of view_of, void *user,
                               last_destination *dst, rs_copies *copies) {
  const rs_class *c = &plan->classes.at[plan->entries[entry].class_];
  const rs_message *own = rs_side_message(&c->send, plan->rank);
  return own != NULL ? pull_message(plan, entry, c, plan->rank, own, view_of, user, dst, copies) : RESHARD_SUCCESS;
}

/* The rank whose source a received message is of. hops: it is a stream of these. */
static int64_t holder_of(const rs_hops *hops, const rs_message *message) {
  return hops != NULL ? hops->streams.at[message->peer].holder : message->peer;
}

/* Peers in turn from the next rank on, so that ranks that all read one another do not begin with the same one. */
reshard_status rs_pull(const struct reshard_plan_s *plan, const rs_hops *hops, rs_view_of view_of, rs_maps_rank maps,
                       void *user, rs_copies *copies, int64_t *foreign_bytes) {
  const rs_class *classes = hops != NULL ? hops->classes : plan->classes.at;
  for (int64_t i = 0; i < plan->nentries; i++) {
    const rs_class *c = &classes[plan->entries[i].class_];
    last_destination dst = {.array = -1};
    RS_TRY(pull_own(plan, i, view_of, user, &dst, copies));
    int64_t before = copies->bytes, n = c->receive.messages.n, first = 0, high = n;
    const rs_message *from = c->receive.messages.at;
    RS_LOWER_BOUND(first, high, holder_of(hops, &from[i]) < plan->rank);
    for (int64_t m = 0; m < n; m++) {
      const rs_message *message = &from[(first + m) % n];
      int64_t rank = holder_of(hops, message);
      bool passed = hops != NULL && hops->streams.at[message->peer].group > 0;
      if (!passed && (maps == NULL || maps(user, rank)))
        RS_TRY(pull_message(plan, i, c, rank, message, view_of, user, &dst, copies));
    }
    *foreign_bytes += copies->bytes - before;
  }
  return RESHARD_SUCCESS;
}

typedef struct own_arrays {
  const struct reshard_plan_s *plan;
  const rs_arrays *arrays;
} own_arrays;

static reshard_status view_of_own(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const own_arrays *own = user;
  (void)rank;
  rs_arrays_view(own->arrays, own->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

reshard_status rs_pull_own(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_copies *copies) {
  own_arrays own = {plan, arrays};
  for (int64_t i = 0; i < plan->nentries; i++)
    RS_TRY(pull_own(plan, i, view_of_own, &own, &(last_destination){.array = -1}, copies));
  return RESHARD_SUCCESS;
}
