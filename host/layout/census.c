/* Counts the elements of a query that the ranks of a regular layout hold, summed over ranks without visiting them.
 *
 * A rank's share is a product over the dims of the tensor: the queried indices of its part in each. A rank's place in
 * the mesh is a number in mixed radix; every digit either picks a piece in one dim or picks a replica. The ranks below
 * a given one fall into subsets, one per digit: they agree with it in the digits above, are smaller in that digit, and
 * free in the rest. The sum over a subset factors over the dims again. So counting below a rank costs a pass over the
 * parts met per digit, for any number of ranks. */
#include "layout/census.h"
#include "layout/ranks.h"

#include <stdlib.h>
#include <string.h>

typedef struct rs_census_subset {
  int64_t stride;   /* of its digit */
  int64_t digit;    /* the rank's own */
  int64_t replicas; /* choices of replica: of this digit, where it picks one, times all free ones */
  int dim;          /* that the digit cuts; -1: it picks a replica */
} rs_census_subset;

/* Replicas among the digits below `stride`. */
static int64_t free_replicas(const struct reshard_layout_s *l, int64_t stride) {
  int64_t n = 1;
  for (int r = 0; r < l->nreplicas; r++)
    if (l->replica[r].stride < stride)
      n *= l->replica[r].n;
  return n;
}

static void find_subsets(rs_census *c) {
  const struct reshard_layout_s *l = c->layout;
  c->nsubsets = 0;
  for (int d = 0; d < l->ndim; d++)
    for (int i = 0; i < l->dim[d].ncuts; i++) {
      int64_t stride = l->dim[d].cuts[i].stride;
      c->subsets[c->nsubsets++] =
          (rs_census_subset){stride, c->position / stride % l->dim[d].cuts[i].ranks, free_replicas(l, stride), d};
    }
  for (int r = 0; r < l->nreplicas; r++) {
    int64_t stride = l->replica[r].stride, digit = c->position / stride % l->replica[r].n;
    c->subsets[c->nsubsets++] = (rs_census_subset){stride, digit, digit * free_replicas(l, stride), -1};
  }
}

reshard_status rs_census_create(const struct reshard_layout_s *l, int64_t rank, rs_census *out) {
  rs_census c = {.layout = l, .position = rs_ranks_find(&l->ranks, rank), .nsubsets = l->nreplicas};
  for (int d = 0; d < l->ndim; d++)
    c.nsubsets += l->dim[d].ncuts;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&c.subsets, rs_max(1, c.nsubsets), sizeof *c.subsets), fail);
  for (int d = 0; d < l->ndim; d++)
    RS_TRY_GOTO(status, rs_alloc(&c.dim[d].below, rs_max(1, c.nsubsets), sizeof *c.dim[d].below), fail);
  find_subsets(&c);
  *out = c;
  return RESHARD_SUCCESS;
fail:
  rs_census_free(&c);
  return status;
}

void rs_census_free(rs_census *c) {
  free(c->subsets);
  for (int d = 0; d < RESHARD_MAX_DIMS; d++) {
    free(c->dim[d].asked.at);
    free(c->dim[d].below);
    rs_lists_free(&c->dim[d].lists);
  }
  *c = (rs_census){0};
}

static int64_t length_of(const rs_lists *lists, int64_t group) {
  return lists->list.at[lists->group.at[group].list].length;
}

/* The digits of this dim with which a part is one of the subset's; all of them where there is none. */
static int64_t count_digits(const rs_census *c, const rs_census_subset *f, int d, int64_t part) {
  const rs_dim *dim = &c->layout->dim[d];
  int64_t digits = 1;
  for (int i = dim->ncuts - 1; i >= 0; i--) {
    const rs_cut *cut = &dim->cuts[i];
    int64_t piece = part % cut->w, mine = c->position / cut->stride % cut->ranks, begin = 0, end = cut->ranks;
    part /= cut->w;
    if (f != NULL && cut->stride > f->stride) {
      begin = mine;
      end = mine + 1;
    } else if (f != NULL && cut->stride == f->stride && f->dim == d) {
      end = mine;
    }
    digits *= rs_cut_digits(cut, piece, end) - rs_cut_digits(cut, piece, begin);
  }
  return digits;
}

static reshard_status count_dim(rs_census *c, int d, const rs_piece *pieces, int64_t count) {
  rs_lists *lists = &c->dim[d].lists;
  rs_pieces *asked = &c->dim[d].asked;
  asked->n = 0;
  RS_TRY(rs_vec_reserve(asked, count));
  lists->run.n = lists->list.n = lists->group.n = 0;
  RS_TRY(rs_dim_meet(&c->layout->dim[d], pieces, count, lists));
  memset(c->dim[d].below, 0, (size_t)c->nsubsets * sizeof *c->dim[d].below);
  c->dim[d].all = 0;
  for (int64_t g = 0; g < lists->group.n; g++) {
    int64_t length = length_of(lists, g), part = lists->group.at[g].part;
    c->dim[d].all += length * count_digits(c, NULL, d, part);
    for (int f = 0; f < c->nsubsets; f++)
      c->dim[d].below[f] += length * count_digits(c, &c->subsets[f], d, part);
  }
  memcpy(asked->at, pieces, (size_t)count * sizeof *pieces);
  asked->n = count;
  return RESHARD_SUCCESS;
}

reshard_status rs_census_take(rs_census *c, const rs_query *query) {
  for (int d = 0; d < c->layout->ndim; d++)
    if (c->dim[d].asked.n != query->count[d] ||
        memcmp(c->dim[d].asked.at, query->pieces[d], (size_t)query->count[d] * sizeof(rs_piece)) != 0)
      RS_TRY(count_dim(c, d, query->pieces[d], query->count[d]));
  return RESHARD_SUCCESS;
}

int64_t rs_census_all(const rs_census *c) {
  int64_t product = c->layout->replicas;
  for (int d = 0; d < c->layout->ndim; d++)
    product *= c->dim[d].all;
  return product;
}

int64_t rs_census_below(const rs_census *c) {
  int64_t sum = 0;
  for (int f = 0; f < c->nsubsets; f++) {
    int64_t product = c->subsets[f].replicas;
    for (int d = 0; d < c->layout->ndim; d++)
      product *= c->dim[d].below[f];
    sum += product;
  }
  return sum;
}

/* The queried indices of the part that a position has in one dim, in all its runs. */
static int64_t queried_of(const rs_census *c, int d, int64_t position) {
  const rs_dim *dim = &c->layout->dim[d];
  const rs_lists *lists = &c->dim[d].lists;
  int64_t sum = 0;
  if (dim->ncuts == 0)
    return c->dim[d].all;
  for (int run = 0; run < rs_dim_runs(dim); run++) {
    int64_t part = rs_dim_part(dim, position, run), low = 0, end = lists->group.n, high = end;
    RS_LOWER_BOUND(low, high, lists->group.at[i].part < part);
    sum += low < end && lists->group.at[low].part == part ? length_of(lists, low) : 0;
  }
  return sum;
}

int64_t rs_census_of(const rs_census *c, int64_t rank) {
  int64_t position = rs_ranks_find(&c->layout->ranks, rank), product = 1;
  if (position < 0)
    return 0;
  for (int d = 0; d < c->layout->ndim && product > 0; d++)
    product *= queried_of(c, d, position);
  return product;
}
