/* Flat and boxes layouts, scalars, a large world, and which layouts are equal. test_layout.c has the other kinds. */
#include "support/fixtures/case.h"

#include <reshard/layout.h>

#include "bench/cli/util.h"
#include "support/fixtures/layouts.h"

#include <stdlib.h>
#include <string.h>

#define MOST 256

typedef struct meeting {
  int64_t n, ends_after;
  int64_t rank[MOST], array[MOST], elements[MOST];
} meeting;

static int array_note(void *user, int64_t rank, int64_t array, int64_t elements) {
  meeting *m = user;
  if (m->n < MOST) {
    m->rank[m->n] = rank;
    m->array[m->n] = array;
    m->elements[m->n] = elements;
  }
  return ++m->n == m->ends_after;
}

/* Arrays of a flat piece, laid end to end, are its part of the flattening, element by element. */
static void check_flat(int ndim, const int64_t *shape, int64_t world, int64_t n, const int64_t *ranks) {
  reshard_layout layout;
  assert_int_equal(reshard_layout_create_flat(ndim, shape, world, n, ranks, &layout), RESHARD_SUCCESS);
  int64_t elements = reshard_layout_elements(layout), piece = (elements + n - 1) / n, next = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t rank = ranks[i], arrays, held = 0, end = next + piece < elements ? next + piece : elements;
    assert_int_equal(reshard_layout_array_count(layout, rank, &arrays), RESHARD_SUCCESS);
    assert_true(arrays <= (ndim > 0 ? 2 * ndim - 1 : 1));
    for (int64_t a = 0; a < arrays; a++) {
      reshard_array_info info;
      int64_t at[RESHARD_MAX_DIMS] = {0}, lo[RESHARD_MAX_DIMS];
      assert_int_equal(reshard_layout_array(layout, rank, a, &info), RESHARD_SUCCESS);
      assert_int_equal(info.buffer, 0);
      assert_int_equal(info.offset, held);
      assert_true(info.elements > 0);
      held += info.elements;
      for (int d = 0; d < ndim; d++) {
        reshard_interval only;
        int64_t count;
        assert_int_equal(reshard_layout_array_intervals(layout, rank, a, d, 0, 1, &only, &count), RESHARD_SUCCESS);
        assert_int_equal(count, 1);
        assert_int_equal(only.end - only.begin, info.shape[d]);
        lo[d] = only.begin;
      }
      for (int64_t x = 0; x < info.elements; x++) {
        int64_t linear = 0;
        for (int d = 0; d < ndim; d++)
          linear = linear * shape[d] + lo[d] + at[d];
        assert_int_equal(linear, next);
        next++;
        for (int d = ndim - 1; d >= 0 && ++at[d] == info.shape[d]; d--)
          at[d] = 0;
      }
    }
    assert_int_equal(next, end);
    int64_t buffer;
    assert_int_equal(reshard_layout_buffer_elements(layout, rank, 0, &buffer), RESHARD_SUCCESS);
    assert_int_equal(buffer, held);
  }
  assert_int_equal(next, elements);
  /* whom a box meets: summed over arrays, every element once */
  reshard_box box = {{0}, {0}};
  int64_t met = 1, sum = 0;
  for (int d = 0; d < ndim; d++) {
    box.offset[d] = shape[d] / 3;
    box.extent[d] = (shape[d] - box.offset[d] + 1) / 2;
    met *= box.extent[d];
  }
  meeting got = {.ends_after = -1};
  assert_int_equal(reshard_layout_meet(layout, &box, array_note, &got), RESHARD_SUCCESS);
  for (int64_t i = 0; i < got.n; i++) {
    assert_true(i == 0 || got.rank[i] > got.rank[i - 1] ||
                (got.rank[i] == got.rank[i - 1] && got.array[i] > got.array[i - 1]));
    sum += got.elements[i];
  }
  assert_int_equal(sum, met);
  reshard_layout_release(layout);
}

CASE(kinds_have_names) {
  const int64_t shape[1] = {4};
  reshard_layout l = layout_from_text("cyclic(2;1)", 1, shape, 2);
  assert_string_equal(reshard_layout_kind_string(reshard_layout_get_kind(l)), "cyclic");
  assert_string_equal(reshard_layout_kind_string(RESHARD_LAYOUT_SINGLE), "single");
  assert_string_equal(reshard_layout_kind_string(reshard_layout_get_kind(NULL)), "unknown");
  reshard_layout_release(l);
}

CASE(flat_layouts_cut_elements_in_order) {
  const int64_t ranks[6] = {3, 4, 5, 2, 1, 0};
  for (int64_t n = 1; n <= 6; n++) {
    check_flat(0, NULL, 6, n, ranks);
    for (int64_t s = 0; s < 13 * 13; s++) {
      int64_t shape[4] = {s / 13, s % 13, (s * 5 + n) % 7, (s + n) % 4};
      check_flat(1, shape, 6, n, ranks);
      check_flat(2, shape, 6, n, ranks);
      check_flat(3, shape, 6, n, ranks);
      check_flat(4, shape, 6, n, ranks);
    }
  }
}

CASE(boxes_give_ranks_their_parts) {
  int64_t shape[2] = {8, 12}, ranks[] = {2, 0, 2, 0}, count, elements;
  reshard_box boxes[] = {{{4, 0}, {4, 12}}, {{0, 6}, {4, 6}}, {{0, 0}, {4, 3}}, {{0, 3}, {4, 3}}};
  reshard_layout layout;
  assert_int_equal(reshard_layout_create_boxes(2, shape, 3, 4, ranks, boxes, 0, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_check_source(layout), RESHARD_SUCCESS);
  static const int64_t counts[] = {2, 0, 2};
  for (int64_t r = 0; r < 3; r++) {
    assert_int_equal(reshard_layout_array_count(layout, r, &count), RESHARD_SUCCESS);
    assert_int_equal(count, counts[r]);
    assert_int_equal(reshard_layout_buffer_count(layout, r, &count), RESHARD_SUCCESS);
    assert_int_equal(count, counts[r]);
  }
  static const int order[3][2] = {{1, 3}, {-1, -1}, {0, 2}}; /* as given, within a rank */
  for (int64_t r = 0; r < 3; r += 2)
    for (int64_t a = 0; a < 2; a++) {
      reshard_array_info info;
      reshard_interval got;
      const reshard_box *box = &boxes[order[r][a]];
      assert_int_equal(reshard_layout_array(layout, r, a, &info), RESHARD_SUCCESS);
      assert_int_equal(info.buffer, a);
      assert_int_equal(info.offset, 0);
      assert_int_equal(info.strides[0], box->extent[1]);
      assert_int_equal(reshard_layout_buffer_elements(layout, r, a, &elements), RESHARD_SUCCESS);
      assert_int_equal(elements, box->extent[0] * box->extent[1]);
      for (int d = 0; d < 2; d++) {
        assert_int_equal(reshard_layout_array_intervals(layout, r, a, d, 0, 1, &got, &count), RESHARD_SUCCESS);
        assert_int_equal(count, 1);
        assert_int_equal(got.begin, box->offset[d]);
        assert_int_equal(got.end, box->offset[d] + box->extent[d]);
      }
    }
  meeting got = {.ends_after = -1};
  assert_int_equal(reshard_layout_meet(layout, &(reshard_box){{3, 2}, {2, 5}}, array_note, &got), RESHARD_SUCCESS);
  static const int64_t met[4][3] = {{0, 0, 1}, {0, 1, 3}, {2, 0, 5}, {2, 1, 1}};
  assert_int_equal(got.n, 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(got.rank[i], met[i][0]);
    assert_int_equal(got.array[i], met[i][1]);
    assert_int_equal(got.elements[i], met[i][2]);
  }
  got = (meeting){.ends_after = 2}; /* the visitor ends the walk */
  assert_int_equal(reshard_layout_meet(layout, &(reshard_box){{3, 2}, {2, 5}}, array_note, &got), RESHARD_SUCCESS);
  assert_int_equal(got.n, 2);
  reshard_layout_release(layout);
}

CASE(scalars_are_whole_in_every_kind) {
  static const char *const texts[] = {"rank(1)", "flat(1,0)", "mesh(2@1-0;R)", "boxes(1:[]+[])"};
  for (int i = 0; i < 4; i++) {
    reshard_layout layout = layout_from_text(texts[i], 0, NULL, 2);
    reshard_array_info info;
    int64_t count;
    meeting got = {.ends_after = -1};
    assert_int_equal(reshard_layout_elements(layout), 1);
    assert_int_equal(reshard_layout_array_count(layout, 1, &count), RESHARD_SUCCESS);
    assert_int_equal(count, 1);
    assert_int_equal(reshard_layout_array(layout, 1, 0, &info), RESHARD_SUCCESS);
    assert_int_equal(info.elements, 1);
    assert_int_equal(reshard_layout_meet(layout, &(reshard_box){{0}, {0}}, array_note, &got), RESHARD_SUCCESS);
    assert_int_equal(got.n, i == 2 ? 2 : 1);
    assert_int_equal(got.elements[0], 1);
    reshard_layout_release(layout);
  }
}

/* 16,384 ranks in a list that is in no order: who holds what is still arithmetic. */
CASE(test_large_world) {
  int64_t n = 16384, *ranks = cli_alloc(n, sizeof *ranks), mesh[2] = {128, 128}, shape[2] = {1 << 20, 1 << 20};
  for (int64_t i = 0; i < n; i++)
    ranks[i] = (i * 5 + 3) % n;
  reshard_placement placement[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                    {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}};
  reshard_layout layout;
  assert_int_equal(reshard_layout_create_mesh(2, shape, n, 2, mesh, NULL, placement, NULL, ranks, &layout),
                   RESHARD_SUCCESS);
  for (int64_t i = 0; i < n; i += 117) {
    reshard_interval got;
    int64_t count;
    for (int d = 0; d < 2; d++) {
      assert_int_equal(reshard_layout_array_intervals(layout, ranks[i], 0, d, 0, 1, &got, &count), RESHARD_SUCCESS);
      assert_int_equal(got.begin, (d == 0 ? i / 128 : i % 128) * 8192);
      assert_int_equal(got.end, got.begin + 8192);
    }
    reshard_box box = {{i / 128 * 8192 + 5, i % 128 * 8192 + 7}, {8187, 8185}};
    meeting met = {.ends_after = -1};
    assert_int_equal(reshard_layout_meet(layout, &box, array_note, &met), RESHARD_SUCCESS);
    assert_int_equal(met.n, 1);
    assert_int_equal(met.rank[0], ranks[i]);
    assert_int_equal(met.elements[0], (int64_t)8187 * 8185);
  }
  reshard_layout_release(layout);
  free(ranks);
}

CASE(equal_layouts_are_those_of_one_meaning) {
  static const char *const texts[] = {
      "chunk(0)",
      "chunk(1)",
      "chunk(0;0-2)",
      "chunk(0;3-0)",
      "mesh(4;S0)",
      "mesh(2x2;S0,R)",
      "mesh(2x2;R,S0)",
      "mesh(2x2;S0,S1)",
      "mesh(2x2;S1,S0)",
      "mesh(2x2;S0,S0)",
      "mesh(2x2;S0*2,S0)",
      "mesh(2x2;S0*3,S0)",
      "mesh(2x2;S0,S0;order=1,0)",
      "cyclic(2x2;2x2)",
      "cyclic(2x2;2x3)",
      "cyclic(4x1;2x2)",
      "rank(0)",
      "rank(1)",
      "flat()",
      "flat(0-2)",
      "boxes(0:[0,0]+[9,7])",
      "boxes(1:[0,0]+[9,7])",
      "boxes(replicated;0:[0,0]+[9,7])",
      "boxes(0:[0,0]+[9,4];0:[0,4]+[9,3])",
      "boxes(0:[0,4]+[9,3];0:[0,0]+[9,4])",
  };
  enum { N = sizeof texts / sizeof *texts };
  int64_t shape[2] = {9, 7}, taller[2] = {10, 7};
  reshard_layout layouts[N];
  for (int i = 0; i < N; i++)
    layouts[i] = layout_from_text(texts[i], 2, shape, 4);
  for (int i = 0; i < N; i++) {
    for (int j = 0; j < N; j++)
      if (reshard_layout_equal(layouts[i], layouts[j]) != (i == j))
        fail_msg("%s and %s", texts[i], texts[j]);
    reshard_layout again = layout_from_text(texts[i], 2, shape, 4), wider = layout_from_text(texts[i], 2, shape, 5);
    assert_true(reshard_layout_equal(layouts[i], again));
    assert_false(reshard_layout_equal(layouts[i], wider));
    if (i < 20) {
      reshard_layout other = layout_from_text(texts[i], 2, taller, 4);
      assert_false(reshard_layout_equal(layouts[i], other));
      reshard_layout_release(other);
    }
    reshard_layout_release(again);
    reshard_layout_release(wider);
  }
  assert_true(reshard_layout_equal(NULL, NULL));
  assert_false(reshard_layout_equal(layouts[0], NULL));
  assert_false(reshard_layout_equal(NULL, layouts[0]));
  for (int i = 0; i < N; i++) {
    assert_ptr_equal(reshard_layout_retain(layouts[i]), layouts[i]);
    reshard_layout_release(layouts[i]);
    assert_int_equal(reshard_layout_ndim(layouts[i]), 2); /* still there */
    reshard_layout_release(layouts[i]);
  }
  reshard_layout_release(NULL);
}

/* Shape {12, 8}, scales of blocks of 4 x 3. */
CASE(buffers_tell_the_extents_of_values_and_of_scales) {
  static const struct {
    const char *text;
    int64_t world, rank, buffer;
    int ndim;
    int64_t values[2], scales[2];
  } cases[] = {{"chunk(0)", 3, 1, 0, 2, {4, 8}, {1, 3}},
               {"cyclic(1x2;12x3)", 2, 1, 0, 2, {12, 3}, {3, 1}},
               {"rank(0)", 3, 2, 0, 1, {0}, {0}},
               {"flat()", 3, 2, 0, 1, {32}, {3}},
               {"flat()", 5, 0, 0, 1, {20}, {5}}, /* 2 x 8 and 1 x 4 */
               {"mesh(4;S1{4,4/2})", 4, 2, 0, 2, {12, 3}, {3, 1}},
               {"boxes(0:[0,0]+[4,8];0:[4,0]+[8,8])", 1, 0, 1, 2, {8, 8}, {2, 3}}};
  static const int64_t shape[2] = {12, 8}, block[2] = {4, 3}, none[2] = {4, 0};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_layout layout;
    int64_t extents[RESHARD_MAX_DIMS];
    int ndim = -1;
    assert_int_equal(reshard_layout_parse(cases[i].text, 2, shape, cases[i].world, &layout), RESHARD_SUCCESS);
    for (int scales = 0; scales < 2; scales++) {
      assert_int_equal(
          reshard_layout_buffer_shape(layout, cases[i].rank, cases[i].buffer, scales ? block : NULL, &ndim, extents),
          RESHARD_SUCCESS);
      assert_int_equal(ndim, cases[i].ndim);
      for (int d = 0; d < ndim; d++)
        assert_int_equal(extents[d], (scales ? cases[i].scales : cases[i].values)[d]);
    }
    assert_int_equal(reshard_layout_buffer_shape(layout, 0, 2, NULL, &ndim, extents), RESHARD_ERROR_INVALID);
    assert_int_equal(reshard_layout_buffer_shape(layout, 0, 0, none, &ndim, extents), RESHARD_ERROR_INVALID);
    reshard_layout_release(layout);
  }
}

RUN_CASES
