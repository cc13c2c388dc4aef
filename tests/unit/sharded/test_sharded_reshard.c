/* Resharding in place and into new tensors: PyTorch's own cases, then what they do not have. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* A tensor through a list of layouts, each in place, checked element by element. */
typedef struct tour {
  int64_t count;
  reshard_layout layouts[8];
  reshard_properties properties;
} tour;

/* Metadata against the layout: this rank's shards are what it holds, and shards are ordered by rank. */
static int64_t check_metadata(reshard_sharded_tensor t, int64_t rank, const reshard_properties *properties) {
  reshard_metadata m = reshard_sharded_tensor_metadata(t);
  const reshard_shard *shards = reshard_metadata_shards(m);
  reshard_properties p = reshard_metadata_properties(m);
  int64_t wrong = p.dtype != properties->dtype || p.requires_grad != properties->requires_grad, mine = 0, held = 0;
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    int64_t elements = 1;
    for (int d = 0; d < reshard_metadata_ndim(m); d++)
      elements *= shards[i].box.extent[d];
    wrong += i > 0 && shards[i].placement.rank < shards[i - 1].placement.rank;
    mine += shards[i].placement.rank == rank ? elements : 0;
  }
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(t); i++) {
    reshard_tensor array;
    reshard_tensor_info info;
    wrong += reshard_sharded_tensor_local(t, i, &array, NULL) != RESHARD_SUCCESS;
    wrong += reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS;
    bool alone = reshard_sharded_tensor_local_count(t) == 1; /* else it may have rows between those of others */
    wrong += info.requires_grad != properties->requires_grad || (alone && !info.contiguous);
    held += info.elements;
  }
  return wrong + (mine != held);
}

static void tour_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const tour *t = p->user;
  reshard_sharded_tensor tensor = NULL;
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], t->layouts[0], &t->properties, NULL, &tensor);
  if (status == RESHARD_SUCCESS)
    sharded_fill(tensor, r, 7);
  for (int64_t i = 1; i < t->count && status == RESHARD_SUCCESS; i++) {
    status = reshard_sharded_tensor_reshard(1, &tensor, &t->layouts[i], NULL);
    if (status != RESHARD_SUCCESS)
      break;
    p->wrong[r] += sharded_check(tensor, r, 7) + check_metadata(tensor, r, &t->properties);
    p->wrong[r] += !reshard_layout_equal(reshard_sharded_tensor_layout(tensor), t->layouts[i]);
  }
  rank_result_set(&p->results[r], status);
  reshard_sharded_tensor_release(tensor);
}

static void go_on(sharded_ranks *p, reshard_dtype dtype, int ndim, const int64_t *shape, int count,
                  const char *const *texts) {
  tour t = {.count = count, .properties = {.dtype = dtype, .requires_grad = dtype % 2}};
  for (int i = 0; i < count; i++)
    t.layouts[i] = layout_from_text(texts[i], ndim, shape, p->n);
  sharded_ranks_run(p, tour_body, &t);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
  for (int i = 0; i < count; i++)
    reshard_layout_release(t.layouts[i]);
}

static void reshard_chain(int64_t n, reshard_dtype dtype, int ndim, const int64_t *shape, int count,
                          const char *const *texts) {
  for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path++) {
    sharded_ranks p;
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
    sharded_ranks_open(&p, n, &options);
    go_on(&p, dtype, ndim, shape, count, texts);
    sharded_ranks_close(&p);
  }
}

/* 6 ranks in two domains. What the four of the second one receive alike enters it once. */
CASE(sharder_with_a_topology_passes_bytes_on) {
  enum { RANKS = 6, ROWS = 96, COLUMNS = 512 };
  static const int64_t shape[2] = {ROWS, COLUMNS}, domain[RANKS] = {0, 0, 1, 1, 1, 1};
  static const char *const tour[] = {"chunk(0;0-1)", "mesh(4@2-5;R)", "chunk(1;0-1)", "mesh(2x2@2-5;R,S1)"};
  int64_t entered[2];
  for (int with = 0; with < 2; with++) {
    reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
    topology.ranks = RANKS;
    topology.domain = domain;
    topology.chains = 2;
    reshard_sharder_options options = {
        .size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED, .topology = with ? &topology : NULL};
    sharded_ranks p;
    sharded_ranks_open(&p, RANKS, &options);
    for (int again = 0; again < 2; again++)
      go_on(&p, RESHARD_F32, 2, shape, 4, tour);
    entered[with] = 0;
    for (int r = 2; r < RANKS; r++) {
      reshard_comm_stats stats;
      GOOD(reshard_comm_get_stats(p.comms[r], &stats));
      entered[with] += with ? stats.between_bytes : stats.received_bytes;
    }
    sharded_ranks_close(&p);
  }
  assert_int_equal(entered[0], 2 * (4 + 2) * ROWS * COLUMNS * 4);
  assert_int_equal(entered[1], 2 * (1 + 1) * ROWS * COLUMNS * 4);
}

/* Sizes that four ranks do not divide, dims 0 and 1 both ways, placements shuffled. */
CASE(cases_of_pytorch_hold) {
  static const int64_t shapes[4][2] = {{13, 21}, {14, 23}, {15, 26}, {12, 24}};
  static const char *const tours[][5] = {
      {"chunk(0;0,1,2,3)", "chunk(1;0,1,2,3)", "chunk(0;2,3,1,0)", "chunk(1;3,0,2,1)", "chunk(0;0,1,2,3)"},
      {"chunk(1;2,1,3,0)", "chunk(0;0,3,1,2)", "chunk(0;1,2,3,0)", "chunk(1;0,2,1,3)", "chunk(1;2,1,0,3)"},
      {"chunk(0;1,0,2,3)", "chunk(0;2,3,1,0)", "chunk(0;3,1,0,2)", "chunk(0;0,1,2,3)", "chunk(0;3,2,1,0)"},
  };
  for (int s = 0; s < 4; s++)
    for (int t = 0; t < 3; t++)
      reshard_chain(4, RESHARD_F32, 2, shapes[s], 5, tours[t]);
}

/* Permutations that are no involutions, on which PyTorch's way hangs. */
CASE(permutations_of_any_order_are_resharded) {
  static const int64_t shapes[4][2] = {{12, 24}, {13, 21}, {7, 10}, {3, 2}};
  static const char *const three[] = {"chunk(0;0,1,2)", "chunk(0;1,2,0)", "chunk(0;2,0,1)", "chunk(1;2,0,1)",
                                      "chunk(1;1,2,0)"};
  static const char *const four[] = {"chunk(1;0,1,2,3)", "chunk(1;1,2,3,0)", "chunk(1;3,0,1,2)", "chunk(0;3,0,1,2)",
                                     "chunk(0;1,2,3,0)"};
  for (int s = 0; s < 4; s++) {
    reshard_chain(3, RESHARD_I64, 2, shapes[s], 5, three);
    reshard_chain(4, RESHARD_U16, 2, shapes[s], 5, four);
  }
}

CASE(test_more_chunks) {
  static const int64_t shape[3] = {5, 6, 9}, short_shape[2] = {3, 5}, nothing[2] = {0, 4};
  static const char *const negative[] = {"chunk(-1)", "chunk(0)", "chunk(-2)", "chunk(-3)", "chunk(2)"};
  static const char *const trailing[] = {"chunk(0)", "chunk(1)", "chunk(0;6,0,1,2,3,4,5)", "chunk(1;6,5,4,3,2,1,0)"};
  static const char *const fewer[] = {"chunk(0;5,2)", "chunk(1;3,1,0)", "rank(6)", "chunk(0)", "chunk(1;4)"};
  reshard_chain(4, RESHARD_F64, 3, shape, 5, negative);
  reshard_chain(7, RESHARD_BF16, 2, short_shape, 4, trailing);
  reshard_chain(7, RESHARD_F32, 2, short_shape, 5, fewer);
  reshard_chain(7, RESHARD_F32, 2, nothing, 4, trailing);
}

CASE(every_dtype_is_resharded) {
  static const int64_t shape[2] = {11, 13};
  static const char *const tour[] = {"chunk(0)", "chunk(1;2,0,1)", "flat()", "cyclic(3x1;2x5)"};
  for (int d = RESHARD_BOOL; d < RESHARD_DTYPE_COUNT; d++)
    reshard_chain(3, (reshard_dtype)d, 2, shape, 4, tour);
}

CASE(parts_are_resharded_from_views_of_one_buffer) {
  static const int64_t shape[2] = {14, 18};
  static const char *const rows[] = {"chunk(0)", "mesh(4;S0{6,4/2,4/1})", "mesh(4;S1{3/2:3:3/4})",
                                     "mesh(4;S0{0/2,1,13/2})", "mesh(fsdp=2,tp=2;S0,S0{3:4};order=tp,fsdp)"};
  static const char *const others[] = {"flat()", "mesh(2x2;S1,S0{10,4/1})", "mesh(4;S1/2)",
                                       "mesh(4@2,0,3,1;S1{1/1:1:1/2})", "cyclic(2x2;3x4)"};
  reshard_chain(4, RESHARD_F32, 2, shape, 5, rows);
  reshard_chain(4, RESHARD_I8, 2, shape, 5, others);
}

static void zeros_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const float one = 1;
  reshard_sharded_tensor t = NULL;
  reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_status status = reshard_sharded_tensor_full(p->sharders[r], p->user, &f32, &one, NULL, &t);
  rank_result_set(&p->results[r], status);
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(t) && status == RESHARD_SUCCESS; i++) {
    reshard_tensor array;
    reshard_tensor_info info;
    status = reshard_sharded_tensor_local(t, i, &array, NULL);
    p->wrong[r] += status != RESHARD_SUCCESS || reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS;
    for (int64_t e = 0; e < info.elements; e++)
      p->wrong[r] += ((float *)info.data)[e / info.shape[1] * info.strides[0] + e % info.shape[1]] != one;
  }
  reshard_sharded_tensor_release(t);
}

CASE(arrays_side_by_side_are_filled_to_the_last_row) {
  const int64_t shape[2] = {5, 16};
  reshard_layout layout = layout_from_text("mesh(4;S1{8/1,8})", 2, shape, 4);
  sharded_ranks_check(4, NULL, zeros_body, layout, RESHARD_SUCCESS, NULL);
  reshard_layout_release(layout);
}

typedef struct beside {
  reshard_layout layout;
  bool apart; /* tensors of their own, where views of one are wanted */
} beside;

static void beside_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const beside *b = p->user;
  reshard_tensor whole, arrays[2];
  reshard_sharded_tensor made = NULL;
  const int64_t shape[2] = {3, 6};
  reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_status status = reshard_tensor_create(RESHARD_F32, 2, shape, &whole);
  for (int64_t i = 0; i < 2 && status == RESHARD_SUCCESS; i++) {
    reshard_array_info info;
    status = reshard_layout_array(b->layout, r, i, &info);
    if (status == RESHARD_SUCCESS && b->apart)
      status = reshard_tensor_create(RESHARD_F32, 2, info.shape, &arrays[i]);
    else if (status == RESHARD_SUCCESS)
      status = reshard_tensor_as_strided(whole, 2, info.shape, info.strides, info.offset, &arrays[i]);
  }
  RS_THEN(status, reshard_sharded_tensor_from_layout(p->sharders[r], b->layout, &f32, 2, arrays, &made));
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS) {
    reshard_layout columns;
    sharded_fill(made, r, 8);
    p->wrong[r] += reshard_layout_parse("chunk(1)", 2, (int64_t[]){3, 16}, 4, &columns) != RESHARD_SUCCESS ||
                   reshard_sharded_tensor_reshard(1, &made, &columns, NULL) != RESHARD_SUCCESS;
    p->wrong[r] += sharded_check(made, r, 8);
    reshard_layout_release(columns);
  }
  reshard_sharded_tensor_release(made);
  for (int i = 0; i < 2; i++)
    reshard_tensor_release(arrays[i]);
  reshard_tensor_release(whole);
}

CASE(arrays_of_one_buffer_must_lie_side_by_side) {
  const int64_t shape[2] = {3, 16};
  beside b = {layout_from_text("mesh(4;S1{8,8/2})", 2, shape, 4), false}; /* 2 and 4 columns each */
  sharded_ranks_check(4, NULL, beside_body, &b, RESHARD_SUCCESS, NULL);
  b.apart = true;
  sharded_ranks_check(4, NULL, beside_body, &b, RESHARD_ERROR_INVALID,
                      "is not contiguous: the arrays of a rank lie side by side in one contiguous buffer");
  reshard_layout_release(b.layout);
}

CASE(every_kind_of_layout_is_resharded) {
  static const int64_t shape[2] = {14, 18}, scalar[1] = {0};
  static const char *const tour[] = {
      "mesh(2x2;S0,S1)",
      "mesh(2x2;S0,R)",
      "mesh(2x2;S0*2,S0)",
      "cyclic(2x2;3x4)",
      "flat()",
      "boxes(0:[0,0]+[7,9];0:[7,9]+[7,9];3:[0,9]+[7,9];1:[7,0]+[3,9];1:[10,0]+[4,9];2:[14,18]+[0,0])",
      "mesh(2x2;R,R)",
      "chunk(1;3,1,0,2)",
  };
  static const char *const scalars[] = {"rank(2)", "mesh(2x2;R,R)", "rank(0)", "flat()"};
  reshard_chain(4, RESHARD_F32, 2, shape, 8, tour);
  reshard_chain(4, RESHARD_C128, 0, scalar, 4, scalars);
}

/* Three tensors of different shapes, dtypes and layouts as one plan; one of them from strided shards. */
typedef struct three {
  reshard_layout src[3], dst[3];
  reshard_properties properties[3];
  bool to;
} three;

static reshard_status from_strided(sharded_ranks *p, int64_t r, reshard_layout layout, reshard_dtype dtype,
                                   uint64_t seed, reshard_sharded_tensor *tensor) {
  reshard_local_shard shards[8] = {0};
  int64_t n = 0;
  reshard_status status = reshard_layout_array_count(layout, r, &n);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    reshard_array_info info;
    reshard_interval interval;
    int64_t count;
    int ndim = reshard_layout_ndim(layout);
    status = reshard_layout_array(layout, r, i, &info);
    shards[i].metadata.placement = (reshard_remote_device){r, RESHARD_DEVICE_CPU, -1};
    for (int d = 0; d < ndim && status == RESHARD_SUCCESS; d++) {
      status = reshard_layout_array_intervals(layout, r, i, d, 0, 1, &interval, &count);
      shards[i].metadata.box.offset[d] = interval.begin;
      shards[i].metadata.box.extent[d] = info.shape[d];
    }
    shards[i].tensor = strided_tensor(dtype, ndim, info.shape, i % 2 == 0);
    array_fill(layout, r, i, shards[i].tensor, seed);
  }
  RS_THEN(status, reshard_sharded_tensor_from_local(p->sharders[r], reshard_layout_ndim(layout),
                                                    reshard_layout_shape(layout), n, shards, tensor));
  for (int64_t i = 0; i < n; i++)
    reshard_tensor_release(shards[i].tensor);
  return status;
}

static void three_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const three *t = p->user;
  reshard_sharded_tensor tensors[3] = {NULL}, results[3] = {NULL};
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < 2 && status == RESHARD_SUCCESS; i++) {
    status = reshard_sharded_tensor_empty(p->sharders[r], t->src[i], &t->properties[i], NULL, &tensors[i]);
    if (status == RESHARD_SUCCESS)
      sharded_fill(tensors[i], r, (uint64_t)i);
  }
  RS_THEN(status, from_strided(p, r, t->src[2], t->properties[2].dtype, 2, &tensors[2]));
  RS_THEN(status, t->to ? reshard_sharded_tensor_reshard_to(3, tensors, t->dst, NULL, results)
                        : reshard_sharded_tensor_reshard(3, tensors, t->dst, NULL));
  for (int i = 0; i < 3 && status == RESHARD_SUCCESS; i++) {
    p->wrong[r] += sharded_check(t->to ? results[i] : tensors[i], r, (uint64_t)i);
    if (!t->to)
      continue;
    p->wrong[r] += sharded_check(tensors[i], r, (uint64_t)i);
    p->wrong[r] += !reshard_layout_equal(reshard_sharded_tensor_layout(results[i]), t->dst[i]);
    p->wrong[r] += check_metadata(results[i], r, &t->properties[i]);
  }
  for (int i = 0; i < 3; i++) {
    reshard_sharded_tensor_release(tensors[i]);
    reshard_sharded_tensor_release(results[i]);
  }
  rank_result_set(&p->results[r], status);
}

CASE(several_tensors_are_resharded_in_one_call) {
  static const int64_t shapes[3][2] = {{9, 14}, {20, 3}, {10, 8}};
  static const char *const src[3] = {"chunk(0)", "flat()",
                                     "boxes(0:[0,0]+[5,4];0:[0,4]+[5,4];2:[5,0]+[5,1];1:[5,1]+[5,6];2:[5,7]+[5,1])"};
  static const char *const dst[3] = {"chunk(1;2,0,1)", "cyclic(3x1;2x1)", "mesh(3;R)"};
  for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path++)
    for (int to = 0; to < 2; to++) {
      three t = {.properties = {{.dtype = RESHARD_F64}, {.dtype = RESHARD_U8}, {.dtype = RESHARD_F16}}, .to = to};
      sharded_ranks p;
      reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
      sharded_ranks_open(&p, 3, &options);
      for (int i = 0; i < 3; i++) {
        t.src[i] = layout_from_text(src[i], 2, shapes[i], 3);
        t.dst[i] = layout_from_text(dst[i], 2, shapes[i], 3);
      }
      sharded_ranks_run(&p, three_body, &t);
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      for (int i = 0; i < 3; i++) {
        reshard_layout_release(t.src[i]);
        reshard_layout_release(t.dst[i]);
      }
      sharded_ranks_close(&p);
    }
}

/* Local tensors that the caller keeps live on after a reshard, and beyond the sharded tensor and the sharder. */
CASE(local_tensors_that_are_kept_live_on) {
  static const int64_t shape[2] = {6, 4};
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, 1), flat = layout_from_text("flat()", 2, shape, 1);
  reshard_sharded_tensor t;
  reshard_tensor old, now;
  GOOD(reshard_sharded_tensor_empty(p.sharders[0], rows, &f32, NULL, &t));
  sharded_fill(t, 0, 5);
  GOOD(reshard_sharded_tensor_local(t, 0, &old, NULL));
  reshard_tensor_retain(old);
  GOOD(reshard_sharded_tensor_reshard(1, &t, &flat, NULL));
  GOOD(reshard_sharded_tensor_local(t, 0, &now, NULL));
  reshard_tensor_retain(now);
  assert_ptr_not_equal(old, now);
  reshard_sharded_tensor_release(t);
  sharded_ranks_close(&p);
  assert_int_equal(array_check(rows, 0, 0, old, 5), 0);
  assert_int_equal(array_check(flat, 0, 0, now, 5), 0);
  reshard_tensor_release(old);
  reshard_tensor_release(now);
  reshard_layout_release(rows);
  reshard_layout_release(flat);
}

RUN_CASES
