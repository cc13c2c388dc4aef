/* The k-th allocation fails, for every k, in every local call on layouts; so, too, while boxes of a tensor with more
 * elements than 64 bits count are checked. */
#include "layout/boxes.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <string.h>

enum { WORLD = 8 };
static const int64_t shape[3] = {12, 20, 3};

typedef struct layout_case {
  char text[8192];
  reshard_layout wanted; /* made without faults */
} layout_case;

static void drop_layout(fault_output *out) { reshard_layout_release(out->object); }

static bool same_layout(const fault_output *out, const void *with) {
  const layout_case *c = with;
  char text[16384], wanted[16384];
  return reshard_layout_equal(out->object, c->wanted) &&
         reshard_layout_print(out->object, text, sizeof text, NULL) == RESHARD_SUCCESS &&
         reshard_layout_print(c->wanted, wanted, sizeof wanted, NULL) == RESHARD_SUCCESS && strcmp(text, wanted) == 0;
}

static reshard_status layout_parse(fault_output *out, const void *with) {
  const layout_case *c = with;
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_parse(c->text, 3, shape, WORLD, &made);
  out->object = made;
  return status;
}

static reshard_status parse_world(fault_output *out, const void *with) {
  const layout_case *c = with;
  return reshard_layout_parse_world(c->text, &out->number);
}
static bool small_world(const fault_output *out, const void *with) { return out->number >= 0 && out->number <= WORLD; }

/* Every query of every array, and who meets some boxes; the result is a sum over all that they say. */
static int add_up(void *user, int64_t rank, int64_t array, int64_t elements) {
  *(int64_t *)user += (rank + 1) * 1000 + (array + 1) * 10000 + elements;
  return 0;
}

static reshard_status query(reshard_layout l, int64_t *sum) {
  const reshard_box boxes[] = {
      {{0, 0, 0}, {12, 20, 3}}, {{3, 5, 1}, {4, 9, 1}}, {{11, 19, 2}, {1, 1, 1}}, {{0, 0, 0}, {0, 20, 3}}};
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < 4 && status == RESHARD_SUCCESS; i++)
    status = reshard_layout_meet(l, &boxes[i], add_up, sum);
  for (int64_t rank = 0; rank < WORLD && status == RESHARD_SUCCESS; rank++) {
    int64_t arrays = 0, buffers = 0, elements;
    status = reshard_layout_array_count(l, rank, &arrays);
    for (int64_t a = 0; a < arrays && status == RESHARD_SUCCESS; a++) {
      reshard_array_info info;
      status = reshard_layout_array(l, rank, a, &info);
      for (int d = 0; d < 3 && status == RESHARD_SUCCESS; d++) {
        reshard_interval intervals[32];
        int64_t count = 0;
        status = reshard_layout_array_intervals(l, rank, a, d, 0, 32, intervals, &count);
        *sum += count * (d + 1) + info.shape[d] * 7;
      }
    }
    RS_THEN(status, reshard_layout_buffer_count(l, rank, &buffers));
    for (int64_t b = 0; b < buffers && status == RESHARD_SUCCESS; b++) {
      status = reshard_layout_buffer_elements(l, rank, b, &elements);
      *sum += elements * 3;
    }
  }
  char text[16384];
  size_t needed = 0;
  RS_THEN(status, reshard_layout_print(l, text, sizeof text, &needed));
  *sum += (int64_t)needed;
  return status;
}

static reshard_status queries(fault_output *out, const void *with) {
  const layout_case *c = with;
  int64_t sum = 0;
  RS_TRY(query(c->wanted, &sum));
  out->number = sum;
  return RESHARD_SUCCESS;
}
static bool same_sum(const fault_output *out, const void *with) {
  const layout_case *c = with;
  int64_t sum = 0;
  return query(c->wanted, &sum) == RESHARD_SUCCESS && sum == out->number;
}

static reshard_status check_source(fault_output *out, const void *with) {
  const layout_case *c = with;
  RS_TRY(reshard_layout_check_source(c->wanted));
  out->number = 1;
  return RESHARD_SUCCESS;
}
static bool one(const fault_output *out, const void *with) { return out->number == 1; }

/* Boxes of one row each, dealt round, in an order that has to be sorted. */
static void many_boxes(char *text, size_t size, bool replicated, bool file) {
  size_t at = 0;
  if (!file)
    at += (size_t)snprintf(text, size, "boxes(%s", replicated ? "replicated;" : "");
  for (int i = 0; i < 12; i++)
    for (int half = 0; half < 2; half++)
      for (int copy = 0; copy < (replicated ? 2 : 1); copy++)
        at += (size_t)snprintf(text + at, size - at,
                               file ? "%d [%d,%d,0]+[1,10,3]%s # a row\n" : "%d:[%d,%d,0]+[1,10,3]%s",
                               (i * 5 + half + copy * 3) % WORLD, (i * 7 + half) % 12, 10 * half,
                               file || (i == 11 && half == 1 && copy == replicated) ? "" : ";");
  if (!file)
    snprintf(text + at, size - at, ")");
}

CASE(layouts_survive_any_failed_allocation) {
  static const char *const texts[] = {"chunk(0)",
                                      "chunk(-1;2,0,3,1)",
                                      "mesh(2x4;S0,R)",
                                      "mesh(dp=2,tp=4;S0,S1;order=tp,dp)",
                                      "mesh(2x2x2;S0*2,R,S1)",
                                      "mesh(2x2@4-7;R,S1)",
                                      "mesh(2x4;S0{5,7},R)",
                                      "cyclic(2x2x2;3x4x1)",
                                      "cyclic(2x2x1@3-0;3x4x1)",
                                      "rank(3)",
                                      "flat()",
                                      "flat(4-7)",
                                      "flat(7,1,3)",
                                      "boxes(0:[0,0,0]+[12,20,3])",
                                      "boxes(1:[0,0,0]+[12,7,3];5:[0,7,0]+[12,13,3])",
                                      "",
                                      "",
                                      ""};
  char file_text[8192];
  many_boxes(file_text, sizeof file_text, false, true);
  scratch_write("boxes", file_text, strlen(file_text));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    static layout_case c;
    c = (layout_case){.wanted = NULL};
    snprintf(c.text, sizeof c.text, "%s", texts[i]);
    if (i == sizeof texts / sizeof *texts - 3)
      many_boxes(c.text, sizeof c.text, false, false);
    else if (i == sizeof texts / sizeof *texts - 2)
      many_boxes(c.text, sizeof c.text, true, false);
    else if (i == sizeof texts / sizeof *texts - 1)
      snprintf(c.text, sizeof c.text, "boxes(@%s)", scratch_path("boxes"));
    int64_t live = fault_live();
    if (reshard_layout_parse(c.text, 3, shape, WORLD, &c.wanted) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
    assert_true(fault_local_run(&(fault_local){c.text, layout_parse, same_layout, drop_layout, &c}) >= 1);
    fault_local_run(&(fault_local){c.text, parse_world, small_world, NULL, &c});
    fault_local_run(&(fault_local){c.text, queries, same_sum, NULL, &c});
    fault_local_run(&(fault_local){c.text, check_source, one, NULL, &c});
    reshard_layout_release(c.wanted);
    assert_int_equal(fault_live(), live);
  }
}

/* Constructors; `with` is the layout that is wanted. */
static const int64_t some_ranks[8] = {7, 0, 5, 2, 6, 1, 4, 3};
static reshard_status make_chunk(fault_output *out, const void *with) {
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_chunk(3, shape, WORLD, 1, 5, some_ranks, &made);
  out->object = made;
  return status;
}
static reshard_status make_mesh(fault_output *out, const void *with) {
  const int64_t mesh[3] = {2, 2, 2};
  const char *names[3] = {"pp", "dp", "tp"};
  const reshard_placement placements[3] = {{.kind = RESHARD_PLACEMENT_REPLICATE},
                                           {.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = 0, .split_factor = 2},
                                           {.kind = RESHARD_PLACEMENT_SHARD, .dim = -2}};
  const int order[3] = {2, 0, 1};
  reshard_layout made = out->object;
  reshard_status status =
      reshard_layout_create_mesh(3, shape, WORLD, 3, mesh, names, placements, order, some_ranks, &made);
  out->object = made;
  return status;
}
static reshard_status make_cyclic(fault_output *out, const void *with) {
  const int64_t grid[3] = {2, 3, 1}, block[3] = {2, 3, 1};
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_cyclic(3, shape, WORLD, grid, block, some_ranks, &made);
  out->object = made;
  return status;
}
static reshard_status make_single(fault_output *out, const void *with) {
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_single(3, shape, WORLD, 6, &made);
  out->object = made;
  return status;
}
static reshard_status make_flat(fault_output *out, const void *with) {
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_flat(3, shape, WORLD, 8, some_ranks, &made);
  out->object = made;
  return status;
}
static reshard_status make_boxes(fault_output *out, const void *with) {
  int64_t ranks[48];
  reshard_box boxes[48];
  for (int i = 0; i < 48; i++) {
    ranks[i] = (i * 5 + i / 24) % WORLD;
    boxes[i] = (reshard_box){{i * 7 % 12, i / 12 % 2 * 10, 0}, {1, 10, 3}};
  }
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_boxes(3, shape, WORLD, 48, ranks, boxes, 1, &made);
  out->object = made;
  return status;
}

CASE(constructors_survive_any_failed_allocation) {
  static const struct {
    const char *name;
    reshard_status (*call)(fault_output *out, const void *with);
  } all[] = {{"create_chunk", make_chunk},   {"create_mesh", make_mesh}, {"create_cyclic", make_cyclic},
             {"create_single", make_single}, {"create_flat", make_flat}, {"create_boxes", make_boxes}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    fault_output out = {NULL};
    if (all[i].call(&out, NULL) != RESHARD_SUCCESS)
      fail_msg("%s: %s", all[i].name, reshard_last_error());
    static layout_case c;
    c.wanted = out.object;
    assert_true(fault_local_run(&(fault_local){all[i].name, all[i].call, same_layout, drop_layout, &c}) >= 1);
    fault_local_run(&(fault_local){all[i].name, queries, same_sum, NULL, &c});
    reshard_layout_release(c.wanted);
  }
}

/* So many boxes that their corners, holders and pairs are large enough for huge pages. */
enum { LARGE = 1 << 17 };
static reshard_box large_boxes[LARGE];
static int64_t large_ranks[LARGE];

static reshard_status make_large(fault_output *out, const void *with) {
  const int64_t length[1] = {LARGE};
  reshard_layout made = out->object;
  reshard_status status = reshard_layout_create_boxes(1, length, WORLD, LARGE, large_ranks, large_boxes, 0, &made);
  out->object = made;
  return status;
}
static bool same_large(const fault_output *out, const void *with) {
  const fault_output *wanted = with;
  return reshard_layout_equal(out->object, wanted->object);
}

CASE(test_large_lists) {
  fault_output wanted = {NULL};
  for (int64_t i = 0; i < LARGE; i++) {
    large_boxes[i] = (reshard_box){.offset = {i}, .extent = {1}};
    large_ranks[i] = i % WORLD;
  }
  assert_int_equal(make_large(&wanted, NULL), RESHARD_SUCCESS);
  assert_true(fault_local_run(&(fault_local){"large lists", make_large, same_large, drop_layout, &wanted}) >= 10);
  reshard_layout_release(wanted.object);
}

/* Corners of boxes. */
enum { NDIM = 3, BOXES = 8 };
#define SIDE ((int64_t)1 << 30)

typedef struct corner_case {
  int64_t shape[NDIM], corners[BOXES * 2 * NDIM], box[BOXES], n, excess;
} corner_case;

static reshard_status check_corners(fault_output *out, const void *with) {
  const corner_case *c = with;
  int64_t excess = 0, point[RESHARD_MAX_DIMS];
  RS_TRY(rs_corners_check(NDIM, c->shape, c->corners, c->n, c->box, &excess, point));
  out->number = excess;
  return RESHARD_SUCCESS;
}

static bool has_excess(const fault_output *out, const void *with) {
  return (out->number > 0) - (out->number < 0) == ((const corner_case *)with)->excess;
}

/* Eight boxes, the octants of a cube of that side; the last one larger or smaller. */
static corner_case octants(int64_t side, int64_t more) {
  corner_case c = {.n = BOXES, .excess = (more > 0) - (more < 0)};
  for (int64_t b = 0; b < BOXES; b++) {
    c.box[b] = b;
    for (int d = 0; d < NDIM; d++) {
      int64_t upper = b >> d & 1;
      c.shape[d] = side;
      c.corners[b * 2 * NDIM + d] = upper * side / 2 - (b == BOXES - 1 && d == 0 ? more : 0);
      c.corners[b * 2 * NDIM + NDIM + d] = (upper + 1) * side / 2;
    }
  }
  return c;
}

CASE(checks_of_huge_boxes_survive_any_failed_allocation) {
  for (int64_t side = 16; side <= SIDE; side *= SIDE / 16)
    for (int64_t more = -1; more <= 1; more++) {
      corner_case c = octants(side, more);
      assert_true(fault_local_run(&(fault_local){"corners", check_corners, has_excess, NULL, &c}) >= 2);
    }
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
