/* Data of ranks, against lists of indices that are cut one after the other. Every mesh up to 4 x 3 with Shard,
 * StridedShard, Replicate and both orders, over every shape up to 12 in one or two dims. Then chunks, block-cyclic and
 * single layouts, and the ranks that share elements with a box. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <reshard/layout.h>

#include "bench/cli/util.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

#define MOST       64
#define RANKS_MOST 16

typedef struct indices {
  int64_t n, at[MOST];
} indices;

/* Data of a rank in a regular layout: one list of indices per dim, or nothing at all. */
typedef struct held {
  int64_t arrays; /* 0 or 1 */
  indices dim[2];
} held;

static int64_t ceil_of(int64_t n, int64_t w) { return (n + w - 1) / w; }

static indices all_of(int64_t n) {
  indices out = {.n = n};
  for (int64_t i = 0; i < n; i++)
    out.at[i] = i;
  return out;
}

static indices chunk(const indices *in, int64_t w, int64_t j) {
  indices out = {.n = 0};
  int64_t size = ceil_of(in->n, w), end = size * (j + 1) < in->n ? size * (j + 1) : in->n;
  for (int64_t i = size * j; i < end; i++)
    out.at[out.n++] = in->at[i];
  return out;
}

static indices strided(const indices *in, int64_t factor, int64_t w, int64_t j) {
  indices out = {.n = 0};
  for (int64_t c = 0; c < factor; c++) {
    indices whole = chunk(in, factor, c), part = chunk(&whole, w, j);
    memcpy(out.at + out.n, part.at, (size_t)part.n * sizeof *part.at);
    out.n += part.n;
  }
  return out;
}

static reshard_placement shard(int dim) { return (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = dim}; }
static reshard_placement strided_shard(int dim, int64_t factor) {
  return (reshard_placement){.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = dim, .split_factor = factor};
}
static reshard_placement replicate(void) { return (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE}; }

/* Rank i of a mesh: dims cut in `order`. */
static held mesh_part(int ndim, const int64_t *shape, const int64_t mesh[2], const reshard_placement placement[2],
                      const int order[2], int64_t i) {
  held h = {.arrays = 1};
  int64_t coordinate[2] = {i / mesh[1], i % mesh[1]};
  for (int d = 0; d < ndim; d++) {
    h.dim[d] = all_of(shape[d]);
    for (int k = 0; k < 2; k++) {
      int m = order[k];
      if (placement[m].kind == RESHARD_PLACEMENT_REPLICATE || placement[m].dim != d)
        continue;
      h.dim[d] = placement[m].kind == RESHARD_PLACEMENT_SHARD
                     ? chunk(&h.dim[d], mesh[m], coordinate[m])
                     : strided(&h.dim[d], placement[m].split_factor, mesh[m], coordinate[m]);
    }
  }
  return h;
}

static const char *text_of(reshard_layout layout) {
  static char text[4096];
  return reshard_layout_print(layout, text, sizeof text, NULL) == RESHARD_SUCCESS ? text : "a long layout";
}

#define expect(condition) \
  do { \
    if (!(condition)) \
      fail_msg("%s of %lld x %lld, rank %lld: %s", text_of(layout), (long long)reshard_layout_shape(layout)[0], \
               (long long)(reshard_layout_ndim(layout) > 1 ? reshard_layout_shape(layout)[1] : 1), (long long)rank, \
               #condition); \
  } while (0)

static void check_intervals(reshard_layout layout, int64_t rank, int dim, const indices *want) {
  reshard_interval got[MOST], runs[MOST];
  int64_t n = 0, count = -1;
  for (int64_t i = 0; i < want->n; i++) {
    if (n > 0 && runs[n - 1].end == want->at[i])
      runs[n - 1].end++;
    else
      runs[n++] = (reshard_interval){want->at[i], want->at[i] + 1};
  }
  expect(reshard_layout_array_intervals(layout, rank, 0, dim, 0, MOST, got, &count) == RESHARD_SUCCESS);
  expect(count == n && (n == 0 || memcmp(got, runs, (size_t)n * sizeof *got) == 0));
  if (n < 2)
    return;
  got[0].begin = got[1].begin = -1; /* one from the second on, and no further */
  expect(reshard_layout_array_intervals(layout, rank, 0, dim, 1, 1, got, &count) == RESHARD_SUCCESS);
  expect(count == n && got[0].begin == runs[1].begin && got[0].end == runs[1].end && got[1].begin == -1);
}

/* Data of a rank in a regular layout. */
static void check_held(reshard_layout layout, int64_t rank, const held *want) {
  int64_t count = -1, elements = 1;
  int ndim = reshard_layout_ndim(layout);
  expect(reshard_layout_array_count(layout, rank, &count) == RESHARD_SUCCESS && count == want->arrays);
  for (int d = 0; d < ndim; d++)
    elements *= want->dim[d].n;
  if (want->arrays == 0)
    elements = 0;
  expect(reshard_layout_buffer_count(layout, rank, &count) == RESHARD_SUCCESS && count == 1);
  expect(reshard_layout_buffer_elements(layout, rank, 0, &count) == RESHARD_SUCCESS && count == elements);
  if (want->arrays == 0)
    return;
  reshard_array_info info;
  expect(reshard_layout_array(layout, rank, 0, &info) == RESHARD_SUCCESS);
  expect(info.elements == elements && info.buffer == 0 && info.offset == 0);
  for (int d = 0; d < ndim; d++) {
    expect(info.shape[d] == want->dim[d].n);
    expect(d < ndim - 1 || info.strides[d] == 1);
    expect(d == ndim - 1 || elements == 0 || info.strides[d] == info.strides[d + 1] * info.shape[d + 1]);
    check_intervals(layout, rank, d, &want->dim[d]);
  }
}

typedef struct meeting {
  int64_t n, ends_after;
  int64_t rank[RANKS_MOST * 16], array[RANKS_MOST * 16], elements[RANKS_MOST * 16];
} meeting;

static int array_note(void *user, int64_t rank, int64_t array, int64_t elements) {
  meeting *m = user;
  if (m->n < RANKS_MOST * 16) {
    m->rank[m->n] = rank;
    m->array[m->n] = array;
    m->elements[m->n] = elements;
  }
  return ++m->n == m->ends_after;
}

static int64_t count_in(const indices *list, int64_t begin, int64_t end) {
  int64_t n = 0;
  for (int64_t i = 0; i < list->n; i++)
    n += list->at[i] >= begin && list->at[i] < end;
  return n;
}

static void check_meet(reshard_layout layout, const held *ranks, const reshard_box *box) {
  meeting got = {.ends_after = -1};
  int64_t at = 0, rank = -1, world = reshard_layout_world(layout);
  expect(reshard_layout_meet(layout, box, array_note, &got) == RESHARD_SUCCESS);
  for (rank = 0; rank < world; rank++) {
    int64_t elements = ranks[rank].arrays;
    for (int d = 0; d < reshard_layout_ndim(layout); d++)
      elements *= count_in(&ranks[rank].dim[d], box->offset[d], box->offset[d] + box->extent[d]);
    if (elements == 0)
      continue;
    expect(at < got.n && got.rank[at] == rank && got.array[at] == 0 && got.elements[at] == elements);
    at++;
  }
  expect(at == got.n);
}

static void check_layout(reshard_layout layout, const held *ranks, bool every_box) {
  const int64_t *shape = reshard_layout_shape(layout);
  int64_t world = reshard_layout_world(layout);
  for (int64_t rank = 0; rank < world; rank++)
    check_held(layout, rank, &ranks[rank]);
  reshard_box box = {{0}, {shape[0], shape[1]}};
  check_meet(layout, ranks, &box);
  if (!every_box) {
    box = (reshard_box){{shape[0] / 3, shape[1] / 4}, {(shape[0] + 1) / 2, (shape[1] + 2) / 3}};
    box.extent[0] = box.extent[0] < shape[0] - box.offset[0] ? box.extent[0] : shape[0] - box.offset[0];
    box.extent[1] = box.extent[1] < shape[1] - box.offset[1] ? box.extent[1] : shape[1] - box.offset[1];
    check_meet(layout, ranks, &box);
    return;
  }
  for (box.offset[0] = 0; box.offset[0] <= shape[0]; box.offset[0]++)
    for (box.extent[0] = 0; box.extent[0] <= shape[0] - box.offset[0]; box.extent[0]++)
      check_meet(layout, ranks, &box);
}

static void check_mesh(int ndim, const int64_t *shape, const int64_t mesh[2], const reshard_placement placement[2],
                       const int order[2], bool every_box) {
  held ranks[RANKS_MOST];
  int64_t world = mesh[0] * mesh[1];
  reshard_layout layout;
  GOOD(reshard_layout_create_mesh(ndim, shape, world, 2, mesh, NULL, placement, order, NULL, &layout));
  for (int64_t i = 0; i < world; i++)
    ranks[i] = mesh_part(ndim, shape, mesh, placement, order, i);
  check_layout(layout, ranks, every_box);
  reshard_layout_release(layout);
}

/* The number-th placement of a tensor of ndim dims: R; then per dim S and S*1 to S*4. */
static reshard_placement placement_number(int number) {
  if (number == 0)
    return replicate();
  int dim = (number - 1) / 5, factor = (number - 1) % 5;
  return factor == 0 ? shard(dim) : strided_shard(dim, factor);
}

static const int orders[2][2] = {{0, 1}, {1, 0}};

/* Every shape, mesh, pair of placements and order; in one dim. */
CASE(test_mesh_1d) {
  for (int64_t m = 0; m < 12; m++)
    for (int p = 0; p < 36; p++)
      for (int o = 0; o < 2; o++)
        for (int64_t n = 0; n <= 12; n++) {
          reshard_placement placement[2] = {placement_number(p / 6), placement_number(p % 6)};
          int64_t mesh[2] = {m / 3 + 1, m % 3 + 1}, shape[2] = {n, 1};
          check_mesh(1, shape, mesh, placement, orders[o], p % 6 == 1 || p / 6 == 3);
        }
}

/* Every such layout in two dims. */
CASE(test_mesh_2d) {
  int64_t step = test_scale() < 1 ? 7 : 1, turn = 0;
  for (int64_t m = 0; m < 12; m++)
    for (int p = 0; p < 121; p++)
      for (int o = 0; o < 2; o++)
        for (int64_t s = turn++ % step; s < 169; s += step) {
          reshard_placement placement[2] = {placement_number(p / 11), placement_number(p % 11)};
          int64_t mesh[2] = {m / 3 + 1, m % 3 + 1}, shape[2] = {s / 13, s % 13};
          check_mesh(2, shape, mesh, placement, orders[o], false);
        }
}

static void holds_rows(reshard_layout layout, int64_t rank, int64_t n, const int64_t *rows) {
  held want = {.arrays = 1, .dim = {{.n = n}}};
  for (int64_t i = 0; i < n; i++)
    want.dim[0].at[i] = rows[i];
  check_held(layout, rank, &want);
}
#define ROWS(...) \
  sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]) { __VA_ARGS__ }
#define NO_ROWS 0, NULL

/* TP and FSDP on one dim: three ways to write it, which are three layouts. */
CASE(test_order_of_cutting) {
  int64_t five = 5, seven = 7;
  reshard_layout layout = layout_from_text("mesh(dp=2,tp=2;S0,S0;order=tp,dp)", 1, &five, 4);
  holds_rows(layout, 0, ROWS(0, 1));
  holds_rows(layout, 1, ROWS(3));
  holds_rows(layout, 2, ROWS(2));
  holds_rows(layout, 3, ROWS(4));
  reshard_layout_release(layout);
  layout = layout_from_text("mesh(dp=2,tp=2;S0*2,S0)", 1, &five, 4);
  holds_rows(layout, 0, ROWS(0, 1));
  holds_rows(layout, 1, ROWS(3));
  holds_rows(layout, 2, ROWS(2));
  holds_rows(layout, 3, ROWS(4));
  reshard_layout_release(layout);
  layout = layout_from_text("mesh(dp=2,tp=2;S0,S0)", 1, &five, 4);
  holds_rows(layout, 0, ROWS(0, 1));
  holds_rows(layout, 1, ROWS(2));
  holds_rows(layout, 2, ROWS(3));
  holds_rows(layout, 3, ROWS(4));
  reshard_layout_release(layout);

  layout = layout_from_text("mesh(dp=3,tp=2;S0,S0;order=tp,dp)", 1, &seven, 6);
  holds_rows(layout, 0, ROWS(0, 1));
  holds_rows(layout, 2, ROWS(2, 3));
  holds_rows(layout, 4, NO_ROWS);
  holds_rows(layout, 1, ROWS(4));
  holds_rows(layout, 3, ROWS(5));
  holds_rows(layout, 5, ROWS(6));
  reshard_layout_release(layout);
  layout = layout_from_text("mesh(dp=3,tp=2;S0*2,S0)", 1, &seven, 6);
  holds_rows(layout, 0, ROWS(0, 1));
  holds_rows(layout, 1, ROWS(4));
  holds_rows(layout, 2, ROWS(2, 3));
  holds_rows(layout, 3, ROWS(5));
  holds_rows(layout, 4, ROWS(6));
  holds_rows(layout, 5, NO_ROWS);
  reshard_layout_release(layout);
}

/* Chunks go to ranks in the order of the list, in a world that has more. */
CASE(chunks_go_to_ranks_in_the_order_of_the_list) {
  for (int64_t n = 0; n <= 12; n++)
    for (int dim = -2; dim < 2; dim++) {
      int64_t shape[2] = {n, n}, ranks[5] = {4, 0, 6, 5, 1};
      held want[RANKS_MOST] = {{0}};
      reshard_layout layout;
      shape[dim < 0 ? dim + 2 : dim] = 12 - n;
      GOOD(reshard_layout_create_chunk(2, shape, 8, dim, 5, ranks, &layout));
      for (int64_t i = 0; i < 5; i++) {
        held *h = &want[ranks[i]];
        *h = (held){1, {all_of(shape[0]), all_of(shape[1])}};
        indices *cut = &h->dim[dim < 0 ? dim + 2 : dim];
        *cut = chunk(cut, 5, i);
      }
      check_layout(layout, want, false);
      reshard_layout_release(layout);
    }
}

/* Empty trailing pieces begin at the end of the dim, never behind it: nothing is held, and the local extent is 0. */
CASE(test_chunk_sizes) {
  static const struct {
    int64_t n, sizes[4];
  } cases[] = {{5, {2, 2, 1, 0}}, {3, {1, 1, 1, 0}}, {1, {1, 0, 0, 0}},
               {0, {0, 0, 0, 0}}, {6, {2, 2, 2, 0}}, {9, {3, 3, 3, 0}}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    reshard_layout layout = layout_from_text("chunk(0)", 1, &cases[c].n, 4);
    for (int64_t rank = 0, begin = 0; rank < 4; rank++) {
      reshard_array_info info;
      reshard_interval got = {-1, -1};
      int64_t count;
      GOOD(reshard_layout_array(layout, rank, 0, &info));
      assert_int_equal(info.shape[0], cases[c].sizes[rank]);
      GOOD(reshard_layout_array_intervals(layout, rank, 0, 0, 0, 1, &got, &count));
      assert_int_equal(count, info.shape[0] > 0);
      assert_int_equal(got.begin, count > 0 ? begin : -1);
      begin += info.shape[0];
      assert_int_equal(got.end, count > 0 ? begin : -1);
    }
    reshard_layout_release(layout);
  }
}

CASE(one_rank_has_all) {
  int64_t shape[2] = {3, 4};
  reshard_layout layout;
  GOOD(reshard_layout_create_single(2, shape, 5, 3, &layout));
  held want[RANKS_MOST] = {[3] = {1, {all_of(3), all_of(4)}}};
  check_layout(layout, want, true);
  reshard_layout_release(layout);
}

CASE(cyclic_blocks_of_any_grid_hold) {
  for (int64_t s = 0; s < 169; s++)
    for (int64_t g = 0; g < 6; g++)
      for (int64_t b = 0; b < 9; b++) {
        int64_t shape[2] = {s / 13, s % 13}, grid[2] = {g / 2 + 1, g % 2 + 1},
                block[2] = {b / 3 + 1, b % 3 + 1 + 4 * (b % 2)};
        int64_t world = grid[0] * grid[1], down[6];
        held want[RANKS_MOST] = {{0}};
        for (int64_t i = 0; i < world; i++) {
          down[i] = world - i;
          held *h = &want[down[i]];
          h->arrays = 1;
          int64_t coordinate[2] = {i / grid[1], i % grid[1]};
          for (int d = 0; d < 2; d++)
            for (int64_t x = 0; x < shape[d]; x++)
              if (x / block[d] % grid[d] == coordinate[d])
                h->dim[d].at[h->dim[d].n++] = x;
        }
        reshard_layout layout;
        GOOD(reshard_layout_create_cyclic(2, shape, world + 1, grid, block, down, &layout));
        check_layout(layout, want, false);
        reshard_layout_release(layout);
      }
}

RUN_CASES
