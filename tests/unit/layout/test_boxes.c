/* Lists of boxes against brute force over every element: cells, holders, coverage, overlap, the gap or pair that an
 * error names, and queries. In some cases a unit of the lists here stands for very many elements. */
#include "layout/boxes.h"
#include "support/fixtures/case.h"
#include "support/fixtures/draw.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOXES_MOST    2048
#define ELEMENTS_MOST 4096

typedef struct list {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];                    /* in units */
  int64_t place[RESHARD_MAX_DIMS][ELEMENTS_MOST + 1]; /* where each unit begins, in elements */
  int64_t elements, world, n;
  int64_t ranks[BOXES_MOST];
  reshard_box boxes[BOXES_MOST]; /* in units */
} list;

static void list_add(list *l, int64_t rank, const reshard_box *box) {
  if (l->n < BOXES_MOST) {
    l->ranks[l->n] = rank;
    l->boxes[l->n++] = *box;
  }
}

/* Cuts a box in two at random, again and again; empty pieces occur. */
static void list_split(list *l, reshard_box box, int64_t pieces) {
  if (pieces <= 1 || l->ndim == 0) {
    list_add(l, below(l->world), &box);
    return;
  }
  int d = (int)below(l->ndim);
  int64_t at = below(box.extent[d] + 1);
  reshard_box low = box, high = box;
  low.extent[d] = at;
  high.offset[d] += at;
  high.extent[d] -= at;
  list_split(l, low, pieces / 2);
  list_split(l, high, pieces - pieces / 2);
}

static reshard_box random_box(const list *l) {
  reshard_box box = {{0}, {0}};
  for (int d = 0; d < l->ndim; d++) {
    box.offset[d] = below(l->shape[d] + 1);
    box.extent[d] = below(l->shape[d] - box.offset[d] + 1);
    if (below(4) > 0)
      box.extent[d] = rs_min(box.extent[d], 2);
  }
  return box;
}

static void swap(list *l, int64_t i, int64_t j) {
  int64_t rank = l->ranks[i];
  reshard_box box = l->boxes[i];
  l->ranks[i] = l->ranks[j];
  l->boxes[i] = l->boxes[j];
  l->ranks[j] = rank;
  l->boxes[j] = box;
}

/* Units of one element, or of very different sizes, up to all that 63 bits can count in a shape. */
static void place_boxes(list *l) {
  int64_t room = INT64_MAX;
  for (int d = 0; d < l->ndim; d++) {
    room /= rs_max(1, l->shape[d]);
    for (int64_t u = 0; u <= l->shape[d]; u++)
      l->place[d][u] = u;
  }
  if (l->ndim == 0 || below(2))
    return;
  int d = (int)below(l->ndim);
  int64_t n = l->shape[d], large = below(2) ? room : 1 + below(room);
  for (int64_t u = 0; u < n; u++)
    l->place[d][u + 1] = l->place[d][u] + (below(2) ? large : 1 + below(rs_min(large, 5)));
}

static void draw_boxes(list *l) {
  static const int64_t pieces[] = {1, 3, 8, 20, 60, 400};
  static const int64_t sides[] = {4096, 4096, 60, 14, 7, 4, 3, 3, 2};
  *l = (list){.ndim = (int)below(6), .world = 1 + below(below(2) ? 4 : 200), .elements = 1};
  if (below(20) == 0)
    l->ndim = 6 + (int)below(3);
  for (int d = 0; d < l->ndim; d++) {
    l->shape[d] = (below(3) ? 1 : 0) + below(sides[l->ndim]);
    l->elements *= l->shape[d];
  }
  place_boxes(l);
  reshard_box all = {{0}, {0}};
  memcpy(all.extent, l->shape, sizeof l->shape);
  list_split(l, all, pieces[below(6)]);
  for (int64_t i = 0; i < l->n && below(8); i++)
    swap(l, i, i + below(l->n - i));
  while (below(3) == 0) {
    int64_t some = below(l->n + 1);
    reshard_box box = some < l->n ? l->boxes[some] : all;
    switch (below(4)) {
    case 0: /* a gap */
      if (l->n > 0)
        swap(l, rs_min(some, l->n - 1), l->n - 1);
      l->n = rs_max(0, l->n - 1);
      break;
    case 1: /* equal boxes */ list_add(l, below(l->world), &box); break;
    default: /* an overlap */ box = random_box(l); list_add(l, below(l->world), &box);
    }
  }
}

static bool list_holds(const list *l, const reshard_box *box, const int64_t *point) {
  for (int d = 0; d < l->ndim; d++)
    if (point[d] < box->offset[d] || point[d] >= box->offset[d] + box->extent[d])
      return false;
  return true;
}

static bool equal_boxes(const list *l, int64_t i, int64_t j) {
  size_t bytes = (size_t)l->ndim * sizeof(int64_t);
  return memcmp(l->boxes[i].offset, l->boxes[j].offset, bytes) == 0 &&
         memcmp(l->boxes[i].extent, l->boxes[j].extent, bytes) == 0;
}

static void point_of(const list *l, int64_t element, int64_t *point) {
  for (int d = l->ndim - 1; d >= 0; d--) {
    point[d] = element % l->shape[d];
    element /= l->shape[d];
  }
}

/* The truth, by looking at every element. */
typedef struct truth {
  bool within, covers, overlapping, equals;
  int64_t count[ELEMENTS_MOST]; /* distinct boxes that hold an element */
} truth;

static void find_truth(const list *l, truth *t) {
  *t = (truth){.covers = true};
  for (int64_t e = 0; e < l->elements; e++) {
    int64_t point[RESHARD_MAX_DIMS], here[BOXES_MOST], n = 0;
    point_of(l, e, point);
    for (int64_t i = 0; i < l->n; i++)
      if (list_holds(l, &l->boxes[i], point))
        here[n++] = i;
    for (int64_t i = 0; i < n; i++) {
      bool first = true;
      for (int64_t j = 0; j < i; j++) {
        t->within |= l->ranks[here[i]] == l->ranks[here[j]];
        first &= !equal_boxes(l, here[i], here[j]);
      }
      t->count[e] += first;
      t->equals |= !first;
    }
    t->covers &= t->count[e] == 1;
    t->overlapping |= t->count[e] > 1;
  }
}

/* The unit that begins at an element. */
static int64_t unit(const list *l, int d, int64_t element) {
  int64_t u = 0;
  while (u < l->shape[d] && l->place[d][u] < element)
    u++;
  assert_int_equal(l->place[d][u], element);
  return u;
}

/* Reads "[0,4)x[8,12)" in units; returns what follows. */
static const char *read_box(const list *l, const char *text, reshard_box *box) {
  *box = (reshard_box){{0}, {0}};
  for (int d = 0; d < l->ndim; d++) {
    long long lo, hi;
    int used = 0;
    assert_int_equal(sscanf(text, d == 0 ? "[%lld,%lld)%n" : "x[%lld,%lld)%n", &lo, &hi, &used), 2);
    assert_true(lo < hi);
    box->offset[d] = unit(l, d, lo);
    box->extent[d] = unit(l, d, hi) - box->offset[d];
    text += used;
  }
  return l->ndim == 0 ? text + 2 : text;
}

/* No element of the box is held, and it cannot grow in any dim. */
static void check_gap(const list *l, const truth *t, const char *text) {
  reshard_box gap;
  assert_string_equal(read_box(l, text + strlen("no box holds "), &gap), "");
  int64_t found = 0, point[RESHARD_MAX_DIMS];
  bool blocked[RESHARD_MAX_DIMS][2] = {{false}};
  for (int64_t e = 0; e < l->elements; e++) {
    point_of(l, e, point);
    if (list_holds(l, &gap, point)) {
      assert_int_equal(t->count[e], 0);
      found++;
    }
    for (int d = 0; d < l->ndim; d++)
      for (int up = 0; up < 2 && t->count[e] > 0; up++) {
        int64_t was = point[d];
        point[d] = up ? was - 1 : was + 1; /* its neighbour towards the gap */
        blocked[d][up] |= list_holds(l, &gap, point) && was == (up ? gap.offset[d] + gap.extent[d] : gap.offset[d] - 1);
        point[d] = was;
      }
  }
  assert_true(found > 0);
  for (int d = 0; d < l->ndim; d++) {
    assert_true(gap.offset[d] == 0 || blocked[d][0]);
    assert_true(gap.offset[d] + gap.extent[d] == l->shape[d] || blocked[d][1]);
  }
}

/* Two boxes and their intersection. */
static void check_pair(const list *l, const char *text, bool within) {
  long long i, j, a, b;
  int used = 0;
  assert_int_equal(sscanf(text, "boxes %lld and %lld overlap at %n", &i, &j, &used), 2);
  assert_true(0 <= i && i < j && j < l->n);
  reshard_box box;
  text = read_box(l, text + used, &box);
  for (int d = 0; d < l->ndim; d++) {
    const reshard_box *x = &l->boxes[i], *y = &l->boxes[j];
    assert_int_equal(box.offset[d], rs_max(x->offset[d], y->offset[d]));
    assert_int_equal(box.offset[d] + box.extent[d], rs_min(x->offset[d] + x->extent[d], y->offset[d] + y->extent[d]));
    assert_true(box.extent[d] > 0);
  }
  if (l->ranks[i] == l->ranks[j])
    assert_int_equal(sscanf(text, ", both on rank %lld", &a), 1);
  else
    assert_int_equal(sscanf(text, ", on ranks %lld and %lld", &a, &b), 2);
  assert_int_equal(a, l->ranks[i]);
  assert_true(!within || l->ranks[i] == l->ranks[j]);
}

static void check_reason(const list *l, const truth *t, const rs_boxes *b) {
  long long i, j, a, c;
  if (t->covers && (!t->equals || b->replicated)) {
    assert_null(b->source_error);
  } else if (t->covers) {
    assert_int_equal(
        sscanf(b->source_error, "boxes %lld and %lld are equal, on ranks %lld and %lld, and", &i, &j, &a, &c), 4);
    assert_true(equal_boxes(l, i, j) && i != j && l->ranks[i] == a && l->ranks[j] == c && a != c);
  } else if (strncmp(b->source_error, "no box", 6) == 0) {
    check_gap(l, t, b->source_error);
  } else {
    check_pair(l, b->source_error, false);
  }
}

static void check_groups(const list *l, const rs_boxes *b) {
  int64_t seen = 0;
  assert_int_equal(b->rank_first[b->nranks], l->n);
  for (int64_t r = 0; r < b->nranks; r++) {
    int64_t first, count;
    assert_true(r == 0 || b->rank[r] > b->rank[r - 1]);
    rs_boxes_of_rank(b, b->rank[r], &first, &count);
    assert_true(first == b->rank_first[r] && count == b->rank_first[r + 1] - first && count > 0);
    int64_t elements = 0;
    for (int64_t j = first; j < first + count; j++) {
      int64_t product = 1;
      for (int d = 0; d < b->ndim; d++)
        product *= rs_boxes_hi(b, b->by_rank[j])[d] - rs_boxes_lo(b, b->by_rank[j])[d];
      elements += product;
      assert_int_equal(l->ranks[b->by_rank[j]], b->rank[r]);
      assert_true(j == first || b->by_rank[j] > b->by_rank[j - 1]);
      seen++;
    }
    assert_true(rs_boxes_elements(b, b->rank[r]) == elements);
  }
  assert_int_equal(seen, l->n);
  for (int64_t rank = 0, at = 0; rank < l->world; rank++) {
    int64_t first, count;
    rs_boxes_of_rank(b, rank, &first, &count);
    bool there = at < b->nranks && b->rank[at] == rank;
    assert_true(there == (count > 0) && (there || rs_boxes_elements(b, rank) == 0));
    at += there;
  }
  assert_int_equal(b->cell_first[b->ncells], l->n);
  for (int64_t i = 0; i < l->n; i++) {
    assert_true(equal_boxes(l, i, b->cell_box[b->cell_of[i]]) && b->cell_box[b->cell_of[i]] <= i);
    for (int64_t j = 0; j < i && l->n < 100; j++)
      assert_true(equal_boxes(l, i, j) == (b->cell_of[i] == b->cell_of[j]));
  }
  for (int64_t c = 0; c < b->ncells; c++)
    for (int64_t h = b->cell_first[c]; h < b->cell_first[c + 1]; h++) {
      int64_t first, count;
      rs_boxes_of_rank(b, b->holders[h].rank, &first, &count);
      assert_true(b->holders[h].array < count);
      assert_int_equal(b->cell_of[b->by_rank[first + b->holders[h].array]], c);
      assert_true(h == b->cell_first[c] || b->holders[h].rank >= b->holders[h - 1].rank);
    }
}

static reshard_status cell_mark(void *user, int64_t cell) {
  ((unsigned char *)user)[cell]++;
  return RESHARD_SUCCESS;
}

/* Compares the cells that were hit with those that meet [lo, hi). */
static void check_hits(const rs_boxes *b, const int64_t *lo, const int64_t *hi, const unsigned char *hit) {
  for (int64_t c = 0; c < b->ncells; c++) {
    const int64_t *cell_lo = rs_boxes_lo(b, b->cell_box[c]), *cell_hi = rs_boxes_hi(b, b->cell_box[c]);
    bool meets = true;
    for (int d = 0; d < b->ndim; d++)
      meets &= rs_max(lo[d], cell_lo[d]) < rs_min(hi[d], cell_hi[d]);
    assert_int_equal(hit[c], meets);
  }
}

/* The same query from the cells around it; counts[1] where these are few enough, else counts[0]. */
static void check_near(const rs_boxes *b, const int64_t *lo, const int64_t *hi, int64_t counts[2]) {
  static unsigned char hit[BOXES_MOST];
  static rs_near near;
  int64_t from[RESHARD_MAX_DIMS], to[RESHARD_MAX_DIMS];
  for (int d = 0; d < b->ndim; d++) {
    from[d] = lo[d] - below(4);
    to[d] = below(4) == 0 ? INT64_MAX : rs_min(hi[d], INT64_MAX - 4) + below(4);
  }
  bool gathered = rs_boxes_gather(b, from, to, &near);
  counts[gathered]++;
  memset(hit, 0, sizeof hit);
  if (!gathered)
    return;
  GOOD(rs_near_query(&near, lo, hi, cell_mark, hit));
  check_hits(b, lo, hi, hit);
}

static void check_query(const list *l, const rs_boxes *b, int64_t gathered[2]) {
  static unsigned char hit[BOXES_MOST];
  int64_t lo[RESHARD_MAX_DIMS], hi[RESHARD_MAX_DIMS];
  reshard_box box = random_box(l);
  for (int d = 0; d < l->ndim; d++) {
    lo[d] = l->place[d][box.offset[d]];
    hi[d] = l->place[d][box.offset[d] + box.extent[d]];
    if (box.extent[d] > 0 && below(2)) { /* off the units */
      lo[d] += below(rs_min(hi[d] - lo[d], below(2) ? 3 : INT64_MAX));
      hi[d] -= below(hi[d] - lo[d]);
    }
    if (below(10) == 0) { /* beyond the shape */
      lo[d] = -1 - below(5);
      hi[d] = INT64_MAX;
    }
  }
  memset(hit, 0, sizeof hit);
  GOOD(rs_boxes_query(b, lo, hi, cell_mark, hit));
  check_hits(b, lo, hi, hit);
  check_near(b, lo, hi, gathered);
}

static rs_boxes *create_boxes(const list *l, bool replicated, reshard_status *status) {
  static reshard_box placed[BOXES_MOST];
  int64_t shape[RESHARD_MAX_DIMS];
  rs_boxes *b = NULL;
  for (int d = 0; d < l->ndim; d++)
    shape[d] = l->place[d][l->shape[d]];
  for (int64_t i = 0; i < l->n; i++)
    for (int d = 0; d < l->ndim; d++) {
      int64_t offset = l->boxes[i].offset[d], extent = l->boxes[i].extent[d];
      placed[i].offset[d] = l->place[d][offset];
      placed[i].extent[d] = l->place[d][offset + extent] - l->place[d][offset];
    }
  *status = rs_boxes_create(l->ndim, shape, l->world, l->n, l->ranks, placed, replicated, &b);
  return b;
}

CASE(test_random_lists) {
  static list l;
  static truth t;
  int64_t counts[5] = {0}, gathered[2] = {0}, cases = test_scaled(6000, 1);
  for (int64_t seed = 0; seed < cases; seed++) {
    draw_state = (uint64_t)seed * 0x632be59bd9b4e019u;
    draw_boxes(&l);
    find_truth(&l, &t);
    reshard_status status;
    bool replicated = below(2);
    rs_boxes *b = create_boxes(&l, replicated, &status);
    counts[t.within ? 0 : t.covers ? (t.equals ? 1 : 2) : t.overlapping ? 3 : 4]++;
    if (t.within) {
      assert_int_equal(status, RESHARD_ERROR_INVALID);
      check_pair(&l, reshard_last_error(), true);
      continue;
    }
    GOOD(status);
    assert_int_equal(b->covers, t.covers);
    assert_int_equal(b->overlapping, t.overlapping);
    check_reason(&l, &t, b);
    check_groups(&l, b);
    for (int i = 0; i < 20; i++)
      check_query(&l, b, gathered);
    rs_boxes_free(b);
  }
  for (int i = 0; i < 5; i++)
    assert_true(counts[i] > cases / 100);
  assert_true(gathered[0] > cases / 100 && gathered[1] > cases / 100);
}

static void fill_list(list *l, int ndim, const int64_t *shape, int64_t world) {
  *l = (list){.ndim = ndim, .world = world};
  for (int d = 0; d < ndim; d++) {
    l->shape[d] = shape[d];
    for (int64_t u = 0; u <= shape[d]; u++)
      l->place[d][u] = u;
  }
}

static void list_expect(const list *l, bool replicated, reshard_status status, const char *text) {
  reshard_status got;
  rs_boxes *b = create_boxes(l, replicated, &got);
  assert_int_equal(got, status);
  if (status != RESHARD_SUCCESS)
    assert_string_equal(reshard_last_error(), text);
  else if (text == NULL)
    assert_null(b->source_error);
  else
    assert_string_equal(b->source_error, text);
  rs_boxes_free(b);
}

CASE(gaps_and_overlaps_of_boxes_are_named) {
  static list l;
  fill_list(&l, 2, (int64_t[]){8, 12}, 4);
  list_add(&l, 0, &(reshard_box){{0, 0}, {4, 12}});
  list_add(&l, 2, &(reshard_box){{4, 0}, {4, 12}});
  list_expect(&l, false, RESHARD_SUCCESS, NULL);
  l.boxes[1].offset[0] = 3;
  list_expect(&l, true, RESHARD_SUCCESS, "boxes 0 and 1 overlap at [3,4)x[0,12), on ranks 0 and 2");
  l.ranks[1] = 0;
  list_expect(&l, true, RESHARD_ERROR_INVALID, "boxes 0 and 1 overlap at [3,4)x[0,12), both on rank 0");
  l.ranks[1] = 2;
  l.boxes[1] = (reshard_box){{4, 4}, {4, 8}};
  list_expect(&l, false, RESHARD_SUCCESS, "no box holds [4,8)x[0,4)");
  l.boxes[1] = l.boxes[0];
  list_add(&l, 3, &(reshard_box){{4, 0}, {4, 12}});
  list_expect(&l, false, RESHARD_SUCCESS,
              "boxes 0 and 1 are equal, on ranks 0 and 2, and the layout is not declared replicated");
  list_expect(&l, true, RESHARD_SUCCESS, NULL);
  l.ranks[1] = 4;
  list_expect(&l, true, RESHARD_ERROR_INVALID, "box 1 is on rank 4, which is not in the world of 4");
  l.ranks[1] = -1;
  list_expect(&l, true, RESHARD_ERROR_INVALID, "box 1 is on rank -1, which is not in the world of 4");
  l.ranks[1] = 1;
  static const struct {
    reshard_box box;
    const char *text;
  } outside[] = {{{{0, 1}, {8, 12}}, "box 0 of rank 1 has offset 1 and extent 12 in dim 1 of shape 8x12"},
                 {{{9, 0}, {0, 12}}, "box 0 of rank 1 has offset 9 and extent 0 in dim 0 of shape 8x12"},
                 {{{0, 0}, {8, -1}}, "box 0 of rank 1 has offset 0 and extent -1 in dim 1 of shape 8x12"},
                 {{{0, -1}, {1, 1}}, "box 0 of rank 1 has offset -1 and extent 1 in dim 1 of shape 8x12"},
                 {{{1, 0}, {INT64_MAX, 12}},
                  "box 0 of rank 1 has offset 1 and extent 9223372036854775807 in dim 0 of shape 8x12"}};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    rs_boxes *b = NULL;
    BAD(rs_boxes_create(2, (int64_t[]){8, 12}, 4, 1, (int64_t[]){1}, &outside[i].box, false, &b), outside[i].text);
    assert_null(b);
  }
}

CASE(empty_and_scalar_lists_of_boxes_hold) {
  static list l;
  fill_list(&l, 0, NULL, 2);
  list_expect(&l, false, RESHARD_SUCCESS, "no box holds []");
  list_add(&l, 1, &(reshard_box){{0}, {0}});
  list_expect(&l, false, RESHARD_SUCCESS, NULL);
  list_add(&l, 0, &(reshard_box){{0}, {0}});
  list_expect(&l, false, RESHARD_SUCCESS,
              "boxes 1 and 0 are equal, on ranks 0 and 1, and the layout is not declared replicated");
  list_expect(&l, true, RESHARD_SUCCESS, NULL);
  l.ranks[1] = 1;
  list_expect(&l, true, RESHARD_ERROR_INVALID, "boxes 0 and 1 overlap at [], both on rank 1");
  fill_list(&l, 2, (int64_t[]){0, 5}, 2); /* nothing to hold */
  list_expect(&l, false, RESHARD_SUCCESS, NULL);
  list_add(&l, 0, &(reshard_box){{0, 0}, {0, 5}});
  list_add(&l, 0, &(reshard_box){{0, 0}, {0, 5}}); /* empty boxes never overlap */
  list_add(&l, 1, &(reshard_box){{0, 0}, {0, 5}});
  list_expect(&l, false, RESHARD_SUCCESS, NULL);
}

/* A corner's index does not fit in 63 bits: 4^5 * (2^55 + 1) grid points. The last dim has three units. */
CASE(test_wide_corners) {
  static list l;
  int64_t half = ((int64_t)1 << 54) + 12345;
  fill_list(&l, 6, (int64_t[]){3, 3, 3, 3, 3, 4}, 3);
  l.place[5][1] = half - 1;
  l.place[5][2] = half;
  l.place[5][3] = ((int64_t)1 << 55) - 1;
  l.place[5][4] = (int64_t)1 << 55;
  for (int64_t i = 0; i < 243; i++) {
    reshard_box box = {{i % 3, i / 3 % 3, i / 9 % 3, i / 27 % 3, i / 81, 0}, {1, 1, 1, 1, 1, 2}};
    list_add(&l, i % 3, &box);
    box.offset[5] = 2;
    list_add(&l, i % 3, &box);
  }
  list_expect(&l, false, RESHARD_SUCCESS, NULL);
  l.boxes[485].extent[5] = 1;
  list_expect(&l, false, RESHARD_SUCCESS,
              "no box holds [2,3)x[2,3)x[2,3)x[2,3)x[2,3)x[36028797018963967,36028797018963968)");
  l.boxes[485].offset[5] = 1;
  l.boxes[485].extent[5] = 3;
  l.ranks[485] = 1;
  list_expect(&l, false, RESHARD_SUCCESS,
              "boxes 484 and 485 overlap at [2,3)x[2,3)x[2,3)x[2,3)x[2,3)x[18014398509494328,18014398509494329), "
              "on ranks 2 and 1");
}

static reshard_status stop_at_three(void *user, int64_t cell) {
  return ++*(int *)user == 3 ? RESHARD_ERROR_TIMEOUT : RESHARD_SUCCESS;
}

CASE(test_walk_ends) {
  static list l;
  fill_list(&l, 1, (int64_t[]){100}, 1);
  for (int64_t i = 0; i < 100; i++)
    list_add(&l, 0, &(reshard_box){{i}, {1}});
  reshard_status status;
  rs_boxes *b = create_boxes(&l, false, &status);
  int calls = 0;
  assert_int_equal(rs_boxes_query(b, (int64_t[]){0}, (int64_t[]){100}, stop_at_three, &calls), RESHARD_ERROR_TIMEOUT);
  assert_int_equal(calls, 3);
  rs_near near;
  calls = 0;
  assert_true(rs_boxes_gather(b, (int64_t[]){10}, (int64_t[]){10 + RS_NEAR}, &near));
  assert_false(rs_boxes_gather(b, (int64_t[]){10}, (int64_t[]){11 + RS_NEAR}, &near));
  assert_true(rs_boxes_gather(b, (int64_t[]){10}, (int64_t[]){20}, &near));
  assert_int_equal(rs_near_query(&near, (int64_t[]){10}, (int64_t[]){20}, stop_at_three, &calls),
                   RESHARD_ERROR_TIMEOUT);
  assert_int_equal(calls, 3);
  rs_boxes_free(b);
  GOOD(rs_tree_query(NULL, NULL, NULL, stop_at_three, &calls));
}

RUN_CASES
