/* Checkpoints of state dicts that must be refused, with nothing overwritten and nothing left behind. */
#include "bench/cli/util.h"
#include "file/ground/file.h"
#include "file/ground/json.h"
#include "state/checkpoint.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/state_dicts.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_int(reshard_tree state, const char *key, int64_t value) {
  reshard_tree leaf;
  CLI_TRY("", reshard_tree_int(value, &leaf));
  state_put(state, key, leaf);
}

static void more_on_0(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_int(state, "more", 1);
}
static void other_kind(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "x", 1);
  else
    state_put_tensor(state, "x", RESHARD_F32);
}
/* A null on rank 0: what the others have is compared all the same. */
static void put_null(reshard_tree state, const char *key) {
  reshard_tree leaf;
  CLI_TRY("", reshard_tree_null(&leaf));
  state_put(state, key, leaf);
}
static void null_int_tensor(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_null(state, "x");
  else if (rank == 1)
    put_int(state, "x", 7);
  else
    state_put_tensor(state, "x", RESHARD_F32);
}
static void null_tensor_int(int64_t rank, reshard_tree state) { null_int_tensor(rank == 0 ? 0 : 3 - rank, state); }
static void complex_128(int64_t rank, reshard_tree state) { state_put_tensor(state, "wide", RESHARD_C128); }
/* Replicas of a plain tensor that are none. */
static void replica_dtype(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_null(state, "x");
  else
    state_put_tensor(state, "x", rank == 1 ? RESHARD_F32 : RESHARD_I32);
}
static void replica_shape(int64_t rank, reshard_tree state) {
  const int64_t wide[2] = {2, 7};
  reshard_tensor tensor;
  reshard_tree leaf;
  if (rank < 2) {
    state_put_tensor(state, "x", RESHARD_F32);
    return;
  }
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, wide, &tensor));
  CLI_TRY("", reshard_tree_tensor(tensor, &leaf));
  state_put(state, "x", leaf);
  reshard_tensor_release(tensor);
}
static void twice(int64_t rank, reshard_tree state) {
  reshard_tree dict;
  put_int(state, "a.b", 1);
  CLI_TRY("", reshard_tree_dict(&dict));
  put_int(dict, "b", rank);
  state_put(state, "a", dict);
}
static void no_name(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "", 1);
}
static void no_utf8(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "a\377b", 1);
}
static void metadata_name(int64_t rank, reshard_tree state) { state_put_tensor(state, "__metadata__", RESHARD_F32); }

CASE(test_refused_saves) {
  sharded_ranks p;
  state_spec specs[2] = {state_spec_sharded("chunk(0)", 3), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  state_fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = state_path("refused")};
  sharded_ranks_open(&p, 3, NULL);
  s.path = state_path("none/refused");
  state_save_refused(&p, &s, RESHARD_ERROR_INVALID, "refused': its directory: No such file or directory");
  s.path = state_path("refused.safetensors");
  state_save_refused(&p, &s, RESHARD_ERROR_INVALID, "a state dict is saved to a directory, this is the name of a file");
  s.path = state_path(".refused.reshard-12-3"); /* it could not be loaded, and would be removed */
  state_save_refused(&p, &s, RESHARD_ERROR_INVALID, "3': has a name of a writer's temporary");
  s.path = state_path("refused");
  static const struct {
    void (*change)(int64_t, reshard_tree);
    reshard_status status;
    const char *text;
  } cases[] = {
      {other_kind, RESHARD_ERROR_MISMATCH, "path 'x': rank 0 has a tensor, rank 1 has an integer"},
      {null_int_tensor, RESHARD_ERROR_MISMATCH, "path 'x': rank 1 has an integer, rank 2 has a tensor"},
      {null_tensor_int, RESHARD_ERROR_MISMATCH, "path 'x': rank 1 has a tensor, rank 2 has an integer"},
      {replica_dtype, RESHARD_ERROR_MISMATCH, "path 'x': rank 1 has f32, rank 2 has i32"},
      {replica_shape, RESHARD_ERROR_MISMATCH, "path 'x': rank 0 has a tensor of shape 3, rank 2 of 2x7"},
      {complex_128, RESHARD_ERROR_UNSUPPORTED, "tensor 'wide': safetensors files have no dtype c128"},
      {twice, RESHARD_ERROR_INVALID, "rank 0: path 'a.b': two leaves have it"},
      {no_name, RESHARD_ERROR_INVALID, "rank 1: path '': a leaf without a name"},
      {no_utf8, RESHARD_ERROR_INVALID, "b': no valid UTF-8"},
      {metadata_name, RESHARD_ERROR_INVALID, "'__metadata__' is no name for a tensor"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    s.change = cases[i].change;
    state_save_refused(&p, &s, cases[i].status, cases[i].text);
  }
  s.change = NULL;
  state_save(&p, &s);
  state_save_refused(&p, &s, RESHARD_ERROR_INVALID, "refused': is there; --force, in C the option force, replaces it");
  s.seed = OTHER; /* with force, but the directory has something else in it */
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  s.save = &force;
  scratch_write("refused/notes.txt", "x", 1);
  state_save_refused(&p, &s, RESHARD_ERROR_INVALID, "is not replaced: 'notes.txt' in it is no regular file");
  scratch_remove("refused/notes.txt");
  s.seed = SAVED;
  state_load(&p, &s); /* what was there is still there */
  s.seed = SAVED + 1;
  state_save(&p, &s);
  state_load(&p, &s);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Ranks that do not agree, each by a state_fixture of its own. */
static void own_fixture_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const state_fixture *s = p->user;
  reshard_tree state = s[r].seed == 0 ? NULL : state_make(p, r, &s[r]);
  rank_result_set(&p->results[r], reshard_state_save(p->sharders[r], state, s[r].path, s[r].save, NULL));
  reshard_tree_release(state);
}
static void own_load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const state_fixture *s = p->user;
  reshard_tree state = s[r].seed == 0 ? NULL : state_make(p, r, &s[r]);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], state, s[r].path, s[r].load, NULL));
  reshard_tree_release(state);
}

CASE(test_ranks_that_differ) {
  sharded_ranks p;
  state_spec rows = state_spec_sharded("chunk(0)", 2), columns = state_spec_sharded("chunk(1)", 2), wide = rows,
             turned = rows;
  const int64_t other[2] = {6, 8};
  wide.dtype = RESHARD_F64;
  turned.shape[0] = 6;
  turned.shape[1] = 8;
  turned.layout = layout_from_text("chunk(0)", 2, other, 2);
  state_spec plain = {.dtype = RESHARD_F32, .ndim = 2, .shape = {8, 6}};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1}, bad = {.size = 3};
  reshard_state_save_options many = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .threads = 5000};
  reshard_state_load_options worse = {.size = 3};
  const char *path = state_path("differ"), *elsewhere = state_path("elsewhere");
  const state_fixture first = {.n = 1, .specs = &rows, .seed = SAVED, .path = path};
  struct {
    const state_spec *specs;
    const char *path;
    const reshard_state_save_options *save;
    bool nothing;
    reshard_status status;
    const char *text;
  } cases[] = {
      {&wide, path, NULL, false, RESHARD_ERROR_MISMATCH, "path 't.0': rank 0 has f32, rank 1 has f64"},
      {&turned, path, NULL, false, RESHARD_ERROR_MISMATCH, "rank 0 has a tensor of shape 8x6, rank 1 of 6x8"},
      {&columns, path, NULL, false, RESHARD_ERROR_INVALID,
       "path 't.0': shards 0 (rank:0/cpu) and 1 (rank:1/cpu) overlap at [0,4)x[3,6): they are [0,4)x[0,6) and "
       "[0,8)x[3,6)"},
      {&plain, path, NULL, false, RESHARD_ERROR_MISMATCH,
       "path 't.0': rank 0 has a sharded tensor, rank 1 has a tensor"},
      {&rows, elsewhere, NULL, false, RESHARD_ERROR_MISMATCH, "elsewhere'"},
      {&rows, path, &force, false, RESHARD_ERROR_MISMATCH, "rank 0 saves with force 0, rank 1 with 1"},
      {&rows, path, &bad, false, RESHARD_ERROR_INVALID,
       "rank 1: size field 3, this library's reshard_state_save_options has"},
      {&rows, path, &many, false, RESHARD_ERROR_INVALID, "rank 1: reshard_state_save: 5000 threads, 4096 are the most"},
      {&rows, NULL, NULL, false, RESHARD_ERROR_INVALID, "rank 1: reshard_state_save: directory is NULL"},
      {&rows, path, NULL, true, RESHARD_ERROR_INVALID, "state is NULL"},
  };
  sharded_ranks_open(&p, 2, NULL);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    state_fixture s[2] = {first, first};
    s[1] = (state_fixture){.n = 1,
                           .specs = cases[i].specs,
                           .seed = cases[i].nothing ? 0 : SAVED,
                           .path = cases[i].path,
                           .save = cases[i].save};
    sharded_ranks_run(&p, own_fixture_body, s);
    sharded_ranks_assert(&p, cases[i].status, cases[i].text);
    assert_int_equal(state_names("differ"), 0);
    assert_int_equal(state_names(".differ"), 0);
  }
  state_fixture s[2] = {first, first};
  sharded_ranks_run(&p, own_fixture_body, s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  s[1].path = elsewhere;
  sharded_ranks_run(&p, own_load_body, s);
  sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, "elsewhere'");
  s[1] = first;
  s[1].seed = 0;
  sharded_ranks_run(&p, own_load_body, s);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "rank 1: reshard_state_load: state is NULL");
  s[1] = first;
  s[1].load = &worse;
  sharded_ranks_run(&p, own_load_body, s);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID,
                       "rank 1: size field 3, this library's reshard_state_load_options has");
  s[1] = first;
  s[1].specs = &columns; /* loading, trees may differ */
  sharded_ranks_run(&p, own_load_body, s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  assert_int_equal(reshard_state_save(NULL, NULL, path, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_state_load(NULL, NULL, path, NULL, NULL), RESHARD_ERROR_INVALID);
  sharded_ranks_close(&p);
  reshard_layout_release(rows.layout);
  reshard_layout_release(columns.layout);
  reshard_layout_release(turned.layout);
}

static void more_tensor(int64_t rank, reshard_tree state) {
  if (rank == 1)
    state_put_tensor(state, "more", RESHARD_F32);
}
static void step_is_tensor(int64_t rank, reshard_tree state) {
  reshard_tree opt;
  CLI_TRY("", reshard_tree_find(state, "opt", &opt));
  if (rank == 1)
    state_put_tensor(opt, "step", RESHARD_F32);
}
static void tensor_is_step(int64_t rank, reshard_tree state) {
  reshard_tree list;
  CLI_TRY("", reshard_tree_list(&list));
  for (int i = 0; i < 2; i++) {
    reshard_tree leaf;
    CLI_TRY("", reshard_tree_int(i, &leaf));
    CLI_TRY("", reshard_tree_append(list, leaf));
    reshard_tree_release(leaf);
  }
  state_put(state, "t", list);
}
static void no_opt(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_int(state, "opt", 1);
}
static void shared_memory(int64_t rank, reshard_tree state) {
  static float memory[8];
  const int64_t shape[2] = {2, 8}, strides[2] = {0, 1};
  reshard_tensor tensor;
  reshard_tree leaf;
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F32, 2, shape, strides, memory, NULL, NULL, &tensor));
  CLI_TRY("", reshard_tree_tensor(tensor, &leaf));
  state_put(state, "more", leaf);
  reshard_tensor_release(tensor);
}

CASE(test_refused_loads) {
  sharded_ranks p;
  state_spec specs[2] = {state_spec_sharded("chunk(0)", 2), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  state_fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = state_path("stored")};
  sharded_ranks_open(&p, 2, NULL);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "stored': No such file or directory");
  state_save(&p, &s);
  static const struct {
    void (*change)(int64_t, reshard_tree);
    int64_t n;
    const char *text;
  } cases[] = {
      {more_on_0, 2, "rank 0: path 'more': the checkpoint has no such leaf"},
      {more_tensor, 2, "rank 1: path 'more': the checkpoint has no such tensor"},
      {step_is_tensor, 2, "rank 1: path 'opt.step' is a tensor here, in the checkpoint it is an integer"},
      {tensor_is_step, 0, "rank 0: path 't.0' is an integer here, in the checkpoint it is a tensor"},
      {NULL, 1, "the checkpoint's tensor 't.1' is in no rank's state"},
      {no_opt, 2, "rank 0: path 'opt': the checkpoint has no such leaf"},
      {shared_memory, 2, "the checkpoint has no such tensor"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    s.change = cases[i].change;
    s.n = cases[i].n;
    state_load_refused(&p, &s, RESHARD_ERROR_INVALID, cases[i].text);
  }
  s.change = NULL;
  s.n = 2;
  state_spec other[2] = {specs[0], specs[1]};
  s.specs = other;
  other[1].dtype = RESHARD_U16;
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "rank 0: path 't.1' is u16 here, in the checkpoint it is i16");
  other[1] = specs[1];
  other[1].shape[0] = 6;
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID,
                     "rank 0: path 't.1' is of shape 6 here, in the checkpoint it is of 5");
  other[1] = specs[1];
  other[0].layout = NULL;
  other[0].shape[1] = 7;
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "path 't.0' is of shape 8x7 here, in the checkpoint it is of 8x6");
  s.specs = specs;
  state_load(&p, &s);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Files with tensors missing or wrong. */
CASE(test_broken_files) {
  static const char first[] = "broken/shard-00001-model-00001-of-00001.safetensors";
  static const char second[] = "broken/shard-00002-model-00001-of-00001.safetensors";
  sharded_ranks p;
  state_spec specs[2] = {state_spec_sharded("chunk(0)", 2), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  state_fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = state_path("broken")};
  const char *from = state_path(second), *to = state_path("kept");
  sharded_ranks_open(&p, 2, NULL);
  state_save(&p, &s);
  assert_int_equal(rename(from, to), 0);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "shard-00002-model-00001-of-00001.safetensors");
  assert_int_equal(rename(to, from), 0);
  state_load(&p, &s);
  assert_int_equal(truncate(from, 300), 0);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, second + sizeof "broken");
  assert_int_equal(unlink(scratch_path(first)), 0);
  static const struct {
    const char *text, *error;
  } jsons[] = {
      {"{", "state.json': line 1"},
      {"[]", "state.json': no object with a \"version\""},
      {"{\"version\": 2}", "state.json': version 2, this library reads 1"},
      {"{\"version\": 1}", "state.json': \"leaves\" is missing or no object"},
      {"{\"version\": 1, \"leaves\": {\"a\": \"b\"}}", "\"leaves\": 'a' has a value that no leaf is written as"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"bytes\": \"AAA\"}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"bytes\": \"A===\"}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"bytes\": \"AB==\"}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"bytes\": \"AA==AAAA\"}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"float\": \"NaN\"}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": {\"float\": \"nan\", \"b\": 1}}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": [1]}}", "'a' has a value that no leaf"},
      {"{\"version\": 1, \"leaves\": {\"a\": 1, \"a\": 2}}", "duplicate"},
  };
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  s.save = &force;
  state_save(&p, &s);
  for (size_t i = 0; i < sizeof jsons / sizeof *jsons; i++) {
    scratch_write("broken/state.json", jsons[i].text, strlen(jsons[i].text));
    state_load_refused(&p, &s, i == 2 ? RESHARD_ERROR_UNSUPPORTED : RESHARD_ERROR_INVALID, jsons[i].error);
  }
  assert_int_equal(truncate(scratch_path("broken/state.json"), (64 << 20) + 1), 0);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "state.json': longer than 67108864 bytes");
  assert_int_equal(reshard_checkpoint_check(scratch_path("broken"), NULL, NULL), RESHARD_ERROR_CORRUPT);
  assert_non_null(strstr(reshard_last_error(), "state.json': longer than 67108864 bytes"));
  scratch_remove("broken/state.json");
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "path 'opt.step': the checkpoint has no such leaf");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Objects beside the leaves that take nearly all the memory that a file of that size may, and as many leaves as take
 * the rest and more: each of both alone would do. */
CASE(leaves_and_their_text_share_what_memory_a_file_may_take) {
  enum { LEAVES = 6000 };
  rs_text t = {.grows = true};
  rs_stored_leaves leaves = {0};
  rs_text_add(&t, "{\"version\":1,\"leaves\":{\"a\":0");
  for (int i = 1; i < LEAVES; i++)
    rs_text_add(&t, ",\"%d\":0", i);
  rs_text_add(&t, "},\"more\":[");
  const char object[] = "{},";
  int64_t each = (int64_t)strlen(object), begin = (int64_t)t.length;
  int64_t free_bytes = rs_budget_limit(begin) - rs_json_memory(t.at, begin) - begin - ((int64_t)2 << 20) - 4096;
  int64_t taken = rs_json_memory(object, each) + each - (rs_budget_limit(each) - rs_budget_limit(0));
  for (int64_t i = 0; i < free_bytes / taken; i++)
    rs_text_bytes(&t, object, (size_t)each);
  rs_text_add(&t, "0]}");
  assert_int_equal(t.status, RESHARD_SUCCESS);
  int64_t size = (int64_t)t.length;
  GOOD(rs_budget_check("", size, size + rs_json_memory(t.at, size)));
  scratch_directory("shared");
  scratch_write("shared/state.json", t.at, t.length);
  FAILS_WITH(rs_state_json_read(scratch_path("shared"), false, &leaves), RESHARD_ERROR_CORRUPT,
             "state.json': reading it takes ");
  rs_stored_leaves_free(&leaves);
  free(t.at);
}

/* A set as PyTorch writes it, which does not say what it is: a gap is found, a lost last file is another shape. */
#define SHARD(name, shape, end, offsets) \
  "{\"__metadata__\":{\"format\":\"pt\",\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":\"{\\\"" name \
  "\\\": {\\\"saved_offsets\\\": " offsets "}}\"}," SCRATCH_TENSOR(name, "F32", shape, "[0," end "]") "}"

CASE(checkpoints_with_gaps_are_refused) {
  sharded_ranks p;
  state_spec specs[1] = {state_spec_sharded("chunk(1)", 2)};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  state_fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = state_path("gaps"), .load = &partial};
  scratch_directory("gaps");
  scratch_safetensors("gaps/a.safetensors", SHARD("t.0", "[3,6]", "72", "[0, 0]"), 72, 1);
  scratch_safetensors("gaps/c.safetensors", SHARD("t.0", "[2,6]", "48", "[6, 0]"), 48, 3);
  sharded_ranks_open(&p, 2, NULL);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "t.0");
  scratch_remove("gaps/c.safetensors");
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "path 't.0' is of shape 8x6 here, in the checkpoint it is of 3x6");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else

int main(void) { return 77; }

#endif
