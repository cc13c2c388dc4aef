/* Small reshards with names, executed over both paths with every element checked: steps of parallel programs, parts of
 * tensors, transposes, limits, node maps. Then the way back. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/reshards/local_world.h"

#include <stdlib.h>
#include <string.h>

#define MOST  16
#define RANKS 6

/* A tensor of a test: whole, and scattered to its ranks. */
typedef struct tensor {
  reshard_layout layout;
  rank_buffers ranks;
  int64_t elements, width;
  unsigned char *data;   /* what the ranks should hold */
  unsigned char *memory; /* what they hold, when collected */
} tensor;

static local_world *world;

static int open_world(void **unused) {
  world = local_world_create(RANKS);
  return 0;
}

static int close_world(void **unused) {
  local_world_destroy(world);
  return 0;
}

/* key 0: all bytes are poison. */
static tensor tensor_make(const char *text, int ndim, const int64_t *shape, reshard_dtype dtype, uint64_t key) {
  tensor t = {.width = (int64_t)reshard_dtype_size(dtype)};
  if (reshard_layout_parse(text, ndim, shape, RANKS, &t.layout) != RESHARD_SUCCESS)
    fail_msg("%s: %s", text, reshard_last_error());
  t.elements = reshard_layout_elements(t.layout);
  rank_buffers_create(t.layout, t.width, &t.ranks);
  t.memory = cli_alloc(t.elements, (size_t)t.width);
  t.data = key != 0 ? whole_tensor_create(t.elements, t.width, key) : cli_alloc(t.elements, (size_t)t.width);
  if (key == 0)
    memset(t.data, 0xEE, (size_t)(t.elements * t.width));
  rank_buffers_scatter(&t.ranks, t.data);
  return t;
}

static void tensor_poison(tensor *t) {
  memset(t->memory, 0xEE, (size_t)(t->elements * t->width));
  rank_buffers_scatter(&t->ranks, t->memory);
}

/* True when all ranks hold the right elements. */
static void tensor_check(tensor *t, const char *what) {
  memcpy(t->memory, t->data, (size_t)(t->elements * t->width)); /* what nobody holds cannot be wrong */
  int64_t differ = rank_buffers_gather(&t->ranks, t->memory);
  for (int64_t i = 0; i < t->elements; i++)
    if (memcmp(t->memory + i * t->width, t->data + i * t->width, (size_t)t->width) != 0)
      fail_msg("%s: element %lld is wrong", what, (long long)i);
  if (differ != 0)
    fail_msg("%s: copies of %lld elements differ", what, (long long)differ);
}

static void tensor_free(tensor *t) {
  rank_buffers_free(&t->ranks);
  reshard_layout_release(t->layout);
  free(t->data);
  free(t->memory);
}

static void check_result(const local_world_result *result, const char *what, const reshard_plan_options *options) {
  if (result->status != RESHARD_SUCCESS)
    fail_msg("%s: %s", what, result->error);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(result->wire_bytes[r], result->info[r].lower_bound_bytes);
    assert_int_equal(result->wire_bytes[r], result->info[r].received_bytes);
    if (options != NULL && options->workspace_limit > 0)
      assert_true(result->info[r].workspace_bytes <= options->workspace_limit);
  }
}

/* Runs entries from tensors to tensors, which may be the same for several, over both paths. Then runs the way back
 * where `back` says that there is one. */
static void check_both_paths(const char *what, int n, const reshard_entry *entries, tensor *const *src,
                             tensor *const *dst, const reshard_plan_options *options, bool back) {
  const rank_buffers *from[MOST], *to[MOST];
  for (int i = 0; i < n; i++) {
    from[i] = &src[i]->ranks;
    to[i] = &dst[i]->ranks;
    memset(dst[i]->data, 0xEE, (size_t)(dst[i]->elements * dst[i]->width));
  }
  for (int i = 0; i < n; i++) {
    whole_tensor_expect(&entries[i], src[i]->layout, dst[i]->layout, src[i]->width, src[i]->data, dst[i]->data);
  }
  for (int path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    local_world_result result;
    for (int i = 0; i < n; i++)
      tensor_poison(dst[i]);
    local_world_reshard(world, n, entries, from, to, options, (reshard_path)path, false, &result);
    check_result(&result, what, options);
    local_world_result_free(&result);
    for (int i = 0; i < n; i++) {
      tensor_check(dst[i], what);
      tensor_check(src[i], what);
    }
    if (!back)
      continue;
    for (int i = 0; i < n; i++)
      tensor_poison(src[i]);
    local_world_reshard(world, n, entries, from, to, options, (reshard_path)path, true, &result);
    check_result(&result, what, options);
    local_world_result_free(&result);
    for (int i = 0; i < n; i++)
      tensor_check(src[i], what);
  }
}

/* One whole tensor from one layout to another. */
static void whole(const char *what, const char *from, const char *to, int ndim, const int64_t *shape,
                  const reshard_plan_options *options, bool back) {
  static const reshard_dtype dtypes[] = {RESHARD_F32, RESHARD_BF16, RESHARD_U8, RESHARD_F64, RESHARD_C128};
  static int turn;
  reshard_dtype dtype = dtypes[turn++ % 5];
  tensor src = tensor_make(from, ndim, shape, dtype, 5), dst = tensor_make(to, ndim, shape, dtype, 0);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = dtype};
  check_both_paths(what, 1, &entry, (tensor *[]){&src}, (tensor *[]){&dst}, options, back);
  tensor_free(&src);
  tensor_free(&dst);
}
#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }

CASE(steps_of_parallel_programs_are_right) {
  whole("all-gather", "chunk(0)", "mesh(6;R)", SHAPE(13, 7), NULL, false);
  whole("gather", "chunk(0)", "rank(2)", SHAPE(13, 7), NULL, true);
  whole("scatter", "rank(5)", "chunk(1;5-0)", SHAPE(13, 7), NULL, true);
  whole("broadcast", "rank(1)", "mesh(6;R)", SHAPE(13, 7), NULL, false);
  whole("rows to columns", "chunk(0)", "chunk(1)", SHAPE(13, 7), NULL, true);
  whole("columns to rows", "chunk(-1)", "chunk(0;3,1,5)", SHAPE(13, 7, 2), NULL, true);
  whole("FSDP and TP to TP and FSDP", "mesh(fsdp=3,tp=2;S0,S1)", "mesh(tp=2,fsdp=3;S1,S0)", SHAPE(13, 7), NULL, true);
  whole("TP first to plain", "mesh(dp=3,tp=2;S0,S0;order=tp,dp)", "mesh(dp=3,tp=2;S0,S0)", SHAPE(7, 5), NULL, true);
  whole("TP first to StridedShard", "mesh(dp=3,tp=2;S0,S0;order=tp,dp)", "mesh(dp=3,tp=2;S0*2,S0)", SHAPE(7, 5), NULL,
        true);
  whole("HSDP to EP", "mesh(2x3;R,S0)", "chunk(0;5-0)", SHAPE(12, 5, 3), NULL, true);
  whole("flat to rows", "flat()", "chunk(0)", SHAPE(5, 7, 3), NULL, true);
  whole("flat to flat", "flat(3-0)", "flat()", SHAPE(5, 7, 3), NULL, true);
  whole("cyclic to cyclic", "cyclic(2x3;2x2)", "cyclic(3x2@5-0;3x1)", SHAPE(13, 17), NULL, true);
  whole("disjoint ranks", "chunk(0;0-2)", "chunk(1;3-5)", SHAPE(13, 7), NULL, true);
  whole("boxes", "boxes(0:[0,0]+[5,12];3:[5,0]+[3,7];3:[5,7]+[3,5])",
        "boxes(1:[0,0]+[8,1];1:[0,1]+[3,11];2:[3,1]+[5,11])", SHAPE(8, 12), NULL, true);
  whole("halo", "chunk(0;0-2)", "boxes(0:[0,0]+[5,4];1:[3,0]+[6,4];2:[7,0]+[5,4])", SHAPE(12, 4), NULL, false);
  whole("gap", "chunk(0;0-2)", "boxes(4:[1,1]+[5,2];5:[8,0]+[2,4])", SHAPE(12, 4), NULL, false);
  whole("replicated boxes", "boxes(replicated;0:[0,0]+[6,4];1:[0,0]+[6,4];2:[6,0]+[6,4])", "chunk(0)", SHAPE(12, 4),
        NULL, true);
  whole("scalar", "rank(2)", "mesh(6;R)", 0, NULL, NULL, false);
  whole("no elements", "chunk(0)", "chunk(1)", SHAPE(0, 9), NULL, true);
  whole("nothing to move", "chunk(0)", "mesh(6;S0)", SHAPE(13, 9), NULL, true);
}

CASE(rounds_under_any_limit_are_right) {
  static const char *const pairs[][2] = {
      {"chunk(0)", "chunk(1)"}, {"mesh(2x3;R,S0)", "chunk(1)"}, {"flat()", "cyclic(2x3;5x7)"},
      {"rank(0)", "chunk(0)"},  {"chunk(1)", "rank(3)"},
  };
  for (int i = 0; i < 5; i++)
    for (int64_t times = 1; times <= 5; times += 2) {
      reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 4096 * RANKS * times + 7};
      whole("limit", pairs[i][0], pairs[i][1], SHAPE(180, 210), &options, true);
    }
}

CASE(reshards_under_any_node_map_are_right) {
  static const int64_t maps[][RANKS] = {
      {0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 0, 1}, {7, 7, 7, 7, 7, 7}, {0, 1, 2, 3, 4, 5}, {-3, -3, 9, 9, 9, 2}};
  for (int m = 0; m < 5; m++) {
    reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .nodes = maps[m]};
    whole("nodes", "mesh(2x3;R,S0)", "mesh(6;S1)", SHAPE(13, 29), &options, true);
    whole("nodes", "mesh(3x2;R,S1)", "mesh(2x3;R,S0)", SHAPE(13, 29), &options, false);
    whole("nodes", "mesh(3@1,3,5;R)", "mesh(6;R)", SHAPE(13, 29), &options, false);
    whole("nodes", "boxes(replicated;0:[0]+[9];4:[0]+[9];1:[9]+[5])",
          "boxes(0:[3]+[9];2:[3]+[9];3:[2]+[10];5:[0]+[14])", SHAPE(14), &options, false);
  }
}

/* Three projections into one tensor, and the tensor into three again. */
CASE(projections_go_into_one_tensor_and_back) {
  static const int64_t rows[3] = {24, 8, 8}, from[3] = {0, 24, 32};
  static const char *const targets[] = {"mesh(4;S0)", "chunk(1)", "cyclic(2x3;3x2)", "flat()",
                                        "boxes(5:[0,0]+[40,3];1:[0,3]+[40,7])"};
  for (int k = 0; k < 5; k++) {
    tensor parts[3], all = tensor_make(targets[k], SHAPE(40, 10), RESHARD_BF16, 0);
    tensor *src[3], *dst[3] = {&all, &all, &all};
    reshard_entry entries[3];
    int64_t offset[3][2], extent[3][2];
    for (int i = 0; i < 3; i++) {
      parts[i] =
          tensor_make(i == 1 ? "mesh(2x3;R,S0)" : "chunk(0)", SHAPE(rows[i], 10), RESHARD_BF16, 11 + (uint64_t)i);
      src[i] = &parts[i];
      offset[i][0] = from[i];
      offset[i][1] = 0;
      extent[i][0] = rows[i];
      extent[i][1] = 10;
      entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_BF16, .dst_offset = offset[i], .name = "qkv"};
    }
    check_both_paths("q, k, v to qkv", 3, entries, src, dst, NULL, true);
    for (int i = 0; i < 3; i++)
      entries[i] =
          (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_BF16, .src_offset = offset[i], .src_extent = extent[i]};
    check_both_paths("qkv to q, k, v", 3, entries, dst, src, NULL, false);
    for (int i = 0; i < 3; i++)
      tensor_free(&parts[i]);
    tensor_free(&all);
  }
}

/* Experts, each on a rank of its own, into one stacked tensor with a new dim in front; each transposed on the way. */
CASE(experts_are_stacked_and_transposed) {
  static const char *const homes[] = {"rank(0)", "rank(1)", "rank(2)",  "rank(3)",
                                      "rank(4)", "rank(5)", "chunk(0)", "chunk(1;2-0)"};
  tensor experts[8], stack = tensor_make("mesh(3x2;S0,S2)", SHAPE(8, 5, 6), RESHARD_F32, 0), *src[8], *dst[8];
  reshard_entry entries[8];
  int64_t offset[8][3], one[3] = {1, 5, 6};
  int turned[3] = {-1, 1, 0}, plain[2] = {2, 1};
  for (int i = 0; i < 8; i++) {
    experts[i] = tensor_make(homes[i], SHAPE(6, 5), RESHARD_F32, 20 + (uint64_t)i);
    src[i] = &experts[i];
    dst[i] = &stack;
    offset[i][0] = 7 - i;
    offset[i][1] = offset[i][2] = 0;
    entries[i] =
        (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .dst_offset = offset[i], .permutation = turned};
  }
  check_both_paths("experts to a stack", 8, entries, src, dst, NULL, true);
  for (int i = 0; i < 8; i++)
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .src_offset = offset[i], .src_extent = one,
                                 .permutation = plain};
  check_both_paths("a stack to experts", 8, entries, dst, src, NULL, false);
  for (int i = 0; i < 8; i++)
    tensor_free(&experts[i]);
  tensor_free(&stack);
}

static void reshard_turn(const char *from, const char *to, int src_ndim, const int64_t *src_shape, int dst_ndim,
                         const int *permutation) {
  int64_t dst_shape[RESHARD_MAX_DIMS];
  for (int d = 0; d < dst_ndim; d++)
    dst_shape[d] = permutation[d] < 0 ? 1 : src_shape[permutation[d]];
  tensor src = tensor_make(from, src_ndim, src_shape, RESHARD_F32, 31),
         dst = tensor_make(to, dst_ndim, dst_shape, RESHARD_F32, 0);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .permutation = permutation};
  check_both_paths("transposed", 1, &entry, (tensor *[]){&src}, (tensor *[]){&dst}, NULL, true);
  tensor_free(&src);
  tensor_free(&dst);
}

CASE(transposes_between_any_cuts_are_right) {
  reshard_turn("chunk(0)", "chunk(0)", SHAPE(23, 31), 2, (int[]){1, 0});
  reshard_turn("chunk(0)", "chunk(1)", SHAPE(23, 31), 2,
               (int[]){1, 0}); /* every rank has what it needs, the other way round */
  reshard_turn("cyclic(2x3;4x4)", "flat()", SHAPE(23, 31), 2, (int[]){1, 0});
  reshard_turn("flat()", "mesh(2x3;S2,S0)", SHAPE(4, 5, 7), 3, (int[]){2, 0, 1});
  reshard_turn("chunk(1)", "chunk(3)", SHAPE(4, 5, 7), 5, (int[]){-1, 1, 2, 0, -1});
  reshard_turn("chunk(2)", "rank(4)", SHAPE(1, 5, 7, 1), 2, (int[]){2, 1}); /* unit dims dropped */
  reshard_turn("rank(1)", "chunk(0)", 0, NULL, 2, (int[]){-1, -1});
}

/* A block out of the middle into the middle; the rest of the destination stays as it was. */
CASE(regions_leave_the_rest_alone) {
  tensor src = tensor_make("mesh(2x3;S0,S1)", SHAPE(11, 13), RESHARD_F64, 40),
         dst = tensor_make("cyclic(3x2;2x3)", SHAPE(9, 17), RESHARD_F64, 0);
  int64_t src_offset[2] = {3, 1}, src_extent[2] = {5, 9}, dst_offset[2] = {2, 8};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_F64, .src_offset = src_offset, .src_extent = src_extent,
                         .dst_offset = dst_offset};
  check_both_paths("a block", 1, &entry, (tensor *[]){&src}, (tensor *[]){&dst}, NULL, false);
  /* all from an offset on */
  int64_t end[2] = {4, 2};
  entry = (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_F64, .src_offset = end};
  check_both_paths("the rest", 1, &entry, (tensor *[]){&src}, (tensor *[]){&dst}, NULL, false);
  entry = (reshard_entry){RESHARD_ENTRY_INIT, .dtype = RESHARD_F64, .src_offset = src_offset, .src_extent = src_extent,
                          .dst_offset = dst_offset};
  /* two blocks of one source to two places of one destination */
  int64_t other[2] = {2, 0}, from[2] = {6, 4}, few[2] = {3, 8};
  reshard_entry two[2] = {
      entry, {RESHARD_ENTRY_INIT, .dtype = RESHARD_F64, .src_offset = from, .src_extent = few, .dst_offset = other}};
  check_both_paths("two blocks", 2, two, (tensor *[]){&src, &src}, (tensor *[]){&dst, &dst}, NULL, false);
  tensor_free(&src);
  tensor_free(&dst);
}

/* One destination for two entries is refused where their regions share elements, or their strides do not say the same.
 */
CASE(test_shared_destination) {
  tensor src = tensor_make("chunk(0)", SHAPE(6, 6), RESHARD_F32, 50),
         dst = tensor_make("chunk(0)", SHAPE(6, 6), RESHARD_F32, 0);
  tensor other = tensor_make("chunk(1)", SHAPE(6, 6), RESHARD_F32, 0);
  int64_t four[2] = {4, 6}, three[2] = {3, 6}, at[2] = {3, 0};
  reshard_entry e[2] = {{RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .src_extent = four},
                        {RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .src_extent = three, .dst_offset = at}};
  const rank_buffers *from[2] = {&src.ranks, &src.ranks}, *to[2] = {&dst.ranks, &dst.ranks},
                     *mixed[2] = {&dst.ranks, NULL};
  for (int path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    local_world_result result;
    e[0].src_extent = four; /* row 3 is in both */
    local_world_reshard(world, 2, e, from, to, NULL, (reshard_path)path, false, &result);
    assert_int_equal(result.status, RESHARD_ERROR_INVALID);
    assert_non_null(strstr(result.error, "overlaps"));
    local_world_result_free(&result);
    reshard_entry swapped[2] = {e[1], e[0]};
    local_world_reshard(world, 2, swapped, from, to, NULL, (reshard_path)path, false, &result);
    assert_int_equal(result.status, RESHARD_ERROR_INVALID);
    local_world_result_free(&result);
    e[0].src_extent = three;
    local_world_reshard(world, 2, e, from, to, NULL, (reshard_path)path, false, &result);
    assert_int_equal(result.status, RESHARD_SUCCESS);
    local_world_result_free(&result);
    /* the same memory under another layout */
    rank_buffers alias = other.ranks;
    alias.buffer = dst.ranks.buffer;
    mixed[1] = &alias;
    local_world_reshard(world, 2, e, from, mixed, NULL, (reshard_path)path, false, &result);
    assert_int_equal(result.status, RESHARD_ERROR_INVALID);
    local_world_result_free(&result);
  }
  tensor_free(&src);
  tensor_free(&dst);
  tensor_free(&other);
}

/* Two holders share what four ranks receive, each into many arrays that are not in the order of the tensor. */
CASE(test_replicas_to_boxes) {
  enum { ROWS = 96 };
  const int64_t shape[2] = {ROWS, 5};
  char text[ROWS * 16], *at = text + sprintf(text, "boxes(");
  for (int i = 0; i < ROWS; i++)
    at += sprintf(at, "%s%d:[%d,0]+[1,5]", i > 0 ? ";" : "", 2 + i % 4, ROWS - 1 - i);
  sprintf(at, ")");
  tensor src = tensor_make("mesh(2;R)", 2, shape, RESHARD_F32, 9), dst = tensor_make(text, 2, shape, RESHARD_F32, 0);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src.layout, .dst = dst.layout, .dtype = RESHARD_F32};
  const rank_buffers *from[] = {&src.ranks}, *to[] = {&dst.ranks};
  memcpy(dst.data, src.data, (size_t)(src.elements * src.width));
  for (int path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    local_world_result result;
    tensor_poison(&dst);
    local_world_reshard(world, 1, &entry, from, to, NULL, (reshard_path)path, false, &result);
    assert_int_equal(result.status, RESHARD_SUCCESS);
    assert_true(result.wire_bytes[2] > 0);
    tensor_check(&dst, text);
    local_world_result_free(&result);
  }
  tensor_free(&src);
  tensor_free(&dst);
}

RUN_CASES_WITH(open_world, close_world)
