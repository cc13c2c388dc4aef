/* Resharding when a rank asks for something wrong, or gives up: all ranks get the same error, and every rank's tensor
 * is as it was. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <string.h>

static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* One rank asks for something wrong: all get its error, and every tensor is as it was and works on. */
typedef enum wrong_kind {
  GOOD,
  NULL_LAYOUT,
  OTHER_WORLD,
  OTHER_SHAPE,
  OTHER_LAYOUT,
  OTHER_COUNT,
  GAPS,
  OVERLAPS,
  NULL_FIRST,
  NULL_SECOND,
  TWICE,
  FOREIGN,
  A_STREAM,
  NO_LIST,
  NO_RESULTS,
} wrong_kind;
typedef struct wrong_case {
  wrong_kind what;
  reshard_status status;
  const char *text;
} wrong_case;
static const wrong_case wrong_cases[] = {
    {NULL_LAYOUT, RESHARD_ERROR_INVALID, ": layout is NULL"},
    {OTHER_WORLD, RESHARD_ERROR_INVALID, ": a layout over 4 ranks on a communicator of 3"},
    {OTHER_SHAPE, RESHARD_ERROR_INVALID, ": a layout of shape 9x8 for a tensor of shape 8x9"},
    {OTHER_LAYOUT, RESHARD_ERROR_MISMATCH, " layout "},
    {OTHER_COUNT, RESHARD_ERROR_MISMATCH, " is on rank "},
    {GAPS, RESHARD_ERROR_INVALID, ": no box holds [0,8)x[4,9)"},
    {OVERLAPS, RESHARD_ERROR_INVALID, ": boxes 0 and 1 overlap at [0,8)x[4,5)"},
    {NULL_FIRST, RESHARD_ERROR_INVALID, ": tensor 0 is NULL"},
    {NULL_SECOND, RESHARD_ERROR_INVALID, ": tensor 1 is NULL"},
    {TWICE, RESHARD_ERROR_INVALID, ": tensor 1 is in the list twice"},
    {FOREIGN, RESHARD_ERROR_INVALID, ": tensors 0 and 1 are of different sharders"},
    {A_STREAM, RESHARD_ERROR_INVALID, ", on the CPU it is NULL"},
    {NO_LIST, RESHARD_ERROR_INVALID, ": layouts is NULL"},
    {NO_RESULTS, RESHARD_ERROR_INVALID, ": results is NULL"},
};

typedef struct wrong_world {
  const wrong_case *c;
  reshard_layout src, dst, other, other_world, other_shape, gaps, overlaps;
  bool to;
} wrong_world;

/* Arguments of a rank. */
typedef struct request {
  int64_t n;
  reshard_sharded_tensor tensors[2];
  reshard_layout layouts[2];
  const reshard_layout *list;
  void *stream;
  reshard_sharded_tensor *results;
} request;

static void spoil(request *q, const wrong_world *w, reshard_sharded_tensor foreign) {
  switch (w->c->what) {
  case NULL_LAYOUT: q->layouts[1] = NULL; break;
  case OTHER_WORLD: q->layouts[1] = w->other_world; break;
  case OTHER_SHAPE: q->layouts[1] = w->other_shape; break;
  case OTHER_LAYOUT: q->layouts[1] = w->other; break;
  case OTHER_COUNT: q->n = 1; break;
  case GAPS: q->layouts[1] = w->gaps; break;
  case OVERLAPS: q->layouts[1] = w->overlaps; break;
  case NULL_FIRST: q->tensors[0] = NULL; break;
  case NULL_SECOND: q->tensors[1] = NULL; break;
  case TWICE: q->tensors[1] = q->tensors[0]; break;
  case FOREIGN: q->tensors[1] = foreign; break;
  case A_STREAM: q->stream = q; break;
  case NO_LIST: q->list = NULL; break;
  case NO_RESULTS: q->results = NULL; break;
  case GOOD: break;
  }
}

static reshard_status request_ask(const request *q, bool to) {
  return to ? reshard_sharded_tensor_reshard_to(q->n, q->tensors, q->list, q->stream, q->results)
            : reshard_sharded_tensor_reshard(q->n, q->tensors, q->list, q->stream);
}

/* After the error the same tensors are moved by the right request. */
static reshard_status move_on(sharded_ranks *p, int64_t r, bool to, const request *good) {
  reshard_status status = request_ask(good, to);
  for (int i = 0; i < 2 && status == RESHARD_SUCCESS; i++) {
    reshard_sharded_tensor moved = to ? good->results[i] : good->tensors[i];
    p->wrong[r] += sharded_check(moved, r, (uint64_t)i);
    p->wrong[r] += reshard_sharded_tensor_layout(moved) != good->layouts[i];
    if (to)
      reshard_sharded_tensor_release(moved);
  }
  return status;
}

static void wrong_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wrong_world *w = p->user;
  reshard_sharder second = NULL;
  reshard_sharded_tensor kept[2] = {NULL}, foreign = NULL, results[2];
  reshard_status status = reshard_sharder_create(p->comms[r], NULL, &second);
  for (int i = 0; i < 2 && status == RESHARD_SUCCESS; i++)
    status = reshard_sharded_tensor_empty(p->sharders[r], w->src, &f32, NULL, &kept[i]);
  RS_THEN(status, reshard_sharded_tensor_empty(second, w->src, &f32, NULL, &foreign));
  reshard_metadata before[2];
  reshard_tensor arrays[2], now;
  void *poison = &second;
  for (int i = 0; i < 2 && status == RESHARD_SUCCESS; i++) {
    sharded_fill(kept[i], r, (uint64_t)i);
    before[i] = reshard_sharded_tensor_metadata(kept[i]);
    status = reshard_sharded_tensor_local(kept[i], 0, &arrays[i], NULL);
    results[i] = poison;
  }
  if (status == RESHARD_SUCCESS) {
    request good = {2, {kept[0], kept[1]}, {w->dst, w->dst}, good.layouts, NULL, results}, bad = good;
    bad.list = bad.layouts;
    if (r == 1)
      spoil(&bad, w, foreign);
    status = request_ask(&bad, w->to);
    rank_result_set(&p->results[r], status);
    for (int i = 0; i < 2; i++) {
      p->wrong[r] += results[i] != poison || reshard_sharded_tensor_metadata(kept[i]) != before[i];
      p->wrong[r] += reshard_sharded_tensor_local(kept[i], 0, &now, NULL) != RESHARD_SUCCESS || now != arrays[i];
      p->wrong[r] += reshard_sharded_tensor_layout(kept[i]) != w->src || sharded_check(kept[i], r, (uint64_t)i);
    }
    p->wrong[r] += move_on(p, r, w->to, &good) != RESHARD_SUCCESS;
  }
  for (int i = 0; i < 2; i++)
    reshard_sharded_tensor_release(kept[i]);
  reshard_sharded_tensor_release(foreign);
  reshard_sharder_destroy(second);
}

static void refuse(wrong_world *w, const wrong_case *c, bool to, reshard_path path) {
  sharded_ranks p;
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = path};
  w->c = c;
  w->to = to;
  sharded_ranks_open(&p, 3, &options);
  sharded_ranks_run(&p, wrong_body, w);
  sharded_ranks_assert(&p, c->status, c->text);
  if (c->status == RESHARD_ERROR_INVALID) /* the rank is named, and where it is the call's own error, the call */
    assert_int_equal(strncmp(p.results[0].text, "rank 1: ", 8), 0);
  sharded_ranks_close(&p);
}

CASE(wrong_call_of_one_rank_leaves_all_tensors_alone) {
  static const int64_t shape[2] = {8, 9}, swapped[2] = {9, 8};
  wrong_world w = {.src = layout_from_text("chunk(0)", 2, shape, 3),
                   .dst = layout_from_text("chunk(1)", 2, shape, 3),
                   .other = layout_from_text("chunk(1;2,1,0)", 2, shape, 3),
                   .other_world = layout_from_text("chunk(1)", 2, shape, 4),
                   .other_shape = layout_from_text("chunk(1)", 2, swapped, 3),
                   .gaps = layout_from_text("boxes(0:[0,0]+[8,4])", 2, shape, 3),
                   .overlaps = layout_from_text("boxes(0:[0,0]+[8,5];1:[0,4]+[8,5])", 2, shape, 3)};
  for (size_t i = 0; i < sizeof wrong_cases / sizeof *wrong_cases; i++)
    for (int to = 0; to < 2; to++) {
      wrong_kind what = wrong_cases[i].what;
      if ((to == 0 && what == NO_RESULTS) || (to == 1 && what == TWICE)) /* no error there */
        continue;
      refuse(&w, &wrong_cases[i], to, RESHARD_PATH_AUTO);
      refuse(&w, &wrong_cases[i], to, RESHARD_PATH_PACKED);
    }
  reshard_layout all[] = {w.src, w.dst, w.other, w.other_world, w.other_shape, w.gaps, w.overlaps};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    reshard_layout_release(all[i]);
}

CASE(test_no_tensors) {
  reshard_sharded_tensor none[2] = {NULL, NULL};
  GOOD(reshard_sharded_tensor_reshard(0, NULL, NULL, NULL));
  GOOD(reshard_sharded_tensor_reshard_to(0, NULL, NULL, NULL, NULL));
  FAILS_WITH(reshard_sharded_tensor_reshard(-1, none, NULL, NULL), RESHARD_ERROR_INVALID, "-1 tensors");
  FAILS_WITH(reshard_sharded_tensor_reshard(2, NULL, NULL, NULL), RESHARD_ERROR_INVALID, "2 tensors, list NULL");
  FAILS_WITH(reshard_sharded_tensor_reshard_to(2, none, NULL, NULL, NULL), RESHARD_ERROR_INVALID, "tensor 0 is NULL");
}

/* A rank that refuses its own arguments brings that to whatever the others do; then all agree, and go on. */
static void refusing_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wrong_world *w = p->user;
  reshard_sharded_tensor tensor = NULL;
  reshard_sharder other = NULL;
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], w->src, &f32, NULL, &tensor);
  for (int step = 0; step < 2 && status == RESHARD_SUCCESS; step++) {
    if (r == 2)
      status = reshard_comm_agree(p->comms[r], reshard_error_set(RESHARD_ERROR_UNSUPPORTED, "no such thing here"));
    else if (step == 0)
      status = reshard_sharder_create(p->comms[r], NULL, &other);
    else
      status = reshard_comm_agree(p->comms[r], RESHARD_SUCCESS);
    p->wrong[r] += status != RESHARD_ERROR_UNSUPPORTED || other != NULL ||
                   strcmp(reshard_last_error(), "rank 2: no such thing here") != 0;
    status = reshard_comm_agree(p->comms[r], RESHARD_SUCCESS);
  }
  RS_THEN(status, reshard_sharded_tensor_reshard(1, &tensor, &w->dst, NULL));
  rank_result_set(&p->results[r], status);
  reshard_sharded_tensor_release(tensor);
}

CASE(an_error_that_a_rank_brings_ends_the_call_of_the_others) {
  static const int64_t shape[2] = {8, 9};
  wrong_world w = {.src = layout_from_text("chunk(0)", 2, shape, 3), .dst = layout_from_text("chunk(1)", 2, shape, 3)};
  sharded_ranks_check(3, NULL, refusing_body, &w, RESHARD_SUCCESS, NULL);
  reshard_layout_release(w.src);
  reshard_layout_release(w.dst);
}

/* A rank that stays away: the others come back with an error, their tensors as they were. */
static void absent_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wrong_world *w = p->user;
  reshard_sharded_tensor tensor = NULL;
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], w->src, &f32, NULL, &tensor);
  if (status == RESHARD_SUCCESS)
    sharded_fill(tensor, r, 3);
  if (r == 2) {
    test_sleep_ms(20);
    reshard_comm_abort(p->comms[r]);
  }
  RS_THEN(status, reshard_sharded_tensor_reshard(1, &tensor, &w->dst, NULL));
  p->wrong[r] += reshard_sharded_tensor_layout(tensor) != w->src || sharded_check(tensor, r, 3) != 0;
  rank_result_set(&p->results[r], status);
  reshard_sharded_tensor_release(tensor);
}

CASE(abort_in_a_reshard_leaves_all_tensors_alone) {
  static const int64_t shape[2] = {8, 9};
  wrong_world w = {.src = layout_from_text("chunk(0)", 2, shape, 3), .dst = layout_from_text("chunk(1)", 2, shape, 3)};
  for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path += RESHARD_PATH_PACKED) {
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
    sharded_ranks_check(3, &options, absent_body, &w, RESHARD_ERROR_PEER, "aborted");
  }
  reshard_layout_release(w.src);
  reshard_layout_release(w.dst);
}

RUN_CASES
