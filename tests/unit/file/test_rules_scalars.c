/* Tensors without dims, and with few, under a layout that is given for many: by kind, and by every shipped rule. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <reshard/file.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The layout that rules of one line give a tensor; NULL: refused. */
static reshard_layout rule_layout(const char *text, int ndim, const int64_t *shape, int64_t world) {
  char line[512];
  reshard_rules rules;
  reshard_layout layout = NULL;
  snprintf(line, sizeof line, "# first\n*  %s\n", text);
  if (reshard_rules_parse(line, "x.rules", &rules) != RESHARD_SUCCESS)
    fail_msg("'%s': %s", text, reshard_last_error());
  if (reshard_rules_layout(rules, "a.step", ndim, shape, world, &layout) != RESHARD_SUCCESS)
    layout = NULL;
  reshard_rules_free(rules);
  return layout;
}

static void same_layout(const char *text, reshard_layout got, reshard_layout wanted) {
  char a[512] = "refused", b[512] = "refused";
  if (got != NULL)
    CLI_TRY("", reshard_layout_print(got, a, sizeof a, NULL));
  if (wanted != NULL)
    CLI_TRY("", reshard_layout_print(wanted, b, sizeof b, NULL));
  if (!reshard_layout_equal(got, wanted) || strcmp(a, b) != 0)
    fail_msg("'%s': %s, expected %s", text, a, b);
  reshard_layout_release(got);
  reshard_layout_release(wanted);
}

/* A layout that cuts, with the ranks that it names. */
typedef struct cutting {
  char text[256];
  int64_t world, n, ranks[64];
} cutting;

static void name_ranks(rng *r, cutting *c, bool always, const char *mark, rs_text *text) {
  bool down = rng_one_in(r, 2);
  int64_t first = always || rng_one_in(r, 2) ? rng_in(r, 0, 3) : -1;
  for (int64_t i = 0; i < c->n; i++)
    c->ranks[i] = first < 0 ? i : down ? first + c->n - 1 - i : first + i;
  if (first >= 0)
    rs_text_add(text, "%s%lld-%lld", mark, (long long)c->ranks[0], (long long)c->ranks[c->n - 1]);
  c->world = c->n + rs_max(first, 0) + rng_in(r, 0, 2);
}

static void random_cutting(rng *r, cutting *c) {
  rs_text text = {.at = c->text, .size = sizeof c->text};
  int kind = (int)rng_below(r, 4), dims = (int)rng_in(r, 1, 3), shard = (int)rng_below(r, dims);
  *c = (cutting){.n = 1};
  if (kind == 0) { /* all of the world where it names none */
    c->n = rng_in(r, 1, 9);
    rs_text_add(&text, "chunk(%lld", (long long)rng_in(r, -3, 3));
    name_ranks(r, c, false, ";", &text);
    if (strchr(c->text, ';') == NULL)
      c->world = c->n;
    rs_text_add(&text, ")");
    return;
  }
  int64_t extents[3], open = kind == 1 ? rng_in(r, -1, dims - 1) : -1;
  for (int d = 0; d < dims; d++)
    c->n *= extents[d] = rng_in(r, 1, 3);
  rs_text_add(&text, kind == 3 ? "cyclic(" : "mesh(");
  for (int d = 0; d < dims; d++) {
    rs_text_add(&text, kind == 1 ? "%sd%d" : "%s", d == 0 ? "" : kind == 1 ? "," : "x", d);
    if (d != open)
      rs_text_add(&text, kind == 1 ? "=%lld" : "%lld", (long long)extents[d]);
  }
  name_ranks(r, c, false, "@", &text);
  if (open >= 0 && strchr(c->text, '@') == NULL)
    c->world = c->n;
  rs_text_add(&text, ";");
  for (int d = 0; d < dims; d++) {
    rs_text_add(&text, d > 0 ? kind == 3 ? "x" : "," : "");
    if (kind == 3)
      rs_text_add(&text, "%lld", (long long)rng_in(r, 1, 5));
    else if (d != shard && rng_one_in(r, 2))
      rs_text_add(&text, "R");
    else
      rs_text_add(&text, rng_one_in(r, 3) ? "S%lld*2" : "S%lld", (long long)rng_in(r, -2, 2));
  }
  for (int d = dims - 1; kind == 1 && d >= 0; d--)
    rs_text_add(&text, d == dims - 1 ? ";order=d%d" : ",d%d", d);
  rs_text_add(&text, ")");
}

CASE(tensors_without_the_cut_dim_are_whole_on_each_rank) {
  const reshard_placement replicate = {.kind = RESHARD_PLACEMENT_REPLICATE};
  rng r;
  rng_seed(&r, 39);
  for (int64_t i = test_scaled(2000, 200); i > 0; i--) {
    cutting c;
    reshard_layout wanted, strict;
    random_cutting(&r, &c);
    CLI_TRY("", reshard_layout_create_mesh(0, NULL, c.world, 1, &c.n, NULL, &replicate, NULL, c.ranks, &wanted));
    same_layout(c.text, rule_layout(c.text, 0, NULL, c.world), wanted);
    if (reshard_layout_parse(c.text, 0, NULL, c.world, &strict) == RESHARD_SUCCESS)
      fail_msg("'%s': reshard_layout_parse takes it for a tensor without dims", c.text);
  }
}

/* Layouts that do not cut are what they were, and so are tensors that have dims. */
CASE(layouts_that_do_not_cut_stay_as_they_were) {
  static const char *const whole[] = {"flat()",        "flat(2-1)",       "rank(2)",   "rank(3/7)",
                                      "mesh(2x2;R,R)", "mesh(a=3@1-3;R)", "mesh(a;R)", "boxes(1:[]+[])"};
  static const char *const some[] = {"chunk(1)", "mesh(2x2;S0,S-1)", "cyclic(2x2;3x3)", "flat()", "mesh(4;R)"};
  const int64_t shape[2] = {7, 10};
  reshard_layout strict;
  for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
    CLI_TRY("", reshard_layout_parse(whole[i], 0, NULL, 4, &strict));
    same_layout(whole[i], rule_layout(whole[i], 0, NULL, 4), strict);
  }
  for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
    CLI_TRY("", reshard_layout_parse(some[i], 2, shape, 4, &strict));
    same_layout(some[i], rule_layout(some[i], 2, shape, 4), strict);
  }
}

/* A layout that fits no tensor, or not this one, is an error with the line of its rule. */
CASE(layout_that_fits_no_tensor_names_its_line) {
  static const struct {
    const char *text;
    int ndim;
    const char *error;
  } cases[] = {
      {"boxes(0:[0]+[4];1:[4]+[4])", 0, "1 numbers, the tensor has 0 dims"},
      {"chunk(8)", 0, "dim 8 of a tensor of at most 8 dims"},
      {"mesh(2x3;S0,R)", 0, "6"}, /* ranks, in a world of 4 */
      {"chunk(0;0-5)", 0, "rank"},
      {"chunk(1)", 1, "dim 1 of a tensor of 1 dims"},
      {"chunk(-2)", 1, "dim -2 of a tensor of 1 dims"},
      {"mesh(2x2;S0,S2)", 2, "dim 2 of a tensor of 2 dims"},
      {"mesh(4;S1*2)", 1, "dim 1 of a tensor of 1 dims"},
      {"cyclic(2x2;1x1)", 1, "2 grid dims, the tensor has 1 dims"},
  };
  const int64_t shape[2] = {8, 8};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char line[256];
    reshard_rules rules;
    reshard_layout layout = NULL;
    snprintf(line, sizeof line, "# first\n*  %s\n", cases[i].text);
    reshard_status status = reshard_rules_parse(line, "x.rules", &rules);
    if (status == RESHARD_SUCCESS) {
      status = reshard_rules_layout(rules, "a.step", cases[i].ndim, shape, 4, &layout);
      reshard_rules_free(rules);
    }
    const char *error = reshard_last_error();
    if (status != RESHARD_ERROR_INVALID || strncmp(error, "x.rules:2:4: ", 13) != 0 ||
        strstr(error, cases[i].error) == NULL)
      fail_msg("'%s' on %d dims: status %d: %s", cases[i].text, cases[i].ndim, status, error);
  }
}

/* A name that a pattern matches. */
static void name_of_pattern(const char *pattern, char *name) {
  for (; *pattern != '\0'; pattern++) {
    *name++ = *pattern == '*' ? 'x' : *pattern == '[' ? pattern[1] : *pattern;
    if (*pattern == '[')
      pattern = strchr(pattern, ']');
  }
  *name = '\0';
}

static bool ranks_of_line(const char *line, int64_t *first, int64_t *last) {
  const char *at = strchr(line, '@');
  return at != NULL && sscanf(at, "@%" SCNd64 "-%" SCNd64, first, last) == 2;
}

/* Ranks that hold a tensor without dims: all that the line has, or the replicas of an expert's place. */
static int64_t holders_of_line(const char *line, int64_t world) {
  int64_t first, last, replicas;
  const char *mesh = strstr(line, "mesh(");
  if (strstr(line, "rank(") != NULL || strstr(line, "flat(") != NULL)
    return 1;
  if (strstr(line, "experts.#") != NULL && mesh != NULL && sscanf(mesh, "mesh(%" SCNd64 "x", &replicas) == 1)
    return replicas;
  return ranks_of_line(line, &first, &last) ? last + 1 - first : world;
}

/* Each line of a file, in a world or, where it names its ranks (@FIRST-LAST), in the least that has them: whole
 * on one rank, flat, refused, or whole on all ranks that the line has. */
static int64_t check_file(const char *path, int64_t world) {
  char line[512], pattern[256], name[256];
  int64_t lines = 0, first, last;
  reshard_rules rules;
  CLI_TRY("", reshard_rules_load(path, &rules));
  static const char *const sizes[][2] = {
      {"hsdp", "replica"}, {"fsdp-tp", "fsdp"}, {"qwen3-30b-", "ep"}, {"qwen3-235b-", "ep"}, {"deepseek-v3-", "ep"}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (strstr(path, sizes[i][0]) != NULL)
      CLI_TRY("", reshard_rules_set_size(rules, sizes[i][1], 2, NULL));
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL)
    if (line[0] != '#' && ranks_of_line(line, &first, &last))
      world = rs_max(world, last + 1);
  rewind(file);
  while (fgets(line, sizeof line, file) != NULL) {
    reshard_layout layout = NULL;
    if (line[0] == '#' || sscanf(line, "%255s", pattern) != 1 || strcmp(pattern, "blocks") == 0)
      continue;
    name_of_pattern(pattern, name);
    bool refuses = strstr(line, "refuse(") != NULL;
    reshard_status status = reshard_rules_layout(rules, name, 0, NULL, world, &layout);
    if (status != (refuses ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS))
      fail_msg("%s: '%s' on %lld ranks: status %d: %s", path, name, (long long)world, status, reshard_last_error());
    int64_t holders = 0, count;
    for (int64_t rank = 0; rank < world && !refuses; rank++) {
      reshard_array_info info = {0};
      CLI_TRY("", reshard_layout_array_count(layout, rank, &count));
      if (count > 0)
        CLI_TRY("", reshard_layout_array(layout, rank, 0, &info));
      holders += info.elements;
    }
    if (!refuses && holders != holders_of_line(line, world))
      fail_msg("%s: '%s' is on %lld of %lld ranks", path, name, (long long)holders,
               (long long)holders_of_line(line, world));
    reshard_layout_release(layout);
    lines++;
  }
  fclose(file);
  reshard_rules_free(rules);
  return lines;
}

CASE(every_shipped_rule_takes_scalars) {
  char folder[4096], path[4400];
  int64_t files = 0;
  snprintf(folder, sizeof folder, "%s/bench/models/rules", getenv("SOURCE") ? getenv("SOURCE") : ".");
  DIR *dir = opendir(folder);
  assert_non_null(dir);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (!rs_ends(entry->d_name, ".rules"))
      continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    for (int64_t world = 4; world <= 12; world += 4)
      assert_true(check_file(path, world) > 0);
    files++;
  }
  closedir(dir);
  assert_true(files >= 10);
}

RUN_CASES
