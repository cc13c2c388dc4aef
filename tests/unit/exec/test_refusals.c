/* Bad input: constructors of layouts, their queries, and plans. Each gives its status, a text with the numbers in it,
 * and leaves the output alone. */
#include "support/fixtures/case.h"

#include <reshard/plan.h>

#include <stdio.h>
#include <string.h>

#define LIST(...) \
  (int64_t[]) { __VA_ARGS__ }

/* Values of outputs before a call, which must be there after it. */
static char untouched;
static reshard_layout layout;
static reshard_plan plan;

static int set_up(void **unused) {
  layout = (reshard_layout)(void *)&untouched;
  plan = (reshard_plan)(void *)&untouched;
  return 0;
}

static void says(reshard_status status, reshard_status wanted, const char *text, int line) {
  if (status != wanted)
    fail_msg("line %d: %s, not %s: %s", line, reshard_status_string(status), reshard_status_string(wanted),
             reshard_last_error());
  if (strcmp(reshard_last_error(), text) != 0)
    fail_msg("line %d: \"%s\", not \"%s\"", line, reshard_last_error(), text);
  assert_ptr_equal(layout, &untouched);
  assert_ptr_equal(plan, &untouched);
}
#define invalid(call, text)     says((call), RESHARD_ERROR_INVALID, (text), __LINE__)
#define unsupported(call, text) says((call), RESHARD_ERROR_UNSUPPORTED, (text), __LINE__)

CASE(wrong_shapes_are_refused) {
  int64_t large = (int64_t)1 << 40;
  invalid(reshard_layout_create_single(9, LIST(1, 1, 1, 1, 1, 1, 1, 1, 1), 4, 0, &layout),
          "rank: 9 dims, 0 to 8 are allowed");
  invalid(reshard_layout_create_single(-1, LIST(1), 4, 0, &layout), "rank: -1 dims, 0 to 8 are allowed");
  invalid(reshard_layout_create_flat(2, NULL, 4, 0, NULL, &layout), "flat: shape is NULL");
  invalid(reshard_layout_create_chunk(2, LIST(5, -3), 4, 0, 0, NULL, &layout), "chunk: extent -3 of dim 1 is negative");
  invalid(reshard_layout_create_flat(2, LIST(large, large), 4, 0, NULL, &layout),
          "flat: the elements of shape 1099511627776x1099511627776 overflow 63 bits");
  invalid(reshard_layout_create_flat(3, LIST(large, 0, large), 4, 0, NULL, &layout),
          "flat: the elements of shape 1099511627776x0x1099511627776 overflow 63 bits");
  invalid(reshard_layout_create_single(1, LIST(5), 0, 0, &layout), "rank: a world of 0 ranks, at least 1 is needed");
  invalid(reshard_layout_create_single(1, LIST(5), -2, 0, &layout), "rank: a world of -2 ranks, at least 1 is needed");
  invalid(reshard_layout_create_single(1, LIST(5), 1, 0, NULL), "rank: layout is NULL");
  invalid(reshard_layout_create_chunk(1, LIST(5), 1, 0, 0, NULL, NULL), "chunk: layout is NULL");
  invalid(reshard_layout_create_flat(1, LIST(5), 1, 0, NULL, NULL), "flat: layout is NULL");
  invalid(reshard_layout_create_mesh(1, LIST(5), 1, 1, LIST(1), NULL, &(reshard_placement){0}, NULL, NULL, NULL),
          "mesh: layout is NULL");
  invalid(reshard_layout_create_cyclic(1, LIST(5), 1, LIST(1), LIST(1), NULL, NULL), "cyclic: layout is NULL");
  invalid(reshard_layout_create_boxes(1, LIST(5), 1, 0, NULL, NULL, 0, NULL), "boxes: layout is NULL");
}

CASE(wrong_ranks_are_refused) {
  invalid(reshard_layout_create_single(1, LIST(5), 4, 4, &layout),
          "rank: rank 4 at position 0 is not in the world of 4 ranks");
  invalid(reshard_layout_create_single(1, LIST(5), 4, -1, &layout),
          "rank: rank -1 at position 0 is not in the world of 4 ranks");
  invalid(reshard_layout_create_chunk(1, LIST(5), 4, 0, 3, LIST(0, 7, 1), &layout),
          "chunk: rank 7 at position 1 is not in the world of 4 ranks");
  invalid(reshard_layout_create_chunk(1, LIST(5), 4, 0, 3, LIST(2, 0, 2), &layout), "chunk: rank 2 is named twice");
  invalid(reshard_layout_create_chunk(1, LIST(5), 9, 0, 6, LIST(1, 2, 3, 8, 7, 3), &layout),
          "chunk: rank 3 is named twice");
  invalid(reshard_layout_create_chunk(1, LIST(5), 4, 0, 0, LIST(0), &layout), "chunk: 0 ranks, at least 1 is needed");
  invalid(reshard_layout_create_chunk(1, LIST(5), 4, 0, -3, NULL, &layout), "chunk: -3 ranks, at least 1 is needed");
  invalid(reshard_layout_create_chunk(1, LIST(5), 4, 0, 5, NULL, &layout),
          "chunk: 5 ranks are needed, the world has 4");
  invalid(reshard_layout_create_flat(1, LIST(5), 4, 2, LIST(1, 1), &layout), "flat: rank 1 is named twice");
  invalid(reshard_layout_create_chunk(2, LIST(5, 5), 4, 2, 0, NULL, &layout), "chunk: dim 2 of a tensor of 2 dims");
  invalid(reshard_layout_create_chunk(2, LIST(5, 5), 4, -3, 0, NULL, &layout), "chunk: dim -3 of a tensor of 2 dims");
  invalid(reshard_layout_create_chunk(0, NULL, 4, 0, 0, NULL, &layout), "chunk: dim 0 of a tensor of 0 dims");
}

CASE(wrong_meshes_are_refused) {
  reshard_placement p[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0}, {.kind = RESHARD_PLACEMENT_REPLICATE}};
  const int64_t shape[] = {8, 8}, mesh[] = {2, 2};
#define MESH(mesh_ndim, mesh_shape, names, placements, order, ranks) \
  reshard_layout_create_mesh(2, shape, 4, mesh_ndim, mesh_shape, names, placements, order, ranks, &layout)
  invalid(MESH(0, mesh, NULL, p, NULL, NULL), "mesh: 0 mesh dims with NULL or no extents or placements");
  invalid(MESH(2, NULL, NULL, p, NULL, NULL), "mesh: 2 mesh dims with NULL or no extents or placements");
  invalid(MESH(2, mesh, NULL, NULL, NULL, NULL), "mesh: 2 mesh dims with NULL or no extents or placements");
  invalid(MESH(2, LIST(2, 0), NULL, p, NULL, NULL), "mesh: extent 0 of mesh dim 1, at least 1 is needed");
  invalid(MESH(2, LIST(-2, 2), NULL, p, NULL, NULL), "mesh: extent -2 of mesh dim 0, at least 1 is needed");
  invalid(MESH(2, LIST((int64_t)1 << 40, (int64_t)1 << 40), NULL, p, NULL, NULL),
          "mesh: the ranks of the mesh overflow 63 bits");
  invalid(MESH(2, LIST(2, 3), NULL, p, NULL, NULL), "mesh: 6 ranks are needed, the world has 4");
  invalid(MESH(2, mesh, NULL, p, NULL, LIST(0, 1, 2, 4)), "mesh: rank 4 at position 3 is not in the world of 4 ranks");
  invalid(MESH(2, mesh, NULL, p, NULL, LIST(0, 1, 1, 2)), "mesh: rank 1 is named twice");
  invalid(MESH(2, mesh, ((const char *[]){"dp", "dp"}), p, NULL, NULL), "mesh: mesh dims 0 and 1 are both named 'dp'");
  invalid(MESH(2, mesh, ((const char *[]){"dp", "2tp"}), p, NULL, NULL), "mesh: '2tp' is no name for mesh dim 1");
  invalid(MESH(2, mesh, ((const char *[]){"dp", "t-p"}), p, NULL, NULL), "mesh: 't-p' is no name for mesh dim 1");
  invalid(MESH(2, mesh, ((const char *[]){"", "tp"}), p, NULL, NULL), "mesh: '' is no name for mesh dim 0");
  invalid(MESH(2, mesh, ((const char *[]){"dp", NULL}), p, NULL, NULL), "mesh: 'NULL' is no name for mesh dim 1");
  invalid(MESH(2, mesh, NULL, p, ((int[]){0, 2}), NULL), "mesh: order names mesh dim 2 of 2");
  invalid(MESH(2, mesh, NULL, p, ((int[]){-1, 0}), NULL), "mesh: order names mesh dim -1 of 2");
  invalid(MESH(2, mesh, NULL, p, ((int[]){1, 1}), NULL), "mesh: order names mesh dim 1 twice");
  p[1] = (reshard_placement){.kind = RESHARD_PLACEMENT_SHARD, .dim = 2};
  invalid(MESH(2, mesh, NULL, p, NULL, NULL), "mesh: dim 2 of a tensor of 2 dims");
  p[1] = (reshard_placement){.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = 1};
  invalid(MESH(2, mesh, NULL, p, NULL, NULL), "mesh: split factor 0 of mesh dim 1, at least 1 is needed");
  p[1] = (reshard_placement){.kind = (reshard_placement_kind)3, .dim = 1, .split_factor = 1};
  invalid(MESH(2, mesh, NULL, p, NULL, NULL), "mesh: unknown placement 3 of mesh dim 1");
}

CASE(wrong_grids_and_blocks_are_refused) {
  const int64_t shape[] = {8, 8};
  invalid(reshard_layout_create_cyclic(2, shape, 4, NULL, LIST(1, 1), NULL, &layout), "cyclic: NULL grid or block");
  invalid(reshard_layout_create_cyclic(2, shape, 4, LIST(2, 2), NULL, NULL, &layout), "cyclic: NULL grid or block");
  invalid(reshard_layout_create_cyclic(2, shape, 4, LIST(2, 0), LIST(1, 1), NULL, &layout),
          "cyclic: extent 0 of mesh dim 1, at least 1 is needed");
  invalid(reshard_layout_create_cyclic(2, shape, 4, LIST(2, 2), LIST(1, 0), NULL, &layout),
          "cyclic: block 0 in dim 1, at least 1 is needed");
  invalid(reshard_layout_create_cyclic(2, shape, 4, LIST(2, 3), LIST(1, 1), NULL, &layout),
          "cyclic: 6 ranks are needed, the world has 4");
  invalid(reshard_layout_create_cyclic(2, shape, 4, LIST(1, 2), LIST(1, 1), LIST(3, 3), &layout),
          "cyclic: rank 3 is named twice");
}

/* Boxes: what is always wrong here; what only a source must not have, below. */
static void boxes_fail(int64_t n, const int64_t *ranks, const reshard_box *boxes, const char *first,
                       const char *second) {
  reshard_status status = reshard_layout_create_boxes(2, LIST(8, 12), 4, n, ranks, boxes, 0, &layout);
  assert_int_equal(status, RESHARD_ERROR_INVALID);
  assert_ptr_equal(layout, &untouched);
  if (strstr(reshard_last_error(), first) == NULL || strstr(reshard_last_error(), second) == NULL)
    fail_msg("\"%s\" lacks \"%s\" or \"%s\"", reshard_last_error(), first, second);
}

CASE(wrong_boxes_are_refused) {
  reshard_box b[2] = {{{0, 0}, {5, 12}}, {{5, 0}, {3, 12}}};
  boxes_fail(-1, LIST(0), b, "-1 boxes", "");
  boxes_fail(2, NULL, b, "2 boxes", "NULL");
  boxes_fail(2, LIST(0, 1), NULL, "2 boxes", "NULL");
  boxes_fail(2, LIST(0, 4), b, "rank 4", "world of 4");
  boxes_fail(2, LIST(-1, 1), b, "rank -1", "world of 4");
  b[1].extent[0] = 4;
  boxes_fail(2, LIST(0, 1), b, "box 1 of rank 1", "offset 5 and extent 4 in dim 0 of shape 8x12");
  b[1] = (reshard_box){{5, -1}, {3, 12}};
  boxes_fail(2, LIST(0, 1), b, "box 1 of rank 1", "offset -1 and extent 12 in dim 1");
  b[1] = (reshard_box){{5, 0}, {-3, 12}};
  boxes_fail(2, LIST(0, 1), b, "box 1 of rank 1", "offset 5 and extent -3 in dim 0");
  b[1] = (reshard_box){{INT64_MAX, 0}, {INT64_MAX, 12}};
  boxes_fail(2, LIST(0, 1), b, "box 1", "9223372036854775807");
  b[1] = (reshard_box){{4, 2}, {3, 6}};
  boxes_fail(2, LIST(2, 2), b, "boxes 0 and 1", "[4,5)x[2,8)");
}

static void source_fails(const char *text, const char *wanted) {
  reshard_layout made;
  assert_int_equal(reshard_layout_parse(text, 2, LIST(8, 12), 4, &made), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_check_source(made), RESHARD_ERROR_INVALID);
  if (strstr(reshard_last_error(), wanted) == NULL)
    fail_msg("%s: \"%s\" lacks \"%s\"", text, reshard_last_error(), wanted);
  /* fit for a destination, not for a source */
  reshard_layout whole;
  assert_int_equal(reshard_layout_parse("rank(0)", 2, LIST(8, 12), 4, &whole), RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = made, .dst = whole, .dtype = RESHARD_F32, .name = "w"};
  assert_int_equal(reshard_plan_create(1, &entry, 0, NULL, &plan), RESHARD_ERROR_INVALID);
  assert_ptr_equal(plan, &untouched);
  if (strstr(reshard_last_error(), wanted) == NULL ||
      strncmp(reshard_last_error(), "entry 0 'w': src layout: ", 25) != 0)
    fail_msg("%s: \"%s\" lacks \"%s\"", text, reshard_last_error(), wanted);
  entry.src = whole;
  entry.dst = made;
  assert_int_equal(reshard_plan_create(1, &entry, 0, NULL, &plan), RESHARD_SUCCESS);
  reshard_plan_destroy(plan);
  plan = (reshard_plan)(void *)&untouched;
  reshard_layout_release(made);
  reshard_layout_release(whole);
}

CASE(sources_with_gaps_or_overlaps_are_refused) {
  source_fails("boxes(0:[0,0]+[5,12];1:[6,0]+[2,12])", "[5,6)x[0,12)");
  source_fails("boxes(0:[0,0]+[5,12];1:[4,3]+[4,9])", "[4,5)x[3,12)");
  source_fails("boxes(0:[0,0]+[8,12];1:[0,0]+[8,12])", "replicated");
  source_fails("boxes(replicated;0:[0,0]+[8,12];1:[0,0]+[4,12])", "boxes 0 and 1");
  source_fails("boxes(2:[0,0]+[0,12])", "[0,8)x[0,12)");
  invalid(reshard_layout_check_source(NULL), "reshard_layout_check_source: layout is NULL");
}

CASE(wrong_queries_are_refused) {
  reshard_layout made;
  int64_t count = -7;
  int dims;
  reshard_array_info info = {.elements = -7};
  reshard_interval run = {-7, -7};
  assert_int_equal(reshard_layout_parse("chunk(0;1-2)", 2, LIST(8, 12), 4, &made), RESHARD_SUCCESS);
  invalid(reshard_layout_array_count(NULL, 0, &count), "reshard_layout_array_count: NULL argument");
  invalid(reshard_layout_array_count(made, 0, NULL), "reshard_layout_array_count: NULL argument");
  invalid(reshard_layout_array_count(made, 4, &count),
          "reshard_layout_array_count: rank 4 is not in the world of 4 ranks");
  invalid(reshard_layout_array(made, 1, 1, &info), "reshard_layout_array: array 1 of rank 1, which has 1");
  invalid(reshard_layout_array(made, 0, 0, &info), "reshard_layout_array: array 0 of rank 0, which has 0");
  invalid(reshard_layout_array(made, 1, -1, &info), "reshard_layout_array: array -1 of rank 1, which has 1");
  invalid(reshard_layout_array_intervals(made, 1, 0, 2, 0, 1, &run, &count),
          "reshard_layout_array_intervals: dim 2 of 2, first 0, capacity 1");
  invalid(reshard_layout_array_intervals(made, 1, 0, 0, -1, 1, &run, &count),
          "reshard_layout_array_intervals: dim 0 of 2, first -1, capacity 1");
  invalid(reshard_layout_array_intervals(made, 1, 0, 0, 0, 1, NULL, &count),
          "reshard_layout_array_intervals: dim 0 of 2, first 0, capacity 1");
  invalid(reshard_layout_array_intervals(made, 1, 0, 0, 0, 1, &run, NULL),
          "reshard_layout_array_intervals: NULL argument");
  invalid(reshard_layout_buffer_count(made, -1, &count),
          "reshard_layout_buffer_count: rank -1 is not in the world of 4 ranks");
  invalid(reshard_layout_buffer_elements(made, 0, 1, &count),
          "reshard_layout_buffer_elements: buffer 1 of rank 0, which has 1");
  invalid(reshard_layout_buffer_elements(made, 0, 0, NULL), "reshard_layout_buffer_elements: NULL argument");
  invalid(reshard_layout_buffer_shape(made, 0, 1, NULL, &dims, &count),
          "reshard_layout_buffer_shape: buffer 1 of rank 0, which has 1");
  invalid(reshard_layout_meet(made, NULL, NULL, NULL), "reshard_layout_meet: box is NULL");
  assert_true(count == -7 && info.elements == -7 && run.begin == -7);
  reshard_layout_release(made);
}

static int count_calls(void *user, int64_t rank, int64_t array, int64_t elements) {
  ++*(int *)user;
  return 0;
}

CASE(wrong_meets_are_refused) {
  reshard_layout made;
  int calls = 0;
  assert_int_equal(reshard_layout_parse("flat()", 2, LIST(8, 12), 4, &made), RESHARD_SUCCESS);
  invalid(reshard_layout_meet(made, &(reshard_box){{0, -1}, {8, 3}}, count_calls, &calls),
          "reshard_layout_meet: [-1,+3) in dim 1 of extent 12");
  invalid(reshard_layout_meet(made, &(reshard_box){{4, 0}, {5, 3}}, count_calls, &calls),
          "reshard_layout_meet: [4,+5) in dim 0 of extent 8");
  invalid(reshard_layout_meet(made, &(reshard_box){{0, 0}, {-1, 3}}, count_calls, &calls),
          "reshard_layout_meet: [0,+-1) in dim 0 of extent 8");
  invalid(reshard_layout_meet(made, &(reshard_box){{INT64_MAX, 0}, {INT64_MAX, 3}}, count_calls, &calls),
          "reshard_layout_meet: [9223372036854775807,+9223372036854775807) in dim 0 of extent 8");
  assert_int_equal(reshard_layout_meet(made, &(reshard_box){{8, 3}, {0, 3}}, count_calls, &calls), RESHARD_SUCCESS);
  assert_int_equal(calls, 0); /* an empty box meets nobody */
  reshard_layout_release(made);
}

CASE(wrong_entries_are_refused) {
  reshard_layout a, b, other_world, three_dims;
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, LIST(8, 12), 4, &a), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, LIST(8, 12), 4, &b), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, LIST(8, 12), 5, &other_world), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 3, LIST(8, 12, 2), 4, &three_dims), RESHARD_SUCCESS);
  reshard_entry good = {RESHARD_ENTRY_INIT, .src = a, .dst = b, .dtype = RESHARD_F32}, e[2] = {good, good};
#define PLAN(n)                 reshard_plan_create(n, e, 0, NULL, &plan)
#define BAD(field, value, text) e[1] = good, e[1].field = (value), invalid(PLAN(2), "entry 1 'tensor': " text)
  invalid(PLAN(-1), "reshard_plan_create: -1 entries, NULL argument");
  invalid(reshard_plan_create(1, NULL, 0, NULL, &plan), "reshard_plan_create: 1 entries, NULL argument");
  invalid(reshard_plan_create(1, e, 0, NULL, NULL), "reshard_plan_create: 1 entries, NULL argument");
  invalid(reshard_plan_create(1, e, 4, NULL, &plan), "rank 4 is not in the world of 4 ranks");
  invalid(reshard_plan_create(1, e, -1, NULL, &plan), "rank -1 is not in the world of 4 ranks");
  invalid(reshard_plan_create(0, NULL, -1, NULL, &plan), "rank -1 is not in the world of 0 ranks");
  e[0].size = 8;
  char text[96];
  snprintf(text, sizeof text, "entry 0: size field 8, this library's reshard_entry has %zu", sizeof(reshard_entry));
  invalid(PLAN(1), text);
  e[0] = (reshard_entry){RESHARD_ENTRY_INIT, .dst = b, .dtype = RESHARD_F32};
  invalid(PLAN(1), "entry 0: src layout is NULL");
  e[0] = good;
  BAD(src, NULL, "src layout is NULL");
  BAD(dst, NULL, "dst layout is NULL");
  BAD(dst, other_world, "layouts of worlds of 4 and 5 ranks, the plan's has 4");
  BAD(dtype, RESHARD_DTYPE_NONE, "unknown dtype 0");
  BAD(dtype, (reshard_dtype)99, "unknown dtype 99");
  BAD(dst_dtype, (reshard_dtype)99, "unknown destination dtype 99");
  BAD(op, (reshard_op)17, "unknown operation 17");
  BAD(op, (reshard_op)-1, "unknown operation -1");
  BAD(dst, three_dims, "2 source dims, 3 destination dims, and no permutation");
  e[1] = good;
  e[1].dst_dtype = RESHARD_I32;
  unsupported(PLAN(2), "entry 1 'tensor': no cast from f32 to i32");
  e[1].dst_dtype = RESHARD_F8_E8M0;
  unsupported(PLAN(2), "entry 1 'tensor': no cast from f32 to f8_e8m0");
  e[1].dtype = RESHARD_C64;
  e[1].dst_dtype = RESHARD_F32;
  unsupported(PLAN(2), "entry 1 'tensor': no cast from c64 to f32");
  e[1].dtype = RESHARD_F32;
  e[1].dst_dtype = RESHARD_F32;
  e[1].op = RESHARD_OP_SUM;
  e[1].name = "layers.0.weight";
  unsupported(PLAN(2), "entry 1 'layers.0.weight': operation sum is not built, copy is");
  reshard_layout_release(a);
  reshard_layout_release(b);
  reshard_layout_release(other_world);
  reshard_layout_release(three_dims);
}

CASE(wrong_regions_are_refused) {
  reshard_layout a, b, taller, unit;
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, LIST(8, 12), 4, &a), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, LIST(8, 12), 4, &b), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 2, LIST(9, 12), 4, &taller), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(1)", 3, LIST(8, 2, 12), 4, &unit), RESHARD_SUCCESS);
  reshard_entry e[1], good = {RESHARD_ENTRY_INIT, .src = a, .dst = b, .dtype = RESHARD_F32};
#define REGION_TO(layout, text, ...) \
  e[0] = (reshard_entry){RESHARD_ENTRY_INIT, .src = a, .dst = layout, .dtype = RESHARD_F32, __VA_ARGS__}, \
  invalid(PLAN(1), "entry 0 'tensor': " text)
#define REGION(...) REGION_TO(b, __VA_ARGS__)
  REGION("source region starts at -1 in dim 0 of extent 8", .src_offset = LIST(-1, 0));
  REGION("source region starts at 13 in dim 1 of extent 12", .src_offset = LIST(0, 13));
  REGION("source region [4,+5) in dim 0 of extent 8", .src_offset = LIST(4, 0), .src_extent = LIST(5, 12));
  REGION("source region [0,+-1) in dim 1 of extent 12", .src_extent = LIST(8, -1));
  REGION("source region [1,+9223372036854775807) in dim 0 of extent 8", .src_offset = LIST(1, 0),
         .src_extent = LIST(INT64_MAX, 1));
  REGION("destination region starts at 9 in dim 0 of extent 8", .dst_offset = LIST(9, 0));
  REGION("destination region [2,+7) in dim 0 of extent 8", .dst_offset = LIST(2, 0), .dst_extent = LIST(7, 12));
  REGION("dim 0 of the destination region [2,+8) of 8 does not fit the source's 8", .dst_offset = LIST(2, 0));
  REGION("dim 1 of the destination region [0,+11) of 12 does not fit the source's 12", .dst_extent = LIST(8, 11));
  REGION_TO(taller, "dim 0 of the destination region [0,+9) of 9 does not fit the source's 8", .op = RESHARD_OP_COPY);
  REGION("dim 0 of the destination region [0,+8) of 8 does not fit the source's 12", .permutation = ((int[]){1, 0}));
  REGION("permutation gives dim 1 the source dim 0, which is named twice", .permutation = ((int[]){0, 0}));
  REGION("permutation gives dim 0 the source dim 2, which there is not", .permutation = ((int[]){2, 0}));
  REGION("permutation gives dim 1 the source dim -2, which there is not", .permutation = ((int[]){0, -2}));
  REGION_TO(unit, "dim 1 of the destination region [0,+2) of 2 does not fit the source's 1",
            .permutation = ((int[]){0, -1, 1}), .dst_extent = LIST(8, 2, 12));
  REGION("source dim 1 is not in the permutation and has extent 12, not 1", .permutation = ((int[]){0, -1}),
         .src_extent = LIST(8, 12), .dst_extent = LIST(8, 1));
  e[0] = good;
  assert_int_equal(PLAN(1), RESHARD_SUCCESS);
  reshard_plan_destroy(plan);
  plan = (reshard_plan)(void *)&untouched;
  reshard_layout_release(a);
  reshard_layout_release(b);
  reshard_layout_release(taller);
  reshard_layout_release(unit);
}

CASE(wrong_options_are_refused) {
  reshard_layout a;
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, LIST(8, 12), 4, &a), RESHARD_SUCCESS);
  reshard_entry e[1] = {{RESHARD_ENTRY_INIT, .src = a, .dst = a, .dtype = RESHARD_F32}};
  reshard_plan_options o = {.size = 4};
  char text[96];
  snprintf(text, sizeof text, "size field 4, this library's reshard_plan_options has %zu", sizeof o);
  invalid(reshard_plan_create(1, e, 0, &o, &plan), text);
  o = (reshard_plan_options){.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = -2};
  invalid(reshard_plan_create(1, e, 0, &o, &plan),
          "workspace limit -2: it may not be negative, but for RESHARD_NO_LIMIT, -1");
  o = (reshard_plan_options){.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 1023};
  invalid(reshard_plan_create(1, e, 0, &o, &plan),
          "a workspace limit of 1023 bytes is too small: 1024 is the least with 4 ranks");
  reshard_layout_release(a);
}

CASE(test_plan_calls) {
  reshard_layout a;
  reshard_plan made;
  reshard_plan_info info;
  int64_t x = 0, y = 0, z = 0;
  size_t n = 0;
  char text[8];
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, LIST(8, 12), 4, &a), RESHARD_SUCCESS);
  reshard_entry e[1] = {{RESHARD_ENTRY_INIT, .src = a, .dst = a, .dtype = RESHARD_F32}};
  assert_int_equal(reshard_plan_create(1, e, 0, NULL, &made), RESHARD_SUCCESS);
  invalid(reshard_plan_get_info(NULL, &info), "reshard_plan_get_info: plan is NULL");
  invalid(reshard_plan_get_info(made, NULL), "reshard_plan_get_info: info is NULL");
  invalid(reshard_plan_peer(NULL, 0, &x, &y, &z), "reshard_plan_peer: plan is NULL");
  invalid(reshard_plan_peer(made, 0, &x, NULL, &z), "reshard_plan_peer: sent_bytes is NULL");
  invalid(reshard_plan_peer(made, 0, &x, &y, &z), "reshard_plan_peer: peer 0 of 0");
  invalid(reshard_plan_peer(made, -1, &x, &y, &z), "reshard_plan_peer: peer -1 of 0");
  invalid(reshard_plan_get_info_at(NULL, 1, 0, &info), "reshard_plan_get_info_at: plan is NULL");
  invalid(reshard_plan_get_info_at(made, 1, 0, NULL), "reshard_plan_get_info_at: info is NULL");
  invalid(reshard_plan_get_info_at(made, -1, 0, &info), "reshard_plan_get_info_at: -1 rounds, this rank needs 0");
  invalid(reshard_plan_workspace(NULL, &n), "reshard_plan_workspace: plan is NULL");
  invalid(reshard_plan_workspace(made, NULL), "reshard_plan_workspace: bytes is NULL");
  invalid(reshard_plan_reverse(NULL, &plan), "reshard_plan_reverse: plan is NULL");
  invalid(reshard_plan_reverse(made, NULL), "reshard_plan_reverse: reverse is NULL");
  invalid(reshard_plan_explain(NULL, RESHARD_TEXT, text, 8, &n),
          "reshard_plan_explain: NULL argument or unknown format 0");
  invalid(reshard_plan_explain(made, (reshard_format)2, text, 8, &n),
          "reshard_plan_explain: NULL argument or unknown format 2");
  invalid(reshard_plan_explain(made, RESHARD_TEXT, NULL, 8, &n),
          "reshard_plan_explain: NULL argument or unknown format 0");
  reshard_plan_destroy(made);
  reshard_layout_release(a);
}

RUN_CASES_WITH(set_up, NULL)
