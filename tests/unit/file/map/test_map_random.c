/* Random maps and the maps back against naive arrays; the example maps on published models, and how long that takes. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "file/map/names.h"
#include "map_arrays.h"
#include "support/fixtures/scale.h"

#include <time.h>

static set source;

/* An expression is drawn from the result's shape downwards; the result's elements are put together upwards by naive
 * loops over arrays. So that a line with stars is the same for all its matches, each is drawn from one seed. */
typedef struct drawing {
  rng r;
  rng data;
  int layer;             /* -1: no stars; else what the star is */
  int64_t names;         /* so far in this expression */
  int64_t line;          /* number in names */
  rs_text *right, *left; /* the same expression as it stands on either side */
} drawing;

static void both(drawing *d, const char *text) {
  rs_text_add(d->right, "%s", text);
  rs_text_add(d->left, "%s", text);
}

/* A new tensor of the source; the text of its name has stars. index: of a spread name, -1 else. */
static array draw_leaf(drawing *d, int ndim, const int64_t *shape, int64_t name, int64_t index) {
  static const char *const forms[] = {"m%lld.%s.w%lld%s", "\"m %lld:\".%s.w%lld%s", "%lld-%s_\"*\"%lld%s",
                                      "block.%lld.%s.x.%lld%s.weight"};
  static const char *const plain[] = {"m%lld.%s.w%lld%s", "m %lld:.%s.w%lld%s", "%lld-%s_*%lld%s",
                                      "block.%lld.%s.x.%lld%s.weight"};
  char star[16] = "s", last[24] = "", text[NAME];
  assert_true(source.n < TENSORS);
  array *a = &source.at[source.n++];
  *a = make_array(ndim, shape);
  for (int64_t i = 0; i < a->n; i++)
    a->data[i] = (int32_t)rng_below(&d->data, 1 << 30);
  if (d->layer >= 0)
    snprintf(star, sizeof star, "%d", d->layer);
  if (index >= 0)
    snprintf(last, sizeof last, "e%lld", (long long)index);
  snprintf(a->name, NAME, plain[name % 4], (long long)d->line, star, (long long)name, last);
  snprintf(text, NAME, forms[name % 4], (long long)d->line, d->layer >= 0 ? "*" : "s", (long long)name,
           index >= 0 ? "e*" : "");
  if (index <= 0)
    both(d, text);
  array copy = make_array(ndim, shape);
  memcpy(copy.data, a->data, (size_t)a->n * sizeof *a->data);
  return copy;
}

/* Puts a part into the result at an offset along a dim; with stack the part lacks that dim. Of several groups each gets
 * its piece. Frees the part. */
static void array_put(array *result, array *part, bool stack, int dim, int64_t offset, int64_t groups) {
  int64_t i[RESHARD_MAX_DIMS] = {0}, to[RESHARD_MAX_DIMS];
  for (int64_t at = 0; at < part->n; at++) {
    for (int d = 0; d < part->ndim; d++)
      to[d + (stack && d >= dim)] = i[d];
    int64_t piece = stack ? 1 : part->shape[dim] / groups;
    to[dim] = stack ? offset : to[dim] / piece * (result->shape[dim] / groups) + offset / groups + to[dim] % piece;
    result->data[flat(result, to)] = part->data[at];
    next(part->ndim, part->shape, i);
  }
  free(part->data);
}

static array array_draw(drawing *d, int ndim, const int64_t *shape, int depth);

static array draw_transpose(drawing *d, int ndim, const int64_t *shape, int depth) {
  int from[RESHARD_MAX_DIMS];
  int64_t inner[RESHARD_MAX_DIMS] = {0}, i[RESHARD_MAX_DIMS] = {0}, at[RESHARD_MAX_DIMS] = {0};
  bool plain = rng_one_in(&d->r, 2);
  for (int k = 0; k < ndim; k++)
    from[k] = plain && k >= ndim - 2 ? 2 * ndim - 3 - k : k;
  for (int k = 0; k < ndim && !plain; k++) {
    int j = (int)rng_in(&d->r, k, ndim - 1), swap = from[k];
    from[k] = from[j];
    from[j] = swap;
  }
  both(d, "transpose(");
  for (int k = 0; k < ndim; k++) {
    inner[from[k]] = shape[k];
    char text[16];
    snprintf(text, sizeof text, "%d%s", rng_one_in(&d->r, 3) ? from[k] - ndim : from[k], k < ndim - 1 ? "," : "; ");
    if (!plain)
      both(d, text);
  }
  array part = array_draw(d, ndim, inner, depth), result = make_array(ndim, shape);
  both(d, ")");
  for (int64_t n = 0; n < result.n; n++) {
    for (int k = 0; k < ndim; k++)
      at[from[k]] = i[k];
    result.data[n] = part.data[flat(&part, at)];
    next(ndim, shape, i);
  }
  free(part.data);
  return result;
}

/* concat, interleave or stack; with a name for all parts now and then. */
static array draw_parts(drawing *d, int ndim, const int64_t *shape, int depth) {
  int dim = (int)rng_below(&d->r, ndim);
  int64_t extent = shape[dim], count = 0, size[8], left = extent, share, groups = 1;
  bool stack = extent >= 1 && extent <= 6 && rng_one_in(&d->r, 2), spread = rng_one_in(&d->r, 4), sized = true;
  char text[48];
  if (!stack && !spread && rng_one_in(&d->r, 2))
    groups = rng_in(&d->r, 1, 3);
  bool grouped = groups > 1 && extent % groups == 0;
  groups = grouped ? groups : 1;
  snprintf(text, sizeof text, stack && dim == 0 && rng_one_in(&d->r, 2) ? "stack(" : "%s(%d",
           stack     ? "stack"
           : grouped ? "interleave"
                     : "concat",
           rng_one_in(&d->r, 3) ? dim - ndim : dim);
  both(d, text);
  snprintf(text, sizeof text, ",%lld", (long long)groups);
  both(d, grouped ? text : "");
  both(d, strchr(d->right->at + d->right->length - 1, '(') != NULL ? "" : "; ");
  share = rng_in(&d->r, 1, 3);
  spread = spread && (stack || (extent % share == 0 && extent / share >= 1 && extent / share <= 8));
  for (; count == 0 || left > 0; left -= size[count++])
    size[count] = stack ? 1 : spread ? share : count == 5 ? left : rng_in(&d->r, 0, left / groups) * groups;
  if (!stack && !spread) { /* equal parts need no size, nor does one of them */
    bool equal = true;
    for (int64_t i = 1; i < count; i++)
      equal = equal && size[i] == size[0];
    sized = !equal || rng_one_in(&d->r, 2);
  }
  int64_t unsized = rng_below(&d->r, 2 * count), offset = 0, name = d->names++, inner[RESHARD_MAX_DIMS];
  array result = make_array(ndim, shape);
  for (int64_t i = 0; i < count; offset += size[i++]) {
    int n = 0;
    for (int k = 0; k < ndim; k++)
      if (k != dim)
        inner[n++] = shape[k];
      else if (!stack)
        inner[n++] = size[i];
    if (i > 0 && !spread)
      both(d, rng_one_in(&d->r, 5) ? "\n ," : ", ");
    array part = spread ? draw_leaf(d, n, inner, name, i) : array_draw(d, n, inner, depth);
    if (!stack && (spread ? i == 0 : sized && i != unsized))
      rs_text_add(d->left, ":%lld", (long long)size[i]);
    array_put(&result, &part, stack, dim, offset, groups);
  }
  both(d, ")");
  return result;
}

static array array_draw(drawing *d, int ndim, const int64_t *shape, int depth) {
  int64_t kind = depth == 0 || ndim == 0 ? 0 : rng_below(&d->r, 4);
  if (kind == 0)
    return draw_leaf(d, ndim, shape, d->names++, -1);
  if (kind == 1 && ndim >= 2)
    return draw_transpose(d, ndim, shape, depth - 1);
  return draw_parts(d, ndim, shape, depth - 1);
}

static void same_set(set *a, set *b, uint64_t seed) {
  if (a->n != b->n)
    fail_msg("seed %llu: %lld and %lld tensors", (unsigned long long)seed, (long long)a->n, (long long)b->n);
  for (int64_t i = 0; i < a->n; i++) {
    const array *x = &a->at[i], *y = find(b, x->name);
    if (y == NULL || x->dtype != y->dtype || x->ndim != y->ndim || memcmp(x->shape, y->shape, sizeof x->shape) != 0 ||
        memcmp(x->data, y->data, (size_t)x->n * sizeof *x->data) != 0)
      fail_msg("seed %llu: '%s' is %s", (unsigned long long)seed, x->name, y == NULL ? "missing" : "another");
  }
}

static void random_map(uint64_t seed) {
  static char there_text[TEXT], back_text[TEXT], right[TEXT], left[TEXT];
  static set wanted, made, again;
  rs_text there = {.at = there_text, .size = TEXT}, back = {.at = back_text, .size = TEXT};
  rng r, data;
  rng_seed(&r, seed);
  rng_seed(&data, seed + 1);
  there_text[0] = back_text[0] = '\0';
  for (int64_t line = 0, lines = rng_in(&r, 1, 3); line < lines; line++) {
    int ndim = (int)rng_in(&r, 0, 4);
    int64_t shape[RESHARD_MAX_DIMS];
    for (int k = 0; k < ndim; k++)
      shape[k] = rng_one_in(&r, 12) ? 0 : rng_in(&r, 1, 6);
    bool stars = rng_one_in(&r, 2);
    uint64_t expression = rng_next(&r);
    for (int layer = 0; layer < (stars ? 3 : 1); layer++) {
      rs_text right_text = {.at = right, .size = TEXT}, left_text = {.at = left, .size = TEXT};
      right[0] = left[0] = '\0';
      drawing d = {.data = data, .layer = stars ? layer : -1, .line = line, .right = &right_text, .left = &left_text};
      rng_seed(&d.r, expression);
      array result = array_draw(&d, ndim, shape, 4);
      data = d.data;
      snprintf(result.name, NAME, stars ? "t.%lld.%d" : "t%lld", (long long)line, layer);
      wanted.at[wanted.n++] = result;
    }
    char name[NAME];
    snprintf(name, NAME, stars ? "t.%lld.*" : "t%lld", (long long)line);
    rs_text_add(&there, "%s = %s\n", name, right);
    rs_text_add(&back, "%s = %s # line\n", left, name);
  }
  assert_true(there.length < TEXT && back.length < TEXT);
  for (int64_t i = source.n - 1; i > 0; i--) { /* names come in any order */
    int64_t j = rng_below(&r, i + 1);
    array swap = source.at[i];
    source.at[i] = source.at[j];
    source.at[j] = swap;
  }
  reshard_map to = NULL, from = NULL;
  if (reshard_map_parse(there_text, "there", &to) != RESHARD_SUCCESS ||
      reshard_map_parse(back_text, "back", &from) != RESHARD_SUCCESS || apply(to, &source, &made) != RESHARD_SUCCESS ||
      apply(from, &made, &again) != RESHARD_SUCCESS)
    fail_msg("seed %llu: %s\n%s\n%s", (unsigned long long)seed, reshard_last_error(), there_text, back_text);
  same_set(&wanted, &made, seed);
  same_set(&source, &again, seed);
  reshard_map_free(to);
  reshard_map_free(from);
  clear(&wanted);
  clear(&made);
  clear(&again);
  clear(&source);
}

CASE(random_maps_and_back_match_naive_arrays) {
  int64_t cases = test_scaled(2000, 1);
  for (int64_t i = 0; i < cases; i++)
    random_map((uint64_t)i);
}

/* --- Published models -------------------------------------------------------------------------------------------- */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* others may run meanwhile */
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static reshard_map example(const char *name) {
  char path[4096];
  reshard_map map;
  snprintf(path, sizeof path, "%s/bench/models/maps/%s", getenv("SOURCE"), name);
  if (reshard_map_load(path, &map) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return map;
}

static reshard_model through(const char *name, reshard_model from) {
  reshard_map map = example(name);
  reshard_model to;
  if (reshard_map_model(map, from, &to) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  reshard_map_free(map);
  return to;
}

static void model_has(reshard_model model, const char *name, int ndim, int64_t n0, int64_t n1, int64_t n2) {
  for (int64_t i = 0; i < reshard_model_count(model); i++) {
    reshard_model_tensor t;
    assert_int_equal(reshard_model_get(model, i, &t), RESHARD_SUCCESS);
    if (strcmp(t.name, name) != 0)
      continue;
    assert_int_equal(t.ndim, ndim);
    assert_int_equal(t.shape[0], n0);
    assert_int_equal(t.shape[1], n1);
    assert_true(ndim < 3 || t.shape[2] == n2);
    return;
  }
  fail_msg("no %s", name);
}

/* The same tensors in any order. */
static void same_model(reshard_model a, reshard_model b) {
  rs_sorted_name *x, *y;
  assert_int_equal(reshard_model_count(a), reshard_model_count(b));
  assert_int_equal(rs_map_sort(a, &x), RESHARD_SUCCESS);
  assert_int_equal(rs_map_sort(b, &y), RESHARD_SUCCESS);
  for (int64_t i = 0; i < reshard_model_count(a); i++) {
    const rs_model_tensor *s = &a->tensors.at[x[i].tensor], *t = &b->tensors.at[y[i].tensor];
    assert_string_equal(x[i].name, y[i].name);
    assert_true(s->dtype == t->dtype && s->ndim == t->ndim && memcmp(s->shape, t->shape, sizeof s->shape) == 0);
  }
  free(x);
  free(y);
}

static void there_and_back(const char *preset, const char *there, const char *back, int64_t count, const char *name,
                           int ndim, int64_t n0, int64_t n1, int64_t n2) {
  reshard_model model;
  assert_int_equal(reshard_model_preset(preset, &model), RESHARD_SUCCESS);
  reshard_model fused = through(there, model), again = through(back, fused);
  assert_int_equal(reshard_model_count(fused), count);
  assert_int_equal(reshard_model_bytes(fused), reshard_model_bytes(model));
  model_has(fused, name, ndim, n0, n1, n2);
  same_model(model, again);
  reshard_model_free(again);
  reshard_model_free(fused);
  reshard_model_free(model);
}

CASE(example_maps_go_there_and_back_on_published_models) {
  if (getenv("SOURCE") == NULL) {
    print_message("skipped: SOURCE is not set\n");
    return;
  }
  there_and_back("llama-3.1-8b", "llama-fuse.map", "llama-3.1-8b-split.map", 291 - 32 * 3,
                 "model.layers.31.self_attn.qkv_proj.weight", 2, 6144, 4096, 0);
  there_and_back("qwen3-30b-a3b", "moe-stack.map", "moe-unstack.map", 18867 - 48 * (3 * 128 - 2),
                 "model.layers.47.mlp.experts.gate_up_proj", 3, 128, 1536, 2048);
}

/* Ten starred lines on 18,867 tensors take milliseconds; what grows with lines times tensors, or with their square,
 * takes longer than this. */
CASE(starred_lines_on_many_tensors_take_milliseconds) {
  static const char text[] = "l.*.qkv = concat(0; model.layers.*.self_attn.q_proj.weight,\n"
                             "  model.layers.*.self_attn.k_proj.weight, model.layers.*.self_attn.v_proj.weight)\n"
                             "l.*.gate = stack(model.layers.*.mlp.experts.*.gate_proj.weight)\n"
                             "l.*.up = stack(model.layers.*.mlp.experts.*.up_proj.weight)\n"
                             "l.*.down.*.w = transpose(model.layers.*.mlp.experts.*.down_proj.weight)\n"
                             "l.*.o = model.layers.*.self_attn.o_proj.weight\n"
                             "l.*.router = model.layers.*.mlp.gate.weight\n"
                             "l.*.n.* = model.layers.*.self_attn.*_norm.weight\n"
                             "l.*.n1 = model.layers.*.input_layernorm.weight\n"
                             "l.*.n2 = model.layers.*.post_attention_layernorm.weight\n"
                             "* = *\n";
  reshard_model model, to;
  reshard_map map;
  assert_int_equal(reshard_map_parse(text, NULL, &map), RESHARD_SUCCESS);
  assert_int_equal(reshard_model_preset("qwen3-30b-a3b", &model), RESHARD_SUCCESS);
  double best = 1e9;
  for (int i = 0; i < 3; i++) {
    double begin = seconds();
    if (reshard_map_model(map, model, &to) != RESHARD_SUCCESS)
      fail_msg("%s", reshard_last_error());
    double took = seconds() - begin;
    best = took < best ? took : best;
    assert_int_equal(reshard_model_bytes(to), reshard_model_bytes(model));
    reshard_model_free(to);
  }
  print_message("18,867 tensors, 10 lines: %.1f ms\n", best * 1e3);
  if (test_scale() >= 1) /* under a sanitizer time tells nothing */
    assert_true(best < 1);
  reshard_model_free(model);
  reshard_map_free(map);
}

RUN_CASES
