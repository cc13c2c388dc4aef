/* Metadata of sharded tensors: what can be made, equality and hash, to and from layouts of all kinds, recalculation. */
#include "bench/verify/case_run.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/metadata.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

static reshard_shard rows(int64_t begin, int64_t n, int64_t columns, int64_t rank) {
  return (reshard_shard){{{begin, 0}, {n, columns}}, {rank, RESHARD_DEVICE_CPU, -1}};
}

CASE(metadata_take_shards_of_all_dims) {
  const reshard_properties p = {RESHARD_BF16, RESHARD_MEMORY_PRESERVE, 1, 1};
  reshard_shard shards[3] = {rows(4, 9, 6, 7), rows(0, 4, 6, -1), rows(100, 0, 6, 2)};
  shards[0].box.offset[5] = shards[1].box.extent[7] = -8; /* of dims that there are not: not looked at */
  const int64_t shape[2] = {13, 6};
  reshard_metadata m;
  GOOD(reshard_metadata_create(&p, 2, shape, 3, shards, &m));
  assert_int_equal(reshard_metadata_ndim(m), 2);
  assert_memory_equal(reshard_metadata_shape(m), shape, sizeof shape);
  reshard_properties q = reshard_metadata_properties(m);
  assert_memory_equal(&p, &q, sizeof p);
  assert_int_equal(reshard_metadata_count(m), 3);
  for (int i = 0; i < 3; i++) {
    const reshard_shard *s = &reshard_metadata_shards(m)[i];
    assert_memory_equal(s->box.offset, shards[i].box.offset, sizeof shape);
    assert_memory_equal(s->box.extent, shards[i].box.extent, sizeof shape);
    assert_true(reshard_remote_device_equal(&s->placement, &shards[i].placement));
  }
  assert_ptr_equal(reshard_metadata_retain(m), m);
  reshard_metadata_release(m);
  assert_int_equal(reshard_metadata_ndim(m), 2);
  reshard_metadata_release(m);
  reshard_metadata_release(NULL);
  assert_null(reshard_metadata_retain(NULL));
  GOOD(reshard_metadata_create(&f32, 0, NULL, 0, NULL, &m));
  assert_int_equal(reshard_metadata_count(m), 0);
  reshard_metadata_release(m);
}

CASE(test_create_errors) {
  static const int64_t shape[2] = {13, 6}, negative[2] = {-1, 6}, huge[3] = {INT64_MAX, 0, 2}, unit[3] = {1, 1, 1};
  static const reshard_properties none = {.dtype = RESHARD_DTYPE_NONE}, many = {.dtype = RESHARD_DTYPE_COUNT},
                                  format = {RESHARD_F32, (reshard_memory_format)2, 0, 0},
                                  grad = {RESHARD_F32, RESHARD_MEMORY_CONTIGUOUS, 2, 0},
                                  pin = {RESHARD_F32, RESHARD_MEMORY_CONTIGUOUS, 0, -1};
  static const reshard_shard offset[2] = {{{{0, 0}, {1, 1}}, {0}}, {{{0, -3}, {1, 1}}, {0}}},
                             size = {{{0, 0}, {-1, 1}}, {0}}, end = {{{INT64_MAX, 0}, {1, 1}}, {0}},
                             product = {{{0, 0}, {INT64_MAX, 2}}, {0}}, hidden = {{{0, 0}, {INT64_MAX, 2, 0}}, {0}},
                             rank = {{{0}, {1, 1}}, {-2, RESHARD_DEVICE_CPU, -1}},
                             type = {{{0}, {1, 1}}, {0, (reshard_device_type)2, -1}},
                             device = {{{0}, {1, 1}}, {0, RESHARD_DEVICE_CPU, -2}};
  static const struct {
    const reshard_properties *properties;
    int ndim;
    const int64_t *shape;
    int64_t n;
    const reshard_shard *shards;
    const char *error;
  } cases[] = {
      {NULL, 2, shape, 0, NULL, "metadata: properties is NULL"},
      {&none, 2, shape, 0, NULL, "metadata: 0 is no dtype"},
      {&format, 2, shape, 0, NULL, "metadata: 2 is no memory format"},
      {&grad, 2, shape, 0, NULL, "metadata: requires_grad is 2, pin_memory is 0: either is 0 or 1"},
      {&pin, 2, shape, 0, NULL, "metadata: requires_grad is 0, pin_memory is -1: either is 0 or 1"},
      {&f32, -1, shape, 0, NULL, "metadata: -1 dims, 0 to 8 are allowed"},
      {&f32, 9, shape, 0, NULL, "metadata: 9 dims, 0 to 8 are allowed"},
      {&f32, 2, NULL, 0, NULL, "metadata: shape is NULL"},
      {&f32, 2, negative, 0, NULL, "metadata: size -1 of dim 0 is negative"},
      {&f32, 3, huge, 0, NULL, "metadata: the elements of shape 9223372036854775807x0x2 overflow 63 bits"},
      {&f32, 2, shape, -1, offset, "metadata: -1 shards"},
      {&f32, 2, shape, 1, NULL, "reshard_metadata_create: shards is NULL"},
      {&f32, 2, shape, 2, offset, "metadata: shard 1 has offset -3 and size 1 in dim 1"},
      {&f32, 2, shape, 1, &size, "metadata: shard 0 has offset 0 and size -1 in dim 0"},
      {&f32, 2, shape, 1, &end, "metadata: shard 0 has offset 9223372036854775807 and size 1 in dim 0"},
      {&f32, 2, shape, 1, &product, "metadata: the elements of shard 0 overflow 63 bits"},
      {&f32, 3, unit, 1, &hidden, "metadata: the elements of shard 0 overflow 63 bits"},
      {&f32, 2, shape, 1, &rank, "metadata: shard 0 is on rank -2"},
      {&f32, 2, shape, 1, &type, "metadata: shard 0 is on a device of type 2, which is none"},
      {&f32, 2, shape, 1, &device, "metadata: shard 0 is on device -2"},
  };
  reshard_metadata m = (reshard_metadata)&m;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    FAILS(reshard_metadata_create(cases[i].properties, cases[i].ndim, cases[i].shape, cases[i].n, cases[i].shards, &m),
          RESHARD_ERROR_INVALID, cases[i].error);
  assert_int_equal(reshard_metadata_create(&many, 2, shape, 0, NULL, &m), RESHARD_ERROR_INVALID);
  FAILS(reshard_metadata_create(&f32, 2, shape, 0, NULL, NULL), RESHARD_ERROR_INVALID,
        "reshard_metadata_create: metadata is NULL");
  assert_int_equal(reshard_metadata_create(&f32, 2, shape, INT64_MAX, offset, &m), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_int_equal(reshard_metadata_create(&f32, 2, shape, INT64_MAX / 512, offset, &m), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_ptr_equal(m, (void *)&m);
}

/* Each field changed alone makes other metadata. */
CASE(metadata_that_differ_in_one_field_are_not_equal) {
  enum { VARIANTS = 14 };
  reshard_metadata m[VARIANTS];
  for (int v = 0; v < VARIANTS; v++) {
    reshard_properties p = f32;
    int64_t shape[3] = {13, 6, 1};
    reshard_shard s[2] = {rows(0, 4, 6, 7), rows(4, 9, 6, -1)}, swap = s[0];
    p.dtype = v == 1 ? RESHARD_I32 : p.dtype;
    p.memory_format = v == 2 ? RESHARD_MEMORY_PRESERVE : p.memory_format;
    p.requires_grad = v == 3;
    p.pin_memory = v == 4;
    shape[1] += v == 5;
    s[1].box.offset[0] += v == 6;
    s[1].box.extent[1] += v == 7;
    s[0].placement.rank += v == 8;
    s[0].placement.type = v == 9 ? RESHARD_DEVICE_CUDA : RESHARD_DEVICE_CPU;
    s[0].placement.index += v == 10;
    if (v == 11) {
      s[0] = s[1];
      s[1] = swap;
    }
    GOOD(reshard_metadata_create(&p, v == 12 ? 3 : 2, shape, v == 13 ? 1 : 2, s, &m[v]));
  }
  for (int v = 0; v < VARIANTS; v++) {
    reshard_metadata same;
    reshard_properties p = reshard_metadata_properties(m[v]);
    GOOD(reshard_metadata_create(&p, reshard_metadata_ndim(m[v]), reshard_metadata_shape(m[v]),
                                 reshard_metadata_count(m[v]), reshard_metadata_shards(m[v]), &same));
    for (int w = 0; w < VARIANTS; w++) {
      assert_int_equal(reshard_metadata_equal(m[v], m[w]), v == w);
      assert_int_equal(reshard_metadata_equal(same, m[w]), v == w);
      assert_int_equal(reshard_metadata_hash(same) == reshard_metadata_hash(m[w]), v == w);
    }
    reshard_metadata_release(same);
    assert_false(reshard_metadata_equal(m[v], NULL));
    assert_false(reshard_metadata_equal(NULL, m[v]));
  }
  assert_true(reshard_metadata_equal(NULL, NULL));
  for (int v = 0; v < VARIANTS; v++)
    reshard_metadata_release(m[v]);
}

/* --- Layouts ---------------------------------------------------------------------------------------------------- */

enum { INTERVALS = 64 };

/* The shards of one array, from what the layout says of its intervals; returns how many. */
static int64_t expect_array(reshard_layout layout, int64_t rank, int64_t array, const reshard_shard *shards,
                            int64_t left, const reshard_remote_device *placement) {
  int ndim = reshard_layout_ndim(layout);
  const int64_t *shape = reshard_layout_shape(layout);
  static reshard_interval intervals[RESHARD_MAX_DIMS][INTERVALS];
  int64_t count[RESHARD_MAX_DIMS], boxes = 1, n = 1;
  for (int d = 0; d < ndim; d++) {
    GOOD(reshard_layout_array_intervals(layout, rank, array, d, 0, INTERVALS, intervals[d], &count[d]));
    assert_true(count[d] <= INTERVALS);
    boxes *= count[d];
  }
  n = boxes > 0 ? boxes : 1;
  assert_true(n <= left);
  for (int64_t b = 0; b < n; b++) {
    int64_t rest = b;
    assert_true(reshard_remote_device_equal(&shards[b].placement, placement));
    for (int d = ndim - 1; d >= 0; d--) {
      int64_t i = boxes > 0 ? rest % count[d] : 0, begin = shards[b].box.offset[d], extent = shards[b].box.extent[d];
      rest = boxes > 0 ? rest / count[d] : 0;
      if (count[d] == 0) {
        assert_int_equal(extent, 0);
        assert_true(reshard_layout_get_kind(layout) == RESHARD_LAYOUT_BOXES ? begin <= shape[d] : begin == shape[d]);
      } else {
        assert_int_equal(begin, intervals[d][i].begin);
        assert_int_equal(begin + extent, intervals[d][i].end);
      }
    }
  }
  return n;
}

static void expect_layout(reshard_layout layout, reshard_metadata m, const reshard_group *group,
                          const reshard_remote_device *devices) {
  int64_t world = reshard_layout_world(layout), at = 0;
  assert_memory_equal(reshard_metadata_shape(m), reshard_layout_shape(layout),
                      (size_t)reshard_layout_ndim(layout) * sizeof(int64_t));
  for (int64_t r = 0; r < world; r++) {
    reshard_remote_device placement = {r, RESHARD_DEVICE_CPU, -1};
    int64_t arrays;
    if (devices != NULL)
      placement = devices[r];
    placement.rank = group != NULL ? group->ranks[r] : r;
    GOOD(reshard_layout_array_count(layout, r, &arrays));
    for (int64_t a = 0; a < arrays; a++)
      at += expect_array(layout, r, a, reshard_metadata_shards(m) + at, reshard_metadata_count(m) - at, &placement);
  }
  assert_int_equal(at, reshard_metadata_count(m));
}

/* To metadata with and without a group, and back to a boxes layout, which gives the same metadata again. */
static void round_trip(reshard_layout layout, bool replicated) {
  enum { MOST = 64 };
  int64_t world = reshard_layout_world(layout), global[MOST];
  reshard_remote_device devices[MOST];
  assert_true(world <= MOST);
  for (int64_t r = 0; r < world; r++) {
    global[r] = 1000 - 3 * r;
    devices[r] = (reshard_remote_device){-5, RESHARD_DEVICE_CUDA, (int)r % 3};
  }
  reshard_group group = {world, global}, all = {world, NULL};
  reshard_metadata m, again;
  reshard_layout boxes;
  GOOD(reshard_metadata_from_layout(&f32, layout, NULL, NULL, &m));
  expect_layout(layout, m, NULL, NULL);
  GOOD(reshard_metadata_layout(m, &all, replicated, &boxes));
  reshard_metadata_release(m);
  reshard_layout_release(boxes);
  GOOD(reshard_metadata_from_layout(&f32, layout, &group, devices, &m));
  expect_layout(layout, m, &group, devices);
  GOOD(reshard_metadata_layout(m, &group, replicated, &boxes));
  assert_int_equal(reshard_layout_get_kind(boxes), RESHARD_LAYOUT_BOXES);
  assert_int_equal(reshard_layout_world(boxes), world);
  GOOD(reshard_metadata_from_layout(&f32, boxes, &group, devices, &again));
  assert_true(reshard_metadata_equal(m, again));
  if (reshard_layout_check_source(boxes) == RESHARD_SUCCESS && !replicated)
    GOOD(reshard_metadata_check(m));
  reshard_metadata_release(again);
  reshard_metadata_release(m);
  reshard_layout_release(boxes);
}

CASE(layouts_become_metadata_and_come_back) {
  static const struct {
    const char *text;
    bool replicated;
  } layouts[] = {{"chunk(0)", false},
                 {"chunk(-1;2,0,3,1)", false},
                 {"mesh(2x2;S0,S1)", false},
                 {"mesh(2x2;S0,R)", true},
                 {"mesh(4;R)", true},
                 {"mesh(2x2;S0*2,S0)", false},
                 {"mesh(dp=2,tp=2;S0,S0;order=tp,dp)", false},
                 {"mesh(2@3,1;S1)", false},
                 {"cyclic(2x2;2x3)", false},
                 {"cyclic(1x3@3-1;1x1)", false},
                 {"rank(3)", false},
                 {"flat()", false},
                 {"flat(2,1)", false}};
  static const int64_t shapes[][2] = {{13, 21}, {1, 3}, {5, 0}, {0, 0}, {3, 8}};
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
      reshard_layout layout;
      GOOD(reshard_layout_parse(layouts[i].text, 2, shapes[k], 4, &layout));
      round_trip(layout, layouts[i].replicated);
      reshard_layout_release(layout);
    }
  static const char *const scalars[] = {"rank(3)", "flat()", "mesh(2x2;R,R)", "boxes(1:[]+[])"};
  for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
    reshard_layout layout;
    GOOD(reshard_layout_parse(scalars[i], 0, NULL, 4, &layout));
    round_trip(layout, true);
    reshard_layout_release(layout);
  }
}

CASE(test_random_layouts) {
  int64_t kinds[RESHARD_LAYOUT_KIND_COUNT] = {0};
  for (int64_t seed = 1; seed <= test_scaled(400, 1); seed++) {
    const case_choices fixed = {.bytes = 1}; /* else some are long, and of many intervals */
    case_plan c;
    rs_text why = {0};
    if (!case_make((uint64_t)seed, &fixed, &c, &why))
      fail_msg("seed %lld: %s", (long long)seed, why.at);
    for (int64_t e = 0; e < c.nentries; e++)
      for (int side = 0; side < 2; side++) {
        reshard_layout layout = side == 0 ? c.entry[e].src.layout : c.entry[e].dst.layout;
        round_trip(layout, side == 0);
        kinds[reshard_layout_get_kind(layout)]++;
      }
    case_free(&c);
  }
  for (int k = 0; k < RESHARD_LAYOUT_KIND_COUNT; k++)
    assert_true(kinds[k] > 0 || test_scaled(400, 1) < 400);
}

CASE(test_layout_errors) {
  const int64_t shape[2] = {4, 6}, twice[3] = {5, 9, 5}, minus[3] = {5, -1, 2}, some[3] = {5, 9, 2};
  reshard_layout layout, boxes = (reshard_layout)&boxes;
  reshard_metadata m = (reshard_metadata)&m, good;
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, 3, &layout));
  const reshard_group small = {2, NULL}, repeated = {3, twice}, negative = {3, minus}, group = {3, some},
                      all = {4, NULL}, empty = {0, NULL};
  FAILS(reshard_metadata_from_layout(&f32, layout, &small, NULL, &m), RESHARD_ERROR_INVALID,
        "a group of 2 ranks, the layout's world has 3");
  FAILS(reshard_metadata_from_layout(&f32, layout, &repeated, NULL, &m), RESHARD_ERROR_INVALID,
        "group: rank 5 is named twice");
  FAILS(reshard_metadata_from_layout(&f32, layout, &negative, NULL, &m), RESHARD_ERROR_INVALID,
        "group: rank -1 is negative");
  FAILS(reshard_metadata_from_layout(NULL, layout, NULL, NULL, &m), RESHARD_ERROR_INVALID,
        "metadata: properties is NULL");
  FAILS(reshard_metadata_from_layout(&f32, NULL, NULL, NULL, &m), RESHARD_ERROR_INVALID,
        "reshard_metadata_from_layout: layout is NULL");
  FAILS(reshard_metadata_from_layout(&f32, layout, NULL, NULL, NULL), RESHARD_ERROR_INVALID,
        "reshard_metadata_from_layout: metadata is NULL");
  assert_ptr_equal(m, (void *)&m);

  reshard_shard shards[2] = {rows(0, 2, 6, 9), rows(2, 2, 6, 2)};
  GOOD(reshard_metadata_create(&f32, 2, shape, 2, shards, &good));
  FAILS(reshard_metadata_layout(good, &all, 0, &boxes), RESHARD_ERROR_INVALID,
        "rank 9 is not in the group of ranks 0..3");
  FAILS(reshard_metadata_layout(good, &repeated, 0, &boxes), RESHARD_ERROR_INVALID, "group: rank 5 is named twice");
  FAILS(reshard_metadata_layout(good, &empty, 0, &boxes), RESHARD_ERROR_INVALID, "a group of 0 ranks");
  FAILS(reshard_metadata_layout(good, NULL, 0, &boxes), RESHARD_ERROR_INVALID,
        "reshard_metadata_layout: group is NULL");
  reshard_metadata_release(good);
  shards[1].placement.rank = 4;
  GOOD(reshard_metadata_create(&f32, 2, shape, 2, shards, &good));
  FAILS(reshard_metadata_layout(good, &group, 0, &boxes), RESHARD_ERROR_INVALID,
        "rank 4 is not in the group of ranks 5, 9, 2");
  reshard_metadata_release(good);
  shards[1].placement.rank = -1;
  GOOD(reshard_metadata_create(&f32, 2, shape, 2, shards, &good));
  FAILS(reshard_metadata_layout(good, &group, 0, &boxes), RESHARD_ERROR_INVALID,
        "shard 1 is placed on cpu, without a rank");
  reshard_metadata_release(good);
  shards[1] = rows(2, 3, 6, 2);
  GOOD(reshard_metadata_create(&f32, 2, shape, 2, shards, &good));
  FAILS(reshard_metadata_layout(good, &group, 0, &boxes), RESHARD_ERROR_INVALID,
        "box 1 of rank 2 has offset 2 and extent 3 in dim 0 of shape 4x6");
  reshard_metadata_release(good);
  assert_ptr_equal(boxes, (void *)&boxes);
  reshard_layout_release(layout);
}

/* --- Recalculation ---------------------------------------------------------------------------------------------- */

/* Shards out of rank order: cumulated by rank, not by position. */
CASE(sizes_are_cumulated_by_rank) {
  const int64_t shape[2] = {9, 6};
  const reshard_shard shards[5] = {rows(50, 3, 6, 2), rows(7, 0, 6, 0), rows(1, 4, 6, 1), rows(2, 5, 6, 2),
                                   rows(0, 1, 6, 0)};
  const struct { int64_t rank, offset, size; } after[5] = {{0, 0, 0}, {0, 0, 1}, {1, 1, 4}, {2, 5, 3}, {2, 8, 5}};
  for (int dim = 0; dim < 2; dim++) {
    reshard_shard turned[5];
    int64_t extents[2] = {shape[dim], shape[1 - dim]};
    for (int i = 0; i < 5; i++) {
      turned[i] = shards[i];
      for (int d = 0; d < 2; d++) {
        turned[i].box.offset[d] = shards[i].box.offset[dim == 0 ? d : 1 - d];
        turned[i].box.extent[d] = shards[i].box.extent[dim == 0 ? d : 1 - d];
      }
    }
    reshard_metadata m, made, again;
    GOOD(reshard_metadata_create(&f32, 2, extents, 5, turned, &m));
    GOOD(reshard_metadata_recalc(m, dim, &made));
    GOOD(reshard_metadata_recalc(m, dim - 2, &again));
    assert_true(reshard_metadata_equal(made, again));
    assert_int_equal(reshard_metadata_shape(made)[dim], 13);
    assert_int_equal(reshard_metadata_shape(made)[1 - dim], 6);
    for (int i = 0; i < 5; i++) {
      const reshard_shard *s = &reshard_metadata_shards(made)[i];
      assert_int_equal(s->placement.rank, after[i].rank);
      assert_int_equal(s->box.offset[dim], after[i].offset);
      assert_int_equal(s->box.extent[dim], after[i].size);
      assert_int_equal(s->box.offset[1 - dim], 0);
      assert_int_equal(s->box.extent[1 - dim], 6);
    }
    GOOD(reshard_metadata_check(made));
    reshard_metadata_release(again);
    GOOD(reshard_metadata_recalc(made, dim, &again)); /* nothing left to change */
    assert_true(reshard_metadata_equal(made, again));
    reshard_metadata_release(again);
    reshard_metadata_release(made);
    reshard_metadata_release(m);
  }
}

CASE(test_recalc_errors) {
  const int64_t shape[2] = {9, 6};
  static const struct {
    int dim;
    reshard_shard shards[2];
    const char *error;
  } cases[] = {
      {2, {{{{0}, {1, 1}}, {0}}}, "recalc: dim 2 of a tensor of 2 dims"},
      {-3, {{{{0}, {1, 1}}, {0}}}, "recalc: dim -3 of a tensor of 2 dims"},
      {0,
       {{{{0}, {1, 1}}, {0}}, {{{0}, {1, 1}}, {-1, RESHARD_DEVICE_CUDA, 2}}},
       "recalc: shard 1 is placed on cuda:2, without a rank"},
      {0,
       {{{{0}, {4, 6}}, {3, RESHARD_DEVICE_CPU, -1}}, {{{0}, {4, 5}}, {1, RESHARD_DEVICE_CUDA, 1}}},
       "recalc along dim 0: shards 0 (rank:3/cpu) and 1 (rank:1/cuda:1) differ in the size of dim 1: 6 and 5"},
      {1,
       {{{{0}, {4, 6}}, {3, RESHARD_DEVICE_CPU, -1}}, {{{0}, {3, 6}}, {1, RESHARD_DEVICE_CPU, -1}}},
       "recalc along dim 1: shards 0 (rank:3/cpu) and 1 (rank:1/cpu) differ in the size of dim 0: 4 and 3"},
      {0,
       {{{{0}, {INT64_MAX, 1}}, {0}}, {{{0}, {1, 1}}, {1, RESHARD_DEVICE_CPU, 0}}},
       "recalc: the sizes along dim 0 overflow 63 bits"},
      {0,
       {{{{0}, {INT64_MAX / 6, 6}}, {0}}, {{{0}, {3, 6}}, {1, RESHARD_DEVICE_CPU, 0}}},
       "metadata: the elements of shape 1537228672809129304x6 overflow 63 bits"},
  };
  reshard_metadata m, made = (reshard_metadata)&made;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    GOOD(reshard_metadata_create(&f32, 2, shape, 2, cases[i].shards, &m));
    FAILS(reshard_metadata_recalc(m, cases[i].dim, &made), RESHARD_ERROR_INVALID, cases[i].error);
    reshard_metadata_release(m);
  }
  GOOD(reshard_metadata_create(&f32, 0, NULL, 0, NULL, &m));
  FAILS(reshard_metadata_recalc(m, 0, &made), RESHARD_ERROR_INVALID, "recalc: dim 0 of a tensor of 0 dims");
  FAILS(reshard_metadata_recalc(m, 0, NULL), RESHARD_ERROR_INVALID, "reshard_metadata_recalc: recalculated is NULL");
  FAILS(reshard_metadata_recalc(NULL, 0, &made), RESHARD_ERROR_INVALID, "reshard_metadata_recalc: metadata is NULL");
  assert_ptr_equal(made, (void *)&made);
  reshard_metadata_release(m);
  GOOD(reshard_metadata_create(&f32, 2, shape, 0, NULL, &m)); /* of no shards */
  GOOD(reshard_metadata_recalc(m, 1, &made));
  assert_int_equal(reshard_metadata_shape(made)[1], 0);
  reshard_metadata_release(made);
  reshard_metadata_release(m);
}

RUN_CASES
