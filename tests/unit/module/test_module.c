/* Module trees: names, order, what is shared, however deep; choosing what to leave out; roots, against the plain way to
 * find them; every refusal. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/module.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOOD(call) assert_int_equal(call, RESHARD_SUCCESS)
/* Refused with this text. */
#define BAD(call, text) \
  do { \
    assert_int_equal(call, RESHARD_ERROR_INVALID); \
    assert_string_equal(reshard_last_error(), text); \
  } while (0)

static reshard_tensor tensor_make(int64_t n) {
  reshard_tensor t;
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &n, &t));
  return t;
}

static reshard_module module(void) {
  reshard_module m;
  GOOD(reshard_module_create(&m));
  return m;
}

/* New members, which the module alone keeps. */
static reshard_module child(reshard_module m, const char *name) {
  reshard_module c = module();
  GOOD(reshard_module_set_child(m, name, c));
  reshard_module_release(c);
  return c;
}
static reshard_tensor parameter(reshard_module m, const char *name, int64_t n) {
  reshard_tensor t = tensor_make(n);
  GOOD(reshard_module_set_parameter(m, name, t));
  reshard_tensor_release(t);
  return t;
}
static reshard_tensor buffer(reshard_module m, const char *name, int64_t n) {
  reshard_tensor t = tensor_make(n);
  GOOD(reshard_module_set_buffer(m, name, t));
  reshard_tensor_release(t);
  return t;
}

/* embed (weight), layers.0 and .1 (norm shared, mlp.up), head.weight tied to embed.weight; a shared child. */
static reshard_module module_make(void) {
  reshard_module m = module(), embed, layers, shared;
  parameter(m, "scale", 1);
  buffer(m, "steps", 1);
  embed = child(m, "embed");
  reshard_tensor tied = parameter(embed, "weight", 12);
  layers = child(m, "layers");
  shared = module();
  parameter(shared, "weight", 3);
  buffer(shared, "mean", 3);
  for (int i = 0; i < 2; i++) {
    char name[2] = {(char)('0' + i), '\0'};
    reshard_module layer = child(layers, name), mlp;
    GOOD(reshard_module_set_child(layer, "norm", shared));
    mlp = child(layer, "mlp");
    parameter(mlp, "up", 4 + i);
    buffer(layer, "cache", 8);
  }
  reshard_module_release(shared);
  GOOD(reshard_module_set_parameter(child(m, "head"), "weight", tied));
  return m;
}

static reshard_status note_tensor(void *user, const char *name, reshard_tensor t) {
  reshard_tensor_info info;
  CLI_TRY("tensor: ", reshard_tensor_get_info(t, &info));
  cli_add(user, "%s:%d ", name, (int)info.elements);
  return RESHARD_SUCCESS;
}
static reshard_status note_module(void *user, const char *name, reshard_module m) {
  assert_non_null(m);
  cli_add(user, "'%s' ", name);
  return RESHARD_SUCCESS;
}

#define NOTED(call, expected) \
  do { \
    rs_text noted = {0}; \
    cli_add(&noted, "%s", ""); \
    GOOD(call); \
    assert_string_equal(noted.at, expected); \
    free(noted.at); \
  } while (0)

CASE(modules_are_visited_in_order_shared_ones_once) {
  reshard_module m = module_make();
  NOTED(reshard_module_visit_modules(m, note_module, &noted),
        "'' 'embed' 'layers' 'layers.0' 'layers.0.norm' 'layers.0.mlp' 'layers.1' 'layers.1.mlp' 'head' ");
  NOTED(reshard_module_visit_parameters(m, note_tensor, &noted),
        "scale:1 embed.weight:12 layers.0.norm.weight:3 layers.0.mlp.up:4 layers.1.mlp.up:5 ");
  NOTED(reshard_module_visit_buffers(m, note_tensor, &noted),
        "steps:1 layers.0.cache:8 layers.0.norm.mean:3 layers.1.cache:8 ");
  NOTED(reshard_module_visit_states(m, NULL, note_tensor, &noted),
        "scale:1 embed.weight:12 layers.0.norm.weight:3 layers.0.mlp.up:4 layers.1.mlp.up:5 "
        "steps:1 layers.0.cache:8 layers.0.norm.mean:3 layers.1.cache:8 ");
  /* A tensor that is a buffer, too, is visited once, as the parameter that it is. */
  reshard_tensor scale;
  GOOD(reshard_module_get_parameter(m, "scale", &scale));
  GOOD(reshard_module_set_buffer(m, "scale_again", scale));
  NOTED(reshard_module_visit_buffers(m, note_tensor, &noted),
        "steps:1 scale_again:1 layers.0.cache:8 layers.0.norm.mean:3 layers.1.cache:8 ");
  const char *all_but_these[] = {"layers.*", "embed.weight"};
  const reshard_module_selection most = {RESHARD_MODULE_SELECTION_INIT, .nignored_names = 2,
                                         .ignored_names = all_but_these};
  NOTED(reshard_module_visit_states(m, &most, note_tensor, &noted), "scale:1 steps:1 ");
  reshard_module_release(m);

  m = module(); /* nothing in it */
  NOTED(reshard_module_visit_modules(m, note_module, &noted), "'' ");
  NOTED(reshard_module_visit_states(m, NULL, note_tensor, &noted), "");
  reshard_module_release(m);
  reshard_module_release(NULL);
  assert_null(reshard_module_retain(NULL));
}

CASE(selection_leaves_out_what_it_is_told) {
  reshard_module m = module_make();
  reshard_tensor steps, norm;
  GOOD(reshard_module_get_buffer(m, "steps", &steps));
  GOOD(reshard_module_get_parameter(m, "layers.1.norm.weight", &norm)); /* visited as layers.0.norm.weight */
  const char *names[] = {"layers.?.mlp.*", "*.cache"};
  const reshard_tensor tensors[] = {steps, norm};
  reshard_module_selection s = {RESHARD_MODULE_SELECTION_INIT, .nignored_names = 2, .ignored_names = names};
  NOTED(reshard_module_visit_states(m, &s, note_tensor, &noted),
        "scale:1 embed.weight:12 layers.0.norm.weight:3 steps:1 layers.0.norm.mean:3 ");
  s.no_buffers = 1;
  NOTED(reshard_module_visit_states(m, &s, note_tensor, &noted), "scale:1 embed.weight:12 layers.0.norm.weight:3 ");
  s = (reshard_module_selection){RESHARD_MODULE_SELECTION_INIT, .nignored = 2, .ignored = tensors};
  NOTED(reshard_module_visit_states(m, &s, note_tensor, &noted),
        "scale:1 embed.weight:12 layers.0.mlp.up:4 layers.1.mlp.up:5 "
        "layers.0.cache:8 layers.0.norm.mean:3 layers.1.cache:8 ");
  /* The second name of what is shared is nobody's. */
  const char *second[] = {"head.weight", "layers.1.norm.*", "layers.[0-9].mlp.up", "no\\*", "steps"};
  s = (reshard_module_selection){RESHARD_MODULE_SELECTION_INIT, .no_buffers = 1, .nignored_names = 5,
                                 .ignored_names = second};
  NOTED(reshard_module_visit_states(m, &s, note_tensor, &noted), "scale:1 embed.weight:12 layers.0.norm.weight:3 ");
  reshard_module_release(m);
}

static reshard_status stop_tensor(void *user, const char *name, reshard_tensor t) {
  return --*(int *)user == 0 ? RESHARD_ERROR_CANCELLED : RESHARD_SUCCESS;
}
static reshard_status stop_module(void *user, const char *name, reshard_module m) {
  return --*(int *)user == 0 ? RESHARD_ERROR_CANCELLED : RESHARD_SUCCESS;
}

CASE(test_visitor_ends_the_walk) {
  reshard_module m = module_make();
  int left = 4;
  assert_int_equal(reshard_module_visit_modules(m, stop_module, &left), RESHARD_ERROR_CANCELLED);
  assert_int_equal(left, 0);
  left = 3;
  assert_int_equal(reshard_module_visit_parameters(m, stop_tensor, &left), RESHARD_ERROR_CANCELLED);
  left = 7;
  assert_int_equal(reshard_module_visit_states(m, NULL, stop_tensor, &left), RESHARD_ERROR_CANCELLED);
  assert_int_equal(left, 0);
  reshard_module_release(m);
}

/* Readers side by side: nothing in a module changes but counts of references. */
static void read_body(void *user, int64_t r) {
  reshard_module m = user, roots[2];
  for (int i = 0; i < 50; i++) {
    rs_text noted = {0};
    int64_t n = 0;
    reshard_module_retain(m);
    reshard_module_visit_states(m, NULL, note_tensor, &noted);
    reshard_module_roots(2, (reshard_module[2]){m, m}, &n, roots);
    reshard_module_release(m);
    if (n != 2 || noted.at == NULL)
      cli_exit(EXIT_FAILED, "thread %d", (int)r);
    free(noted.at);
  }
}

CASE(threads_read_one_tree) {
  reshard_module m = module_make();
  rank_threads_run(4, read_body, m);
  reshard_module_release(m);
}

CASE(children_are_got_by_their_paths) {
  reshard_module m = module_make(), found = NULL, again = NULL;
  reshard_tensor t, u;
  GOOD(reshard_module_get_child(m, "", &found));
  assert_ptr_equal(found, m);
  GOOD(reshard_module_get_child(m, "layers.0.norm", &found));
  GOOD(reshard_module_get_child(m, "layers.1.norm", &again));
  assert_ptr_equal(found, again);
  GOOD(reshard_module_get_parameter(m, "head.weight", &t));
  GOOD(reshard_module_get_parameter(m, "embed.weight", &u));
  assert_ptr_equal(t, u);
  GOOD(reshard_module_get_buffer(m, "layers.1.norm.mean", &t));
  GOOD(reshard_module_get_buffer(found, "mean", &u));
  assert_ptr_equal(t, u);

  u = NULL;
  BAD(reshard_module_get_parameter(m, "head.bias", &u),
      "reshard_module_get_parameter: no parameter 'head.bias': the module 'head' has no parameter 'bias'");
  BAD(reshard_module_get_parameter(m, "layers.2.up", &u),
      "reshard_module_get_parameter: no parameter 'layers.2.up': the module 'layers' has no child '2'");
  BAD(reshard_module_get_parameter(m, "steps", &u),
      "reshard_module_get_parameter: no parameter 'steps': the module '' has a buffer 'steps'");
  BAD(reshard_module_get_buffer(m, "scale.x", &u),
      "reshard_module_get_buffer: no buffer 'scale.x': the module '' has a parameter 'scale'");
  BAD(reshard_module_get_child(m, "layers.0.cache", &found),
      "reshard_module_get_child: no child 'layers.0.cache': the module 'layers.0' has a buffer 'cache'");
  BAD(reshard_module_get_buffer(m, "", &u), "reshard_module_get_buffer: no buffer '': the module '' has no buffer ''");
  BAD(reshard_module_get_child(m, "layers.", &found),
      "reshard_module_get_child: no child 'layers.': the module 'layers' has no child ''");
  assert_null(u);
  assert_ptr_equal(found, again);
  BAD(reshard_module_get_child(NULL, "", &found), "reshard_module_get_child: module is NULL");
  BAD(reshard_module_get_parameter(m, NULL, &u), "reshard_module_get_parameter: name is NULL");
  BAD(reshard_module_get_buffer(m, "steps", NULL), "reshard_module_get_buffer: the output is NULL");
  char long_name[1000];
  memset(long_name, 'x', sizeof long_name);
  long_name[500] = '.';
  long_name[sizeof long_name - 1] = '\0';
  assert_int_equal(reshard_module_get_child(m, long_name, &found), RESHARD_ERROR_INVALID);
  assert_true(strlen(reshard_last_error()) < 500);
  reshard_module_release(m);
}

CASE(what_is_set_again_takes_the_place) {
  reshard_module m = module_make(), other = module();
  reshard_tensor t = tensor_make(77);
  GOOD(reshard_module_set_parameter(m, "scale", t)); /* in its place */
  GOOD(reshard_module_set_child(m, "layers", other));
  NOTED(reshard_module_visit_parameters(m, note_tensor, &noted), "scale:77 embed.weight:12 ");
  GOOD(reshard_module_set_parameter(m, "scale", t));
  GOOD(reshard_module_set_child(m, "layers", other));
  BAD(reshard_module_set_buffer(m, "scale", t),
      "reshard_module_set_buffer: 'scale' is a parameter of the module already");
  BAD(reshard_module_set_parameter(m, "steps", t),
      "reshard_module_set_parameter: 'steps' is a buffer of the module already");
  BAD(reshard_module_set_parameter(m, "layers", t),
      "reshard_module_set_parameter: 'layers' is a child of the module already");
  BAD(reshard_module_set_child(m, "scale", other),
      "reshard_module_set_child: 'scale' is a parameter of the module already");
  BAD(reshard_module_set_child(m, "a.b", other), "reshard_module_set_child: the name 'a.b' has a '.' in it");
  BAD(reshard_module_set_buffer(m, "", t), "reshard_module_set_buffer: the name is empty");
  BAD(reshard_module_set_buffer(m, NULL, t), "reshard_module_set_buffer: name is NULL");
  BAD(reshard_module_set_buffer(NULL, "x", t), "reshard_module_set_buffer: module is NULL");
  BAD(reshard_module_set_buffer(m, "x", NULL), "reshard_module_set_buffer: buffer is NULL");
  BAD(reshard_module_set_child(m, "x", NULL), "reshard_module_set_child: child is NULL");
  BAD(reshard_module_create(NULL), "reshard_module_create: module is NULL");
  NOTED(reshard_module_visit_parameters(m, note_tensor, &noted), "scale:77 embed.weight:12 ");
  reshard_tensor_release(t);
  reshard_module_release(other);
  reshard_module_release(m);
}

CASE(module_inside_itself_is_refused) {
  reshard_module a = module(), b = module(), c = module(), d = module();
  BAD(reshard_module_set_child(a, "me", a), "reshard_module_set_child: the child 'me' has the module inside it");
  GOOD(reshard_module_set_child(a, "b", b));
  GOOD(reshard_module_set_child(b, "c", c));
  GOOD(reshard_module_set_child(b, "c_again", c));
  BAD(reshard_module_set_child(c, "up", a), "reshard_module_set_child: the child 'up' has the module inside it");
  BAD(reshard_module_set_child(c, "up", b), "reshard_module_set_child: the child 'up' has the module inside it");
  GOOD(reshard_module_set_child(d, "a", a));
  GOOD(reshard_module_set_child(d, "c", c));
  BAD(reshard_module_set_child(c, "up", d), "reshard_module_set_child: the child 'up' has the module inside it");
  NOTED(reshard_module_visit_modules(d, note_module, &noted), "'' 'a' 'a.b' 'a.b.c' ");
  reshard_module_release(a);
  reshard_module_release(b);
  reshard_module_release(c);
  reshard_module_release(d);
}

CASE(wrong_calls_are_refused_by_name) {
  reshard_module m = module_make();
  int user = 0;
  BAD(reshard_module_visit_modules(NULL, note_module, &user), "reshard_module_visit_modules: module is NULL");
  BAD(reshard_module_visit_modules(m, NULL, &user), "reshard_module_visit_modules: visit is NULL");
  BAD(reshard_module_visit_parameters(NULL, note_tensor, &user), "reshard_module_visit_parameters: module is NULL");
  BAD(reshard_module_visit_buffers(m, NULL, &user), "reshard_module_visit_buffers: visit is NULL");
  BAD(reshard_module_visit_states(m, NULL, NULL, &user), "reshard_module_visit_states: visit is NULL");

  const char *names[] = {"fine", NULL, "no[end"};
  reshard_module_selection s = {.size = 4};
  char text[128];
  snprintf(text, sizeof text, "size field 4, this library's reshard_module_selection has %zu", sizeof s);
  BAD(reshard_module_visit_states(m, &s, note_tensor, &user), text);
  s = (reshard_module_selection){RESHARD_MODULE_SELECTION_INIT, .nignored_names = 2, .ignored_names = names};
  BAD(reshard_module_visit_states(m, &s, note_tensor, &user), "reshard_module_visit_states: ignored name 1 is NULL");
  s.ignored_names = names + 2;
  s.nignored_names = 1;
  BAD(reshard_module_visit_states(m, &s, note_tensor, &user),
      "reshard_module_visit_states: ignored name 0 'no[end', column 3: '[' without ']'");
  s.ignored_names = NULL;
  BAD(reshard_module_visit_states(m, &s, note_tensor, &user),
      "reshard_module_visit_states: 1 ignored names, NULL, and 0 ignored tensors, NULL");
  s = (reshard_module_selection){RESHARD_MODULE_SELECTION_INIT, .nignored = -1};
  BAD(reshard_module_visit_states(m, &s, note_tensor, &user),
      "reshard_module_visit_states: 0 ignored names, NULL, and -1 ignored tensors, NULL");
  reshard_module_release(m);
}

/* --- Large ------------------------------------------------------------------------------------------------------ */

static reshard_status count_module(void *user, const char *name, reshard_module m) {
  size_t *longest = user, length = strlen(name);
  *longest = length > *longest ? length : *longest;
  return RESHARD_SUCCESS;
}

CASE(deep_trees_take_no_stack) {
  enum { DEPTH = 30000 };
  reshard_module *chain = cli_alloc(DEPTH, sizeof *chain);
  for (int leaves_first = 0; leaves_first <= 1; leaves_first++) {
    for (int i = 0; i < DEPTH; i++)
      chain[i] = module();
    parameter(chain[DEPTH - 1], "w", 1);
    for (int k = 0; k < DEPTH - 1; k++) {
      int i = leaves_first ? DEPTH - 2 - k : k;
      GOOD(reshard_module_set_child(chain[i], "c", chain[i + 1]));
    }
    size_t longest = 0;
    GOOD(reshard_module_visit_modules(chain[0], count_module, &longest));
    assert_int_equal(longest, 2 * (DEPTH - 1) - 1);
    BAD(reshard_module_set_child(chain[DEPTH - 1], "up", chain[0]),
        "reshard_module_set_child: the child 'up' has the module inside it");
    reshard_module *roots = cli_alloc(DEPTH, sizeof *roots);
    int64_t n = -1;
    GOOD(reshard_module_roots(DEPTH, chain, &n, roots));
    assert_int_equal(n, 1);
    assert_ptr_equal(roots[0], chain[0]);
    GOOD(reshard_module_roots(DEPTH - 7, chain + 7, &n, roots));
    assert_int_equal(n, 1);
    assert_ptr_equal(roots[0], chain[7]);
    free(roots);
    for (int i = DEPTH - 1; i >= 0; i--)
      reshard_module_release(chain[i]);
  }
  free(chain);
}

CASE(wide_modules_are_found_in_time) {
  enum { WIDTH = 5000 };
  reshard_module m = module();
  char name[32];
  for (int i = 0; i < WIDTH; i++) {
    snprintf(name, sizeof name, "%d", i);
    parameter(child(m, name), "w", 1);
  }
  reshard_tensor t;
  GOOD(reshard_module_get_parameter(m, "4999.w", &t));
  reshard_module_release(m);
}

/* --- Roots ------------------------------------------------------------------------------------------------------ */

/* Tells whether b is below a. */
static bool below(bool edge[][24], int n, int a, int b) {
  for (int k = 0; k < n; k++)
    if (edge[a][k] && (k == b || below(edge, n, k, b)))
      return true;
  return false;
}

CASE(test_roots_random) {
  int64_t several = 0, shared = 0;
  for (int64_t seed = 0; seed < test_scaled(2000, 1); seed++) {
    rng random;
    rng_seed(&random, (uint64_t)seed);
    int n = 1 + (int)(rng_below(&random, 12)), listed = (int)rng_below(&random, 16);
    bool edge[24][24] = {{false}};
    reshard_module all[12], list[16], roots[16];
    int number[16];
    for (int i = 0; i < n; i++)
      all[i] = module();
    for (int a = 0; a < n; a++) /* children have higher numbers */
      for (int b = a + 1; b < n; b++)
        if (rng_below(&random, 5) == 0) {
          char name[8];
          snprintf(name, sizeof name, "m%d", b);
          GOOD(reshard_module_set_child(all[a], name, all[b]));
          edge[a][b] = true;
        }
    for (int i = 0; i < listed; i++)
      list[i] = all[number[i] = (int)rng_below(&random, n)];
    int64_t found = -1, expected = 0;
    GOOD(reshard_module_roots(listed, list, &found, roots));
    for (int i = 0; i < listed; i++) {
      bool inside = false;
      for (int j = 0; j < listed; j++)
        inside |= below(edge, n, number[j], number[i]);
      shared += inside;
      if (!inside) {
        assert_true(expected < found);
        assert_ptr_equal(roots[expected++], list[i]);
      }
    }
    if (found != expected)
      fail_msg("seed %lld: %lld roots, %lld are expected", (long long)seed, (long long)found, (long long)expected);
    several += found > 1;
    for (int i = 0; i < n; i++)
      reshard_module_release(all[i]);
  }
  assert_true(several > 100 * test_scale() && shared > 100 * test_scale());
}

CASE(test_roots_refused) {
  reshard_module m = module(), list[2] = {m, NULL}, roots[2] = {NULL, NULL};
  int64_t n = 7;
  BAD(reshard_module_roots(2, list, &n, roots), "reshard_module_roots: module 1 is NULL");
  BAD(reshard_module_roots(-1, list, &n, roots),
      "reshard_module_roots: -1 modules, modules given, nroots given, roots given");
  BAD(reshard_module_roots(1, NULL, &n, roots),
      "reshard_module_roots: 1 modules, modules NULL, nroots given, roots given");
  BAD(reshard_module_roots(1, list, NULL, roots),
      "reshard_module_roots: 1 modules, modules given, nroots NULL, roots given");
  BAD(reshard_module_roots(1, list, &n, NULL),
      "reshard_module_roots: 1 modules, modules given, nroots given, roots NULL");
  assert_int_equal(n, 7);
  assert_null(roots[0]);
  GOOD(reshard_module_roots(0, NULL, &n, NULL));
  assert_int_equal(n, 0);
  reshard_module_release(m);
}

RUN_CASES
