/* Making sharded tensors: from local shards, metadata, a layout and what it says, a callback; the options of what they
 * share; looking into them. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/sync.h>

#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};
static const int64_t shape[2] = {6, 8};

/* --- From local shards ------------------------------------------------------------------------------------------- */

/* Rank 0 has two shards of which one is strided, rank 1 none, rank 2 one and an empty one. */
static const struct {
  int64_t rank;
  reshard_box box;
  bool strided;
} cut[] = {{0, {{0, 0}, {6, 3}}, false},
           {0, {{0, 3}, {2, 5}}, true},
           {2, {{2, 3}, {4, 5}}, false},
           {2, {{6, 8}, {0, 0}}, false}};

enum from_local_error { RIGHT, OVERLAP, GAP, DTYPE, NULL_SHARD, NO_OUTPUT, NEGATIVE, NOTHING };
typedef struct from_local_case {
  enum from_local_error what;
  reshard_status status;
  const char *text;
} from_local_case;

static int64_t list_shards(int64_t r, const from_local_case *c, reshard_local_shard *shards) {
  int64_t n = 0;
  for (size_t i = 0; i < sizeof cut / sizeof *cut && c->what != NOTHING; i++) {
    if (cut[i].rank != r)
      continue;
    reshard_box box = cut[i].box;
    if (i == 2 && c->what == OVERLAP)
      box.offset[0] = 1;
    if (i == 2 && c->what == GAP)
      box.extent[1] = 4;
    reshard_dtype dtype = i == 2 && c->what == DTYPE ? RESHARD_I32 : RESHARD_F32;
    shards[n] = (reshard_local_shard){{box, {r, RESHARD_DEVICE_CPU, -1}}, NULL};
    if (cut[i].strided)
      shards[n].tensor = strided_tensor(dtype, 2, box.extent, true);
    else if (reshard_tensor_create(dtype, 2, box.extent, &shards[n].tensor) != RESHARD_SUCCESS)
      return -1;
    n++;
  }
  return n;
}

static void from_local_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const from_local_case *c = p->user;
  reshard_local_shard shards[4];
  int64_t n = list_shards(r, c, shards);
  void *poison = &n;
  reshard_sharded_tensor tensor = poison;
  reshard_tensor kept = n > 0 ? shards[0].tensor : NULL, array;
  if (c->what == NULL_SHARD && r == 2)
    shards[0].tensor = NULL;
  bool spoilt = r == 2 && (c->what == NO_OUTPUT || c->what == NEGATIVE);
  reshard_status status =
      reshard_sharded_tensor_from_local(p->sharders[r], 2, shape, spoilt && c->what == NEGATIVE ? -1 : n, shards,
                                        spoilt && c->what == NO_OUTPUT ? NULL : &tensor);
  rank_result_set(&p->results[r], status);
  shards[0].tensor = kept;
  for (int64_t i = 0; i < n; i++) /* the sharded tensor has its own references */
    reshard_tensor_release(shards[i].tensor);
  if (status != RESHARD_SUCCESS) {
    p->wrong[r] += tensor != poison;
    return;
  }
  sharded_fill(tensor, r, 4);
  p->wrong[r] += reshard_sharded_tensor_local_count(tensor) != n;
  for (int64_t i = 0; i < n; i++) {
    reshard_box bounds;
    p->wrong[r] += reshard_sharded_tensor_local(tensor, i, &array, &bounds) != RESHARD_SUCCESS ||
                   array != shards[i].tensor || memcmp(bounds.extent, shards[i].metadata.box.extent, 16) != 0 ||
                   memcmp(bounds.offset, shards[i].metadata.box.offset, 16) != 0;
  }
  p->wrong[r] += reshard_metadata_count(reshard_sharded_tensor_metadata(tensor)) != 4;
  reshard_layout flat = layout_from_text("flat()", 2, shape, 3);
  status = reshard_sharded_tensor_reshard(1, &tensor, &flat, NULL);
  p->wrong[r] += status != RESHARD_SUCCESS || sharded_check(tensor, r, 4) != 0;
  reshard_layout_release(flat);
  reshard_sharded_tensor_release(tensor);
}

CASE(test_from_local) {
  static const from_local_case cases[] = {
      {RIGHT, RESHARD_SUCCESS, NULL},
      {OVERLAP, RESHARD_ERROR_INVALID, "overlap"},
      {GAP, RESHARD_ERROR_INVALID, "[2,6)x[7,8)"},
      {DTYPE, RESHARD_ERROR_INVALID, "i32"},
      {NULL_SHARD, RESHARD_ERROR_INVALID, "rank 2: "},
      {NO_OUTPUT, RESHARD_ERROR_INVALID, "rank 2: reshard_sharded_tensor_from_local: tensor is NULL"},
      {NEGATIVE, RESHARD_ERROR_INVALID, "rank 2: reshard_sharded_tensor_from_local: -1 shards, list given"},
      {NOTHING, RESHARD_ERROR_INVALID, "no rank has any shard"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sharded_ranks_check(3, NULL, from_local_body, (void *)&cases[i], cases[i].status, cases[i].text);
  }
  reshard_sharded_tensor tensor;
  BAD(reshard_sharded_tensor_from_local(NULL, 2, shape, 0, NULL, &tensor),
      "reshard_sharded_tensor_from_local: sharder is NULL");
}

/* Placements are of global ranks: of a group that is a part of a larger world, in another order. */
static void group_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  static const int64_t global[3] = {7, 5, 9};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {3, global}};
  reshard_sharder sharder = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_local_shard shard = {{{{2 * r, 0}, {2, 8}}, {global[r], RESHARD_DEVICE_CPU, -1}}, NULL};
  reshard_status status = reshard_sharder_create(p->comms[r], &options, &sharder);
  RS_THEN(status, reshard_tensor_create(RESHARD_F32, 2, shard.metadata.box.extent, &shard.tensor));
  RS_THEN(status, reshard_sharded_tensor_from_local(sharder, 2, shape, 1, &shard, &tensor));
  if (status == RESHARD_SUCCESS) {
    sharded_fill(tensor, r, 4);
    status = reshard_sharded_tensor_reshard(1, &tensor, p->user, NULL);
    p->wrong[r] += sharded_check(tensor, r, 4);
    const reshard_shard *shards = reshard_metadata_shards(reshard_sharded_tensor_metadata(tensor));
    for (int i = 0; i < 3; i++)
      p->wrong[r] += shards[i].placement.rank != global[i];
  }
  rank_result_set(&p->results[r], status);
  reshard_tensor_release(shard.tensor);
  reshard_sharded_tensor_release(tensor);
  reshard_sharder_destroy(sharder);
}

CASE(errors_and_metadata_name_global_ranks) {
  sharded_ranks p;
  sharded_ranks_open(&p, 3, NULL);
  reshard_layout columns = layout_from_text("chunk(1)", 2, shape, 3);
  sharded_ranks_run(&p, group_body, &columns);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  reshard_layout_release(columns);
  sharded_ranks_close(&p);
}

/* --- One rank is enough: from metadata, from a layout ------------------------------------------------------------ */

/* A part of a communicator: its ranks are global ones without being told. */
static void part_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t half[2] = {2, 8};
  reshard_comm part = NULL;
  reshard_sharder sharder = NULL;
  reshard_sharded_tensor tensor = NULL;
  reshard_sharder_options local = {RESHARD_SHARDER_OPTIONS_INIT, .group = {2, NULL}};
  reshard_status status = reshard_comm_split(p->comms[r], r % 2, -r, &part);
  for (int named = 0; named < 2 && status == RESHARD_SUCCESS; named++) {
    reshard_layout layout = layout_from_text("chunk(0)", 2, half, 2);
    status = reshard_sharder_create(part, named ? &local : NULL, &sharder);
    RS_THEN(status, reshard_sharded_tensor_empty(sharder, layout, &f32, NULL, &tensor));
    for (int64_t i = 0; i < 2 && status == RESHARD_SUCCESS; i++) {
      const reshard_shard *shards = reshard_metadata_shards(reshard_sharded_tensor_metadata(tensor));
      p->wrong[r] += shards[i].placement.rank != (named ? i : 2 + r % 2 - 2 * i);
    }
    reshard_sharded_tensor_release(tensor);
    reshard_sharder_destroy(sharder);
    reshard_layout_release(layout);
  }
  reshard_comm_destroy(part);
  rank_result_set(&p->results[r], status);
}

CASE(ranks_without_shards_take_part) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  memset(p.wrong, 0, sizeof p.wrong);
  sharded_ranks_run(&p, part_body, NULL);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  sharded_ranks_close(&p);
}

CASE(test_from_metadata) {
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  const reshard_remote_device place = {0, RESHARD_DEVICE_CPU, -1}, elsewhere = {1, RESHARD_DEVICE_CPU, -1};
  const reshard_shard shards[3] = {{{{0, 0}, {6, 3}}, place}, {{{0, 3}, {6, 5}}, place}, {{{6, 8}, {0, 0}}, place}};
  reshard_shard lost[2] = {shards[0], {shards[1].box, elsewhere}};
  reshard_metadata whole, part, foreign;
  GOOD(reshard_metadata_create(&f32, 2, shape, 3, shards, &whole));
  GOOD(reshard_metadata_create(&f32, 2, shape, 1, shards, &part));
  GOOD(reshard_metadata_create(&f32, 2, shape, 2, lost, &foreign));
  reshard_tensor a, b, narrow, wrong, marked;
  GOOD(reshard_tensor_create(RESHARD_F32, 2, shards[0].box.extent, &a));
  b = strided_tensor(RESHARD_F32, 2, shards[1].box.extent, false);
  GOOD(reshard_tensor_create(RESHARD_F64, 2, shards[0].box.extent, &wrong));
  GOOD(reshard_tensor_create(RESHARD_F32, 2, (int64_t[]){6, 2}, &narrow));
  GOOD(reshard_tensor_create(RESHARD_F32, 2, shards[0].box.extent, &marked));
  reshard_tensor_set_requires_grad(marked, 1);
  reshard_sharder s = p.sharders[0];
  reshard_sharded_tensor t;
  reshard_tensor got;

  GOOD(reshard_sharded_tensor_from_metadata(s, whole, 3, (reshard_tensor[]){a, b, NULL}, &t));
  assert_ptr_equal(reshard_sharded_tensor_metadata(t), whole);
  sharded_fill(t, 0, 2);
  GOOD(reshard_sharded_tensor_local(t, 2, &got, NULL));
  assert_null(got); /* as it was given */
  reshard_layout cyclic = layout_from_text("cyclic(1x1;2x3)", 2, shape, 1);
  GOOD(reshard_sharded_tensor_reshard(1, &t, &cyclic, NULL));
  assert_int_equal(sharded_check(t, 0, 2), 0);
  reshard_layout_release(cyclic);
  reshard_sharded_tensor_release(t);

  BAD(reshard_sharded_tensor_from_metadata(s, whole, 2, (reshard_tensor[]){a, b}, &t),
      "2 shards are given, rank 0 has 3");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, 3, (reshard_tensor[]){a, NULL, NULL}, &t),
      "shard 1 is NULL and should be of shape 6x5");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, 3, (reshard_tensor[]){narrow, b, NULL}, &t),
      "shard 0 is of shape 6x2 and should be of 6x3");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, 3, (reshard_tensor[]){wrong, b, NULL}, &t),
      "shard 0 is f64 and should be f32");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, 3, (reshard_tensor[]){marked, b, NULL}, &t),
      "shard 0 has requires_grad 1 and pin_memory 0, the tensor should have 0 and 0");
  FAILS_WITH(reshard_sharded_tensor_from_metadata(s, part, 1, &a, &t), RESHARD_ERROR_INVALID,
             "no box holds [0,6)x[3,8)");
  FAILS_WITH(reshard_sharded_tensor_from_metadata(s, foreign, 1, &a, &t), RESHARD_ERROR_INVALID, "rank 1");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, -1, &a, &t),
      "reshard_sharded_tensor_from_metadata: -1 shards, list given");
  BAD(reshard_sharded_tensor_from_metadata(s, whole, 3, NULL, &t),
      "reshard_sharded_tensor_from_metadata: 3 shards, list NULL");
  assert_int_equal(reshard_sharded_tensor_from_metadata(NULL, whole, 1, &a, &t), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_sharded_tensor_from_metadata(s, NULL, 1, &a, &t), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_sharded_tensor_from_metadata(s, whole, 1, &a, NULL), RESHARD_ERROR_INVALID);
  reshard_tensor tensors[] = {a, b, narrow, wrong, marked};
  for (int i = 0; i < 5; i++)
    reshard_tensor_release(tensors[i]);
  reshard_metadata_release(whole);
  reshard_metadata_release(part);
  reshard_metadata_release(foreign);
  sharded_ranks_close(&p);
}

/* To a mesh layout and back without a copy: the same memory under another name. */
CASE(test_from_layout) {
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  reshard_sharder s = p.sharders[0];
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, 1),
                 mesh = layout_from_text("mesh(1x1;S1,R)", 2, shape, 1), flat = layout_from_text("flat()", 2, shape, 1);
  reshard_sharded_tensor t, on_mesh, again;
  reshard_tensor array, strided = strided_tensor(RESHARD_F32, 2, shape, true), apart[2];
  GOOD(reshard_sharded_tensor_empty(s, rows, &f32, NULL, &t));
  sharded_fill(t, 0, 1);
  GOOD(reshard_sharded_tensor_local(t, 0, &array, NULL));
  GOOD(reshard_sharded_tensor_from_layout(s, mesh, &f32, 1, &array, &on_mesh));
  reshard_sharded_tensor_release(t);
  assert_int_equal(sharded_check(on_mesh, 0, 1), 0);
  assert_ptr_equal(reshard_sharded_tensor_layout(on_mesh), mesh);
  assert_int_equal(reshard_metadata_count(reshard_sharded_tensor_metadata(on_mesh)), 1);
  reshard_sharded_tensor_release(on_mesh);
  GOOD(reshard_sharded_tensor_from_layout(s, mesh, &f32, 1, &strided, &t));
  sharded_fill(t, 0, 9);
  GOOD(reshard_sharded_tensor_reshard(1, &t, &flat, NULL));
  assert_int_equal(sharded_check(t, 0, 9), 0);
  GOOD(reshard_sharded_tensor_local(t, 0, &array, NULL));
  GOOD(reshard_sharded_tensor_from_layout(s, flat, &f32, 1, &array, &again));
  GOOD(reshard_sharded_tensor_reshard(1, &again, &rows, NULL));
  assert_int_equal(sharded_check(again, 0, 9), 0);
  reshard_sharded_tensor_release(t);
  reshard_sharded_tensor_release(again);

  BAD(reshard_sharded_tensor_from_layout(s, flat, &f32, 1, &strided, &t),
      "shard is not contiguous: the boxes of a flat piece lie end to end");
  BAD(reshard_sharded_tensor_from_layout(s, mesh, &f32, 0, NULL, &t), "0 shards are given, rank 0 has 1");
  BAD(reshard_sharded_tensor_from_layout(s, mesh, &f32, 1, NULL, &t),
      "reshard_sharded_tensor_from_layout: 1 shards, list NULL");
  BAD(reshard_sharded_tensor_from_layout(s, mesh, NULL, 1, &strided, &t),
      "reshard_sharded_tensor_from_layout: properties is NULL");
  BAD(reshard_sharded_tensor_from_layout(s, NULL, &f32, 1, &strided, &t),
      "reshard_sharded_tensor_from_layout: layout is NULL");
  sharded_ranks three;
  sharded_ranks_open(&three, 3, NULL);
  for (int i = 0; i < 2; i++) /* 12 elements: a row of 7, then 5 of the next */
    GOOD(reshard_tensor_create(RESHARD_F32, 2, (int64_t[]){1, i == 0 ? 7 : 5}, &apart[i]));
  reshard_layout uneven = layout_from_text("flat(0,2,1)", 2, (int64_t[]){5, 7}, 3);
  BAD(reshard_sharded_tensor_from_layout(three.sharders[0], uneven, &f32, 2, apart, &t),
      "shard 1 does not follow the one before it in memory: the boxes of a flat piece lie end to end");
  for (int i = 0; i < 2; i++)
    reshard_tensor_release(apart[i]);
  sharded_ranks_close(&three);
  reshard_layout_release(uneven);
  reshard_layout_release(rows);
  reshard_layout_release(mesh);
  reshard_layout_release(flat);
  reshard_tensor_release(strided);
  sharded_ranks_close(&p);
}

/* Over memory that transfers could have, and back to it: arrays with gaps, and several in one buffer. */
CASE(buffers_of_a_rank_are_wrapped_and_found_again) {
  static const char *const texts[] = {"chunk(1)", "flat(0,2,1)", "mesh(3;S0{3:3/1})", "rank(1)"};
  sharded_ranks p;
  sharded_ranks_open(&p, 3, NULL);
  float memory[64];
  for (int64_t rank = 0; rank < 3; rank++)
    for (int i = 0; i < 4; i++) {
      const int64_t shape[2] = {6, 7}, gaps[2] = {9, 1}, *strides = gaps;
      reshard_layout layout = layout_from_text(texts[i], 2, shape, 3);
      reshard_sharder s = p.sharders[rank];
      reshard_sharded_tensor t;
      reshard_tensor view;
      reshard_tensor_info info;
      void *at = memory;
      int64_t elements;
      GOOD(reshard_layout_buffer_elements(layout, rank, 0, &elements));
      GOOD(reshard_sharded_tensor_from_buffers(s, layout, &f32, &at, i == 0 ? &strides : NULL, &t));
      sharded_fill(t, rank, 4);
      assert_int_equal(sharded_check(t, rank, 4), 0);
      GOOD(reshard_sharded_tensor_buffer(t, 0, &view));
      GOOD(reshard_tensor_get_info(view, &info));
      assert_true(info.elements == elements && (elements == 0 || info.data == memory));
      assert_true(i != 0 || (info.ndim == 2 && info.strides[0] == 9));
      reshard_tensor_release(view);
      FAILS_WITH(reshard_sharded_tensor_buffer(t, 1, &view), RESHARD_ERROR_INVALID, "which has 1");
      reshard_sharded_tensor_release(t);
      reshard_tensor apart[2];
      for (int64_t k = 0; k < 2 && i == 2; k++) { /* beside one another, and no view has both */
        reshard_array_info a;
        GOOD(reshard_layout_array(layout, rank, k, &a));
        GOOD(reshard_tensor_wrap(RESHARD_F32, 2, a.shape, NULL, memory + a.offset, NULL, NULL, &apart[k]));
      }
      if (i == 2) {
        GOOD(reshard_sharded_tensor_from_layout(s, layout, &f32, 2, apart, &t));
        FAILS_WITH(reshard_sharded_tensor_buffer(t, 0, &view), RESHARD_ERROR_INVALID, "were given one by one");
        reshard_sharded_tensor_release(t);
        reshard_tensor_release(apart[0]);
        reshard_tensor_release(apart[1]);
      }
      strides = (int64_t[]){2, 2};
      if ((i == 1 || i == 2) && elements > 1)
        FAILS_WITH(reshard_sharded_tensor_from_buffers(s, layout, &f32, &at, &strides, &t), RESHARD_ERROR_INVALID,
                   "is not contiguous, as flat pieces and buffers of several arrays are");
      reshard_layout_release(layout);
    }
  sharded_ranks_close(&p);
}

/* --- New memory -------------------------------------------------------------------------------------------------- */

typedef struct filling {
  int64_t calls, elements, fail_at;
  reshard_layout layout;
} filling;

static reshard_status box_fill(void *user, reshard_tensor array, const reshard_box *box) {
  filling *f = user;
  reshard_tensor_info info;
  if (f->calls++ == f->fail_at)
    return RESHARD_ERROR_SYSTEM;
  reshard_status status = reshard_tensor_get_info(array, &info);
  array_fill(f->layout, 0, f->calls - 1, array, 6);
  f->elements += info.elements;
  for (int d = 0; d < info.ndim; d++)
    if (box->extent[d] < info.shape[d])
      status = RESHARD_ERROR_INTERNAL;
  return status;
}

CASE(new_tensors_have_the_shards_of_their_layout) {
  static const char *const texts[] = {"chunk(0)",        "mesh(2x1;S0*3,S1)",
                                      "cyclic(2x1;1x3)", "flat(1,0)",
                                      "rank(1)",         "boxes(0:[0,0]+[6,3];1:[0,3]+[6,2];0:[0,5]+[6,3])"};
  const reshard_properties marked = {.dtype = RESHARD_C128, .requires_grad = 1, .pin_memory = 1};
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  reshard_sharder s = p.sharders[0];
  for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
    reshard_layout layout = layout_from_text(texts[k], 2, shape, 2);
    reshard_sharded_tensor t;
    static const unsigned char element[16] = "aabcdefghijklmaa"; /* a fill by one byte looks at all of it */
    static const unsigned char zero[16];
    int64_t arrays;
    GOOD(reshard_layout_array_count(layout, 0, &arrays));
    for (int full = 0; full < 2; full++) {
      GOOD(full ? reshard_sharded_tensor_full(s, layout, &marked, element, NULL, &t)
                : reshard_sharded_tensor_zeros(s, layout, &marked, NULL, &t));
      assert_int_equal(reshard_sharded_tensor_local_count(t), arrays);
      for (int64_t i = 0; i < arrays; i++) {
        reshard_tensor array;
        reshard_tensor_info info;
        GOOD(reshard_sharded_tensor_local(t, i, &array, NULL));
        GOOD(reshard_tensor_get_info(array, &info));
        assert_true(info.requires_grad == 1 && info.pin_memory == 1 && info.contiguous && info.dtype == RESHARD_C128);
        for (int64_t e = 0; e < info.elements; e++)
          assert_memory_equal((char *)info.data + 16 * e, full ? element : zero, 16);
      }
      reshard_sharded_tensor_release(t);
    }
    filling f = {.fail_at = -1, .layout = layout};
    GOOD(reshard_sharded_tensor_generate(s, layout, &f32, box_fill, &f, NULL, &t));
    assert_int_equal(f.calls, arrays);
    assert_int_equal(sharded_check(t, 0, 6), 0);
    reshard_sharded_tensor_release(t);
    f.calls = 0;
    f.fail_at = arrays - 1;
    if (arrays > 0)
      assert_int_equal(reshard_sharded_tensor_generate(s, layout, &f32, box_fill, &f, NULL, &t), RESHARD_ERROR_SYSTEM);
    reshard_layout_release(layout);
  }
  sharded_ranks_close(&p);
}

/* The box from the first to the last index, also where there are others between them. */
CASE(bounds_go_from_first_to_last_index) {
  static const struct {
    const char *text;
    int64_t rank, array;
    reshard_box bounds;
  } cases[] = {
      {"chunk(0)", 2, 0, {{4, 0}, {2, 8}}},
      {"chunk(0;0,1,2,3)", 3, 0, {{6, 0}, {0, 8}}},
      {"mesh(2;S1*2)", 0, 0, {{0, 0}, {6, 6}}},
      {"cyclic(2x2;1x3)", 1, 0, {{0, 3}, {5, 3}}},
      {"cyclic(2x2;1x3)", 2, 0, {{1, 0}, {5, 8}}},
      {"flat(0-3)", 1, 0, {{1, 4}, {1, 4}}},
      {"flat(0-3)", 1, 1, {{2, 0}, {1, 8}}},
      {"rank(3)", 3, 0, {{0, 0}, {6, 8}}},
      {"boxes(1:[0,0]+[6,8];1:[2,3]+[0,1])", 1, 1, {{2, 3}, {0, 1}}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sharded_ranks p;
    sharded_ranks_open(&p, 4, NULL);
    reshard_layout layout = layout_from_text(cases[i].text, 2, shape, 4);
    reshard_sharded_tensor t;
    reshard_box box;
    GOOD(reshard_sharded_tensor_empty(p.sharders[cases[i].rank], layout, &f32, NULL, &t));
    GOOD(reshard_sharded_tensor_local(t, cases[i].array, NULL, &box));
    for (int d = 0; d < 2; d++)
      if (box.offset[d] != cases[i].bounds.offset[d] || box.extent[d] != cases[i].bounds.extent[d])
        fail_msg("%s: dim %d of array %d of rank %d is [%d,+%d)", cases[i].text, d, (int)cases[i].array,
                 (int)cases[i].rank, (int)box.offset[d], (int)box.extent[d]);
    reshard_sharded_tensor_release(t);
    reshard_layout_release(layout);
    sharded_ranks_close(&p);
  }
}

CASE(wrong_tensors_are_refused_on_all_ranks) {
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  reshard_sharder s = p.sharders[0];
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, 2), three = layout_from_text("chunk(0)", 2, shape, 3),
                 gaps = layout_from_text("boxes(0:[0,0]+[6,4])", 2, shape, 2);
  const reshard_properties unknown = {.dtype = (reshard_dtype)99};
  reshard_sharded_tensor t = NULL;
  BAD(reshard_sharded_tensor_empty(NULL, rows, &f32, NULL, &t), "reshard_sharded_tensor_empty: sharder is NULL");
  BAD(reshard_sharded_tensor_empty(s, NULL, &f32, NULL, &t), "reshard_sharded_tensor_empty: layout is NULL");
  BAD(reshard_sharded_tensor_zeros(s, rows, NULL, NULL, &t), "reshard_sharded_tensor_zeros: properties is NULL");
  BAD(reshard_sharded_tensor_zeros(s, rows, &f32, NULL, NULL), "reshard_sharded_tensor_zeros: tensor is NULL");
  BAD(reshard_sharded_tensor_full(s, rows, &f32, NULL, NULL, &t), "reshard_sharded_tensor_full: element is NULL");
  BAD(reshard_sharded_tensor_generate(s, rows, &f32, NULL, NULL, NULL, &t),
      "reshard_sharded_tensor_generate: fill is NULL");
  BAD(reshard_sharded_tensor_empty(s, three, &f32, NULL, &t),
      "reshard_sharded_tensor_empty: a layout over 3 ranks on a communicator of 2");
  BAD(reshard_sharded_tensor_empty(s, gaps, &f32, NULL, &t), "reshard_sharded_tensor_empty: no box holds [0,6)x[4,8)");
  FAILS_WITH(reshard_sharded_tensor_empty(s, rows, &unknown, NULL, &t), RESHARD_ERROR_INVALID, "99");
  assert_null(t);
  reshard_box box;
  reshard_tensor array;
  GOOD(reshard_sharded_tensor_empty(s, rows, &f32, NULL, &t));
  BAD(reshard_sharded_tensor_local(t, 1, &array, &box), "reshard_sharded_tensor_local: array 1 of 1");
  BAD(reshard_sharded_tensor_local(t, -1, &array, &box), "reshard_sharded_tensor_local: array -1 of 1");
  BAD(reshard_sharded_tensor_local(t, 0, NULL, NULL), "reshard_sharded_tensor_local: array is NULL");
  BAD(reshard_sharded_tensor_local(NULL, 0, &array, &box), "reshard_sharded_tensor_local: tensor is NULL");
  assert_ptr_equal(reshard_sharded_tensor_retain(t), t);
  reshard_sharded_tensor_release(t);
  reshard_sharded_tensor_release(t);
  reshard_sharded_tensor_release(NULL);
  assert_null(reshard_sharded_tensor_retain(NULL));
  assert_null(reshard_sharded_tensor_layout(NULL));
  assert_null(reshard_sharded_tensor_metadata(NULL));
  assert_int_equal(reshard_sharded_tensor_local_count(NULL), 0);
  reshard_layout_release(rows);
  reshard_layout_release(three);
  reshard_layout_release(gaps);
  sharded_ranks_close(&p);
}

typedef struct options_case {
  reshard_sharder_options options;
  const char *text; /* of the error; NULL: there is none */
} options_case;

static void options_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const options_case *c = p->user;
  reshard_sharder made = NULL;
  rank_result_set(&p->results[r], reshard_sharder_create(p->comms[r], &c->options, &made));
  p->wrong[r] = (made == NULL) != (p->results[r].status != RESHARD_SUCCESS);
  reshard_sharder_destroy(made);
}

static void no_output_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_sharder made = NULL;
  rank_result_set(&p->results[r], reshard_sharder_create(p->comms[r], NULL, r == 1 ? NULL : &made));
  p->wrong[r] = made != NULL;
}

/* Rank 1 goes on without a sharder, to a collective call of another kind, or to none at all. */
static void apart_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_sharder made = NULL;
  bool comes = *(const bool *)p->user;
  if (r != 1)
    rank_result_set(&p->results[r], reshard_sharder_create(p->comms[r], NULL, &made));
  else if (comes)
    rank_result_set(&p->results[r], reshard_verify_shapes(p->comms[r], 0, NULL, NULL));
  p->wrong[r] = made != NULL;
}

CASE(rank_that_makes_no_sharder_is_waited_for) {
  for (int comes = 0; comes < 2; comes++) {
    sharded_ranks p;
    sharded_ranks_open(&p, 3, NULL);
    rank_comms_limit(p.comms[0], 200);
    sharded_ranks_run(&p, apart_body, &(bool){comes});
    for (int64_t r = 0; r < 3; r++) {
      bool absent = r == 1 && !comes;
      assert_int_equal(p.wrong[r], 0);
      assert_int_equal(p.results[r].status, absent  ? RESHARD_SUCCESS
                                            : comes ? RESHARD_ERROR_MISMATCH
                                                    : RESHARD_ERROR_TIMEOUT);
      assert_true(absent || strstr(p.results[r].text, comes ? "reshard_sharder_create" : "missing: 1") != NULL);
    }
    sharded_ranks_close(&p);
  }
}

/* Rank 1 has other domains, or another cost of a round, than the others. */
static void topology_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  bool of_domains = *(const bool *)p->user;
  const int64_t domains[2][3] = {{0, 0, 1}, {0, 1, 1}};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = 3;
  topology.domain = domains[r == 1 && of_domains];
  topology.round_ns += r == 1 && !of_domains;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .topology = &topology};
  reshard_sharder made = NULL;
  rank_result_set(&p->results[r], reshard_sharder_create(p->comms[r], &options, &made));
  p->wrong[r] = made != NULL;
}

CASE(topologies_that_differ_are_named_on_all_ranks) {
  sharded_ranks p;
  sharded_ranks_open(&p, 3, NULL);
  sharded_ranks_run(&p, topology_body, &(bool){true});
  sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, "topology: domain of rank 1: 0 on rank 0, 1 on rank 1");
  sharded_ranks_run(&p, topology_body, &(bool){false});
  sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, "30001 ns a round, chains 0 on rank 1");
  sharded_ranks_close(&p);
}

CASE(options_that_differ_are_refused_on_all_ranks) {
  static const int64_t twice[2] = {4, 4}, apart[2] = {9, 4};
  static const reshard_topology small = {RESHARD_TOPOLOGY_INIT, 1, twice, 1, 1, 1, 0},
                                slow = {RESHARD_TOPOLOGY_INIT, 2, twice, 0, 1, 1, 0};
  static const options_case cases[] = {
      {{.size = 8}, "size field 8, this library's reshard_sharder_options has 72"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -2},
       "-2 cached plans, workspace limit 0: -1 is the least of both"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .workspace_limit = -2},
       "0 cached plans, workspace limit -2: -1 is the least of both"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .keep_bytes = -2}, "-2 bytes kept: -1 is the least"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)7}, "unknown path 7"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .topology = &small}, "topology: domains of 1 ranks, the world has 2"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .topology = &slow}, "0 bytes a second between its domains"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {3, NULL}}, "a group of 3 ranks for a communicator of 2"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {2, twice}}, "4"},
      {{.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {2, apart}}, NULL},
  };
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  reshard_sharder s = NULL;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    sharded_ranks_run(&p, options_body, (void *)&cases[i]);
    sharded_ranks_assert(&p, cases[i].text != NULL ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS, cases[i].text);
  }
  sharded_ranks_run(&p, no_output_body, NULL);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "rank 1: reshard_sharder_create: sharder is NULL");
  reshard_sharder_stats stats;
  BAD(reshard_sharder_create(NULL, NULL, &s), "reshard_sharder_create: comm is NULL");
  BAD(reshard_sharder_get_stats(NULL, &stats), "reshard_sharder_get_stats: sharder is NULL");
  BAD(reshard_sharder_get_stats(p.sharders[0], NULL), "reshard_sharder_get_stats: stats is NULL");
  reshard_sharder_destroy(NULL);
  sharded_ranks_close(&p);
}

RUN_CASES
