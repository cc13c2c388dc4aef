/* Checkpoints of state dicts: saved by some ranks in some layouts, loaded by others in others, every element and every
 * leaf looked at. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/state_dicts.h"
#include "support/oracles/file_random.h"
#include "support/processes/processes.h"

#include "file/read/checkpoint.h"

#ifdef RS_HAVE_JANSSON

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- Random layouts and numbers of ranks ------------------------------------------------------------------------- */

typedef struct sides {
  int64_t n;
  state_spec save[8], load[8];
  naive_side from[8], to[8];
} sides;

static int64_t longest(const state_spec *t) {
  int64_t most = 0;
  for (int d = 0; d < t->ndim; d++)
    most = t->shape[d] > most ? t->shape[d] : most;
  return most;
}

static void make_sides(rng *r, int64_t savers, int64_t loaders, sides *s, uint64_t seed) {
  rs_text why = {0};
  s->n = rng_in(r, 0, 6);
  for (int64_t i = 0; i < s->n; i++) {
    state_spec t = {.dtype = naive_draw_dtype(r)};
    do /* of at most 256 runs per dim, which is what array_fill takes */
      t.ndim = naive_draw_shape(r, rng_one_in(r, 4) ? 20000 : 300, t.shape);
    while (longest(&t) > 256);
    while (!naive_safetensors_has(t.dtype))
      t.dtype = naive_draw_dtype(r);
    s->save[i] = s->load[i] = t;
    s->save[i].strided = rng_one_in(r, 3);
    s->load[i].strided = rng_one_in(r, 3);
    s->save[i].lowest = rng_below(r, savers);
    bool same = rng_one_in(r, 4) && savers == loaders;
    if (!naive_side_make(r, t.ndim, t.shape, savers, true, RESHARD_LAYOUT_KIND_COUNT, 64, true, &s->from[i], &why) ||
        !naive_side_make(r, t.ndim, t.shape, loaders, true, RESHARD_LAYOUT_KIND_COUNT, 64, true, &s->to[i], &why))
      fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
    if (!rng_one_in(r, 4))
      s->save[i].layout = s->from[i].layout;
    if (!rng_one_in(r, 4))
      s->load[i].layout = same ? s->from[i].layout : s->to[i].layout;
  }
  free(why.at);
}

static void free_sides(sides *s) {
  for (int64_t i = 0; i < s->n; i++) {
    naive_side_free(&s->from[i]);
    naive_side_free(&s->to[i]);
  }
}

/* Joined by reshard_convert, which knows nothing of state.json: the same tensors, element by element. */
static void check_convert(const sides *sides, uint64_t seed) {
  reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT, .verify = 1};
  const char *path = state_path("whole.safetensors");
  scratch_remove("whole.safetensors");
  if (reshard_convert(scratch_path("state"), path, &options, NULL) != RESHARD_SUCCESS)
    fail_msg("seed %llu: %s", (unsigned long long)seed, reshard_last_error());
  naive_file file = {0};
  rs_text why = {0};
  if (!naive_read_safetensors(path, &file, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  assert_int_equal(file.set.n, sides->n);
  for (int64_t i = 0; i < sides->n; i++) {
    char name[32];
    const state_spec *t = &sides->save[i];
    snprintf(name, sizeof name, "t.%lld", (long long)i);
    const naive_tensor *found = naive_find(&file.set, name);
    assert_non_null(found);
    assert_int_equal(found->dtype, t->dtype);
    assert_int_equal(found->ndim, t->ndim);
    reshard_tensor tensor;
    reshard_layout whole = layout_from_text("rank(0)", t->ndim, t->shape, 1);
    unsigned char none[16];
    CLI_TRY("", reshard_tensor_wrap(t->dtype, t->ndim, t->shape, NULL, found->n > 0 ? found->bytes : none, NULL, NULL,
                                    &tensor));
    assert_int_equal(array_check(whole, 0, 0, tensor, SAVED + (uint64_t)i), 0);
    reshard_tensor_release(tensor);
    reshard_layout_release(whole);
  }
  naive_file_free(&file);
  free(why.at);
}

static void run_case(uint64_t seed, int64_t savers, int64_t loaders, const sides *sides, bool convert) {
  sharded_ranks from, to;
  reshard_state_save_options options = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .threads = seed % 3};
  state_fixture s = {.n = sides->n, .specs = sides->save, .seed = SAVED, .path = state_path("state"), .save = &options};
  sharded_ranks_open(&from, savers, NULL);
  state_save(&from, &s);
  sharded_ranks_close(&from);
  if (convert)
    check_convert(sides, seed);
  sharded_ranks_open(&to, loaders, NULL);
  s.specs = sides->load;
  sharded_ranks_run(&to, state_load_body, &s);
  for (int64_t r = 0; r < loaders; r++)
    if (to.results[r].status != RESHARD_SUCCESS || to.wrong[r] != 0)
      fail_msg("seed %llu: rank %lld: %lld tensors are wrong, or %s", (unsigned long long)seed, (long long)r,
               (long long)to.wrong[r], to.results[r].text);
  for (int64_t r = 0; r < loaders; r++) {
    if (s.reports[r].read_bytes > s.reports[r].bytes) /* below: replicas, which are read once */
      fail_msg("seed %llu: rank %lld read %lld bytes and needs %lld", (unsigned long long)seed, (long long)r,
               (long long)s.reports[r].read_bytes, (long long)s.reports[r].bytes);
    assert_int_equal(s.reports[r].tensors, sides->n);
  }
  sharded_ranks_close(&to);
}

CASE(random_layouts_are_saved_and_loaded_by_others) {
  int64_t cases = test_scaled(100, 1);
  for (int64_t i = 0; i < cases; i++) {
    rng r;
    sides s = {0};
    uint64_t seed = 4711 + (uint64_t)i;
    rng_seed(&r, seed);
    int64_t savers = rng_in(&r, 1, 5), loaders = rng_in(&r, 1, 5);
    make_sides(&r, savers, loaders, &s, seed);
    run_case(seed, savers, loaders, &s, rng_one_in(&r, 3));
    free_sides(&s);
  }
}

/* --- Leaves that are no tensors ---------------------------------------------------------------------------------- */

static const double reals[] = {0.0, -0.0, 1.0, 0.1, -1e300, 5e-324, 123456789.25, 1e22, 3.0e-7};
static const int64_t integers[] = {0, -1, INT64_MAX, INT64_MIN, 1234567890123};
enum { REALS = sizeof reals / sizeof *reals, INTEGERS = sizeof integers / sizeof *integers, BYTES = 9 };

static void add_leaves(reshard_tree root, bool right) {
  reshard_tree list, leaf, dict;
  unsigned char bytes[BYTES] = {0xff, 0, 1, 0xfe, 0x80, '"', '\\', '\n', 0};
  CLI_TRY("", reshard_tree_list(&list));
  for (int i = 0; i < REALS + 3 + INTEGERS + BYTES + 1 + 3; i++) {
    int k = i;
    if (!right)
      CLI_TRY("", reshard_tree_null(&leaf));
    else if (k < REALS)
      CLI_TRY("", reshard_tree_float(reals[k], &leaf));
    else if ((k -= REALS) < 3)
      CLI_TRY("", reshard_tree_float(k == 0 ? NAN : k == 1 ? INFINITY : -INFINITY, &leaf));
    else if ((k -= 3) < INTEGERS)
      CLI_TRY("", reshard_tree_int(integers[k], &leaf));
    else if ((k -= INTEGERS) <= BYTES)
      CLI_TRY("", reshard_tree_bytes(bytes, (size_t)k, &leaf));
    else if ((k -= BYTES + 1) < 2)
      CLI_TRY("", reshard_tree_bool(k, &leaf));
    else
      CLI_TRY("", reshard_tree_null(&leaf));
    CLI_TRY("", reshard_tree_append(list, leaf));
    reshard_tree_release(leaf);
  }
  state_put(root, "leaves", list);
  CLI_TRY("", reshard_tree_dict(&dict));
  CLI_TRY("", reshard_tree_int(right ? 1 : 2, &leaf));
  state_put(dict, "k\303\251y/with \"quotes\"\\ and\ttabs", leaf);
  state_put(root, "a.b", dict);
}

static void leaves_to_save(int64_t rank, reshard_tree root) { add_leaves(root, rank == 0); }
static void leaves_to_load(int64_t rank, reshard_tree root) { add_leaves(root, false); }

static int64_t check_leaves(reshard_tree root) {
  int64_t wrong = 0, integer;
  int truth;
  double real;
  const void *bytes;
  size_t size;
  reshard_tree list, leaf;
  if (reshard_tree_find(root, "leaves", &list) != RESHARD_SUCCESS)
    return 1;
  for (int i = 0; i < reshard_tree_count(list); i++) {
    int k = i;
    if (reshard_tree_child(list, i, NULL, &leaf) != RESHARD_SUCCESS)
      return 1;
    if (k < REALS)
      wrong += reshard_tree_get_float(leaf, &real) != RESHARD_SUCCESS || memcmp(&real, &reals[k], sizeof real) != 0;
    else if ((k -= REALS) < 3)
      wrong += reshard_tree_get_float(leaf, &real) != RESHARD_SUCCESS ||
               (k == 0 ? !isnan(real) : real != (k == 1 ? (double)INFINITY : -(double)INFINITY));
    else if ((k -= 3) < INTEGERS)
      wrong += reshard_tree_get_int(leaf, &integer) != RESHARD_SUCCESS || integer != integers[k];
    else if ((k -= INTEGERS) <= BYTES) {
      static const unsigned char should[BYTES] = {0xff, 0, 1, 0xfe, 0x80, '"', '\\', '\n', 0};
      wrong += reshard_tree_get_bytes(leaf, &bytes, &size) != RESHARD_SUCCESS || size != (size_t)k ||
               (k > 0 && memcmp(bytes, should, size) != 0);
    } else if ((k -= BYTES + 1) < 2)
      wrong += reshard_tree_get_bool(leaf, &truth) != RESHARD_SUCCESS || truth != k;
    else
      wrong += reshard_tree_get_kind(leaf) != RESHARD_TREE_NULL;
  }
  wrong += reshard_tree_at(root, "a.b.k\303\251y/with \"quotes\"\\ and\ttabs", &leaf) != RESHARD_SUCCESS ||
           reshard_tree_get_int(leaf, &integer) != RESHARD_SUCCESS || integer != 1;
  return wrong;
}

static void leaves_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  state_fixture *s = p->user;
  reshard_tree state = state_make(p, r, s);
  reshard_status status = reshard_state_load(p->sharders[r], state, s->path, NULL, NULL);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = check_leaves(state);
  reshard_tree_release(state);
}

CASE(other_leaves_are_saved_as_the_lowest_rank_has_them) {
  sharded_ranks p;
  state_fixture s = {.seed = SAVED, .path = state_path("leaves"), .change = leaves_to_save};
  sharded_ranks_open(&p, 3, NULL);
  state_save(&p, &s); /* all but rank 0 have nulls there, and another number */
  s.change = leaves_to_load;
  sharded_ranks_run(&p, leaves_body, &s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  sharded_ranks_close(&p);
  size_t size;
  char *text = scratch_read("leaves/state.json", &size);
  assert_non_null(strstr(text, "\"leaves.9\": {\"float\": \"nan\"}"));
  assert_non_null(strstr(text, "\"leaves.2\": 1.0"));
  assert_non_null(strstr(text, "\"leaves.18\": {\"bytes\": \"/w==\"}"));
  assert_non_null(strstr(text, "\"opt.step\": 11"));
  free(text);
}

/* Processes compare what they have opened: all of its files, whose list has no more room. */
enum { FILES = 8, LOADERS = 2 };

static void load_in_process(processes *all, int64_t r, void *user) {
  sharded_ranks p = {.n = LOADERS, .user = user};
  CHILD_CHECK(processes_comm(all, r, NULL, 60000, &p.comms[r]) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_sharder_create(p.comms[r], NULL, &p.sharders[r]) == RESHARD_SUCCESS);
  state_load_body(&p, r);
  CHILD_CHECK(p.results[r].status == RESHARD_SUCCESS && p.wrong[r] == 0);
  reshard_sharder_destroy(p.sharders[r]);
  reshard_comm_destroy(p.comms[r]);
}

CASE(processes_load_a_checkpoint_of_many_files) {
  sharded_ranks p;
  state_spec saved[1] = {state_spec_sharded("chunk(0)", FILES)}, loaded[1] = {state_spec_sharded("chunk(1)", LOADERS)};
  state_fixture s = {.n = 1, .specs = saved, .seed = SAVED, .path = state_path("many")};
  sharded_ranks_open(&p, FILES, NULL);
  state_save(&p, &s);
  sharded_ranks_close(&p);
  s.specs = loaded;
  assert_int_equal(processes_run(LOADERS, 0, load_in_process, &s), 0);
  reshard_layout_release(saved[0].layout);
  reshard_layout_release(loaded[0].layout);
}

/* --- Trees of several kinds --------------------------------------------------------------------------------------- */

static void one_more(int64_t rank, reshard_tree state) {
  if (rank == 1)
    state_put_tensor(state, "more", RESHARD_F32);
}

CASE(names_in_no_state_are_refused_unless_partial) {
  sharded_ranks p;
  state_spec specs[3] = {state_spec_sharded("chunk(0)", 2),
                         state_spec_sharded("mesh(2;R)", 2),
                         {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  state_fixture s = {.n = 3, .specs = specs, .seed = SAVED, .path = state_path("partial"), .change = leaves_to_save};
  sharded_ranks_open(&p, 2, NULL);
  state_save(&p, &s);
  s.change = NULL;
  s.n = 1;
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "the checkpoint's tensor 't.");
  s.n = 3;
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "the checkpoint's leaf 'leaves.0' is in no rank's state");
  s.load = &partial;
  s.n = 1;
  state_load(&p, &s);
  assert_int_equal(s.reports[0].tensors, 1);
  assert_int_equal(s.reports[0].read_bytes, 8 * 6 * 4 / 2);
  s.n = 0;
  state_load(&p, &s);
  assert_int_equal(s.reports[1].read_bytes, 0);
  s.change = one_more; /* the other way it is no part */
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "rank 1: path 'more': the checkpoint has no such tensor");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
  reshard_layout_release(specs[1].layout);
}

/* 4 ranks: tensor parallelism cuts 16 rows over ranks 2g, 2g + 1, and FSDP each half over ranks t and 2 + t, by
 * columns. A distributed tensor beside it. */
typedef struct training {
  reshard_comm comms[2][2];
  reshard_sharder sharders[2][2];
  reshard_tree trees[4];
  reshard_sharded_tensor inner[4];
  reshard_dtensor dtensors[4];
  const char *path;
} training;

static reshard_shard rows_of(int64_t begin, int64_t rank) {
  return (reshard_shard){{{begin, 0}, {8, 6}}, {rank, RESHARD_DEVICE_CPU, -1}};
}

static void open_training(training *t, sharded_ranks *p) {
  const int64_t whole[2] = {16, 6}, half[2] = {8, 6};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_layout cut = layout_from_text("chunk(1)", 2, half, 2);
  for (int64_t k = 0; k < 2; k++) {
    const int64_t group[2] = {k, 2 + k};
    const reshard_sharder_options options = {RESHARD_SHARDER_OPTIONS_INIT, .group = {2, group}};
    CLI_TRY("", reshard_comm_create_local(2, NULL, t->comms[k]));
    sharders_open(2, t->comms[k], &options, t->sharders[k]);
  }
  for (int64_t r = 0; r < 4; r++) {
    int64_t k = r % 2, g = r / 2;
    const reshard_shard outer[2] = {rows_of(0, 2 * g), rows_of(8, 2 * g + 1)};
    reshard_metadata metadata;
    reshard_tree inner, leaf;
    reshard_mesh mesh;
    reshard_placement placements[2];
    int order[2];
    CLI_TRY("", reshard_sharded_tensor_empty(t->sharders[k][g], cut, &f32, NULL, &t->inner[r]));
    CLI_TRY("", reshard_state_sharded(t->inner[r], &inner));
    CLI_TRY("", reshard_metadata_create(&f32, 2, whole, 2, outer, &metadata));
    CLI_TRY("", reshard_state_nested(p->sharders[r], metadata, 1, &outer[k], &inner, &leaf));
    reshard_metadata_release(metadata);
    reshard_tree_release(inner);
    CLI_TRY("", reshard_tree_dict(&t->trees[r]));
    state_put(t->trees[r], "nested", leaf);
    CLI_TRY("", reshard_mesh_parse(p->comms[r], 4, "2x2", &mesh));
    CLI_TRY("", reshard_placements_parse("S0,R", mesh, placements, order));
    reshard_placing placing = {.mesh = mesh, .placements = placements, .order = order};
    CLI_TRY("", reshard_dtensor_empty(p->sharders[r], &placing, 2, whole, &f32, NULL, &t->dtensors[r]));
    CLI_TRY("", reshard_state_dtensor(t->dtensors[r], &leaf));
    state_put(t->trees[r], "distributed", leaf);
    reshard_mesh_release(mesh);
  }
  reshard_layout_release(cut);
}

static void close_training(training *t) {
  for (int64_t r = 0; r < 4; r++) {
    reshard_tree_release(t->trees[r]);
    reshard_sharded_tensor_release(t->inner[r]);
    reshard_dtensor_release(t->dtensors[r]);
    reshard_sharder_destroy(t->sharders[r % 2][r / 2]);
    reshard_comm_destroy(t->comms[r % 2][r / 2]);
  }
}

/* Row 8 (r % 2) + i, column 3 (r / 2) + j of a matrix of 6 columns. Returns how many are wrong. */
static int64_t walk_inner(const training *t, int64_t r, float first, bool fill) {
  reshard_tensor array;
  reshard_tensor_info info;
  int64_t wrong = 0;
  CLI_TRY("", reshard_sharded_tensor_local(t->inner[r], 0, &array, NULL));
  CLI_TRY("", reshard_tensor_get_info(array, &info));
  for (int64_t i = 0; i < 8; i++)
    for (int64_t j = 0; j < 3; j++) {
      float value = first + (float)((8 * (r % 2) + i) * 6 + 3 * (r / 2) + j), *at = (float *)info.data + i * 3 + j;
      wrong += *at != value;
      *at = fill ? value : *at;
    }
  return fill ? 0 : wrong;
}

/* A tensor at several paths: the same node, another node of it, and a view of it. */
static void several_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  state_fixture *s = p->user;
  reshard_tree root, list, leaf;
  reshard_sharded_tensor tensor, view;
  reshard_tensor array;
  reshard_properties properties = {.dtype = s->specs[0].dtype};
  CLI_TRY("", reshard_sharded_tensor_empty(p->sharders[r], s->specs[0].layout, &properties, NULL, &tensor));
  CLI_TRY("", reshard_sharded_tensor_local(tensor, 0, &array, NULL));
  CLI_TRY("", reshard_sharded_tensor_from_layout(p->sharders[r], s->specs[0].layout, &properties, 1, &array, &view));
  sharded_fill(tensor, r, OTHER);
  CLI_TRY("", reshard_tree_list(&list));
  CLI_TRY("", reshard_state_sharded(tensor, &leaf));
  CLI_TRY("", reshard_tree_append(list, leaf));
  CLI_TRY("", reshard_tree_append(list, leaf));
  reshard_tree_release(leaf);
  CLI_TRY("", reshard_state_sharded(tensor, &leaf));
  CLI_TRY("", reshard_tree_append(list, leaf));
  reshard_tree_release(leaf);
  CLI_TRY("", reshard_state_sharded(view, &leaf));
  CLI_TRY("", reshard_tree_append(list, leaf));
  reshard_tree_release(leaf);
  CLI_TRY("", reshard_tree_dict(&root));
  state_put(root, "t", list);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], root, s->path, s->load, &s->reports[r]));
  p->wrong[r] = sharded_check(tensor, r, SAVED + (uint64_t)reshard_tree_count(list) - 1);
  reshard_sharded_tensor_release(view);
  reshard_sharded_tensor_release(tensor);
  reshard_tree_release(root);
}

CASE(test_several_paths) {
  enum { PATHS = 4 };
  const int64_t shape[2] = {512, 1024};
  state_spec specs[PATHS];
  sharded_ranks p;
  reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1, .threads = 3};
  state_fixture s = {.n = PATHS, .specs = specs, .seed = SAVED, .path = state_path("several"), .load = &options};
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, 2);
  for (int i = 0; i < PATHS; i++)
    specs[i] = (state_spec){.dtype = RESHARD_F32, .ndim = 2, .shape = {512, 1024}, .layout = rows};
  sharded_ranks_open(&p, 2, NULL);
  state_save(&p, &s);
  sharded_ranks_run(&p, several_body, &s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(s.reports[r].tensors, PATHS);
    assert_int_equal(s.reports[r].bytes, PATHS * 256 * 1024 * 4);
  }
  sharded_ranks_close(&p);
  reshard_layout_release(rows);
}

static void training_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  training *t = p->user;
  reshard_sharded_tensor distributed = reshard_dtensor_sharded(t->dtensors[r]);
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  walk_inner(t, r, 0, true);
  sharded_fill(distributed, r, SAVED);
  reshard_status status = reshard_state_save(p->sharders[r], t->trees[r], t->path, &force, NULL);
  walk_inner(t, r, 1000, true);
  sharded_fill(distributed, r, OTHER);
  if (status == RESHARD_SUCCESS)
    status = reshard_state_load(p->sharders[r], t->trees[r], t->path, NULL, NULL);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = walk_inner(t, r, 0, false) + sharded_check(distributed, r, SAVED);
}

CASE(test_nested_and_distributed) {
  sharded_ranks p;
  training t = {.path = state_path("training")};
  sharded_ranks_open(&p, 4, NULL);
  open_training(&t, &p);
  sharded_ranks_run(&p, training_body, &t);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  close_training(&t);
  sharded_ranks_close(&p);
  /* as one matrix, by somebody else */
  reshard_checkpoint checkpoint;
  int64_t tensor;
  float values[16 * 6];
  const int64_t whole[2] = {16, 6};
  reshard_layout all = layout_from_text("rank(0)", 2, whole, 1);
  CLI_TRY("", reshard_checkpoint_open(t.path, &checkpoint));
  CLI_TRY("", reshard_checkpoint_find(checkpoint, "nested", &tensor));
  CLI_TRY("", reshard_checkpoint_read(checkpoint, tensor, all, 0, 1, &(void *){values}));
  for (int i = 0; i < 16 * 6; i++)
    assert_true(values[i] == (float)i);
  reshard_checkpoint_info info;
  CLI_TRY("", reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.stored_bytes, info.bytes); /* replicas once */
  reshard_checkpoint_close(checkpoint);
  reshard_layout_release(all);
}

/* Tensors without dims under rules that cut: on each rank, stored once, as what they are, and loaded by others. */
CASE(scalars_are_stored_once_and_loaded_by_all) {
  static const char *const texts[] = {"chunk(0)", "mesh(tp;S1)", "cyclic(3;2)", "mesh(2;R)"};
  state_spec specs[2][4];
  for (int i = 0; i < 8; i++) {
    char text[64];
    reshard_rules rules;
    state_spec *t = &specs[i / 4][i % 4];
    *t = (state_spec){.dtype = RESHARD_F32};
    snprintf(text, sizeof text, "* %s\n", i < 4 ? texts[i] : i == 5 ? "rank(1)" : "mesh(tp;S0)");
    CLI_TRY("", reshard_rules_parse(text, NULL, &rules));
    CLI_TRY("", reshard_rules_layout(rules, "step", 0, NULL, i < 4 ? 3 : 2, &t->layout));
    reshard_rules_free(rules);
  }
  sharded_ranks p;
  state_fixture s = {.n = 4, .specs = specs[0], .seed = SAVED, .path = state_path("scalars")};
  sharded_ranks_open(&p, 3, NULL);
  state_save(&p, &s);
  sharded_ranks_close(&p);
  reshard_checkpoint checkpoint;
  reshard_checkpoint_info info;
  CLI_TRY("", reshard_checkpoint_open(s.path, &checkpoint));
  CLI_TRY("", reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.tensors, 4);
  assert_int_equal(info.stored_bytes, 4 * 4); /* once */
  size_t size;
  char *file = scratch_read("scalars/shard-00001-model-00001-of-00001.safetensors", &size);
  for (int i = 0; i < 4; i++) {
    char text[64];
    snprintf(text, sizeof text, "\\\"t.%d\\\":\\\"mesh(%s;R)", i, i == 3 ? "2@0-1" : "3@0-2");
    if (strstr(file + 8, text) == NULL)
      fail_msg("no %s", text);
  }
  free(file);
  reshard_checkpoint_close(checkpoint);
  s.specs = specs[1];
  sharded_ranks_open(&p, 2, NULL);
  state_load(&p, &s);
  sharded_ranks_close(&p);
  for (int i = 0; i < 8; i++)
    reshard_layout_release(specs[i / 4][i % 4].layout);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else

int main(void) { return 77; }

#endif
