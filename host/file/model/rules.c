/* Rules: shell patterns on tensor names, first match wins; blocks of names that belong together.
 *
 * Most patterns end in plain text (".q_proj.weight"). That tail is compared first, which settles most rules in a few
 * nanoseconds. */
#include "file/model/rules.h"

#include "base/text.h"
#include "file/ground/file.h"
#include "layout/text/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "NAME:LINE:COLUMN" as it begins an error. */
static const char *place_of_rule(char where[RS_WHERE], const struct reshard_rules_s *rules, int64_t line,
                                 int64_t column) {
  char quoted[RS_WHERE - 64];
  rs_text text = {.at = where, .size = RS_WHERE};
  rs_text_add(&text, "%s:%lld:%lld", rs_quote(quoted, sizeof quoted, rules->name), (long long)line, (long long)column);
  return where;
}

reshard_status rs_rules_error(const struct reshard_rules_s *rules, int64_t line, reshard_status status) {
  char where[RS_WHERE];
  int64_t column = 1;
  for (int64_t i = 0; i < rules->rules.n; i++)
    if (rules->rules.at[i].line == line)
      column = rules->rules.at[i].layout_column;
  for (int64_t i = 0; i < rules->blocks.n; i++)
    if (rules->blocks.at[i].line == line)
      column = rules->blocks.at[i].column;
  return rs_error(status, "%s: %s", place_of_rule(where, rules, line, column), reshard_last_error());
}

static reshard_status check_pattern(const struct reshard_rules_s *rules, rs_rule *r) {
  char where[RS_WHERE];
  int64_t item = 0;
  const char *problem = rs_pattern_problem(r->pattern, &item);
  if (problem != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s", place_of_rule(where, rules, r->line, r->pattern_column + item),
                    problem);
  r->tail = r->pattern + strlen(r->pattern);
  while (r->tail > r->pattern && rs_pattern_plain(r->tail[-1]))
    r->tail--;
  r->tail_length = strlen(r->tail);
  return RESHARD_SUCCESS;
}

enum { PIECES_MOST = 1 << 16 };

/* The grid of "mesh(2x16@96-127;R,KEY#/N)": replicas by places, row-major from its first rank on. */
typedef struct numbered_mesh {
  long long replicas, places, first;
} numbered_mesh;

/* Reads the grid; NULL: the layout begins otherwise, else what is behind. */
static const char *read_numbered_mesh(const char *layout, numbered_mesh *m) {
  long long last;
  int length = 0;
  if (sscanf(layout, "mesh(%lldx%lld@%lld-%lld;R,%n", &m->replicas, &m->places, &m->first, &last, &length) != 4 ||
      length == 0 || m->replicas < 1 || m->places < 1 || m->replicas > PIECES_MOST || m->places > PIECES_MOST ||
      m->first < 0 || last - m->first + 1 != m->replicas * m->places)
    return NULL;
  return layout + length;
}

/* Writes the layout of piece i of n: one rank, or one of each replica. */
static void write_numbered(rs_text *text, const numbered_mesh *m, long long i, long long n) {
  if (m->replicas == 0) {
    rs_text_add(text, "rank(%lld/%lld)", i, n);
    return;
  }
  rs_text_add(text, "mesh(%lld@", m->replicas);
  for (long long k = 0; k < m->replicas; k++)
    rs_text_add(text, "%s%lld", k > 0 ? "," : "", m->first + k * m->places + i / rs_ceil_div(n, m->places));
  rs_text_add(text, ";R)");
}

/* "rank(KEY#/N)", "mesh(2x16@96-127;R,KEY#/N)": layouts for all numbers. Leaves other layouts alone. */
static reshard_status read_numbered(const struct reshard_rules_s *rules, rs_rule *r) {
  char where[RS_WHERE], *end = NULL;
  const char *mark = strchr(r->layout, '#');
  numbered_mesh mesh = {0};
  const char *key = strncmp(r->layout, "rank(", 5) == 0 ? r->layout + 5 : read_numbered_mesh(r->layout, &mesh);
  if (key == NULL || mark == NULL)
    return RESHARD_SUCCESS;
  int64_t column = r->layout_column + (mark - r->layout);
  long long n = mark[1] == '/' && mark[2] >= '1' && mark[2] <= '9' ? strtoll(mark + 2, &end, 10) : 0;
  if (mark == key)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the text before the number is needed, as in rank(experts.#/128)",
                    place_of_rule(where, rules, r->line, column));
  if (n < 1 || n > PIECES_MOST || strcmp(end, ")") != 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: '#' is followed by /N), N from 1 to %d, as in rank(experts.#/128)",
                    place_of_rule(where, rules, r->line, column), PIECES_MOST);
  int64_t room = 32 + 24 * mesh.replicas;
  RS_TRY(rs_alloc_zero((char **)&r->each, n * ((int64_t)sizeof *r->each + room), 1));
  r->key = key;
  r->key_length = (size_t)(mark - key);
  r->pieces = n;
  for (int64_t i = 0; i < n; i++) {
    r->each[i] = (char *)(r->each + n) + i * room;
    rs_text text = {.at = r->each[i], .size = (size_t)room};
    write_numbered(&text, &mesh, i, n);
  }
  if (mesh.replicas > 0) /* of its ranks; a rank of n goes by the world */
    r->world = mesh.first + mesh.replicas * mesh.places;
  return RESHARD_SUCCESS;
}

/* The layout string of a rule for a tensor. */
static reshard_status layout_of_tensor(const struct reshard_rules_s *rules, const rs_rule *r, const char *tensor,
                                       const char **layout) {
  char where[RS_WHERE], quoted[RS_QUOTE];
  if (r->refuses)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %.*s",
                    place_of_rule(where, rules, r->line, r->layout_column), rs_quote(quoted, sizeof quoted, tensor),
                    (int)rs_min((int64_t)strlen(r->layout) - 8, RS_WHERE), r->layout + 7);
  *layout = r->layout;
  if (r->pieces == 0)
    return RESHARD_SUCCESS;
  const char *found = NULL;
  for (const char *p = tensor; *p != '\0'; p++)
    if (strncmp(p, r->key, r->key_length) == 0 && p[r->key_length] >= '0' && p[r->key_length] <= '9')
      found = p + r->key_length;
  long long number = found != NULL ? strtoll(found, NULL, 10) : -1;
  if (number < 0 || number >= r->pieces)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' has no number below %lld behind '%.*s'",
                    place_of_rule(where, rules, r->line, r->layout_column), rs_quote(quoted, sizeof quoted, tensor),
                    (long long)r->pieces, (int)rs_min((int64_t)r->key_length, 64), r->key);
  *layout = r->each[number];
  return RESHARD_SUCCESS;
}

#define BLANKS " \t\r\v\f"
static bool is_blank(char c) { return c != '\0' && strchr(BLANKS, c) != NULL; }

/* Cuts off what stands at p, up to a comment, and returns it. */
static char *cut_rest(char *p) {
  char *first = p;
  while (*p != '\0' && !(*p == '#' && is_blank(p[-1])))
    p++;
  while (is_blank(p[-1]))
    p--;
  *p = '\0';
  return first;
}

/* A line of blocks: p is behind its first word. A tensor named "blocks" may have a rule, whose layout has a '('. */
static bool begins_blocks(const char *line, const char *p) {
  const char *word = p + strspn(p, BLANKS);
  size_t length = strcspn(word, BLANKS);
  return p - line == 6 && memcmp(line, "blocks", 6) == 0 && length > 0 && *word != '#' &&
         memchr(word, '(', length) == NULL;
}

/* SUFFIX 128x128; line: for columns */
static reshard_status add_blocks(reshard_rules rules, const char *line, char *p, int64_t number) {
  char where[RS_WHERE];
  cut_rest(p);
  char *end = p + strcspn(p, BLANKS), *at = end + strspn(end, BLANKS);
  rs_rule_blocks b = {.suffix = p, .shown = at, .suffix_length = (size_t)(end - p), .line = number};
  for (b.column = at - line + 1;; at++) {
    char *next = at;
    long long extent = *at >= '1' && *at <= '9' && b.ndim < RESHARD_MAX_DIMS ? strtoll(at, &next, 10) : 0;
    if (extent < 1 || extent == INT64_MAX || (*next != 'x' && *next != '\0'))
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: the extents of a block are needed here, as in blocks _scale_inv 128x128",
                      place_of_rule(where, rules, number, at - line + 1));
    b.extent[b.ndim++] = extent;
    at = next;
    if (*at == '\0')
      break;
  }
  return rs_vec_push(&rules->blocks, b);
}

static reshard_status read_refusal(const struct reshard_rules_s *rules, rs_rule *r) {
  char where[RS_WHERE];
  r->refuses = strncmp(r->layout, "refuse(", 7) == 0;
  return !r->refuses || (rs_ends(r->layout, ")") && r->layout[7] != ')')
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INVALID,
                        "%s: a reason in parentheses is needed, as in refuse(packed along dim 0)",
                        place_of_rule(where, rules, r->line, r->layout_column));
}

/* "mesh(tp;S0) bf16": cuts the dtype off that stands behind a layout. */
static reshard_status cut_dtype(const struct reshard_rules_s *rules, char *layout, rs_rule *r) {
  char where[RS_WHERE], *end = strrchr(layout, ')');
  char *word = end != NULL ? end + 1 + strspn(end + 1, BLANKS) : layout;
  if (r->refuses || end == NULL || word == end + 1 || *word == '\0')
    return RESHARD_SUCCESS; /* what else stands there the layout's own reader tells */
  end[1] = '\0';
  reshard_status status = reshard_dtype_parse_blocks(word, &r->dtype, &r->blocks);
  return status == RESHARD_SUCCESS
             ? RESHARD_SUCCESS
             : rs_error(status, "%s: %s behind the layout",
                        place_of_rule(where, rules, r->line, r->layout_column + (word - layout)), reshard_last_error());
}

/* One line, NUL-terminated; its strings are cut off in place. */
static reshard_status add_line(reshard_rules rules, char *line, int64_t number) {
  char where[RS_WHERE], quoted[RS_QUOTE];
  char *p = line + strspn(line, BLANKS);
  if (*p == '\0' || *p == '#')
    return RESHARD_SUCCESS;
  rs_rule r = {.pattern = p, .line = number, .pattern_column = p - line + 1};
  char *pattern_end = p + strcspn(p, BLANKS);
  p = pattern_end + strspn(pattern_end, BLANKS);
  if (begins_blocks(r.pattern, pattern_end))
    return add_blocks(rules, line, p, number);
  if (*p == '\0' || *p == '#') {
    *pattern_end = '\0';
    return rs_error(RESHARD_ERROR_INVALID, "%s: no layout behind pattern '%s'",
                    place_of_rule(where, rules, number, pattern_end - line + 1),
                    rs_quote(quoted, sizeof quoted, r.pattern));
  }
  char *layout = cut_rest(p);
  r.layout = layout;
  r.layout_column = p - line + 1;
  *pattern_end = '\0';
  RS_TRY(check_pattern(rules, &r));
  RS_TRY(read_refusal(rules, &r));
  RS_TRY(cut_dtype(rules, layout, &r));
  RS_TRY(rs_vec_reserve(&rules->rules, rules->rules.n + 1));
  RS_TRY(read_numbered(rules, &r));
  rules->rules.at[rules->rules.n++] = r;
  int64_t world = r.world;
  if (r.pieces == 0 && !r.refuses) {
    rs_rule *kept = &rules->rules.at[rules->rules.n - 1];
    reshard_status status = rs_layout_text_piped(r.layout, &kept->own);
    kept->layout = kept->own != NULL ? kept->own : r.layout;
    RS_THEN(status, reshard_layout_parse_world(kept->layout, &world));
    if (status != RESHARD_SUCCESS)
      return rs_rules_error(rules, number, status);
  }
  rules->world = rs_max(rules->world, world);
  return RESHARD_SUCCESS;
}

/* Takes text over, also when it fails. */
static reshard_status parse_rules(char *text, const char *name, reshard_rules *out) {
  reshard_rules rules;
  reshard_status status = rs_alloc_zero(&rules, 1, sizeof *rules);
  RS_TRY_OR(status, free(text));
  rules->text = text;
  RS_TRY_GOTO(status, rs_alloc_copy(&rules->name, name, (int64_t)strlen(name) + 1, 1), fail);
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* the mark that some editors put before UTF-8 */
    text += 3;
  for (int64_t number = 1; text != NULL; number++) {
    char *line = text, *end = strchr(line, '\n');
    text = end != NULL ? end + 1 : NULL;
    if (end != NULL)
      *end = '\0';
    RS_TRY_GOTO(status, add_line(rules, line, number), fail);
  }
  *out = rules;
  return RESHARD_SUCCESS;
fail:
  reshard_rules_free(rules);
  return status;
}

reshard_status reshard_rules_parse(const char *text, const char *name, reshard_rules *rules) {
  if (text == NULL || rules == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_parse: NULL argument");
  char *copy;
  RS_TRY(rs_alloc_copy(&copy, text, (int64_t)strlen(text) + 1, 1));
  return parse_rules(copy, name != NULL ? name : "rules", rules);
}

reshard_status reshard_rules_load(const char *path, reshard_rules *rules) {
  if (path == NULL || rules == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_load: NULL argument");
  char where[RS_WHERE], *text;
  int64_t size;
  RS_TRY(rs_read_all(rs_where(where, "rule file", path), path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size));
  if ((int64_t)strlen(text) < size) {
    rs_error(RESHARD_ERROR_INVALID, "%s: byte %zu is NUL, this is no text", where, strlen(text));
    free(text);
    return RESHARD_ERROR_INVALID;
  }
  return parse_rules(text, path, rules);
}

void reshard_rules_free(reshard_rules rules) {
  if (rules == NULL)
    return;
  for (int64_t i = 0; i < rules->rules.n; i++) {
    free(rules->rules.at[i].own);
    free(rules->rules.at[i].each);
  }
  free(rules->rules.at);
  free(rules->blocks.at);
  free(rules->text);
  free(rules->name);
  free(rules);
}

const rs_rule_blocks *rs_rules_blocks(const struct reshard_rules_s *rules, const char *tensor) {
  size_t length = strlen(tensor);
  for (int64_t i = 0; i < rules->blocks.n; i++) {
    const rs_rule_blocks *b = &rules->blocks.at[i];
    if (length > b->suffix_length && memcmp(tensor + length - b->suffix_length, b->suffix, b->suffix_length) == 0)
      return b;
  }
  return NULL;
}

static reshard_status find_rule_of(const struct reshard_rules_s *rules, const char *tensor, const rs_rule **out) {
  size_t length = strlen(tensor);
  for (int64_t i = 0; i < rules->rules.n; i++) {
    const rs_rule *r = &rules->rules.at[i];
    if (r->tail_length <= length && memcmp(tensor + length - r->tail_length, r->tail, r->tail_length) == 0 &&
        rs_pattern_matches(r->pattern, tensor)) {
      *out = r;
      return RESHARD_SUCCESS;
    }
  }
  char file[RS_WHERE - 64], quoted[RS_QUOTE];
  return rs_error(RESHARD_ERROR_INVALID, "%s: none of the %lld rules matches tensor '%s'",
                  rs_quote(file, sizeof file, rules->name), (long long)rules->rules.n,
                  rs_quote(quoted, sizeof quoted, tensor));
}

/* Scales of blocks go with what they are of. */
static reshard_status find_rule(const struct reshard_rules_s *rules, const char *tensor, const rs_rule **out) {
  const rs_rule_blocks *b = rs_rules_blocks(rules, tensor);
  char *of;
  if (b == NULL)
    return find_rule_of(rules, tensor, out);
  RS_TRY(rs_alloc_copy(&of, tensor, (int64_t)strlen(tensor) + 1, 1));
  of[strlen(of) - b->suffix_length] = '\0';
  reshard_status status = find_rule_of(rules, of, out);
  free(of);
  return status;
}

reshard_status reshard_rules_match(reshard_rules rules, const char *tensor, const char **layout, int64_t *line) {
  if (rules == NULL || tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_match: NULL argument");
  const rs_rule *r;
  const char *text;
  RS_TRY(find_rule(rules, tensor, &r));
  RS_TRY(layout_of_tensor(rules, r, tensor, &text));
  if (layout != NULL)
    *layout = text;
  if (line != NULL)
    *line = r->line;
  return RESHARD_SUCCESS;
}

reshard_status reshard_rules_dtype(reshard_rules rules, const char *tensor, reshard_dtype *dtype,
                                   reshard_blocks *blocks) {
  RS_TRY(RS_GIVEN("reshard_rules_dtype", rules, tensor, dtype));
  const rs_rule *r;
  RS_TRY(find_rule(rules, tensor, &r));
  bool own = rs_rules_blocks(rules, tensor) == NULL;
  *dtype = own ? r->dtype : RESHARD_DTYPE_NONE;
  if (blocks != NULL)
    *blocks = own ? r->blocks : (reshard_blocks){0};
  return RESHARD_SUCCESS;
}

reshard_status reshard_rules_layout(reshard_rules rules, const char *tensor, int ndim, const int64_t *shape,
                                    int64_t world, reshard_layout *layout) {
  if (rules == NULL || tensor == NULL || layout == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_layout: NULL argument");
  const rs_rule *r;
  const char *string;
  RS_TRY(find_rule(rules, tensor, &r));
  RS_TRY(layout_of_tensor(rules, r, tensor, &string));
  reshard_status status = rs_layout_parse_many(string, ndim, shape, world, layout);
  if (status == RESHARD_SUCCESS || status == RESHARD_ERROR_OUT_OF_MEMORY)
    return status;
  char where[RS_WHERE], quoted[RS_QUOTE];
  return rs_error(status, "%s: tensor '%s': %s", place_of_rule(where, rules, r->line, r->layout_column),
                  rs_quote(quoted, sizeof quoted, tensor), reshard_last_error());
}

reshard_status reshard_rules_world(reshard_rules rules, int64_t *world) {
  if (rules == NULL || world == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_world: NULL argument");
  *world = rules->world;
  return RESHARD_SUCCESS;
}

reshard_status reshard_rules_set_size(reshard_rules rules, const char *mesh_dim, int64_t size, int64_t *changed) {
  if (rules == NULL || mesh_dim == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_set_size: NULL argument");
  if (size < 1)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_rules_set_size: mesh dim '%.64s' of size %lld", mesh_dim,
                    (long long)size);
  char **made;
  int64_t n = rules->rules.n, count = 0, world = rules->world;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&made, n, sizeof *made));
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    int64_t named = 0;
    if (!rules->rules.at[i].refuses && rules->rules.at[i].pieces == 0)
      status = rs_layout_text_size(rules->rules.at[i].layout, mesh_dim, size, &made[i]);
    if (status == RESHARD_SUCCESS && made[i] != NULL)
      status = reshard_layout_parse_world(made[i], &named);
    world = rs_max(world, named);
  }
  for (int64_t i = 0; i < n; i++) { /* all rules or none */
    rs_rule *r = &rules->rules.at[i];
    if (made[i] == NULL)
      continue;
    char *old = status == RESHARD_SUCCESS ? r->own : made[i];
    if (status == RESHARD_SUCCESS)
      r->layout = r->own = made[i];
    count++;
    free(old);
  }
  free(made);
  RS_TRY(status);
  rules->world = world;
  if (changed != NULL)
    *changed = count;
  return RESHARD_SUCCESS;
}
