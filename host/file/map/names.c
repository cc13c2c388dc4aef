/* Names of a map against the names of the source.
 *
 * A star takes as few characters as it can, and none is tried twice. A star has no '.' in it, so a text with a '.'
 * behind a star fits at one place at most. Where it has none, a later place only makes the next star shorter. So a
 * match is one pass over the name.
 *
 * The source's names are sorted once. A name of the map is compared with those that have its plain beginning. A name
 * that is made from a match is found by bisection. */
#include "file/map/names.h"

#include "base/dtype.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

const char *rs_map_quote(char *buffer, size_t size, const struct reshard_map_s *map, const rs_map_node *node) {
  char whole[RS_QUOTE];
  const char *piece = map->text.at + node->text;
  rs_text text = {.at = whole, .size = sizeof whole};
  rs_text_add(&text, "%s", piece);
  for (int i = 0; i < node->stars && text.length < text.size; i++) {
    piece += strlen(piece) + 1;
    rs_text_add(&text, "*%s", piece);
  }
  return rs_quote(buffer, size, whole);
}

static int by_name(const void *a, const void *b) {
  const rs_sorted_name *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  return order != 0 ? order : (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

reshard_status rs_map_sort(reshard_model model, rs_sorted_name **names) {
  int64_t n = model->tensors.n;
  RS_TRY(rs_alloc(names, n, sizeof **names));
  for (int64_t i = 0; i < n; i++)
    (*names)[i] = (rs_sorted_name){rs_model_name(model, i), i};
  if (n > 0)
    qsort(*names, (size_t)n, sizeof **names, by_name);
  return RESHARD_SUCCESS;
}

/* Place of the first name that is not below `from`. */
static int64_t first_from(const rs_map_source *s, const char *from) {
  int64_t low = 0, high = s->model->tensors.n;
  RS_LOWER_BOUND(low, high, strcmp(s->names[i].name, from) < 0);
  return low;
}

/* '*' and nothing else, which stands for '.' too. */
static bool is_any(const char *pieces, int stars) { return stars == 1 && pieces[0] == '\0' && pieces[1] == '\0'; }

/* Matches a name with pieces that have stars between; star, when not NULL, then has the text of each. */
static bool fits_name(const char *piece, int stars, const char *name, rs_map_star *star) {
  size_t length = strlen(piece);
  bool any = is_any(piece, stars);
  if (strncmp(name, piece, length) != 0)
    return false;
  name += length;
  for (int i = 0; i < stars; i++) {
    bool last = i == stars - 1; /* the text behind it ends the name, so there is one place for it */
    piece += length + 1;
    length = strlen(piece);
    size_t most = any ? strlen(name) : strcspn(name, "."), rest = last ? strlen(name) : 0;
    size_t take = !last ? 1 : rest > length ? rest - length : most + 1;
    while (!last && take <= most && strncmp(name + take, piece, length) != 0)
      take++;
    if (take > most || strncmp(name + take, piece, length) != 0)
      return false;
    if (star != NULL)
      star[i] = (rs_map_star){name, take};
    name += take + length;
  }
  return *name == '\0';
}

reshard_status rs_map_find_all(const rs_map_source *s, int64_t node, rs_map_matches *matches) {
  const rs_map_node *name = &s->map->nodes.at[node];
  const char *pieces = s->map->text.at + name->text;
  size_t length = strlen(pieces);
  for (int64_t i = first_from(s, pieces); i < s->model->tensors.n; i++) {
    const rs_sorted_name *named = &s->names[i];
    if (strncmp(named->name, pieces, length) != 0)
      break;
    if (s->taken[named->tensor] != 0 || !fits_name(pieces, name->stars, named->name, NULL))
      continue;
    RS_TRY(rs_vec_push(matches, (rs_pair){(uint64_t)named->tensor, (uint64_t)node}));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_map_match(rs_map_source *s, int64_t tensor, int64_t node) {
  const rs_map_node *name = &s->map->nodes.at[node];
  RS_TRY(rs_vec_reserve(&s->star, name->stars));
  s->match = rs_model_name(s->model, tensor);
  fits_name(s->map->text.at + name->text, name->stars, s->match, s->star.at);
  return RESHARD_SUCCESS;
}

reshard_status rs_map_text_add(rs_map_source *s, const char *from, size_t n) {
  RS_TRY(rs_vec_reserve(&s->text, s->text.n + (int64_t)n + 1));
  memcpy(s->text.at + s->text.n, from, n);
  s->text.n += (int64_t)n;
  s->text.at[s->text.n] = '\0';
  return RESHARD_SUCCESS;
}

reshard_status rs_map_name(rs_map_source *s, const rs_map_node *name, const char **rest) {
  const char *piece = s->map->text.at + name->text;
  s->text.n = 0;
  RS_TRY(rs_map_text_add(s, piece, strlen(piece)));
  for (int i = 0; i < s->line->stars; i++) {
    piece += strlen(piece) + 1;
    RS_TRY(rs_map_text_add(s, s->star.at[i].at, s->star.at[i].length));
    RS_TRY(rs_map_text_add(s, piece, strlen(piece)));
  }
  *rest = piece + strlen(piece) + 1;
  return RESHARD_SUCCESS;
}

/* The tensor named s->text, -1 when there is none. */
static int64_t find_tensor(const rs_map_source *s) {
  int64_t i = first_from(s, s->text.at);
  return i < s->model->tensors.n && strcmp(s->names[i].name, s->text.at) == 0 ? s->names[i].tensor : -1;
}

bool rs_map_multiplies(reshard_dtype from, reshard_dtype to) { return from == RESHARD_F8_E4M3 && rs_blocks_know(to); }

/* A name against that of the scales of values. */
static int compare_to_scales(const char *name, const char *values) {
  size_t length = strlen(values);
  int order = strncmp(name, values, length);
  return order != 0 ? order : strcmp(name + length, RS_SCALES);
}

bool rs_map_take_scales(rs_map_source *s, int64_t tensor) {
  const char *values = rs_model_name(s->model, tensor);
  int64_t low = 0, high = s->model->tensors.n;
  RS_LOWER_BOUND(low, high, compare_to_scales(s->names[i].name, values) < 0);
  if (low == s->model->tensors.n || compare_to_scales(s->names[low].name, values) != 0)
    return false;
  int64_t *taken = &s->taken[s->names[low].tensor];
  if (*taken == 0)
    *taken = s->line->line;
  return true;
}

reshard_status rs_map_take(rs_map_source *s, const rs_map_node *name, int64_t *tensor) {
  const char *rest;
  char quoted[RS_QUOTE], match[RS_QUOTE];
  RS_TRY(rs_map_name(s, name, &rest));
  *tensor = find_tensor(s);
  rs_quote(quoted, sizeof quoted, s->text.at);
  if (s->match != NULL)
    rs_quote(match, sizeof match, s->match);
  if (*tensor < 0 && s->match != NULL)
    return rs_map_error(s->map, name->line, name->column, "there is no tensor '%s' to go with '%s'", quoted, match);
  if (*tensor < 0)
    return rs_map_error(s->map, name->line, name->column, "there is no tensor '%s'", quoted);
  int64_t *taken = &s->taken[*tensor];
  if (s->match != NULL && *taken != 0 && *taken != s->line->line)
    return rs_map_error(s->map, name->line, name->column, "line %lld has taken '%s', which goes with '%s'",
                        (long long)*taken, quoted, match);
  if (*taken == 0)
    *taken = s->line->line;
  return RESHARD_SUCCESS;
}

/* Matches a tensor that no line before has taken with s->text, a star, and `end`; *star then has the text of the star.
 */
static bool fits_one(const rs_map_source *s, bool any, const rs_sorted_name *named, const char *end,
                     rs_map_star *star) {
  size_t rest = strlen(named->name + s->text.n), behind = strlen(end);
  int64_t taken = s->taken[named->tensor];
  if (rest <= behind || (taken != 0 && taken != s->line->line))
    return false;
  *star = (rs_map_star){named->name + s->text.n, rest - behind};
  return strcmp(star->at + star->length, end) == 0 && (any || memchr(star->at, '.', star->length) == NULL);
}

/* Puts a tensor of a spread name at its index; *largest: of all indices so far. */
static reshard_status place_index(rs_map_source *s, const rs_map_node *name, rs_map_star star, int64_t tensor,
                                  int64_t *largest) {
  char quoted[RS_QUOTE], other[RS_QUOTE];
  int64_t index = 0;
  rs_quote(quoted, sizeof quoted, rs_model_name(s->model, tensor));
  for (size_t i = 0; i < star.length; i++) {
    if (star.at[i] < '0' || star.at[i] > '9')
      return rs_map_error(s->map, name->line, name->column, "'%s' has no index where the last '*' is", quoted);
    index = rs_min(index * 10 + (star.at[i] - '0'), s->spread.n);
  }
  *largest = rs_max(*largest, index);
  if (index == s->spread.n)
    return RESHARD_SUCCESS;
  int64_t *at = &s->spread.at[index];
  if (*at >= 0)
    return rs_map_error(s->map, name->line, name->column, "'%s' and '%s' have the same index",
                        rs_quote(other, sizeof other, rs_model_name(s->model, *at)), quoted);
  *at = tensor;
  return RESHARD_SUCCESS;
}

/* The error of the first index that no tensor has. */
static reshard_status missing_index(rs_map_source *s, const rs_map_node *name, const char *end) {
  char index[24], quoted[RS_QUOTE], pattern[RS_QUOTE], why[64] = "";
  int64_t i = 0;
  while (s->spread.at[i] >= 0)
    i++;
  rs_text text = {.at = index, .size = sizeof index}, because = {.at = why, .size = sizeof why};
  rs_text_add(&text, "%lld", (long long)i);
  RS_TRY(rs_map_text_add(s, index, text.length));
  RS_TRY(rs_map_text_add(s, end, strlen(end)));
  int64_t tensor = find_tensor(s);
  if (tensor >= 0)
    rs_text_add(&because, ": line %lld has taken it", (long long)s->taken[tensor]);
  return rs_map_error(s->map, name->line, name->column, "'%s' is missing among the %lld that match '%s'%s",
                      rs_quote(quoted, sizeof quoted, s->text.at), (long long)s->spread.n,
                      rs_map_quote(pattern, sizeof pattern, s->map, name), why);
}

reshard_status rs_map_take_all(rs_map_source *s, const rs_map_node *name) {
  const char *end;
  char quoted[RS_QUOTE];
  RS_TRY(rs_map_name(s, name, &end));
  bool any = is_any(s->map->text.at + name->text, name->stars);
  int64_t first = first_from(s, s->text.at), last = first, count = 0, largest = 0;
  rs_map_star star;
  for (; last < s->model->tensors.n; last++) {
    if (strncmp(s->names[last].name, s->text.at, (size_t)s->text.n) != 0)
      break;
    count += fits_one(s, any, &s->names[last], end, &star);
  }
  if (count == 0) {
    RS_TRY(rs_map_text_add(s, "*", 1));
    RS_TRY(rs_map_text_add(s, end, strlen(end)));
    return rs_map_error(s->map, name->line, name->column, "no tensor that the lines before have left matches '%s'",
                        rs_quote(quoted, sizeof quoted, s->text.at));
  }
  RS_TRY(rs_vec_reserve(&s->spread, count));
  for (s->spread.n = 0; s->spread.n < count; s->spread.n++)
    s->spread.at[s->spread.n] = -1;
  for (int64_t i = first; i < last; i++)
    if (fits_one(s, any, &s->names[i], end, &star))
      RS_TRY(place_index(s, name, star, s->names[i].tensor, &largest));
  if (largest >= count)
    return missing_index(s, name, end);
  for (int64_t i = 0; i < count; i++)
    if (s->taken[s->spread.at[i]] == 0)
      s->taken[s->spread.at[i]] = s->line->line;
  return RESHARD_SUCCESS;
}
