/* A module's parameters and buffers from one rank to all: what is left out stays, what is shared goes once, trees that
 * differ are told of by name. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/sync.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, LAYERS = 4 };

typedef struct world {
  reshard_module modules[RANKS];
  reshard_module_selection selection;
  int64_t src;
  const reshard_sync_options *options;
  reshard_sync_report reports[RANKS];
  const char *said[RANKS]; /* which of the tensors have the source's values afterwards */
} world;

static reshard_module child(reshard_module m, const char *name) {
  reshard_module c;
  CLI_TRY("module: ", reshard_module_create(&c));
  CLI_TRY("child: ", reshard_module_set_child(m, name, c));
  reshard_module_release(c);
  return c;
}

static reshard_tensor tensor_make(reshard_dtype dtype, int64_t n) {
  reshard_tensor t;
  CLI_TRY("tensor: ", reshard_tensor_create(dtype, 1, &n, &t));
  return t;
}

static void parameter_put(reshard_module m, const char *name, reshard_dtype dtype, int64_t n, bool buffer) {
  reshard_tensor t = tensor_make(dtype, n);
  CLI_TRY("tensor: ", (buffer ? reshard_module_set_buffer : reshard_module_set_parameter)(m, name, t));
  reshard_tensor_release(t);
}

/* Layers of weight (f32), bias (bf16), steps (i64, a buffer); the last one is the first one again. */
static reshard_module module_make(void) {
  reshard_module m, layers, first = NULL;
  CLI_TRY("module: ", reshard_module_create(&m));
  layers = child(m, "layers");
  for (int i = 0; i < LAYERS - 1; i++) {
    char name[2] = {(char)('0' + i), '\0'};
    reshard_module layer = child(layers, name);
    first = first == NULL ? layer : first;
    parameter_put(layer, "weight", RESHARD_F32, 100 + i, false);
    parameter_put(layer, "bias", RESHARD_BF16, 7, false);
    parameter_put(layer, "steps", RESHARD_I64, 1, true);
  }
  CLI_TRY("child: ", reshard_module_set_child(layers, "3", first));
  return m;
}

static reshard_status parameter_fill(void *user, const char *name, reshard_tensor t) {
  reshard_tensor_info info;
  reshard_tensor_get_info(t, &info);
  memset(info.data, *(int *)user, (size_t)info.elements * reshard_dtype_size(info.dtype));
  ((char *)info.data)[0] = (char)(*(int *)user + (int)strlen(name));
  return RESHARD_SUCCESS;
}

typedef struct checker {
  rs_text said;
  int rank;
} checker;

/* Whose values a tensor has: "name:2 ". */
static reshard_status parameter_tell(void *user, const char *name, reshard_tensor t) {
  checker *c = user;
  reshard_tensor_info info;
  reshard_tensor_get_info(t, &info);
  const char *bytes = info.data;
  int64_t n = info.elements * (int64_t)reshard_dtype_size(info.dtype);
  bool whole = bytes[0] == (char)(bytes[1] + (int)strlen(name));
  for (int64_t i = 2; i < n; i++)
    whole &= bytes[i] == bytes[1];
  cli_add(&c->said, "%s:%d ", name + strlen("layers."), whole ? bytes[1] - 10 : -1);
  return RESHARD_SUCCESS;
}

static void sync(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  int value = 10 + (int)r;
  checker c = {.rank = (int)r};
  if (w->modules[r] != NULL)
    reshard_module_visit_states(w->modules[r], NULL, parameter_fill, &value);
  rank_result_set(&p->results[r], reshard_sync_module_states(p->comms[r], w->src, w->modules[r], &w->selection,
                                                             w->options, NULL, &w->reports[r]));
  cli_add(&c.said, "%s", "");
  if (w->modules[r] != NULL)
    reshard_module_visit_states(w->modules[r], NULL, parameter_tell, &c);
  w->said[r] = c.said.at;
}

static void assert_said(world *w, int64_t rank, const char *expected) {
  assert_string_equal(w->said[rank], expected);
  free((char *)w->said[rank]);
}

static void open_world(world *w) {
  *w = (world){.selection = {.size = RESHARD_MODULE_SELECTION_INIT}};
  for (int64_t r = 0; r < RANKS; r++)
    w->modules[r] = module_make();
}
static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++)
    reshard_module_release(w->modules[r]);
}

CASE(states_of_one_rank_reach_all_but_what_is_left_out) {
  static const reshard_sync_options packed = {RESHARD_SYNC_OPTIONS_INIT, 256, RESHARD_PATH_PACKED};
  world w;
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  open_world(&w);
  for (int i = 0; i < 2; i++) {
    w.options = i == 0 ? NULL : &packed;
    w.src = 2;
    sharded_ranks_run(&p, sync, &w);
    sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
    for (int64_t r = 0; r < RANKS; r++) {
      assert_said(&w, r, "0.weight:2 0.bias:2 1.weight:2 1.bias:2 2.weight:2 2.bias:2 0.steps:2 1.steps:2 2.steps:2 ");
      assert_int_equal(w.reports[r].tensors, 9);
      assert_int_equal(w.reports[r].bytes, 4 * (100 + 101 + 102) + 3 * 14 + 3 * 8);
      assert_int_equal(w.reports[r].alone, i == 0 ? 0 : 3);
    }
  }
  /* Parameters alone, but those that a pattern or their handle leaves out - the handle on this rank, by name on others.
   */
  const char *patterns[] = {"*.bias", "layers.1.weight"};
  w.selection.no_buffers = 1;
  w.selection.nignored_names = 2;
  w.selection.ignored_names = patterns;
  w.src = 0;
  sharded_ranks_run(&p, sync, &w);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  assert_said(&w, 0, "0.weight:0 0.bias:0 1.weight:0 1.bias:0 2.weight:0 2.bias:0 0.steps:0 1.steps:0 2.steps:0 ");
  assert_said(&w, 1, "0.weight:0 0.bias:1 1.weight:1 1.bias:1 2.weight:0 2.bias:1 0.steps:1 1.steps:1 2.steps:1 ");
  assert_said(&w, 2, "0.weight:0 0.bias:2 1.weight:2 1.bias:2 2.weight:0 2.bias:2 0.steps:2 1.steps:2 2.steps:2 ");
  close_world(&w);
  sharded_ranks_close(&p);
}

static void ignored_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  reshard_tensor weight;
  int value = 10 + (int)r;
  checker c = {.rank = (int)r};
  reshard_module_visit_states(w->modules[r], NULL, parameter_fill, &value);
  reshard_module_get_parameter(w->modules[r], "layers.3.weight", &weight);
  const reshard_module_selection s = {RESHARD_MODULE_SELECTION_INIT, .nignored = 1, .ignored = &weight};
  rank_result_set(&p->results[r],
                  reshard_sync_module_states(p->comms[r], 1, w->modules[r], &s, NULL, NULL, &w->reports[r]));
  cli_add(&c.said, "%s", "");
  reshard_module_visit_states(w->modules[r], NULL, parameter_tell, &c);
  w->said[r] = c.said.at;
}

CASE(test_ignored_by_handle) {
  world w;
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  open_world(&w);
  sharded_ranks_run(&p, ignored_body, &w);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  assert_said(&w, 0, "0.weight:0 0.bias:1 1.weight:1 1.bias:1 2.weight:1 2.bias:1 0.steps:1 1.steps:1 2.steps:1 ");
  assert_said(&w, 1, "0.weight:1 0.bias:1 1.weight:1 1.bias:1 2.weight:1 2.bias:1 0.steps:1 1.steps:1 2.steps:1 ");
  assert_said(&w, 2, "0.weight:2 0.bias:1 1.weight:1 1.bias:1 2.weight:1 2.bias:1 0.steps:1 1.steps:1 2.steps:1 ");
  close_world(&w);
  sharded_ranks_close(&p);
}

static void assert_refused(sharded_ranks *p, world *w, reshard_status status, const char *text) {
  sharded_ranks_run(p, sync, w);
  sharded_ranks_assert(p, status, NULL);
  if (!rank_result_is(&p->results[0], status, text))
    fail_msg("'%s' is not '%s'", p->results[0].text, text);
  for (int64_t r = 0; r < RANKS; r++) { /* nothing was written */
    char own[8];
    snprintf(own, sizeof own, ":%d ", (int)r);
    int tensors = 0, mine = 0;
    for (const char *at = w->said[r]; (at = strchr(at, ':')) != NULL; at++, tensors++)
      mine += strncmp(at, own, strlen(own)) == 0;
    assert_int_equal(tensors, mine);
    free((char *)w->said[r]);
  }
}

CASE(trees_that_differ_are_told_by_name) {
  world w;
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  open_world(&w);
  reshard_module layer, had = w.modules[1];
  w.modules[1] = NULL;
  assert_refused(&p, &w, RESHARD_ERROR_INVALID, "rank 1: reshard_sync_module_states: module is NULL");
  w.modules[1] = had;
  const char *pattern = "[z-a]";
  w.selection.nignored_names = 1;
  w.selection.ignored_names = &pattern;
  assert_refused(
      &p, &w, RESHARD_ERROR_INVALID,
      "rank 0: reshard_module_visit_states: ignored name 0 '[z-a]', column 1: a range in a set runs backwards");
  w.selection.nignored_names = 0;
  reshard_module_get_child(w.modules[2], "layers.1", &layer);
  parameter_put(layer, "weight", RESHARD_F32, 5, false);
  assert_refused(&p, &w, RESHARD_ERROR_MISMATCH,
                 "reshard_sync_module_states: 'layers.1.weight': shape [101] on rank 0, [5] on rank 2");
  parameter_put(layer, "weight", RESHARD_F32, 101, false);
  parameter_put(layer, "extra", RESHARD_U8, 2, false);
  assert_refused(
      &p, &w, RESHARD_ERROR_MISMATCH,
      "reshard_sync_module_states: tensor 4: name 'layers.2.weight' on rank 0, 'layers.1.extra' on rank 2 (9 and "
      "10 tensors)");
  w.src = 7;
  assert_refused(&p, &w, RESHARD_ERROR_INVALID,
                 "rank 0: reshard_sync_module_states: source rank 7 of a communicator of 3");
  close_world(&w);
  assert_int_equal(reshard_sync_module_states(NULL, 0, NULL, NULL, NULL, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_sync_module_states: comm is NULL");
  sharded_ranks_close(&p);
}

RUN_CASES
