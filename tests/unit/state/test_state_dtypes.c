/* State dicts saved as another dtype, and loaded into tensors of others: against the exact cast, over other numbers of
 * ranks and other layouts; what stays as it is, and what is refused. */
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/state_dicts.h"

#include <stdio.h>
#include <string.h>

#ifdef RS_HAVE_JANSSON

enum { TENSORS = 4 };

/* Shards of a trainer, a plain tensor, one of strides, and one of integers. */
static void make_specs(state_spec specs[TENSORS], const char *layout, int64_t world, reshard_dtype sharded,
                       reshard_dtype plain) {
  specs[0] = state_spec_sharded(layout, world);
  specs[1] = state_spec_sharded(layout, world);
  specs[2] = (state_spec){.dtype = plain, .ndim = 1, .shape = {5}, .lowest = 1};
  specs[3] = (state_spec){.dtype = RESHARD_I16, .ndim = 1, .shape = {3}};
  specs[0].dtype = specs[1].dtype = sharded;
  specs[1].strided = true;
}

static void free_specs(state_spec specs[TENSORS]) {
  reshard_layout_release(specs[0].layout);
  reshard_layout_release(specs[1].layout);
}

static void check_files(const char *in, const char *out, reshard_dtype by, reshard_dtype sharded, reshard_dtype plain) {
  scratch_check_cast(in, out, "t.0", by, sharded);
  scratch_check_cast(in, out, "t.1", by, sharded);
  scratch_check_cast(in, out, "t.2", by, plain);
  scratch_check_cast(in, out, "t.3", RESHARD_DTYPE_NONE, RESHARD_I16);
}

typedef struct scene {
  state_fixture s;
  const char *from, *to; /* directories: NULL: nothing is loaded */
  reshard_dtype dtype;   /* of the files; `odd`: of rank 1's, where it is another */
  reshard_dtype odd;
  reshard_state_load_report loaded;
  reshard_state_save_report saved;
} scene;

/* Loads what is there, and saves it. */
static void pass_on_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  scene *c = p->user;
  reshard_state_save_options save = RESHARD_STATE_SAVE_OPTIONS_DEFAULTS;
  reshard_state_load_report loaded = {0};
  reshard_state_save_report saved = {0};
  save.dtype = r == 1 && c->odd != RESHARD_DTYPE_NONE ? c->odd : c->dtype;
  save.force = 1;
  reshard_tree state = state_make(p, r, &c->s);
  reshard_status status = RESHARD_SUCCESS;
  if (c->from != NULL)
    status = reshard_state_load(p->sharders[r], state, scratch_path(c->from), NULL, &loaded);
  if (status == RESHARD_SUCCESS)
    status = reshard_state_save(p->sharders[r], state, scratch_path(c->to), &save, &saved);
  rank_result_set(&p->results[r], status);
  if (r == 0) {
    c->loaded = loaded;
    c->saved = saved;
  }
  reshard_tree_release(state);
}

static void pass_on(int64_t ranks, scene *c, reshard_status status, const char *text) {
  sharded_ranks_check(ranks, NULL, pass_on_body, c, status, text);
}

CASE(saved_as_bf16_and_loaded_as_others_each_number_is_cast_once) {
  state_spec specs[TENSORS], others[TENSORS];
  make_specs(specs, "mesh(4;S0)", 4, RESHARD_F32, RESHARD_F64);
  make_specs(others, "mesh(3;S1)", 3, RESHARD_F16, RESHARD_F8_E4M3);
  scene c = {.s = {.n = TENSORS, .specs = specs, .seed = SAVED}, .to = "plain"};
  pass_on(4, &c, RESHARD_SUCCESS, NULL);
  assert_int_equal(c.saved.converted + c.saved.unconverted, 0);
  c.to = "half";
  c.dtype = RESHARD_BF16;
  pass_on(4, &c, RESHARD_SUCCESS, NULL);
  assert_int_equal(c.saved.converted, 3);
  assert_int_equal(c.saved.unconverted, 1);
  assert_int_equal(c.saved.bytes, 2 * (2 * 48 + 5 + 3));
  check_files("plain", "half", RESHARD_DTYPE_NONE, RESHARD_BF16, RESHARD_BF16);

  scene l = {.s = {.n = TENSORS, .specs = others, .seed = OTHER}, .from = "half", .to = "loaded"};
  pass_on(3, &l, RESHARD_SUCCESS, NULL);
  assert_int_equal(l.loaded.tensors, 3); /* the plain one is on ranks 1 and 2 */
  assert_int_equal(l.loaded.converted, 2);
  check_files("half", "loaded", RESHARD_DTYPE_NONE, RESHARD_F16, RESHARD_F8_E4M3);
  /* as they are, where every rank reads together what all have alike */
  specs[0].dtype = specs[1].dtype = RESHARD_BF16;
  l = (scene){.s = {.n = 2, .specs = specs, .seed = OTHER}, .from = "plain2", .to = "together", .dtype = RESHARD_F32};
  scene two = {.s = {.n = 2, .specs = others, .seed = SAVED}, .to = "plain2"};
  pass_on(3, &two, RESHARD_SUCCESS, NULL);
  pass_on(4, &l, RESHARD_SUCCESS, NULL);
  assert_int_equal(l.loaded.converted, 2);
  assert_int_equal(l.saved.converted, 2);
  scratch_check_cast("plain2", "together", "t.0", RESHARD_BF16, RESHARD_F32);
  scratch_check_cast("plain2", "together", "t.1", RESHARD_BF16, RESHARD_F32);
  free_specs(specs);
  free_specs(others);
}

static reshard_dtype values, scales;
static void put_quantised(int64_t rank, reshard_tree state) {
  if (rank != 0)
    return;
  state_put_tensor(state, "w", values);
  state_put_tensor(state, "w_scale_inv", scales);
}

CASE(dtypes_that_do_not_fit_are_refused_by_all_ranks) {
  state_spec specs[TENSORS];
  make_specs(specs, "mesh(2;S0)", 2, RESHARD_F32, RESHARD_F32);
  scene c = {.s = {.n = TENSORS, .specs = specs, .seed = SAVED}, .to = "there", .dtype = RESHARD_I32};
  pass_on(2, &c, RESHARD_ERROR_INVALID, "dtype i32: numbers are converted to f64, f32, f16");
  c.dtype = RESHARD_BF16;
  c.odd = RESHARD_F16;
  pass_on(2, &c, RESHARD_ERROR_MISMATCH, "rank 0 saves with dtype bf16, rank 1 with f16");
  assert_null(strstr(scratch_list(""), "there"));
  c.dtype = c.odd = RESHARD_DTYPE_NONE;
  pass_on(2, &c, RESHARD_SUCCESS, NULL);
  specs[3].dtype = RESHARD_F16;
  c.from = "there";
  c.to = "none";
  pass_on(2, &c, RESHARD_ERROR_INVALID, "rank 0: path 't.3' is f16 here, in the checkpoint it is i16");
  specs[3].dtype = RESHARD_I16;

  c = (scene){.s = {.n = 0, .specs = specs, .seed = SAVED, .change = put_quantised}, .to = "fp8"};
  values = RESHARD_F8_E4M3;
  scales = RESHARD_F32;
  pass_on(2, &c, RESHARD_SUCCESS, NULL);
  c.to = "none";
  c.dtype = RESHARD_BF16;
  pass_on(2, &c, RESHARD_ERROR_UNSUPPORTED, "tensor 'w' is f8_e4m3 with scales in 'w_scale_inv'");
  c.dtype = RESHARD_DTYPE_NONE;
  c.from = "fp8";
  values = RESHARD_BF16;
  pass_on(2, &c, RESHARD_ERROR_INVALID,
          "path 'w' is bf16 here, in the checkpoint it is f8_e4m3 beside 'w_scale_inv': neither is converted alone");
  values = RESHARD_F8_E4M3;
  scales = RESHARD_BF16;
  pass_on(2, &c, RESHARD_ERROR_INVALID,
          "path 'w_scale_inv' is bf16 here, in the checkpoint it is f32 beside 'w': neither is converted alone");
  assert_null(strstr(scratch_list(""), "none"));
  free_specs(specs);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else
RUN_CASES_IF(0, "built without jansson")
#endif
