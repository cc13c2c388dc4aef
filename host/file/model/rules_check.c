/* Rules beside a whole model: scales of blocks are cut with their blocks, and what each rule takes. */
#include "base/text.h"
#include "file/model/layouts.h"
#include "file/model/model.h"
#include "file/model/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Blocks ------------------------------------------------------------------------------------------------------ */

/* NAME and its scales. */
typedef struct block_pair {
  const rs_rule_blocks *blocks;
  reshard_model_tensor of, scales;
  reshard_layout layout[2]; /* of both; owned by the cache */
} block_pair;

typedef struct block_check {
  reshard_rules rules;
  reshard_model model;
  rs_layouts layouts;
  rs_names names;
  RS_VEC(block_pair) seen; /* that agree, of distinct layouts and blocks */
} block_check;

/* Extent of a block in a dim: of the last dims as written, 1 in those before. */
static int64_t block_extent(const block_pair *p, int dim) {
  int at = dim - (p->of.ndim - p->blocks->ndim);
  return at >= 0 ? p->blocks->extent[at] : 1;
}

static reshard_status check_scales_shape(const block_pair *p) {
  char a[RS_SHAPE_TEXT], b[RS_SHAPE_TEXT], c[RS_QUOTE], d[RS_QUOTE];
  bool fits = p->of.ndim >= p->blocks->ndim && p->scales.ndim == p->of.ndim;
  for (int i = 0; i < p->of.ndim && fits; i++)
    fits = p->scales.shape[i] == rs_ceil_div(p->of.shape[i], block_extent(p, i));
  return fits
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INVALID,
                        "tensor '%s' of shape %s has not one scale for each block of %s of '%s' of %s",
                        rs_quote(c, sizeof c, p->scales.name), rs_shape_text(a, p->scales.ndim, p->scales.shape),
                        p->blocks->shown, rs_quote(d, sizeof d, p->of.name), rs_shape_text(b, p->of.ndim, p->of.shape));
}

/* "rows" where the dim is the last but one. */
static const char *indices_text(char text[32], const block_pair *p, int dim) {
  if (dim >= p->of.ndim - 2)
    return dim == p->of.ndim - 1 && p->of.ndim > 1 ? "columns" : "rows";
  snprintf(text, 32, "indices of dim %d", dim);
  return text;
}

/* One run of indices of each: a rank's scales must be those of its blocks, by their local numbers. */
static reshard_status check_run(const block_pair *p, int64_t rank, int dim, reshard_interval run,
                                const reshard_interval *scales) {
  char c[RS_QUOTE], d[RS_QUOTE], e[32];
  int64_t n = block_extent(p, dim);
  if (run.begin % n != 0 || (run.end % n != 0 && run.end != p->of.shape[dim]))
    return rs_error(RESHARD_ERROR_INVALID,
                    "tensor '%s': rank %lld has %s [%lld,%lld), which cut a block of %lld (%s, scales in '%s')",
                    rs_quote(c, sizeof c, p->of.name), (long long)rank, indices_text(e, p, dim), (long long)run.begin,
                    (long long)run.end, (long long)n, p->blocks->shown, rs_quote(d, sizeof d, p->scales.name));
  if (scales == NULL || scales->begin != run.begin / n || scales->end != rs_ceil_div(run.end, n))
    return rs_error(
        RESHARD_ERROR_INVALID,
        "tensor '%s': rank %lld has %s [%lld,%lld), and not the scales of their blocks of %lld (%s) in '%s'",
        rs_quote(c, sizeof c, p->of.name), (long long)rank, indices_text(e, p, dim), (long long)run.begin,
        (long long)run.end, (long long)n, p->blocks->shown, rs_quote(d, sizeof d, p->scales.name));
  return RESHARD_SUCCESS;
}

static reshard_status check_array_dim(const block_pair *p, int64_t rank, int64_t array, bool scaled, int dim) {
  enum { RUNS = 64 };
  reshard_interval runs[2][RUNS];
  for (int64_t first = 0, count = 1; first < count; first += RUNS) {
    int64_t other = 0;
    RS_TRY(reshard_layout_array_intervals(p->layout[0], rank, array, dim, first, RUNS, runs[0], &count));
    if (scaled)
      RS_TRY(reshard_layout_array_intervals(p->layout[1], rank, array, dim, first, RUNS, runs[1], &other));
    for (int64_t i = 0; i < rs_min(RUNS, count - first); i++)
      RS_TRY(check_run(p, rank, dim, runs[0][i], first + i < other ? &runs[1][i] : NULL));
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_rank(const block_pair *p, int64_t rank) {
  int64_t arrays, others;
  RS_TRY(reshard_layout_array_count(p->layout[0], rank, &arrays));
  RS_TRY(reshard_layout_array_count(p->layout[1], rank, &others));
  for (int64_t array = 0; array < arrays; array++) {
    reshard_array_info info;
    RS_TRY(reshard_layout_array(p->layout[0], rank, array, &info));
    for (int dim = 0; dim < p->of.ndim && info.elements > 0; dim++)
      RS_TRY(check_array_dim(p, rank, array, array < others, dim));
  }
  return RESHARD_SUCCESS;
}

static bool pair_was_seen(const block_check *c, const block_pair *p) {
  for (int64_t i = 0; i < c->seen.n; i++) {
    const block_pair *s = &c->seen.at[i];
    if (s->layout[0] == p->layout[0] && s->layout[1] == p->layout[1] && s->blocks == p->blocks)
      return true;
  }
  return false;
}

/* Layouts are shared by the cache, which keeps them: pairs that are cut alike are looked at once. */
static reshard_status check_pair(block_check *c, block_pair *p, int64_t world) {
  if (p->scales.ndim == 0) /* one scale for all of it: each rank has it */
    return RESHARD_SUCCESS;
  reshard_status status = check_scales_shape(p);
  if (status != RESHARD_SUCCESS)
    return rs_rules_error(c->rules, p->blocks->line, status);
  const reshard_model_tensor *both[2] = {&p->of, &p->scales};
  for (int i = 0; i < 2; i++) {
    RS_TRY(rs_layouts_get(&c->layouts, both[i]->name, both[i]->ndim, both[i]->shape, world, &p->layout[i]));
    reshard_layout_release(p->layout[i]);
  }
  if (pair_was_seen(c, p))
    return RESHARD_SUCCESS;
  for (int64_t rank = 0; rank < reshard_layout_world(p->layout[0]); rank++) {
    status = check_rank(p, rank);
    if (status != RESHARD_SUCCESS)
      return rs_rules_error(c->rules, p->blocks->line, status);
  }
  return rs_vec_push(&c->seen, *p);
}

static reshard_status check_blocks(block_check *c, int64_t world) {
  int64_t n = reshard_model_count(c->model), number;
  reshard_model_tensor t;
  RS_TRY(rs_names_reserve(&c->names, n));
  for (int64_t i = 0; i < n; i++) {
    RS_TRY(reshard_model_get(c->model, i, &t));
    RS_TRY(rs_names_put(&c->names, t.name, strlen(t.name), &number));
  }
  for (int64_t i = 0; i < n; i++) {
    block_pair p = {0};
    RS_TRY(reshard_model_get(c->model, i, &p.scales));
    p.blocks = rs_rules_blocks(c->rules, p.scales.name);
    number = p.blocks == NULL
                 ? -1
                 : rs_names_find(&c->names, p.scales.name, strlen(p.scales.name) - p.blocks->suffix_length);
    if (number < 0)
      continue;
    RS_TRY(reshard_model_get(c->model, number, &p.of));
    RS_TRY(check_pair(c, &p, world));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_rules_check(reshard_rules rules, reshard_model model, int64_t world) {
  RS_TRY(RS_GIVEN("reshard_rules_check", rules, model));
  if (world < 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_check: a world of %lld ranks", (long long)world);
  if (rules->blocks.n == 0)
    return RESHARD_SUCCESS;
  block_check c = {.rules = rules, .model = model, .layouts = {.rules = rules}};
  reshard_status status = check_blocks(&c, world);
  rs_layout_cache_free(&c.layouts.cache);
  rs_names_free(&c.names);
  free(c.seen.at);
  return status;
}

/* --- Use --------------------------------------------------------------------------------------------------------- */

static void count_use(reshard_rule_use *use, const reshard_model_tensor *t) {
  int64_t bytes = 0;
  rs_tensor_bytes(t->ndim, t->shape, reshard_dtype_size(t->dtype), &bytes); /* a model's fit */
  if (use->tensors++ == 0 || bytes > use->largest_bytes) {
    use->largest = t->name;
    use->largest_bytes = bytes;
  }
  use->bytes += bytes;
}

/* Lines of rules and of blocks, each ascending. */
static void list_lines(const struct reshard_rules_s *rules, reshard_rule_use *uses) {
  int64_t r = 0, b = 0;
  for (int64_t i = 0; i < rules->rules.n + rules->blocks.n; i++) {
    const rs_rule *rule = r < rules->rules.n ? &rules->rules.at[r] : NULL;
    const rs_rule_blocks *blocks = b < rules->blocks.n ? &rules->blocks.at[b] : NULL;
    if (blocks == NULL || (rule != NULL && rule->line < blocks->line)) {
      uses[i] = (reshard_rule_use){rules->name, rule->line, rule->pattern, rule->layout, 0, 0,
                                   NULL,        0,          rule->dtype,   rule->blocks};
      r++;
    } else {
      uses[i] =
          (reshard_rule_use){.file = rules->name, .line = blocks->line, .pattern = "blocks", .layout = blocks->suffix};
      b++;
    }
  }
}

reshard_status reshard_rules_use(reshard_rules rules, reshard_model model, reshard_rule_visitor visit, void *user) {
  RS_TRY(RS_GIVEN("reshard_rules_use", rules, model));
  if (visit == NULL)
    return rs_error_null("reshard_rules_use", "visit");
  reshard_rule_use *uses;
  int64_t n = rules->rules.n + rules->blocks.n;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&uses, n, sizeof *uses));
  list_lines(rules, uses);
  for (int64_t t = 0; t < reshard_model_count(model) && status == RESHARD_SUCCESS; t++) {
    reshard_model_tensor tensor;
    int64_t line = 0, low = 0, high = n;
    RS_THEN(status, reshard_model_get(model, t, &tensor));
    RS_THEN(status, reshard_rules_match(rules, tensor.name, NULL, &line));
    if (status != RESHARD_SUCCESS)
      break;
    const rs_rule_blocks *blocks = rs_rules_blocks(rules, tensor.name);
    line = blocks != NULL ? blocks->line : line;
    RS_LOWER_BOUND(low, high, uses[i].line < line);
    count_use(&uses[low], &tensor);
  }
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    if (visit(user, &uses[i]) != 0)
      break;
  free(uses);
  return status;
}
