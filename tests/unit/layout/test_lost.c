/* The part of a tensor that is lost with some of its ranks, element by element, for every set of ranks. */
#include "support/fixtures/case.h"

#include <reshard/layout.h>

#include <stdbool.h>
#include <string.h>

enum { MOST_ELEMENTS = 512, MOST_RANKS = 6 };

typedef struct marks {
  int ndim;
  const int64_t *shape;
  int boxes, ends_after;
  int times[MOST_ELEMENTS]; /* that the element was in a box */
} marks;

static int box_mark(void *user, const reshard_box *box) {
  marks *m = user;
  int64_t at[RESHARD_MAX_DIMS] = {0}, n = 1;
  for (int d = 0; d < m->ndim; d++)
    n *= box->extent[d];
  assert_true(n > 0);
  for (int64_t i = 0; i < n; i++) {
    int64_t element = 0, rest = i;
    for (int d = m->ndim - 1; d >= 0; d--) {
      at[d] = box->offset[d] + rest % box->extent[d];
      rest /= box->extent[d];
    }
    for (int d = 0; d < m->ndim; d++)
      element = element * m->shape[d] + at[d];
    m->times[element]++;
  }
  return ++m->boxes == m->ends_after;
}

typedef struct holders {
  unsigned lost; /* set of ranks */
  bool survive;
} holders;

static int see_holder(void *user, int64_t rank, int64_t array, int64_t elements) {
  holders *h = user;
  (void)array, (void)elements;
  h->survive = h->survive || (h->lost >> rank & 1) == 0;
  return 0;
}

static void check_set(reshard_layout layout, marks *m, unsigned set, int64_t world) {
  int64_t n = 0, lost[MOST_RANKS], elements = reshard_layout_elements(layout);
  for (int64_t r = 0; r < world; r++)
    if (set >> r & 1)
      lost[n++] = r;
  memset(m->times, 0, sizeof m->times);
  m->boxes = m->ends_after = 0;
  assert_int_equal(reshard_layout_lost(layout, n, lost, box_mark, m), RESHARD_SUCCESS);
  for (int64_t e = 0; e < elements; e++) {
    reshard_box box = {{0}, {0}};
    holders h = {set, false};
    for (int64_t d = m->ndim - 1, rest = e; d >= 0; rest /= m->shape[d--]) {
      box.offset[d] = rest % m->shape[d];
      box.extent[d] = 1;
    }
    assert_int_equal(reshard_layout_meet(layout, &box, see_holder, &h), RESHARD_SUCCESS);
    assert_int_equal(m->times[e], !h.survive);
  }
  if (m->boxes > 1) { /* the walk ends where it is told to */
    m->ends_after = m->boxes - 1;
    m->boxes = 0;
    assert_int_equal(reshard_layout_lost(layout, n, lost, box_mark, m), RESHARD_SUCCESS);
    assert_int_equal(m->boxes, m->ends_after);
  }
}

CASE(lost_parts_match_every_set_of_ranks) {
  static const struct {
    const char *text;
    int ndim;
    int64_t shape[3], world;
  } cases[] = {
      {"chunk(0)", 2, {7, 5}, 4},
      {"chunk(1;2,0)", 2, {7, 5}, 4},
      {"mesh(2x3;S0,R)", 2, {5, 4}, 6},
      {"mesh(2x2;R,R)", 1, {9}, 4},
      {"mesh(dp=3,tp=2;S0,S0;order=tp,dp)", 2, {7, 3}, 6},
      {"mesh(2x2;S1,S0*2)", 3, {6, 5, 2}, 4},
      {"cyclic(2x2;2x3)", 2, {9, 13}, 4},
      {"rank(2)", 2, {3, 4}, 4},
      {"flat()", 3, {3, 5, 4}, 4},
      {"boxes(0:[0,0]+[5,12];1:[5,0]+[8,12])", 2, {13, 12}, 2},
      {"boxes(replicated;0:[0]+[5];1:[5]+[4];2:[0]+[5];3:[5]+[4])", 1, {9}, 4},
      {"rank(1)", 0, {0}, 3},
      {"chunk(0)", 2, {0, 5}, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_layout layout;
    marks m = {.ndim = cases[i].ndim, .shape = cases[i].shape};
    if (reshard_layout_parse(cases[i].text, m.ndim, m.shape, cases[i].world, &layout) != RESHARD_SUCCESS)
      fail_msg("%s: %s", cases[i].text, reshard_last_error());
    for (unsigned set = 0; set < 1u << cases[i].world; set++)
      check_set(layout, &m, set, cases[i].world);
    reshard_layout_release(layout);
  }
}

/* More holders than any memory lists: most of them survive. */
CASE(test_many_holders) {
  const int64_t shape[1] = {8}, world = (int64_t)1 << 44;
  marks m = {.ndim = 1, .shape = shape};
  reshard_layout layout;
  assert_int_equal(reshard_layout_parse("mesh(2x8796093022208;S0,R)", 1, shape, world, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_lost(layout, 2, (int64_t[]){0, world - 1}, box_mark, &m), RESHARD_SUCCESS);
  assert_int_equal(m.boxes, 0);
  reshard_layout_release(layout);
}

CASE(wrong_lists_of_lost_ranks_are_refused) {
  const int64_t shape[1] = {8};
  marks m = {.ndim = 1, .shape = shape};
  reshard_layout layout;
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, shape, 4, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_lost(layout, 2, (int64_t[]){1, 1}, box_mark, &m), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_layout_lost: lost[1] is 1, ranks ascend from 0");
  assert_int_equal(reshard_layout_lost(layout, 1, (int64_t[]){-1}, box_mark, &m), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_lost(layout, 1, NULL, box_mark, &m), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_lost(layout, 1, (int64_t[]){99}, box_mark, &m),
                   RESHARD_SUCCESS); /* of a larger world */
  assert_int_equal(m.boxes, 0);
  reshard_layout_release(layout);
  assert_int_equal(reshard_layout_parse("boxes(0:[0]+[5];1:[3]+[5])", 1, shape, 2, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_lost(layout, 1, (int64_t[]){0}, box_mark, &m), RESHARD_ERROR_INVALID); /* no source */
  reshard_layout_release(layout);
}

RUN_CASES
