/* Checkpoints of state dicts: saved by some ranks in some layouts, loaded by others in others, every element and every
 * leaf looked at; what must be refused, with nothing overwritten and nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/oracles/file_random.h"

#include "file/read/checkpoint.h"
#include "support/fixtures/scale.h"

#include <reshard/state_dict.h>

#ifdef RS_HAVE_JANSSON

#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SAVED = 11, OTHER = 99 }; /* seeds of elements: what is stored, and what was there before */

/* --- State dicts of tensors by description ----------------------------------------------------------------------- */

typedef struct spec {
  reshard_dtype dtype;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_layout layout; /* NULL: a plain tensor on every rank from `lowest` on, a null below */
  int64_t lowest;
  bool strided;
} spec;

typedef struct fixture {
  int64_t n;
  const spec *specs;
  uint64_t seed;
  const char *path;
  const reshard_state_save_options *save;
  const reshard_state_load_options *load;
  reshard_state_load_report reports[SHARDED_RANKS_MOST];
  void (*change)(int64_t rank, reshard_tree state); /* what is special in it; may be NULL */
} fixture;

static void dict_put(reshard_tree dict, const char *key, reshard_tree child) {
  CLI_TRY("put: ", reshard_tree_set(dict, key, child));
  reshard_tree_release(child);
}

static reshard_tree make_plain(const spec *s, int64_t rank, uint64_t seed) {
  reshard_tree leaf;
  reshard_tensor tensor;
  if (rank < s->lowest) {
    CLI_TRY("null: ", reshard_tree_null(&leaf));
    return leaf;
  }
  if (s->strided)
    tensor = strided_tensor(s->dtype, s->ndim, s->shape, rank % 2 == 0);
  else
    CLI_TRY("tensor: ", reshard_tensor_create(s->dtype, s->ndim, s->shape, &tensor));
  reshard_layout whole = layout_from_text("rank(0)", s->ndim, s->shape, 1);
  array_fill(whole, 0, 0, tensor, rank == s->lowest || seed >= OTHER ? seed : 0); /* replicas are not compared */
  reshard_layout_release(whole);
  CLI_TRY("leaf: ", reshard_tree_tensor(tensor, &leaf));
  reshard_tensor_release(tensor);
  return leaf;
}

/* The boxes of a layout, each in memory with gaps. */
static reshard_sharded_tensor make_strided(reshard_sharder sharder, int64_t rank, const spec *s) {
  reshard_properties properties = {.dtype = s->dtype};
  reshard_metadata metadata;
  reshard_sharded_tensor tensor;
  reshard_tensor tensors[256];
  int64_t n = 0;
  CLI_TRY("metadata: ", reshard_metadata_from_layout(&properties, s->layout, NULL, NULL, &metadata));
  for (int64_t i = 0; i < reshard_metadata_count(metadata); i++) {
    const reshard_shard *shard = &reshard_metadata_shards(metadata)[i];
    if (shard->placement.rank == rank && n < 256)
      tensors[n++] = strided_tensor(s->dtype, s->ndim, shard->box.extent, i % 2 == 0);
  }
  CLI_TRY("strided: ", reshard_sharded_tensor_from_metadata(sharder, metadata, n, tensors, &tensor));
  while (n > 0)
    reshard_tensor_release(tensors[--n]);
  reshard_metadata_release(metadata);
  return tensor;
}

static reshard_tree make_sharded(reshard_sharder sharder, int64_t rank, const spec *s, uint64_t seed) {
  reshard_properties properties = {.dtype = s->dtype};
  reshard_sharded_tensor tensor;
  reshard_tree leaf;
  if (s->strided)
    tensor = make_strided(sharder, rank, s);
  else
    CLI_TRY("sharded: ", reshard_sharded_tensor_empty(sharder, s->layout, &properties, NULL, &tensor));
  sharded_fill(tensor, rank, seed);
  CLI_TRY("leaf: ", reshard_state_sharded(tensor, &leaf));
  reshard_sharded_tensor_release(tensor);
  return leaf;
}

/* {"t": [tensors], "opt": {"step": 7, "more": {}}} */
static reshard_tree make_state(const sharded_ranks *p, int64_t rank, const fixture *s) {
  reshard_tree root, list, opt, leaf;
  CLI_TRY("dict: ", reshard_tree_dict(&root));
  CLI_TRY("list: ", reshard_tree_list(&list));
  CLI_TRY("dict: ", reshard_tree_dict(&opt));
  for (int64_t i = 0; i < s->n; i++) {
    const spec *t = &s->specs[i];
    leaf = t->layout == NULL ? make_plain(t, rank, s->seed + (uint64_t)i)
                             : make_sharded(p->sharders[rank], rank, t, s->seed + (uint64_t)i);
    CLI_TRY("append: ", reshard_tree_append(list, leaf));
    reshard_tree_release(leaf);
  }
  dict_put(root, "t", list);
  CLI_TRY("int: ", reshard_tree_int((int64_t)s->seed + (rank > 0), &leaf)); /* of the lowest rank it is saved */
  dict_put(opt, "step", leaf);
  CLI_TRY("dict: ", reshard_tree_dict(&leaf));
  dict_put(opt, "more", leaf);
  dict_put(root, "opt", opt);
  if (s->change != NULL)
    s->change(rank, root);
  return root;
}

/* Elements that are not those of the seed. */
static int64_t check_state(int64_t rank, reshard_tree state, const fixture *s, uint64_t seed) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < s->n; i++) {
    char path[32];
    reshard_tree leaf = NULL;
    const spec *t = &s->specs[i];
    snprintf(path, sizeof path, "t.%lld", (long long)i);
    if (reshard_tree_at(state, path, &leaf) != RESHARD_SUCCESS)
      return 1;
    if (t->layout != NULL) {
      reshard_sharded_tensor tensor;
      wrong += reshard_state_get_sharded(leaf, &tensor) != RESHARD_SUCCESS ||
               sharded_check(tensor, rank, seed + (uint64_t)i) != 0;
    } else if (rank >= t->lowest) {
      reshard_tensor tensor;
      reshard_layout whole = layout_from_text("rank(0)", t->ndim, t->shape, 1);
      wrong += reshard_tree_get_tensor(leaf, &tensor) != RESHARD_SUCCESS ||
               array_check(whole, 0, 0, tensor, seed + (uint64_t)i) != 0;
      reshard_layout_release(whole);
    }
  }
  return wrong;
}

static int64_t step_of(reshard_tree state) {
  reshard_tree leaf;
  int64_t value = -1;
  if (reshard_tree_at(state, "opt.step", &leaf) == RESHARD_SUCCESS)
    (void)reshard_tree_get_int(leaf, &value);
  return value;
}

static void save_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  fixture *s = p->user;
  reshard_tree state = make_state(p, r, s);
  rank_result_set(&p->results[r], reshard_state_save(p->sharders[r], state, s->path, s->save, NULL));
  reshard_tree_release(state);
}

/* Loads over other elements. After an error they must still be there. */
static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  fixture *s = p->user, before = *s;
  before.seed = OTHER;
  reshard_tree state = make_state(p, r, &before);
  reshard_status status = reshard_state_load(p->sharders[r], state, s->path, s->load, &s->reports[r]);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = check_state(r, state, s, status == RESHARD_SUCCESS ? s->seed : OTHER);
  if (s->change == NULL)
    p->wrong[r] += step_of(state) != (status == RESHARD_SUCCESS ? (int64_t)s->seed : OTHER + (r > 0));
  reshard_tree_release(state);
}

static void state_save(sharded_ranks *p, fixture *s) {
  sharded_ranks_run(p, save_body, s);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
}

static void state_load(sharded_ranks *p, fixture *s) {
  sharded_ranks_run(p, load_body, s);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
}

/* A path that stays. */
static const char *kept(const char *name) {
  static char paths[16][512];
  static int next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s", scratch_path(name));
  return path;
}

/* Names in the scratch directory that begin so. */
static int64_t count_names(const char *begin) {
  DIR *directory = opendir(scratch_path(""));
  int64_t n = 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    n += strncmp(entry->d_name, begin, strlen(begin)) == 0;
  closedir(directory);
  return n;
}

/* --- Random layouts and numbers of ranks ------------------------------------------------------------------------- */

typedef struct sides {
  int64_t n;
  spec save[8], load[8];
  naive_side from[8], to[8];
} sides;

static int64_t longest(const spec *t) {
  int64_t most = 0;
  for (int d = 0; d < t->ndim; d++)
    most = t->shape[d] > most ? t->shape[d] : most;
  return most;
}

static void make_sides(rng *r, int64_t savers, int64_t loaders, sides *s, uint64_t seed) {
  rs_text why = {0};
  s->n = rng_in(r, 0, 6);
  for (int64_t i = 0; i < s->n; i++) {
    spec t = {.dtype = naive_draw_dtype(r)};
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
  const char *path = kept("whole.safetensors");
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
    const spec *t = &sides->save[i];
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
  fixture s = {.n = sides->n, .specs = sides->save, .seed = SAVED, .path = kept("state"), .save = &options};
  sharded_ranks_open(&from, savers, NULL);
  state_save(&from, &s);
  sharded_ranks_close(&from);
  if (convert)
    check_convert(sides, seed);
  sharded_ranks_open(&to, loaders, NULL);
  s.specs = sides->load;
  sharded_ranks_run(&to, load_body, &s);
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

static void test_random(void **state) {
  (void)state;
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
  dict_put(root, "leaves", list);
  CLI_TRY("", reshard_tree_dict(&dict));
  CLI_TRY("", reshard_tree_int(right ? 1 : 2, &leaf));
  dict_put(dict, "k\303\251y/with \"quotes\"\\ and\ttabs", leaf);
  dict_put(root, "a.b", dict);
}

static void leaves_to_save(int64_t rank, reshard_tree root) { add_leaves(root, rank == 0); }
static void leaves_to_load(int64_t rank, reshard_tree root) {
  (void)rank;
  add_leaves(root, false);
}

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
  fixture *s = p->user;
  reshard_tree state = make_state(p, r, s);
  reshard_status status = reshard_state_load(p->sharders[r], state, s->path, NULL, NULL);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = check_leaves(state);
  reshard_tree_release(state);
}

static void test_leaves(void **state) {
  (void)state;
  sharded_ranks p;
  fixture s = {.seed = SAVED, .path = kept("leaves"), .change = leaves_to_save};
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

/* --- Refusals ---------------------------------------------------------------------------------------------------- */

static const int64_t square[2] = {8, 6};

static spec sharded_spec(const char *layout, int64_t world) {
  return (spec){.dtype = RESHARD_F32, .ndim = 2, .shape = {8, 6}, .layout = layout_from_text(layout, 2, square, world)};
}

static void refuse_save(sharded_ranks *p, fixture *s, reshard_status status, const char *text) {
  int64_t before = count_names("");
  sharded_ranks_run(p, save_body, s);
  sharded_ranks_assert(p, status, text);
  assert_int_equal(count_names(""), before); /* nothing new, nothing gone */
  assert_int_equal(count_names("."), 2);     /* "." and ".." */
}

static void refuse_load(sharded_ranks *p, fixture *s, reshard_status status, const char *text) {
  sharded_ranks_run(p, load_body, s);
  sharded_ranks_assert(p, status, text);
}

static void put_int(reshard_tree state, const char *key, int64_t value) {
  reshard_tree leaf;
  CLI_TRY("", reshard_tree_int(value, &leaf));
  dict_put(state, key, leaf);
}

static void put_tensor(reshard_tree state, const char *key, reshard_dtype dtype) {
  reshard_tree leaf;
  reshard_tensor tensor;
  const int64_t shape[1] = {3};
  CLI_TRY("", reshard_tensor_create(dtype, 1, shape, &tensor));
  reshard_tensor_info info;
  CLI_TRY("", reshard_tensor_get_info(tensor, &info));
  memset(info.data, 0, (size_t)info.elements * reshard_dtype_size(dtype));
  CLI_TRY("", reshard_tree_tensor(tensor, &leaf));
  dict_put(state, key, leaf);
  reshard_tensor_release(tensor);
}

static void more_on_0(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_int(state, "more", 1);
}
static void other_kind(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "x", 1);
  else
    put_tensor(state, "x", RESHARD_F32);
}
/* A null on rank 0: what the others have is compared all the same. */
static void put_null(reshard_tree state, const char *key) {
  reshard_tree leaf;
  CLI_TRY("", reshard_tree_null(&leaf));
  dict_put(state, key, leaf);
}
static void null_int_tensor(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_null(state, "x");
  else if (rank == 1)
    put_int(state, "x", 7);
  else
    put_tensor(state, "x", RESHARD_F32);
}
static void null_tensor_int(int64_t rank, reshard_tree state) { null_int_tensor(rank == 0 ? 0 : 3 - rank, state); }
static void complex_128(int64_t rank, reshard_tree state) {
  (void)rank;
  put_tensor(state, "wide", RESHARD_C128);
}
/* Replicas of a plain tensor that are none. */
static void replica_dtype(int64_t rank, reshard_tree state) {
  if (rank == 0)
    put_null(state, "x");
  else
    put_tensor(state, "x", rank == 1 ? RESHARD_F32 : RESHARD_I32);
}
static void replica_shape(int64_t rank, reshard_tree state) {
  const int64_t wide[2] = {2, 7};
  reshard_tensor tensor;
  reshard_tree leaf;
  if (rank < 2) {
    put_tensor(state, "x", RESHARD_F32);
    return;
  }
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, wide, &tensor));
  CLI_TRY("", reshard_tree_tensor(tensor, &leaf));
  dict_put(state, "x", leaf);
  reshard_tensor_release(tensor);
}
static void twice(int64_t rank, reshard_tree state) {
  reshard_tree dict;
  put_int(state, "a.b", 1);
  CLI_TRY("", reshard_tree_dict(&dict));
  put_int(dict, "b", rank);
  dict_put(state, "a", dict);
}
static void no_name(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "", 1);
}
static void no_utf8(int64_t rank, reshard_tree state) {
  if (rank == 1)
    put_int(state, "a\377b", 1);
}
static void metadata_name(int64_t rank, reshard_tree state) {
  (void)rank;
  put_tensor(state, "__metadata__", RESHARD_F32);
}

static void test_refused_saves(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[2] = {sharded_spec("chunk(0)", 3), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = kept("refused")};
  sharded_ranks_open(&p, 3, NULL);
  s.path = kept("none/refused");
  refuse_save(&p, &s, RESHARD_ERROR_INVALID, "refused': its directory: No such file or directory");
  s.path = kept("refused.safetensors");
  refuse_save(&p, &s, RESHARD_ERROR_INVALID, "a state dict is saved to a directory, this is the name of a file");
  s.path = kept(".refused.reshard-12-3"); /* it could not be loaded, and would be removed */
  refuse_save(&p, &s, RESHARD_ERROR_INVALID, "3': has a name of a writer's temporary");
  s.path = kept("refused");
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
    refuse_save(&p, &s, cases[i].status, cases[i].text);
  }
  s.change = NULL;
  state_save(&p, &s);
  refuse_save(&p, &s, RESHARD_ERROR_INVALID, "refused': is there; it is replaced with force only");
  s.seed = OTHER; /* with force, but the directory has something else in it */
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  s.save = &force;
  scratch_write("refused/notes.txt", "x", 1);
  refuse_save(&p, &s, RESHARD_ERROR_INVALID, "is not replaced: 'notes.txt' in it is no regular file");
  scratch_remove("refused/notes.txt");
  s.seed = SAVED;
  state_load(&p, &s); /* what was there is still there */
  s.seed = SAVED + 1;
  state_save(&p, &s);
  state_load(&p, &s);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Ranks that do not agree, each by a fixture of its own. */
static void own_fixture_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  reshard_tree state = s[r].seed == 0 ? NULL : make_state(p, r, &s[r]);
  rank_result_set(&p->results[r], reshard_state_save(p->sharders[r], state, s[r].path, s[r].save, NULL));
  reshard_tree_release(state);
}
static void own_load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  reshard_tree state = s[r].seed == 0 ? NULL : make_state(p, r, &s[r]);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], state, s[r].path, s[r].load, NULL));
  reshard_tree_release(state);
}

static void test_ranks_that_differ(void **state) {
  (void)state;
  sharded_ranks p;
  spec rows = sharded_spec("chunk(0)", 2), columns = sharded_spec("chunk(1)", 2), wide = rows, turned = rows;
  const int64_t other[2] = {6, 8};
  wide.dtype = RESHARD_F64;
  turned.shape[0] = 6;
  turned.shape[1] = 8;
  turned.layout = layout_from_text("chunk(0)", 2, other, 2);
  spec plain = {.dtype = RESHARD_F32, .ndim = 2, .shape = {8, 6}};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1}, bad = {.size = 3};
  reshard_state_save_options many = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .threads = 5000};
  reshard_state_load_options worse = {.size = 3};
  const char *path = kept("differ"), *elsewhere = kept("elsewhere");
  const fixture first = {.n = 1, .specs = &rows, .seed = SAVED, .path = path};
  struct {
    const spec *specs;
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
    fixture s[2] = {first, first};
    s[1] = (fixture){.n = 1,
                     .specs = cases[i].specs,
                     .seed = cases[i].nothing ? 0 : SAVED,
                     .path = cases[i].path,
                     .save = cases[i].save};
    sharded_ranks_run(&p, own_fixture_body, s);
    sharded_ranks_assert(&p, cases[i].status, cases[i].text);
    assert_int_equal(count_names("differ"), 0);
    assert_int_equal(count_names(".differ"), 0);
  }
  fixture s[2] = {first, first};
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
    put_tensor(state, "more", RESHARD_F32);
}
static void step_is_tensor(int64_t rank, reshard_tree state) {
  reshard_tree opt;
  CLI_TRY("", reshard_tree_find(state, "opt", &opt));
  if (rank == 1)
    put_tensor(opt, "step", RESHARD_F32);
}
static void tensor_is_step(int64_t rank, reshard_tree state) {
  reshard_tree list;
  (void)rank;
  CLI_TRY("", reshard_tree_list(&list));
  for (int i = 0; i < 2; i++) {
    reshard_tree leaf;
    CLI_TRY("", reshard_tree_int(i, &leaf));
    CLI_TRY("", reshard_tree_append(list, leaf));
    reshard_tree_release(leaf);
  }
  dict_put(state, "t", list);
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
  (void)rank;
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F32, 2, shape, strides, memory, NULL, NULL, &tensor));
  CLI_TRY("", reshard_tree_tensor(tensor, &leaf));
  dict_put(state, "more", leaf);
  reshard_tensor_release(tensor);
}

static void test_refused_loads(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[2] = {sharded_spec("chunk(0)", 2), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = kept("stored")};
  sharded_ranks_open(&p, 2, NULL);
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "stored': No such file or directory");
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
    refuse_load(&p, &s, RESHARD_ERROR_INVALID, cases[i].text);
  }
  s.change = NULL;
  s.n = 2;
  spec other[2] = {specs[0], specs[1]};
  s.specs = other;
  other[1].dtype = RESHARD_U16;
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "rank 0: path 't.1' is u16 here, in the checkpoint it is i16");
  other[1] = specs[1];
  other[1].shape[0] = 6;
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "rank 0: path 't.1' is of shape 6 here, in the checkpoint it is of 5");
  other[1] = specs[1];
  other[0].layout = NULL;
  other[0].shape[1] = 7;
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "path 't.0' is of shape 8x7 here, in the checkpoint it is of 8x6");
  s.specs = specs;
  state_load(&p, &s);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Files with tensors missing or wrong. */
static void test_broken_files(void **state) {
  (void)state;
  static const char first[] = "broken/shard-00001-model-00001-of-00001.safetensors";
  static const char second[] = "broken/shard-00002-model-00001-of-00001.safetensors";
  sharded_ranks p;
  spec specs[2] = {sharded_spec("chunk(0)", 2), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  fixture s = {.n = 2, .specs = specs, .seed = SAVED, .path = kept("broken")};
  const char *from = kept(second), *to = kept("kept");
  sharded_ranks_open(&p, 2, NULL);
  state_save(&p, &s);
  assert_int_equal(rename(from, to), 0);
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "shard-00002-model-00001-of-00001.safetensors");
  assert_int_equal(rename(to, from), 0);
  state_load(&p, &s);
  assert_int_equal(truncate(from, 300), 0);
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, second + sizeof "broken");
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
    refuse_load(&p, &s, i == 2 ? RESHARD_ERROR_UNSUPPORTED : RESHARD_ERROR_INVALID, jsons[i].error);
  }
  scratch_remove("broken/state.json");
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "path 'opt.step': the checkpoint has no such leaf");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* A set as PyTorch writes it, which does not say what it is: a gap is found, a lost last file is another shape. */
#define SHARD(name, shape, end, offsets) \
  "{\"__metadata__\":{\"format\":\"pt\",\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":\"{\\\"" name \
  "\\\": {\\\"saved_offsets\\\": " offsets "}}\"}," SCRATCH_TENSOR(name, "F32", shape, "[0," end "]") "}"

static void test_gaps(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[1] = {sharded_spec("chunk(1)", 2)};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = kept("gaps"), .load = &partial};
  scratch_directory("gaps");
  scratch_safetensors("gaps/a.safetensors", SHARD("t.0", "[3,6]", "72", "[0, 0]"), 72, 1);
  scratch_safetensors("gaps/c.safetensors", SHARD("t.0", "[2,6]", "48", "[6, 0]"), 48, 3);
  sharded_ranks_open(&p, 2, NULL);
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "t.0");
  scratch_remove("gaps/c.safetensors");
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "path 't.0' is of shape 8x6 here, in the checkpoint it is of 3x6");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* --- More * ------------------------------------------------------------------------------------------------------ */

static void test_partial(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[3] = {
      sharded_spec("chunk(0)", 2), sharded_spec("mesh(2;R)", 2), {.dtype = RESHARD_I16, .ndim = 1, .shape = {5}}};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  fixture s = {.n = 3, .specs = specs, .seed = SAVED, .path = kept("partial"), .change = leaves_to_save};
  sharded_ranks_open(&p, 2, NULL);
  state_save(&p, &s);
  s.change = NULL;
  s.n = 1;
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "the checkpoint's tensor 't.");
  s.n = 3;
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "the checkpoint's leaf 'leaves.0' is in no rank's state");
  s.load = &partial;
  s.n = 1;
  state_load(&p, &s);
  assert_int_equal(s.reports[0].tensors, 1);
  assert_int_equal(s.reports[0].read_bytes, 8 * 6 * 4 / 2);
  s.n = 0;
  state_load(&p, &s);
  assert_int_equal(s.reports[1].read_bytes, 0);
  s.change = more_tensor; /* the other way it is no part */
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "rank 1: path 'more': the checkpoint has no such tensor");
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
  reshard_layout_release(specs[1].layout);
}

/* 4 ranks: tensor parallelism cuts 16 rows over ranks 2g, 2g + 1, and FSDP each half over ranks t and 2 + t, by
 * columns. A distributed tensor beside it. */
typedef struct training {
  reshard_comm comms[2][2];
  reshard_sharder sharders[4];
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
  for (int i = 0; i < 2; i++)
    CLI_TRY("", reshard_comm_create_local(2, NULL, t->comms[i]));
  for (int64_t r = 0; r < 4; r++) {
    int64_t k = r % 2, g = r / 2, group[2] = {k, 2 + k};
    reshard_sharder_options options = {RESHARD_SHARDER_OPTIONS_INIT, .group = {2, group}};
    const reshard_shard outer[2] = {rows_of(0, 2 * g), rows_of(8, 2 * g + 1)};
    reshard_metadata metadata;
    reshard_tree inner, leaf;
    reshard_mesh mesh;
    reshard_placement placements[2];
    int order[2];
    CLI_TRY("", reshard_sharder_create(t->comms[k][g], &options, &t->sharders[r]));
    CLI_TRY("", reshard_sharded_tensor_empty(t->sharders[r], cut, &f32, NULL, &t->inner[r]));
    CLI_TRY("", reshard_state_sharded(t->inner[r], &inner));
    CLI_TRY("", reshard_metadata_create(&f32, 2, whole, 2, outer, &metadata));
    CLI_TRY("", reshard_state_nested(p->sharders[r], metadata, 1, &outer[k], &inner, &leaf));
    reshard_metadata_release(metadata);
    reshard_tree_release(inner);
    CLI_TRY("", reshard_tree_dict(&t->trees[r]));
    dict_put(t->trees[r], "nested", leaf);
    CLI_TRY("", reshard_mesh_parse(p->comms[r], 4, "2x2", &mesh));
    CLI_TRY("", reshard_placements_parse("S0,R", mesh, placements, order));
    reshard_placing placing = {.mesh = mesh, .placements = placements, .order = order};
    CLI_TRY("", reshard_dtensor_empty(p->sharders[r], &placing, 2, whole, &f32, NULL, &t->dtensors[r]));
    CLI_TRY("", reshard_state_dtensor(t->dtensors[r], &leaf));
    dict_put(t->trees[r], "distributed", leaf);
    reshard_mesh_release(mesh);
  }
  reshard_layout_release(cut);
}

static void close_training(training *t) {
  for (int64_t r = 0; r < 4; r++) {
    reshard_tree_release(t->trees[r]);
    reshard_sharded_tensor_release(t->inner[r]);
    reshard_dtensor_release(t->dtensors[r]);
    reshard_sharder_destroy(t->sharders[r]);
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
  fixture *s = p->user;
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
  dict_put(root, "t", list);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], root, s->path, s->load, &s->reports[r]));
  p->wrong[r] = sharded_check(tensor, r, SAVED + (uint64_t)reshard_tree_count(list) - 1);
  reshard_sharded_tensor_release(view);
  reshard_sharded_tensor_release(tensor);
  reshard_tree_release(root);
}

static void test_several_paths(void **state) {
  (void)state;
  enum { PATHS = 4 };
  const int64_t shape[2] = {512, 1024};
  spec specs[PATHS];
  sharded_ranks p;
  reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1, .threads = 3};
  fixture s = {.n = PATHS, .specs = specs, .seed = SAVED, .path = kept("several"), .load = &options};
  reshard_layout rows = layout_from_text("chunk(0)", 2, shape, 2);
  for (int i = 0; i < PATHS; i++)
    specs[i] = (spec){.dtype = RESHARD_F32, .ndim = 2, .shape = {512, 1024}, .layout = rows};
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

static void test_nested_and_distributed(void **state) {
  (void)state;
  sharded_ranks p;
  training t = {.path = kept("training")};
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

/* A writer's unfinished directory is hidden, and is refused by all that read. */
static void test_in_work(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[1] = {sharded_spec("chunk(0)", 2)};
  reshard_writer_tensor tensor = {"t.0", RESHARD_F32, specs[0].layout};
  reshard_writer writer;
  char hidden[300] = "", inside[700];
  CLI_TRY("", reshard_writer_create(scratch_path("work"), 1, &tensor, NULL, &writer));
  DIR *directory = opendir(scratch_path(""));
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    if (strncmp(entry->d_name, ".work.reshard-", 14) == 0)
      snprintf(hidden, sizeof hidden, "%s", entry->d_name);
  closedir(directory);
  assert_true(hidden[0] == '.');
  const char *path = kept(hidden);
  fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = path};
  sharded_ranks_open(&p, 2, NULL);
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "is not complete: a writer has '.work.reshard-");
  s.path = kept("work");
  refuse_load(&p, &s, RESHARD_ERROR_INVALID, "work': No such file or directory");
  reshard_checkpoint checkpoint;
  assert_int_equal(reshard_checkpoint_open(path, &checkpoint), RESHARD_ERROR_INVALID);
  snprintf(inside, sizeof inside, "%s/shard-00001-model-00001-of-00001.safetensors", path);
  assert_int_equal(access(inside, R_OK), 0);
  assert_int_equal(reshard_checkpoint_open(inside, &checkpoint), RESHARD_ERROR_INVALID);
  reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT};
  assert_int_equal(reshard_convert(path, scratch_path("work.safetensors"), &options, NULL), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "is not complete: a writer has '.work.reshard-"));
  assert_int_equal(symlink(path, scratch_path("link")), 0);
  assert_int_equal(reshard_checkpoint_open(scratch_path("link"), &checkpoint), RESHARD_ERROR_INVALID);
  reshard_writer_abandon(writer);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Saves over a directory again and again, each time with another seed and that as the step. */
typedef struct replacer {
  sharded_ranks p;
  fixture s;
  atomic_bool stop;
  int64_t saves;
} replacer;

static void replace_body(void *user, int64_t rank) {
  replacer *r = user;
  (void)rank;
  while (!atomic_load(&r->stop)) {
    r->s.seed += 16; /* no tensor's seed is another's of the save before */
    state_save(&r->p, &r->s);
    r->saves++;
  }
}

/* Loads what is there; a load that succeeds is of one save, its tensors and its step. */
static void read_replaced_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  fixture before = *(fixture *)p->user;
  before.seed = OTHER;
  reshard_tree state = make_state(p, r, &before);
  reshard_status status = reshard_state_load(p->sharders[r], state, before.path, NULL, NULL);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = status == RESHARD_SUCCESS ? check_state(r, state, &before, (uint64_t)step_of(state)) : 0;
  reshard_tree_release(state);
}

static void test_replaced(void **state) {
  (void)state;
  sharded_ranks to;
  spec specs[2] = {sharded_spec("chunk(0)", 2), sharded_spec("chunk(1)", 2)};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  replacer r = {.s = {.n = 2, .specs = specs, .seed = SAVED, .path = kept("replaced"), .save = &force}};
  fixture s = r.s;
  sharded_ranks_open(&r.p, 2, NULL);
  sharded_ranks_open(&to, 2, NULL);
  state_save(&r.p, &r.s);
  rank_thread *thread = rank_thread_start(replace_body, &r);
  int64_t loads = test_scaled(200, 1);
  for (int64_t i = 0; i < loads; i++) {
    sharded_ranks_run(&to, read_replaced_body, &s);
    if (to.results[0].status != RESHARD_SUCCESS)
      sharded_ranks_assert(&to, to.results[0].status, "replaced");
    assert_int_equal(to.wrong[0] + to.wrong[1], 0);
  }
  atomic_store(&r.stop, true);
  rank_thread_join(thread);
  sharded_ranks_run(&to, read_replaced_body, &s); /* nobody writes any more */
  sharded_ranks_assert(&to, RESHARD_SUCCESS, NULL);
  /* what was opened, and another directory of its name */
  reshard_checkpoint checkpoint;
  CLI_TRY("", reshard_checkpoint_open(s.path, &checkpoint));
  CLI_TRY("", rs_checkpoint_in_place(checkpoint, s.path));
  state_save(&r.p, &r.s);
  assert_int_equal(rs_checkpoint_in_place(checkpoint, s.path), RESHARD_ERROR_SYSTEM);
  assert_non_null(
      strstr(reshard_last_error(), "replaced': another directory took its place while it was opened: inode"));
  assert_int_equal(rs_checkpoint_in_place(checkpoint, kept("nowhere")), RESHARD_ERROR_INVALID);
  reshard_checkpoint_close(checkpoint);
  sharded_ranks_close(&to);
  sharded_ranks_close(&r.p);
  reshard_layout_release(specs[0].layout);
  reshard_layout_release(specs[1].layout);
}

/* A rank that ends the communicator instead: the others come back, and nothing is left. */
static void abort_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  if (r == 1) {
    test_sleep_ms(20);
    rank_result_set(&p->results[r], reshard_comm_abort(p->comms[r]));
    return;
  }
  save_body(user, r);
}

static void test_abort(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[1] = {sharded_spec("chunk(0)", 3)};
  fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = kept("aborted")};
  sharded_ranks_open(&p, 3, NULL);
  sharded_ranks_run(&p, abort_body, &s);
  assert_int_equal(p.results[0].status, RESHARD_ERROR_PEER);
  assert_int_equal(p.results[2].status, RESHARD_ERROR_PEER);
  assert_int_equal(count_names("aborted"), 0);
  assert_int_equal(count_names(".aborted"), 0);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Other formats than ours: a file of whole tensors, and a numpy array in Fortran's order. */
static void formats_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  reshard_tree root, leaf;
  reshard_sharded_tensor tensor;
  CLI_TRY("", reshard_tree_dict(&root));
  CLI_TRY("", reshard_sharded_tensor_empty(p->sharders[r], s->specs[0].layout,
                                           &(reshard_properties){.dtype = RESHARD_F32}, NULL, &tensor));
  CLI_TRY("", reshard_state_sharded(tensor, &leaf));
  dict_put(root, "tensor", leaf);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], root, s->path, NULL, NULL));
  p->wrong[r] = sharded_check(tensor, r, SAVED);
  reshard_sharded_tensor_release(tensor);
  reshard_tree_release(root);
}

static void test_other_formats(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[1] = {sharded_spec("mesh(3;S0)", 3)};
  fixture s = {.n = 1, .specs = specs};
  naive_set set = {0};
  rng r;
  rng_seed(&r, 5);
  naive_tensor *t = naive_add(&set, "tensor", RESHARD_F32, 2, square);
  reshard_tensor whole;
  reshard_layout layout = layout_from_text("rank(0)", 2, square, 1);
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F32, 2, square, NULL, t->bytes, NULL, NULL, &whole));
  array_fill(layout, 0, 0, whole, SAVED);
  naive_file file = {.set = set};
  naive_write_safetensors(&r, scratch_path("one.safetensors"), &file);
  naive_write_npy(&r, scratch_path("one.npy"), t, true);
  sharded_ranks_open(&p, 3, NULL);
  for (int i = 0; i < 2; i++) {
    s.path = kept(i == 0 ? "one.safetensors" : "one.npy");
    sharded_ranks_run(&p, formats_body, &s);
    sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  }
  sharded_ranks_close(&p);
  reshard_tensor_release(whole);
  reshard_layout_release(layout);
  reshard_layout_release(specs[0].layout);
  naive_set_free(&set);
}

/* The system refuses. */
static void test_limit(void **state) {
  (void)state;
  sharded_ranks p;
  spec specs[1] = {sharded_spec("chunk(0)", 2)};
  fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = kept("limit")};
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 100;
  sharded_ranks_open(&p, 2, NULL);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  sharded_ranks_run(&p, save_body, &s);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  sharded_ranks_assert(&p, RESHARD_ERROR_SYSTEM, "the limit of this process is 100 (RLIMIT_FSIZE)");
  assert_int_equal(count_names("limit"), 0);
  assert_int_equal(count_names(".limit"), 0);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Bytes that the kernel has counted, beside those of the report. */
static int64_t read_so_far(void) {
  long long bytes = -1;
  FILE *file = fopen("/proc/self/io", "r");
  if (file != NULL) {
    if (fscanf(file, "rchar: %lld", &bytes) != 1)
      bytes = -1;
    fclose(file);
  }
  return bytes;
}

static void test_bytes_read(void **state) {
  (void)state;
  sharded_ranks from, to;
  const int64_t shape[2] = {1536, 1024};
  spec save_spec = {.dtype = RESHARD_F32, .ndim = 2, .shape = {1536, 1024}};
  spec load_spec = save_spec;
  save_spec.layout = layout_from_text("chunk(0)", 2, shape, 4);
  static const char *const layouts[] = {"chunk(1)", "chunk(0)", "rank(1)", "mesh(3;R)", "cyclic(3x1;64x64)"};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  fixture s = {.n = 1, .specs = &save_spec, .seed = SAVED, .path = kept("bytes"), .save = &force};
  sharded_ranks_open(&from, 4, NULL);
  state_save(&from, &s);
  sharded_ranks_close(&from);
  s.specs = &load_spec;
  sharded_ranks_open(&to, 3, NULL);
  for (int i = 0; i < 5; i++) {
    load_spec.layout = layout_from_text(layouts[i], 2, shape, 3);
    int64_t before = read_so_far(), needed = 0;
    state_load(&to, &s);
    int64_t after = read_so_far();
    for (int r = 0; r < 3; r++) {
      assert_int_equal(s.reports[r].read_bytes, s.reports[r].bytes / (i == 3 ? 3 : 1)); /* replicas, read once */
      needed += s.reports[r].bytes;
    }
    assert_int_equal(needed, 1536 * 1024 * 4 * (i == 3 ? 3 : 1));
    if (before >= 0 && after - before > needed + needed / 100)
      fail_msg("%s: %lld bytes were read, %lld are needed", layouts[i], (long long)(after - before), (long long)needed);
    reshard_layout_release(load_spec.layout);
  }
  sharded_ranks_close(&to);
  reshard_layout_release(save_spec.layout);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random),        cmocka_unit_test(test_leaves),
      cmocka_unit_test(test_refused_saves), cmocka_unit_test(test_ranks_that_differ),
      cmocka_unit_test(test_refused_loads), cmocka_unit_test(test_broken_files),
      cmocka_unit_test(test_gaps),          cmocka_unit_test(test_partial),
      cmocka_unit_test(test_several_paths), cmocka_unit_test(test_nested_and_distributed),
      cmocka_unit_test(test_in_work),       cmocka_unit_test(test_replaced),
      cmocka_unit_test(test_abort),         cmocka_unit_test(test_other_formats),
      cmocka_unit_test(test_limit),         cmocka_unit_test(test_bytes_read),
  };
  return cmocka_run_group_tests_name("checkpoints of state dicts", tests, scratch_setup, scratch_teardown);
}

#else

int main(void) { return 77; }

#endif
